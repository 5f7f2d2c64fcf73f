# SPDX-License-Identifier: Apache-2.0
"""Threads, child processes, models that are dropped, and tensors that outlive an attachment."""

from __future__ import annotations

import gc
import os
import threading
import warnings

import pytest
import torch
from attach_models import WIDTH, Borrower, page, rows, same_passes, stack, with_reference
from interrupts import interrupted
from torch import nn

from penstock.errors import UsageError
from penstock.paging import attachments, turns

pytestmark = pytest.mark.usefixtures("no_attachments")


def threads():
    return len(os.listdir("/proc/self/task"))


def maps():
    with open("/proc/self/maps") as lines:
        return sum(1 for line in lines if "memfd" in line)


def run_in_threads(work, count=4):
    errors = []

    def body(number):
        try:
            with torch.no_grad():
                work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running)
    return errors


@pytest.mark.parametrize("passes_before", [0, 6])
def test_passes_of_threads_take_turns(passes_before):
    model, reference = with_reference(stack())
    with page(model):
        same_passes(model, reference, passes_before)
        wrong = []

        def work(number):
            for n in range(10):
                x = rows(seed=100 * number + n)
                wrong.append(not torch.equal(model(x), reference(x)))

        assert run_in_threads(work) == []
        assert len(wrong) == 40
        assert not any(wrong)
        assert same_passes(model, reference)
    assert same_passes(model, reference)


def test_models_of_one_attachment_take_turns():
    models = [stack(), stack()]
    references = [with_reference(model)[1] for model in models]
    with page(models):
        wrong = []

        def work(number):
            for n in range(10):
                x = rows(seed=100 * number + n)
                wrong.append(not torch.equal(models[n % 2](x), references[n % 2](x)))

        assert run_in_threads(work) == []
        assert len(wrong) == 40
        assert not any(wrong)


def test_a_thread_within_a_pass_is_refused_what_would_wait_for_the_pass(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE_S", 0.2)

    class Parallel(nn.Module):
        def __init__(self, work):
            super().__init__()
            self.layers = stack()
            self.work = work
            self.errors = []

        def forward(self, x):
            self.errors = run_in_threads(lambda _: self.work(self), 1)
            return self.layers(x)

    for work, says in (
        (lambda model: model.layers[0](rows()), "layers.0 is called while another thread"),
        (lambda model: model.layers[0].weight.sum(), "layers.0.weight is read while another"),
    ):
        model = Parallel(work).eval()
        with page(model):
            for _ in range(3):
                model(rows())
                (error,) = model.errors
                assert isinstance(error, UsageError)
                assert says in str(error)


def test_parts_that_threads_call_alone_wait_for_the_passes_of_others():
    """As generate() of encoder-decoders does with the encoder."""
    model, reference = with_reference(stack())
    x = rows()
    part, whole = reference[0](x), reference(x)
    with page(model):

        def work(_):
            for _ in range(20):
                assert torch.equal(model[0](x), part)
                assert torch.equal(model(x), whole)

        assert run_in_threads(work, 3) == []


def test_a_thread_may_ask_where_a_model_is_that_another_runs():
    class Asked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = stack()
            self.errors, self.found = [], []

        def ask(self, _):
            self.found.append(next(self.parameters()).device)

        def forward(self, x):
            self.errors += run_in_threads(self.ask, 1)
            return self.layers(x)

    model = Asked().eval()
    with page(model) as attached:
        for _ in range(3):
            model(rows())
        assert model.errors == []
        assert model.found == 3 * [attached.torch_device]


def test_an_interrupted_pass_keeps_nobody_waiting():
    model, reference = with_reference(stack())

    def interrupt(*_):
        raise KeyboardInterrupt

    with page(model):
        for n in range(3):
            hook = model[n].register_forward_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                model(rows())
            hook.remove()
            results = []
            assert (
                run_in_threads(lambda _, r=results: r.append(same_passes(model, reference, 2)), 1)
                == []
            )
            assert results == [True]
        assert same_passes(model, reference)
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("call", ["begin", "end"])
def test_an_interrupt_may_come_while_a_use_begins_or_ends(call):
    model, reference = with_reference(Borrower())
    with page(model) as attached:
        assert same_passes(model, reference)
        for number in range(1, 9):
            with interrupted(attached.pager, call, number):
                model(rows())
            assert same_passes(model, reference, 2)
        attached.resize("60KiB")  # where what is left running would not fit
        assert same_passes(model, reference)


@pytest.mark.parametrize("kib", [80, 1024])
def test_a_child_process_is_refused_and_the_parent_unharmed(kib):
    model, reference = with_reference(stack())
    attached = page(model, kib)
    assert same_passes(model, reference, 6)

    def tries():
        yield "call", lambda: model(rows())
        yield "part", lambda: model[3](rows())
        yield "read", lambda: model[3].weight.sum()
        yield "stats", attached.stats
        yield "detach", attached.detach

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        refused = 0
        for _, attempt in tries():
            try:
                attempt()
            except UsageError as error:
                refused += "child" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(list(tries()))
    assert same_passes(model, reference, 3)
    attached.detach()
    assert same_passes(model, reference)


def test_dropped_without_detach():
    gc.collect()
    before = threads(), maps()
    for _ in range(3):
        model = stack()
        page(model)
        model(rows())
        assert threads() > before[0]
        del model
        gc.collect()
        assert attachments() == []
        assert (threads(), maps()) == before


def test_the_attachment_lives_as_long_as_its_model():
    model, reference = with_reference(stack())
    page(model)
    gc.collect()
    (attached,) = attachments()
    assert same_passes(model, reference)
    attached.detach()


def test_a_weight_outlives_its_model():
    model, reference = with_reference(stack())
    page(model)
    assert same_passes(model, reference)
    weight, view = model[3].weight, model[4].weight.detach()[:3]
    del model
    gc.collect()
    assert attachments() == []
    assert torch.equal(weight, reference[3].weight)
    assert torch.equal(view, reference[4].weight[:3])


def test_views_outlive_detach():
    model, reference = with_reference(stack())
    attached = page(model)
    assert same_passes(model, reference)
    views = [parameter.detach()[:3] for parameter in model.parameters()]
    attached.detach()
    for view, want in zip(views, reference.parameters(), strict=True):
        assert torch.equal(view, want[:3])
    assert same_passes(model, reference)
    page(model).detach()  # the same model again, beside them


def test_what_a_loader_was_given_outlives_its_failure():
    kept = []

    def load(name, destination):
        if name == "5.weight":
            raise OSError("broken")
        kept.append(destination.fill_(len(kept)))

    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)])
    with pytest.raises(OSError, match="broken"):
        page(model, load=load)
    assert [int(tensor.sum()) // tensor.numel() for tensor in kept] == list(range(10))


def test_two_models_side_by_side():
    first, second = with_reference(stack()), with_reference(stack(6))
    with page(first[0]), page(second[0], 60):
        for _ in range(3):
            assert same_passes(*first, 2)
            assert same_passes(*second, 2)
    assert same_passes(*first)


def test_attaching_again_and_again_leaves_no_objects():
    """Not one for each of twelve blocks; other libraries' come and go."""
    model = stack(6)
    counts = []
    for _ in range(5):
        page(model).detach()
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[-1] - counts[1] < 12


def test_blocks_are_shown_without_what_is_in_them():
    """Which is not there while they are away: tracebacks with values show them."""
    model = stack(6)
    with page(model) as attached:
        model(rows())
        shown = repr(attached.store.blocks)
    assert "Slot(" in shown
    assert "tensor(" not in shown
