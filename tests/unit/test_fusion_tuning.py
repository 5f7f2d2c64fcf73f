# SPDX-License-Identifier: Apache-2.0
"""Measured choices: what is measured when, what is kept, and what is never chosen."""

from __future__ import annotations

import json
import time

import pytest
import torch

from penstock.fusion import product, residual_linear, tuning

CPU = torch.device("cpu")
KEY = ("product", "norm", 1, 2)


measure = tuning.measure


def host_ms(way):
    """In the place of a GPU's clock: the least of a few."""

    def once():
        begin = time.perf_counter()
        way()
        return (time.perf_counter() - begin) * 1e3

    return min(once() for _ in range(3))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "measure", host_ms)
    tuning.forget()
    yield tmp_path / "penstock" / "fusion"
    tuning.forget()


def ways(**times):
    """Ways that take some ms and give the same result."""

    def way(ms):
        def run():
            time.sleep(ms / 1e3)
            return torch.ones(3)

        return run

    return {name: way(ms) for name, ms in times.items()}


def test_the_fastest_is_chosen_and_kept_on_disk(cache):
    assert tuning.known(KEY, CPU) is None
    assert tuning.choose(KEY, CPU, ways(torch=6, slow=12, fast=1)) == "fast"
    assert tuning.known(KEY, CPU) == "fast"
    (file,) = cache.iterdir()
    assert file.name == f"{tuning.place(CPU)}.json"
    assert json.loads(file.read_text()) == {json.dumps(KEY): "fast"}
    tuning.forget()
    assert tuning.known(KEY, CPU) == "fast"


def test_what_it_depends_on_is_in_the_name(monkeypatch):
    place = tuning.place(CPU)
    assert f"torch-{torch.__version__}" in place
    monkeypatch.setattr(tuning.metadata, "version", lambda name: "9.9")
    assert tuning.place(CPU) != place


def test_choices_that_were_made_another_way_are_not_used(cache, monkeypatch):
    gpu, *_ = tuning.place(CPU).partition("-choices-")
    cache.mkdir(parents=True)
    before = cache / f"{gpu}.json"  # the name before there were versions of it
    before.write_text(json.dumps({json.dumps(KEY): "slow"}))
    assert tuning.known(KEY, CPU) is None
    tuning.remember(KEY, CPU, "fast")
    assert tuning.known(KEY, CPU) == "fast"
    assert json.loads(before.read_text()) == {json.dumps(KEY): "slow"}
    monkeypatch.setattr(tuning, "VERSION", tuning.VERSION + 1)
    tuning.forget()
    assert tuning.known(KEY, CPU) is None


class Clocked:
    """A way that takes the host one time and the GPU another, in ms."""

    def __init__(self, host: float, gpu: float) -> None:
        self.host, self.gpu, self.calls = host, gpu, 0

    def __call__(self) -> None:
        self.calls += 1


def test_the_hosts_time_does_not_choose_a_product(monkeypatch):
    """In a slow spell of the host a kernel was chosen that takes the GPU longer."""
    ours = Clocked(host=0.030, gpu=0.025)
    torchs = Clocked(host=0.045, gpu=0.020)

    class Graph:
        def __init__(self, calls):
            before = ours.calls, torchs.calls
            calls()
            self.ms = (ours.calls - before[0]) * ours.gpu + (torchs.calls - before[1]) * torchs.gpu

        def replay(self):
            """What takes the GPU `ms`."""

    def clock(way, calls):
        if isinstance(way, Clocked):
            return max(way.host, way.gpu)
        return way.__self__.ms

    monkeypatch.setattr(tuning, "back_to_back", clock)
    monkeypatch.setattr(tuning, "record", lambda calls: (Graph(calls), None))
    assert measure(ours) == pytest.approx(0.025)
    assert measure(torchs) == pytest.approx(0.020)
    long = Clocked(host=0.03, gpu=2.5)  # the host is ahead of it anyway
    assert measure(long) == 2.5


@pytest.mark.parametrize(("other", "chosen"), [(4.0, "torch"), (3.95, "torch"), (3.9, "other")])
def test_within_noise_the_first_is_chosen(other, chosen, monkeypatch):
    candidates = ways(torch=0, other=0)
    times = {candidates["torch"]: 4.0, candidates["other"]: other}
    monkeypatch.setattr(tuning, "measure", times.__getitem__)
    assert tuning.choose(KEY, CPU, candidates) == chosen


def test_a_way_that_fails_or_gives_another_result_is_not_chosen(caplog):
    candidates = ways(torch=4)

    def fails():
        raise RuntimeError("out of shared memory")

    candidates["fails"] = fails
    candidates["wrong"] = lambda: torch.ones(3) * 1.01
    candidates["nan"] = lambda: torch.full((3,), float("nan"))
    candidates["rounding"] = lambda: torch.ones(3) * (1 + 1e-7)
    assert tuning.choose(KEY, CPU, candidates) == "rounding"
    assert "wrong gives another result" in caplog.text
    assert "nan gives another result" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": {"b": 1}}'])
def test_a_file_that_cannot_be_read_is_measured_anew(text, cache):
    cache.mkdir(parents=True)
    (cache / f"{tuning.place(CPU)}.json").write_text(text)
    assert tuning.known(KEY, CPU) is None
    assert tuning.choose(KEY, CPU, ways(torch=3, fast=0)) == "fast"


def test_a_folder_that_cannot_be_written_costs_only_time(cache, monkeypatch, caplog):
    cache.parent.parent.joinpath("penstock").write_text("a file where a folder should be")
    assert tuning.choose(KEY, CPU, ways(torch=3, fast=0)) == "fast"
    assert tuning.known(KEY, CPU) == "fast"
    assert "cannot be written" in caplog.text


def test_nothing_is_measured_on_the_cpu_or_outside_measuring(monkeypatch):
    def never(*_, **__):
        raise AssertionError("measured")

    monkeypatch.setattr(tuning, "choose", never)
    x, w, residual = torch.randn(4, 8), torch.randn(6, 8), torch.randn(4, 6)
    wanted = product.Product(x, None, None, w, None, residual, None, 0.0).plain()
    assert torch.equal(residual_linear(x, w, None, residual), wanted)
    with tuning.measuring():
        assert tuning.active()
        assert torch.equal(residual_linear(x, w, None, residual), wanted)
    assert not tuning.active()


def test_a_way_is_looked_up_again_when_choices_change(monkeypatch):
    asked = []

    def way(*arguments):
        asked.append(arguments)
        return "torch"

    monkeypatch.setattr(product, "way_of", way)
    monkeypatch.setattr(product, "WAYS", type(product.WAYS)())
    x, w, residual = torch.randn(3, 8), torch.randn(6, 8), torch.randn(3, 6)

    def calls(x=x):
        before = len(asked)
        residual_linear(x, w, None, residual)
        return len(asked) - before

    assert [calls(), calls(), calls()] == [1, 0, 0]
    assert calls(torch.randn(3, 16)[:, :8]) == 1  # other strides
    tuning.remember(("product", "another"), CPU, "torch")
    assert [calls(), calls()] == [1, 0]
    with tuning.measuring():
        assert [calls(), calls()] == [1, 1]
    tuning.forget()
    assert [calls(), calls()] == [1, 0]
