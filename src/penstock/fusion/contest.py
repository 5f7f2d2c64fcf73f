# SPDX-License-Identifier: Apache-2.0
"""Which variants are fastest: timed in turns, and judged beyond what one of them differs by itself.

Every round runs every candidate once, and the one that is to be beaten twice: clocks, heat and the
host's slow spells fall on all, and what its two runs of a round differ by tells the noise. Single
variants come first; where they leave open whether the best of them is better, it and the baseline
go on alone. Then their best is to be beaten by sets of the first among them and others that do no
harm. What is not better beyond the noise is not taken, be it a variant or a set. Knows nothing of
torch: what runs a candidate and reads a clock is handed in.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .variants import BASELINE, VARIANTS

# How much slower a host is in its slow spells, which last seconds: the same forward pass was 13.1
# ms and 17.7, the same training step 61 ms and 75, in one table on an H200's host. Rare ones are
# worse (2 times, by what steps of 6.7B took); a margin for those would leave the host alone to
# decide wherever it has half of the GPU's time to do.
HOST_SPELL = 1.35
# How much of the time it is taken to be in one: a choice for a slow host that is fast is wrong as
# well. Not swept.
SPELLS = 0.25
FEWEST_ROUNDS, MOST_ROUNDS = 5, 21
# Of each heat; more if the fewest rounds take longer, or while the best candidate may still be
# better beyond the noise: two runs of long blocks were 2 % apart, a variant gained 1.9.
SECONDS, MOST_SECONDS = 3.0, 9.0
# Two runs may agree by chance.
LEAST_NOISE = 0.005
# How often what is no better may be taken, whatever the number of candidates: two errors, of one.
BY_CHANCE = 1 - statistics.NormalDist().cdf(2)


@dataclass(frozen=True)
class Sample:
    """One run of a candidate.

    Attributes:
        elapsed_ms: Until the GPU was done.
        host_ms: Until the host had given it all its work.
    """

    elapsed_ms: float
    host_ms: float

    @property
    def cost_ms(self) -> float:
        """What a model's step takes: now, and for its share of the time in slow spells of the host.

        A variant that saves the GPU a little and costs the host more may be the faster one here
        and the slower one a few seconds later. It is taken if it gains more than it loses there.
        """
        in_spells = max(self.elapsed_ms, HOST_SPELL * self.host_ms)
        return self.elapsed_ms + SPELLS * (in_spells - self.elapsed_ms)


Run = Callable[[str], Sample]


@dataclass(frozen=True)
class Heat:
    """Candidates timed in turns.

    Attributes:
        samples: Of each candidate, one a round.
        again: The second runs of the first candidate.
    """

    samples: dict[str, list[Sample]]
    again: list[Sample]

    @property
    def noise(self) -> float:
        """What the best ratio may be off by, as a share: two standard errors, or more for several.

        From how much two runs of the first candidate in one round are apart. With m the median of
        that, their ratio spreads by m / 0.67, one to their mean by 0.87 of it; the median of n
        such ratios has 1.25 / sqrt(n) of that. One candidate is better by two such errors by
        chance once in 44 contests; the best of eight that are all alike would be in one of six.
        """
        first = next(iter(self.samples.values()))
        apart = [abs(b.cost_ms / a.cost_ms - 1) for a, b in zip(first, self.again, strict=True)]
        error = statistics.median(apart) / 0.67 * 0.87 * 1.25 / math.sqrt(len(apart))
        by_chance = BY_CHANCE / max(1, len(self.samples) - 1)
        return max(LEAST_NOISE, statistics.NormalDist().inv_cdf(1 - by_chance) * error)

    @property
    def ratios(self) -> dict[str, float]:
        """The cost of each candidate in units of the first one's: the median over the rounds."""
        first = next(iter(self.samples))
        pairs = zip(self.samples[first], self.again, strict=True)
        units = [(a.cost_ms + b.cost_ms) / 2 for a, b in pairs]
        found = {
            name: statistics.median(s.cost_ms / u for s, u in zip(samples, units, strict=True))
            for name, samples in self.samples.items()
        }
        return {**found, first: 1.0}

    @property
    def winner(self) -> str:
        """The cheapest, if it beats the first one by more than the noise; else the first."""
        ratios = self.ratios
        best = min(ratios, key=ratios.__getitem__)
        return best if ratios[best] < 1 - self.noise else next(iter(ratios))

    @property
    def undecided(self) -> bool:
        """Whether the cheapest is better by what would count, were there less noise."""
        return 1 - self.noise <= min(self.ratios.values()) < 1 - LEAST_NOISE


