# SPDX-License-Identifier: Apache-2.0
"""A step with everything on the card, which takes turns with the same step attached.

A host's processors run at one speed now and at half of it a second later, as neighbours come and
go: passes are compared with those just before and after them, of the same thread, so that the card
need not switch between processes either.

The resident weights lie in memory that PyTorch's allocator does not know of, so that within a
budget everything is as if they were not there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from models.held_out import Subject, outputs
from torch import nn

from kit.card import Card, Pass, Passes, ideal, same_bits, weight_bytes
from kit.measure import spread
from penstock.bound import must_cross_in_turn, shortest_ms

REPEATS = 3  # of a resident step, which must give the same bits for others to be held to them
TOKENS = 8


class Outside:
    """Memory of the device from the driver itself, freed with the last tensor in it."""

    def __init__(self, nbytes: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        address = ctypes.c_uint64()
        error = self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
        self._address = address  # 0, which can be freed as well, where there is none
        if error:
            raise MemoryError(f"cuMemAlloc of {nbytes} bytes: error {error}")
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address.value, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._driver.cuMemFree_v2(self._address)


def move_outside(model: nn.Module) -> nn.Module:
    """The model with its parameters in memory that PyTorch's allocator does not know of."""
    for parameter in model.parameters():
        if parameter.is_cuda and parameter.nbytes:
            there = torch.as_tensor(Outside(parameter.nbytes), device=parameter.device)
            there = there.view(parameter.dtype).view(parameter.shape)
            parameter.data = there.copy_(parameter.data)
    return model


def steps_of(
    recipe: Subject, model: Any, given: dict[str, Any], count: int
) -> dict[str, Callable[[], Any]]:
    """A forward pass, and so many tokens where the model makes any."""
    steps: dict[str, Callable[[], Any]] = {f"{recipe.name} forward": partial(model, **given)}
    if recipe.generates:
        prompt = {key: value for key, value in given.items() if not key.startswith("decoder")}
        tokens = {"do_sample": False, "max_new_tokens": count}
        steps[f"{recipe.name} generate {count}"] = partial(model.generate, **prompt, **tokens)
    return steps


@dataclass
class Resident:
    """A step that others are held against.

    Attributes:
        step: The step itself.
        weights: Bytes.
        passes: The step's, of one model or of several in turn.
        others: Bytes of all else at the peak of PyTorch's allocator.
        first: Milliseconds of each step, and again.
        again: The A/A samples.
        exact: Whether it gives the same bits each time.
        references: Its results, on the host.
    """

    step: Callable[[], Any]
    weights: int
    passes: list[Pass]
    others: int
    first: list[float]
    again: list[float]
    exact: bool
    references: list[torch.Tensor]

    @property
    def touched(self) -> list[int]:
        """Bytes of the weights that each pass reads."""
        return [each.touched for each in self.passes]

    def bound(self, resident_ms: float, budget: int, link: float) -> dict[str, Any]:
        """The ideal of the step within a budget, beside the resident one of the same run.

        Of models in turn also that of the phases one by one, as if nothing crossed for a pass
        before it begins: while one runs that is bound by computing, what is there is in use.
        """
        room = budget - self.others
        if len({each.model for each in self.passes}) < 2:
            return ideal(resident_ms, self.touched, room, link)
        crossing = must_cross_in_turn(
            [(each.model, each.touched, max(0, budget - each.others)) for each in self.passes]
        )
        phases = zip(self.passes, crossing, strict=True)
        return {
            "ideal_ms": round(shortest_ms(resident_ms, (sum(crossing), link)), 3),
            "phases_ms": round(sum(shortest_ms(one.ms, (size, link)) for one, size in phases), 3),
            "missing_bytes": sum(crossing),
            "room_bytes": room,
            "link_gb_per_s": round(link, 2),
        }

    @property
    def needed(self) -> int:
        return self.weights + self.others

    @property
    def step_ms(self) -> float:
        return float(spread(self.first)["median_ms"])


def measure(card: Card, models: list[nn.Module], step: Callable[[], Any]) -> Resident:
    """Run a step of resident models some times, twice over."""
    for model in models:
        move_outside(model)
    card.clear()
    before = card.allocated()
    references = [result.to("cpu", copy=True) for result in outputs(step())]
    passes = Passes(card, models, before)
    step()
    passes.remove()
    card.forget_peak()
    first = card.time(step)
    others = max(0, card.peak() - before)
    return Resident(
        step,
        sum(map(weight_bytes, models)),
        passes.made,
        others,
        first,
        card.time(step, warmups=0),
        all(same_bits(outputs(step()), references) for _ in range(REPEATS)),
        references,
    )


def by_turns(
    card: Card, step: Callable[[], Any], other: Callable[[], Any], *, steps: int, warmups: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of each step, and of the other one behind it."""
    samples: tuple[list[float], list[float]] = [], []
    for number in range(warmups + steps):
        for made, run in zip(samples, (step, other), strict=True):
            took = card.time(run, steps=1, warmups=0)
            made.extend(took if number >= warmups else ())
    return samples
