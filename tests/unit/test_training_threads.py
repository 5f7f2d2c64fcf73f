# SPDX-License-Identifier: Apache-2.0
"""attach_training() in several threads: two models at once, and one model, a thread at a time."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from own_thread import in_a_thread
from training_both import DATA, backward, make, plain_step
from training_tower import adamw, drawn, loss_of, page, pair, same_state, same_weights

from penstock.errors import UsageError

STEPS = 4


def test_two_models_in_two_threads():
    plain = [drawn(make), drawn(make, layers=3)]
    paged = copy.deepcopy(plain)

    def train(model, optimizer, seed=None):
        if seed is None:
            return [plain_step(model, optimizer, n) for n in range(STEPS)]
        with page(model, optimizer, chunks=3, seed=seed) as attached:
            together.wait()
            losses = [plain_step(model, optimizer, n) for n in range(STEPS)]
            assert attached.stats().iteration_page_loads > 0
        return losses

    first, second = [adamw(x) for x in plain], [adamw(x) for x in paged]
    want = list(map(train, plain, first))
    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, paged, second, (1, 2))) == want
    assert all(map(same_weights, plain, paged))
    assert all(map(same_state, first, second))


class Held:
    """A point that a thread waits at until it is told to go on."""

    def __init__(self):
        self.there, self.go = threading.Event(), threading.Event()
        self.times = 0

    def __call__(self, *_):
        self.times += 1
        if self.times == 1:
            self.there.set()
            assert self.go.wait(30)


def in_forward(model, optimizer, held):
    model.layers[0].register_forward_pre_hook(held)
    backward(model, 1)


def in_backward(model, optimizer, held):
    loss = loss_of(model, DATA[1])
    model.layers[0].up.weight.register_hook(held)
    loss.backward()


def in_step(model, optimizer, held):
    backward(model, 1)
    update = model.attached._update
    own = update._step

    def step(*args, **more):
        held()
        return own(*args, **more)

    update._step = step
    optimizer.step()


def evaluates(model, optimizer):
    with torch.no_grad():
        model(DATA[0])


def goes_backward(model, optimizer):
    model.loss.backward()


def steps(model, optimizer):
    optimizer.step()


@pytest.mark.parametrize("where", [in_forward, in_backward, in_step])
@pytest.mark.parametrize("what", [evaluates, goes_backward, steps])
@in_a_thread
def test_what_another_thread_begins_in_the_middle_is_refused(where, what):
    plain, model = pair(make)
    optimizers = adamw(plain), adamw(model)
    held = Held()
    with page(model, optimizers[1], chunks=8, step_in_backward=False) as model.attached:
        plain_step(plain, optimizers[0], 0)
        plain_step(model, optimizers[1], 0)
        model.loss = loss_of(model, DATA[0])
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(where, model, optimizers[1], held)
            assert held.there.wait(30)
            try:
                with pytest.raises(UsageError, match="while another thread is in a pass"):
                    what(model, optimizers[1])
            finally:
                held.go.set()
            other.result()
        del model.loss
        backward(plain, 1)
        optimizers[0].step()
        if where is not in_step:
            optimizers[1].step()
        evaluates(model, None)  # it is nobody's turn any more
    assert same_weights(plain, model)