def in_turns(names: Iterable[str], run: Run, clock: Callable[[], float] = time.monotonic) -> Heat:
    """Rounds of all candidates, the first one at both ends of each; every other one backwards.

    Args:
        names: The candidates; the first is the one to be beaten.
        run: Runs one once.
        clock: Seconds.
    """
    names = list(names)
    heat = Heat({name: [] for name in names}, [])
    begin = clock()
    for number in range(MOST_ROUNDS):
        if number >= FEWEST_ROUNDS and _enough(heat, clock() - begin):
            break
        order = names if number % 2 == 0 else [names[0], *reversed(names[1:])]
        for name in order:
            heat.samples[name].append(run(name))
        heat.again.append(run(names[0]))
    return heat


def _enough(heat: Heat, seconds: float) -> bool:
    return seconds > MOST_SECONDS or (seconds > SECONDS and not heat.undecided)


@dataclass(frozen=True)
class Outcome:
    """What a contest found.

    Attributes:
        name: The variants chosen, as `variants.parse` takes them.
        heats: What was measured: single variants; the best of them and the baseline alone, where
            that did not decide; sets, if there were any.
    """

    name: str
    heats: list[Heat] = field(default_factory=list)

    def figures(self) -> list[dict[str, object]]:
        """For each heat its noise, and of each candidate ratio, and medians in ms."""
        return [
            {
                "noise": round(heat.noise, 5),
                "candidates": {
                    name: {
                        "ratio": round(heat.ratios[name], 5),
                        "elapsed_ms": _median(s.elapsed_ms for s in samples),
                        "host_ms": _median(s.host_ms for s in samples),
                    }
                    for name, samples in heat.samples.items()
                },
                "rounds": len(heat.again),
            }
            for heat in self.heats
        ]


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)


def sets_of(names: Iterable[str]) -> list[str]:
    """The baseline, then every set of some variants, smaller sets first, named as in `variants`."""
    names = list(names)
    variants = [name for name in VARIANTS if name in names]
    sets = (
        ",".join(chosen)
        for count in range(1, len(variants) + 1)
        for chosen in itertools.combinations(variants, count)
    )
    return [BASELINE, *sets]


def decide(
    run: Run,
    sound: Callable[[list[str]], list[str]] = list,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Hold the contest.

    Args:
        run: Runs a candidate once.
        sound: Prepares candidates for being timed, and keeps those that run and are right. The
            first one always is.
        clock: Seconds.
    """
    singles = in_turns(sound([BASELINE, *VARIANTS]), run, clock)
    best, ratios = singles.winner, singles.ratios
    heats, cheapest = [singles], min(ratios, key=ratios.__getitem__)
    if cheapest != best:  # by themselves the two have twice as many rounds in the same time
        between = in_turns([BASELINE, cheapest], run, clock)
        best = between.winner
        heats.append(between)
    harmless = {name: r for name, r in ratios.items() if r <= 1 + singles.noise}
    del harmless[BASELINE]
    if not harmless:
        return Outcome(best, heats)
    leader = min(harmless, key=harmless.__getitem__)  # the best one, unless that is the baseline
    sets = [name for name in sets_of(harmless) if leader in name.split(",") and name != leader]
    if not sets:
        return Outcome(best, heats)
    together = in_turns(sound([best, *sets]), run, clock)
    return Outcome(together.winner, [*heats, together])
