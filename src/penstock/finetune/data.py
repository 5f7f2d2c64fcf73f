# SPDX-License-Identifier: Apache-2.0
"""The sequences of a fine-tune, and which of them make up the batch of a step.

Invariant: a batch is decided by the seed, the step and the rank alone, so that the position in the
data is the number of the step and a run that is resumed sees what it would have seen. A batch is
as long as its longest sequence; what is short is filled up at the end, where causal attention lets
no real token see it, and is left out of the loss.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100  # of cross_entropy
# Sequences that are held out of synthetic data, for evaluations.
HELD_OUT = 16
# Median length of varied sequences as a share of the longest, and the spread of its logarithm: a
# batch of 8 or 32 is then 0.66 or 0.80 of the longest at the median, as in the recorded workloads.
_MEDIAN, _SPREAD = 0.44, 0.3


@dataclass(frozen=True)
class Batch:
    """The input of a step.

    Attributes:
        tokens: Ids, (sequences, longest of them).
        labels: The same, `IGNORED` where there is no token.
        count: Tokens that are real.
    """

    tokens: Tensor
    labels: Tensor
    count: int

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return Batch(self.tokens.to(device), self.labels.to(device), self.count)


def collate(sequences: Sequence[Tensor]) -> Batch:
    """Make a batch of sequences of ids, each of one dimension."""
    rows = list(sequences)
    tokens = pad_sequence(rows, batch_first=True)
    labels = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    return Batch(tokens, labels, sum(map(len, rows)))


class Synthetic:
    """Random tokens, of which some are far more frequent than others: there is something to learn.

    Args:
        vocabulary: Ids are below this.
        longest: Tokens of the longest sequence.
        varied: Whether lengths are drawn, log-normally; else all are the longest.
        seed: Decides everything.
    """

    def __init__(self, vocabulary: int, longest: int, *, varied: bool, seed: int) -> None:
        self._vocabulary = vocabulary
        self._longest = longest
        self._varied = varied
        self._seed = seed

    def batch(self, step: int, size: int, rank: int = 0, world: int = 1) -> Batch:
        """What rank `rank` of `world` trains on in step `step`: `size` sequences, on the CPU."""
        first = (step * world + rank) * size
        return collate([self._sequence(f"{first + row}") for row in range(size)])

    def longest(self, size: int) -> Batch:
        """The batch that needs the most memory: every sequence as long as any may be."""
        return collate([self._tokens(self._longest, row) for row in range(size)])

    def held_out(self, size: int) -> list[Batch]:
        """What evaluations are made on, in batches of `size`: sequences that no step has."""
        sequences = [self._sequence(f"held out {row}") for row in range(HELD_OUT)]
        return [collate(sequences[at : at + size]) for at in range(0, HELD_OUT, size)]

    def _sequence(self, name: str) -> Tensor:
        draw = random.Random(f"{self._seed}/{name}")
        length = self._longest
        if self._varied:
            share = _MEDIAN * draw.lognormvariate(0.0, _SPREAD)
            length = max(2, min(length, round(share * length)))
        return self._tokens(length, draw.getrandbits(62))

    def _tokens(self, length: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.rand(length, generator=generator).pow(4) * (self._vocabulary - 1)).long()


class Texts:
    """Sequences of a file, in a new order each time all were seen.

    Args:
        sequences: Ids, one tensor of one dimension a sequence.
        held_out: The same, for evaluations.
        seed: Decides the order.
    """

    def __init__(self, sequences: Sequence[Tensor], held_out: Sequence[Tensor], seed: int) -> None:
        self._sequences = sequences
        self._held_out = held_out
        self._seed = seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return len(self._sequences)

    def batch(self, step: int, size: int, rank: int = 0, world: int = 1) -> Batch:
        """As `Synthetic.batch`; the epoch follows from the step's number."""
        first = (step * world + rank) * size
        picked = []
        for place in range(first, first + size):
            epoch, at = divmod(place, len(self._sequences))
            picked.append(self._sequences[self._order(epoch)[at]])
        return collate(picked)

    def longest(self, size: int) -> Batch:
        """As `Synthetic.longest`: those of the file, again and again where it has fewer."""
        ordered = sorted(self._sequences, key=len, reverse=True)[:size]
        return collate([ordered[row % len(ordered)] for row in range(size)])

    def held_out(self, size: int) -> list[Batch]:
        """The evaluation file."""
        rows = self._held_out
        return [collate(rows[at : at + size]) for at in range(0, len(rows), size)]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._sequences)))
        random.Random(f"{self._seed}/epoch {epoch}").shuffle(order)
        return order


Source = Synthetic | Texts
