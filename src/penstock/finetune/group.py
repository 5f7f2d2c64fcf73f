# SPDX-License-Identifier: Apache-2.0
"""The processes of a run as each of them sees it: who it is, and what they tell each other.

A run of one process has a group of one, in which everything is trivial.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# A process that waits for one that died has to end too; torchrun ends it sooner as a rule.
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Group:
    """One process among `world`.

    Attributes:
        rank: Of this process.
        world: How many there are.
    """

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, in the order of ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def mean(self, value: float) -> float:
        """The mean over all processes; the same number in each."""
        return float(sum(self.gather(value)) / self.world)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(*, cuda: bool) -> Iterator[Group]:
    """The group that torchrun's variables describe, for as long as the context lasts."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=TIMEOUT)
    try:
        yield Group(rank, world)
    finally:
        dist.destroy_process_group()
