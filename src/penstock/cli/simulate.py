# SPDX-License-Identifier: Apache-2.0
"""``penstock simulate``: how a recorded program would run within another budget.

The simulation is done by the library; this file reads the recording, and sums up what came of it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.bound import shortest_ms
from penstock.config import Settings
from penstock.errors import OutOfMemory, UsageError
from penstock.native.simulate import POLICIES, Simulated, simulate
from penstock.report.progress import Progress
from penstock.results import with_head
from penstock.units import format_bytes, format_number, parse_size

from .common import LINKS, Output, between, need_extra, verb

if TYPE_CHECKING:
    from penstock.trace import WorkTrace

# Of a step; a shorter pause is not drawn.
_PARTS = 500


@dataclass(frozen=True)
class Outcome:
    """A simulation, and what the steps amount to once the program has been learned.

    Attributes:
        trace: The recording.
        policy: Who decided what stays.
        budget: Bytes of device memory.
        simulated: What the library found.
    """

    trace: WorkTrace
    policy: str
    budget: int
    simulated: Simulated

    @property
    def steady(self) -> list[dict[str, Any]]:
        """The second half of the steps, at least one if there are any."""
        steps = self.simulated.steps
        return steps[len(steps) // 2 :]

    @property
    def hit_ratio(self) -> float | None:
        """Of the pages that steady steps touch, how many did not have to be brought in."""
        uses = sum(step["page_uses"] for step in self.steady)
        loads = sum(step["page_loads"] for step in self.steady)
        return 1 - loads / uses if uses else None

    @property
    def ideal_ms(self) -> list[float]:
        """What each step takes at the least: its work alone, or what no policy leaves to the link.

        The two directions of the link work beside each other.
        """
        steps, speed = self.simulated.steps, self.simulated.link_gb_per_s
        ways = ("least_bytes_in", "least_bytes_out")
        return [shortest_ms(s["recorded_ms"], *((s[way], speed) for way in ways)) for s in steps]

    def median(self, field: str) -> float:
        """Of the steady steps."""
        return float(statistics.median(step[field] for step in self.steady))

    @property
    def least_ms(self) -> list[float]:
        """The ideal of every step, or more: what is needed at a time cannot come at another."""
        return [step["least_ms"] for step in self.simulated.steps]

    def ratio_to(self, times: list[float]) -> float | None:
        """The median of the steady steps, each over its own of these times in ms."""
        pairs = zip(self.simulated.steps, times, strict=True)
        return _steady([step["ms"] / time for step, time in pairs if time])


def _steady(times: list[float]) -> float | None:
    """The median of the steady steps'."""
    return statistics.median(times[len(times) // 2 :]) if times else None


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default="penstock",
    show_default=True,
    help="Who decides what stays: Penstock's engine, or pages on demand by a classic rule.",
)
@click.option(
    "--link",
    type=float,
    callback=between(*LINKS, " GB/s"),
    metavar="GB/S",
    help="The link's speed in each direction.  [default: 55, as measured on an H200]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Number of steps to cut the recording into.  [default: where it repeats itself]",
)
@click.option(
    "--kernels-write",
    is_flag=True,
    help="Treat weights as changed by every kernel that touches them, as in training.",
)
@verb("gpu_memory")
def command(
    trace: Path,
    policy: str,
    link: float | None,
    steps: int | None,
    kernels_write: bool,
    settings: Settings,
    output: Output,
) -> None:
    """Say how recorded work would run within a budget.

    A TRACE is what penstock run --record wrote. Needs no GPU.
    Without --gpu-memory the budget is the one that it was recorded under.

    \b
    Examples:
      penstock run --record run.trace -- python generate.py
      penstock simulate run.trace --gpu-memory 8GiB
      penstock simulate run.trace --gpu-memory 8GiB --policy lru --link 25 --json
    """  # noqa: D301
    need_extra("numpy", "trace")
    from penstock.trace import read_work

    recorded = read_work(trace)
    budget = _budget(settings, recorded)
    if steps is not None and steps > recorded.pieces:
        raise UsageError(
            f"{steps} steps of {recorded.pieces:,} pieces of work",
            remedy=f"--steps {recorded.pieces} or fewer",
        )
    with Progress(sys.stderr).stage("simulating", 1) as advance:
        simulated = simulate(
            recorded,
            budget=budget,
            policy=policy,
            link_gb_per_s=link,
            steps=steps or 0,
            kernels_write=kernels_write,
        )
        advance(1, f"{recorded.name}, {policy}")
    outcome = Outcome(recorded, policy, budget, simulated)
    _warn(outcome, chosen=steps is not None)
    output.emit({**_document(outcome), **_picture(outcome)}, lambda: _print(outcome))
    _refuse_failure(outcome)


def _budget(settings: Settings, recorded: WorkTrace) -> int:
    if settings.gpu_memory != "auto":
        from penstock.trace.work import MOST_BYTES

        size = parse_size(settings.gpu_memory, recorded.device_bytes or None, name="--gpu-memory")
        if size > MOST_BYTES:
            raise UsageError(
                f"--gpu-memory {settings.gpu_memory} is more than a simulation has books for",
                remedy=f"{format_bytes(MOST_BYTES)} or less",
            )
        return size
    if recorded.budget_bytes == 0:
        raise UsageError("a budget is needed", remedy="--gpu-memory 8GiB")
    return recorded.budget_bytes


def _warn(outcome: Outcome, *, chosen: bool) -> None:
    """Say what makes the figures doubtful."""
    figures = outcome.simulated.figures
    peak, budget = figures["peak_bytes"], outcome.trace.budget_bytes
    if 0 < budget < peak and outcome.budget != budget:
        click.echo(
            f"warning: the program was paged when it was recorded ({format_bytes(peak)} under a "
            f"budget of {format_bytes(budget)}): its times include that",
            err=True,
        )
    if len(outcome.simulated.steps) == 1 and not chosen:
        click.echo(
            "warning: the recording does not repeat itself, so that all of it is one step; "
            "--steps N cuts it",
            err=True,
        )


def _document(outcome: Outcome) -> dict[str, Any]:
    steps, steady = outcome.simulated.steps, outcome.steady
    values = {
        "trace": outcome.trace.name,
        "policy": outcome.policy,
        "gpu_memory_bytes": outcome.budget,
        "link_gb_per_s": outcome.simulated.link_gb_per_s,
        "hit_ratio": outcome.hit_ratio,
        "bytes_in": _mean(steady, "bytes_in"),
        "bytes_out": _mean(steady, "bytes_out"),
        "step_ms": [step["ms"] for step in steps],
        "ideal_ms": _steady(outcome.ideal_ms),
        "ratio_to_ideal": outcome.ratio_to(outcome.ideal_ms),
        "least_ms": _steady(outcome.least_ms),
        "ratio_to_least": outcome.ratio_to(outcome.least_ms),
        "steady_steps": len(steady),
        "recorded_step_ms": [step["recorded_ms"] for step in steps],
        "step_bytes_in": [step["bytes_in"] for step in steps],
        "step_bytes_out": [step["bytes_out"] for step in steps],
        "step_ideal_ms": outcome.ideal_ms,
        "step_least_ms": outcome.least_ms,
        "least_bytes_in": _mean(steady, "least_bytes_in"),
        "least_bytes_out": _mean(steady, "least_bytes_out"),
        **outcome.simulated.figures,
        "out_of_memory_at_piece": outcome.simulated.failed_piece,
    }
    return with_head("simulate", values)


def _picture(outcome: Outcome) -> dict[str, Any]:
    """What `penstock report` draws: memory, and of the last step what was busy and what touched."""
    from penstock.trace.picture import picture

    if not outcome.steady or not outcome.simulated.figures["blocks"]:
        return {}
    last = outcome.steady[-1]
    lanes = {
        lane: _merged(spans, last["ms"] / _PARTS) for lane, spans in outcome.simulated.spans.items()
    }
    return {"lanes": lanes, **picture(outcome.trace, last["first_piece"], last["end_piece"])}


def _merged(spans: list[tuple[float, float]], least: float) -> list[float]:
    """Begins and ends in turn, in order, without gaps that are shorter than `least`."""
    ends: list[float] = []
    for begin, end in sorted(spans):
        if ends and begin - ends[-1] < least:
            ends[-1] = max(ends[-1], round(end, 4))
        else:
            ends += [round(begin, 4), round(end, 4)]
    return ends


def _mean(steps: list[dict[str, Any]], field: str) -> int | None:
    return round(statistics.fmean(step[field] for step in steps)) if steps else None


def _print(outcome: Outcome) -> None:
    for title, text in _lines(outcome):
        click.echo(f"{title:<14}{text}")


def _lines(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The figures, a line each."""
    document, figures = _document(outcome), outcome.simulated.figures
    peak, budget, pages = map(
        format_bytes, (figures["peak_bytes"], outcome.budget, figures["page_bytes"])
    )
    yield "work", f"{figures['pieces']:,} pieces, {figures['blocks']:,} blocks, {peak} at most"
    link = format_number(document["link_gb_per_s"])
    yield "policy", f"{outcome.policy}, {budget}, pages of {pages}, {link} GB/s"
    steps, steady = len(outcome.simulated.steps), len(outcome.steady)
    yield "steps", f"{steps}; figures are of the last {steady}"
    if not steady:
        return
    ms, recorded = (format_number(outcome.median(field)) for field in ("ms", "recorded_ms"))
    yield "step ms", f"{ms}  (recorded {recorded})"
    for kind in ("ideal", "least"):
        bound, ratio = document[f"{kind}_ms"], document[f"ratio_to_{kind}"]
        yield f"{kind} ms", f"{format_number(bound)}  (x {ratio:.2f})" if bound else "-"
    yield "hit ratio", "-" if outcome.hit_ratio is None else f"{outcome.hit_ratio:.3f}"
    into, out = (format_bytes(document[way]) for way in ("bytes_in", "bytes_out"))
    yield "bytes a step", f"{into} in, {out} out"


def _refuse_failure(outcome: Outcome) -> None:
    """End with "out of memory" if the program did not get through.

    Raises:
        OutOfMemory: In that case.
    """
    piece = outcome.simulated.failed_piece
    if piece is not None:
        size = outcome.simulated.failed_bytes
        raise OutOfMemory(
            f"{outcome.trace.name}: {format_bytes(outcome.budget)} do not hold piece {piece} of "
            f"{outcome.simulated.figures['pieces']}, which touches {format_bytes(size)}",
            remedy="a larger --gpu-memory",
            budget_bytes=outcome.budget,
        )
