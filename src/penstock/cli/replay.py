# SPDX-License-Identifier: Apache-2.0
"""``penstock replay``: what a recorded program would have reserved under another allocator.

The replays are done by the library; this file reads traces, and shows the results side by side.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.config import Settings, allocator_options
from penstock.errors import OutOfMemory, UsageError
from penstock.files import beginning
from penstock.native.replay import ALLOCATORS, Replayed, replay
from penstock.report.progress import Progress
from penstock.report.table import Column, print_table
from penstock.results import with_head
from penstock.units import TIB, format_bytes, format_number, parse_size

from .common import Output, apart, need_extra, verb

if TYPE_CHECKING:
    from penstock.trace import Trace

# What a file begins with that --json must not write over: a zip (.npz) or a pickle.
TRACE_MAGICS = (b"PK", b"\x80")
# What the library gives a replay without --gpu-memory: more than any device has.
MOST = TIB
MORE = "--allocator-... are for stitch; it obeys all PENSTOCK_ALLOCATOR_... (penstock config show)."


@dataclass(frozen=True)
class Row:
    """One trace under one allocator."""

    trace: Trace
    allocator: str
    replayed: Replayed

    @property
    def utilisation(self) -> float:
        """The peak of requested bytes over the peak of reserved bytes."""
        figures = self.replayed.figures
        reserved: int = figures["peak_reserved_bytes"]
        return figures["peak_requested_bytes"] / reserved if reserved else 0.0

    @property
    def failure(self) -> str | None:
        """Where the memory did not suffice, in words."""
        event = self.replayed.failed_event
        if event is None:
            return None
        elapsed = int(self.trace.time_us[event] - self.trace.time_us[0]) / 1e6
        size = format_bytes(int(self.trace.size[event]))
        return f"event {event} of {len(self.trace)}, a request of {size} after {elapsed:.2f} s"


@click.command(epilog=MORE)
@click.argument("traces", nargs=-1, metavar="TRACE...", type=click.Path(path_type=Path))
@click.option(
    "--allocator",
    type=click.Choice(list(ALLOCATORS)),
    help="Replay this one only.  [default: all three, side by side]",
)
@verb(
    "gpu_memory",
    "allocator_chunk",
    "allocator_growth",
    "allocator_stitch_limit",
    "allocator_stitch_when",
    check_file=False,
)
def command(
    traces: tuple[Path, ...], allocator: str | None, settings: Settings, output: Output
) -> None:
    """Say what each allocator would reserve for recorded work.

    A TRACE is an .npz of events or a snapshot of torch.cuda.memory._dump_snapshot().
    stitch is Penstock's own allocator; native and expandable are models of PyTorch's.
    Needs no GPU. Without --gpu-memory each takes as much as it needs.

    \b
    Examples:
      penstock replay snapshot.pickle
      penstock replay run.npz --allocator stitch --gpu-memory 24GiB --json
    """  # noqa: D301
    traces, output = apart(traces, output, _begins_as_trace)
    output.check()
    if not traces:
        raise UsageError("no trace was given", remedy="penstock replay snapshot.pickle")
    chosen = _allocators(allocator, settings)
    capacity = _capacity(settings)
    packing = allocator_options(settings)
    need_extra("numpy", "trace")
    rows = _replay_all(traces, chosen, capacity, packing)
    output.emit([_document(row) for row in rows], lambda: _print(rows))
    _refuse_failures(rows, capacity)


def _begins_as_trace(path: Path) -> bool:
    return beginning(path, 2).startswith(TRACE_MAGICS)


def _allocators(allocator: str | None, settings: Settings) -> list[str]:
    """Whose turn it is; where stitching is switched off, not Penstock's.

    Raises:
        UsageError: If it was asked for by name all the same.
    """
    if settings.allocator_stitch:
        return [allocator] if allocator else list(ALLOCATORS)
    if allocator == "stitch":
        raise UsageError("allocator.stitch is off", remedy="PENSTOCK_ALLOCATOR_STITCH=1")
    return [allocator] if allocator else [name for name in ALLOCATORS if name != "stitch"]


def _capacity(settings: Settings) -> int:
    if settings.gpu_memory == "auto":
        return 0
    return parse_size(settings.gpu_memory, name="--gpu-memory")


def _replay_all(
    paths: tuple[Path, ...], allocators: list[str], capacity: int, packing: dict[str, int | float]
) -> list[Row]:
    """Every trace under every allocator; all files are read before the first replay begins."""
    from penstock.trace import read_traces

    traces = [trace for path in paths for trace in read_traces(path)]
    rows = []
    with Progress(sys.stderr).stage("replaying", len(traces) * len(allocators)) as advance:
        for trace in traces:
            for name in allocators:
                replayed = replay(trace, allocator=name, capacity=capacity, packing=packing)
                rows.append(Row(trace, name, replayed))
                advance(1, f"{trace.name}, {name}")
    return rows


def _document(row: Row) -> dict[str, Any]:
    values = {
        "trace": row.trace.name,
        "allocator": row.allocator,
        "utilisation": row.utilisation,
        **row.replayed.figures,
        "out_of_memory_at_event": row.replayed.failed_event,
    }
    return with_head("replay", values)


def _print(rows: list[Row]) -> None:
    columns = [Column("trace"), Column("allocator")]
    titles = (
        "requested",
        "reserved",
        "utilisation",
        "driver ms",
        "of time",
        "2nd half",
        "ns a call",
    )
    columns += [Column(title, right=True) for title in titles]
    print_table(columns, [_cells(row) for row in rows])
    click.echo(
        "\nutilisation: peak requested over peak reserved memory. driver ms: what its calls to the "
        "driver\nwould have cost on an H200. native and expandable are models of PyTorch's "
        "allocators."
    )


def _cells(row: Row) -> tuple[str, ...]:
    figures = row.replayed.figures
    reserved = format_bytes(figures["peak_reserved_bytes"])
    if row.failure:
        return (
            *(row.trace.name, row.allocator, format_bytes(figures["peak_requested_bytes"])),
            *(reserved, "out of memory", "", "", "", ""),
        )
    trace_ms = figures["trace_ms"]
    return (
        row.trace.name,
        row.allocator,
        format_bytes(figures["peak_requested_bytes"]),
        reserved,
        f"{row.utilisation:.1%}",
        format_number(figures["modelled_driver_ms"]),
        _share(figures["modelled_driver_ms"], trace_ms),
        _share(figures["modelled_driver_ms_second_half"], trace_ms / 2),
        format_number(figures["ns_per_op"]) if row.allocator == "stitch" else "-",
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole > 0 else "-"


def _refuse_failures(rows: list[Row], capacity: int) -> None:
    """End with "out of memory" if an allocator did not get through.

    Raises:
        OutOfMemory: In that case.
    """
    failed = [row for row in rows if row.failure]
    if failed:
        first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        room = capacity or MOST
        without = "; without it a replay takes as much as it needs" if capacity else ""
        raise OutOfMemory(
            f"{first.trace.name}: {first.allocator} ran out of {format_bytes(room)} at "
            f"{first.failure}{more}",
            remedy=f"a larger --gpu-memory{without}",
            budget_bytes=room,
        )
