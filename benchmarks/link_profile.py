# SPDX-License-Identifier: Apache-2.0
"""When the link is idle while a program is paged: a model's forwards under `penstock run`.

    python benchmarks/link_profile.py --output benchmarks/results/run/link.json
    python benchmarks/link_profile.py --model 6.7b --ratios 1.25 --output link.json

The program runs under budgets of what it needs, divided; when it has been learned, some forwards
are timed and one more is seen by torch's profiler, which sees the engine's copies and digests too.
A row has, from the first copy of that forward to the last: how long the link was busy, how often
and how long it was idle, and what ended last before the copy that ended the pause: a digest of a
page that leaves, a kernel of the program, or nothing, which leaves the host, and the way from one
engine of the device to another; of pauses beyond a millisecond, the kernel that ran. Under a budget
that the link bounds it should never be idle.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from launch_profile import forwards, measured, paged
from measure import device_events, output_parser
from record import Record

RATIOS = (1.5, 2.0, 4.0)
STEPS, LEARNING = 8, 20
# Copies in, as CUPTI calls them; the engine's kernels, by their names.
COPY, DIGEST = "Memcpy HtoD", "penstock_"
# A pause that is shorter is how copies follow each other; of a longer one it is told what the
# device did meanwhile.
SHORT_US, LONG_US = 3.0, 1000.0

Span = tuple[float, float, str]  # begin and end in us, name


def pauses(spans: Iterable[Span]) -> dict[str, Any]:
    """What the link did between the first copy and the last, in ms."""
    spans = sorted(spans)
    copies = [span for span in spans if span[2].startswith(COPY)]
    others = [span for span in spans if not span[2].startswith("Mem")]
    if not copies:
        return {"copies": 0}
    busy, until = 0.0, copies[0][0]
    idle: dict[str, list[float]] = {"digest": [], "kernel": [], "nothing": []}
    short, long = 0.0, []
    for begin, end, _ in copies:
        pause = begin - until
        if pause > LONG_US:
            long.append(_meanwhile(until, begin, others))
        if pause > SHORT_US:
            ended = max(
                ((other[1], other[2]) for other in others if until < other[1] <= begin),
                default=(0.0, ""),
            )[1]
            cause = "digest" if ended.startswith(DIGEST) else "kernel" if ended else "nothing"
            idle[cause].append(pause)
        else:
            short += max(0.0, pause)
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return {
        "copies": len(copies),
        "from_first_to_last_ms": round((until - copies[0][0]) / 1e3, 3),
        "busy_ms": round(busy / 1e3, 3),
        "short_pauses_ms": round(short / 1e3, 3),
        "pauses": {
            cause: {"count": len(found), "ms": round(sum(found) / 1e3, 3)}
            for cause, found in idle.items()
        },
        "long": long,
    }


def _meanwhile(begin: float, end: float, kernels: list[Span]) -> dict[str, Any]:
    """A pause, and the kernel that ran for most of it."""
    within = [(min(end, k[1]) - max(begin, k[0]), k) for k in kernels]
    shared, kernel = max(within, default=(0.0, (0.0, 0.0, "")))
    if shared <= 0:
        shared, kernel = 0.0, (0.0, 0.0, "")
    return {
        "ms": round((end - begin) / 1e3, 3),
        "kernel": kernel[2],
        "for_ms": round(shared / 1e3, 3),
        "of_its_ms": round((kernel[1] - kernel[0]) / 1e3, 3),
    }


# ---- Within the program -----------------------------------------------------------------------


def seen(step: Callable[[], float]) -> list[Span]:
    """All that a forward does on the device."""
    return [
        (event.time_range.start, event.time_range.end, event.name) for event in device_events(step)
    ]


def program(model: str) -> None:
    """What is watched; prints one JSON object."""
    import torch

    step = forwards(model)
    for _ in range(LEARNING):
        step()
    found: dict[str, Any] = {"step_ms": [round(step(), 3) for _ in range(STEPS)]}
    seen(step)  # the profiler makes itself ready
    spans = seen(step)
    found["profiled"] = pauses(spans)
    kernels = [span for span in spans if not span[2].startswith("Mem")]
    for name, wanted in (("digests_ms", True), ("kernels_ms", False)):
        own = [end - begin for begin, end, what in kernels if what.startswith(DIGEST) == wanted]
        found["profiled"][name] = round(sum(own) / 1e3, 3)
    found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(found))


# ---- Around it --------------------------------------------------------------------------------


def main() -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--ratios", nargs="+", type=float, default=list(RATIOS))
    parser.add_argument("--model", default="gpt2-xl", help="of programs/hf_lm.py")
    parser.add_argument("--within", action="store_true", help="used by itself")
    args = parser.parse_args()
    if args.within:
        program(args.model)
        return 0
    if args.output is None:
        parser.error("--output is missing")
    record = Record(args.output, title="When the link is idle", model=args.model)
    command = [sys.executable, __file__, "--within", "--model", args.model]
    return measured(record, lambda how, budget: paged(how, command, budget), args.ratios)


if __name__ == "__main__":
    sys.exit(main())
