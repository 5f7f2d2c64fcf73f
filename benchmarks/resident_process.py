# SPDX-License-Identifier: Apache-2.0
"""A resident model in a process of its own, to take turns with the same model attached.

A host's processors run at one speed now and at half of it a second later, as neighbours come and
go; where the host sets the pace, passes are compared with those just before and after them.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from budget_card import Card, Touched, same_bits, weight_bytes
from held_out_models import Subject, outputs, subject

REPEATS = 3  # of a resident step, which must give the same bits for others to be held to them
ANSWER = "answer.pt"
TOKENS = 8


def settle() -> None:
    """Have products repeat themselves: cuBLAS may sum up in another order each time."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def steps_of(recipe: Subject, model: Any, given: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """A forward pass, and some tokens where the model makes any."""
    steps: dict[str, Callable[[], Any]] = {f"{recipe.name} forward": partial(model, **given)}
    if recipe.generates:
        prompt = {key: value for key, value in given.items() if not key.startswith("decoder")}
        tokens = {"do_sample": False, "max_new_tokens": TOKENS}
        steps[f"{recipe.name} generate {TOKENS}"] = partial(model.generate, **prompt, **tokens)
    return steps


@dataclass
class Measured:
    """What a resident step is, for those that are held against it.

    Attributes:
        weights: Bytes.
        touched: Of these, in each of the step's passes.
        others: Bytes of all else at the peak: tensors, and what the driver took for kernels.
        first: Milliseconds of each step, and again.
        again: The A/A samples.
        exact: Whether it gives the same bits each time.
        references: Its results, on the host.
    """

    weights: int
    touched: list[int]
    others: int
    first: list[float]
    again: list[float]
    exact: bool
    references: list[torch.Tensor]


def _measure(card: Card, model: Any, step: Callable[[], Any], driver: Callable[[], int]) -> Any:
    card.clear()
    before = 0 if card.small else torch.cuda.memory_allocated(card.device)
    count = Touched(model)
    results = outputs(step())
    count.remove()
    references = [result.to("cpu", copy=True) for result in results]
    del results
    card.forget_peak()
    first = card.time(step)
    others = max(0, card.peak() - before) + driver()
    exact = all(same_bits(outputs(step()), references) for _ in range(REPEATS))
    again = card.time(step, warmups=0)
    return Measured(weight_bytes(model), count.passes, others, first, again, exact, references)


@torch.no_grad()
def _serve(
    pipe: Any, folder: Path, name: str, small: bool, timed: int, size: tuple[int, int]
) -> None:
    card = Card(small=small)
    if not small:
        card.steps = timed
        settle()
    context = card.used() - card.reserved()
    recipe = subject(name, small=small)
    model = recipe.resident(card.device)
    steps = steps_of(recipe, model, recipe.make_inputs(model, *size, card.device))
    torch.save((list(steps), recipe.buffers, recipe.first_names), folder / ANSWER)
    pipe.send(None)
    while True:
        try:
            what, measure = pipe.recv()
        except EOFError:
            return
        try:
            if measure:
                found = _measure(
                    card,
                    model,
                    steps[what],
                    lambda: max(0, card.used() - card.reserved() - context),
                )
                torch.save(vars(found), folder / ANSWER)
                pipe.send(None)
            else:
                pipe.send(card.time(steps[what], steps=1, warmups=0)[0])
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")


class ResidentProcess:
    """The other process.

    Attributes:
        steps: What it can do, by name.

    Args:
        recipe: The subject; afterwards its loader knows the weights of this one.
        card: What kind of card, and how many steps are timed.
        size: Batch and length of its inputs.
    """

    def __init__(self, recipe: Subject, card: Card, size: tuple[int, int]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve,
            args=(other, folder, recipe.name, card.small, card.steps, size),
            daemon=True,
        )
        self._process.start()
        other.close()
        self._pipe.recv()
        self.steps: list[str]
        self.steps, recipe.buffers, recipe.first_names = torch.load(folder / ANSWER)

    def measure(self, what: str) -> Measured:
        """Run a step some times."""
        self._pipe.send((what, True))
        failed = self._pipe.recv()
        if failed is not None:
            raise RuntimeError(f"the resident model: {failed}")
        return Measured(**torch.load(Path(self._folder.name) / ANSWER))

    def time(self, what: str) -> float:
        """Milliseconds of one step now."""
        self._pipe.send((what, False))
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"the resident model: {answer}")
        return float(answer)

    def close(self) -> None:
        """Let it end, with all its memory."""
        self._pipe.close()
        self._process.join()
        self._folder.cleanup()

    def __enter__(self) -> ResidentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def by_turns(
    card: Card, step: Callable[[], Any], other: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Milliseconds of each step, and of the resident one behind it."""
    own, others = [], []
    for number in range(card.warmups + card.steps):
        card.synchronize()
        began = time.perf_counter()
        step()
        card.synchronize()
        spent = (time.perf_counter() - began) * 1e3
        resident = other()
        if number >= card.warmups:
            own.append(spent)
            others.append(resident)
    return own, others
