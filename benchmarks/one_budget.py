# SPDX-License-Identifier: Apache-2.0
"""One budget for weights, activations and caches: what holds, and how far from the ideal it is.

    python benchmarks/one_budget.py --parts llama generate moe shapes fits two random cycles \
        --seconds 580 --output benchmarks/results/one_budget/h200.json

Each part runs models that nobody here wrote, resident and attached within budgets that do not hold
them, by turns. The ideal of a row is max(T, X / B): T the resident step and B the page-locked copy
speed, both measured in this process; X = max(0, M - S), with M the bytes of weights that a pass
touches (embedding tables by rows) and S the budget less the resident run's own peak of everything
else. For a token of the part moe X is what Belady's MIN moves of the experts that were chosen.
Memory is the driver's own figure by NVML, every 5 ms. A row that fails has an "error", and the next
one runs. `--small` runs everything in little on the emulated GPU. The part pages runs where it is
named.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch
from attach.experts import ROUTERS, moe
from attach.models import SHARES, fits, generate, llama, pages, shapes
from attach.stress import cycles, random, two
from attach.suite import run_all
from kit.measure import output_parser

PARTS = {
    part.__name__: part for part in (llama, generate, moe, shapes, fits, two, random, cycles, pages)
}


def arguments() -> argparse.Namespace:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS)[:-1])
    parser.add_argument("--seconds", type=float, default=580, help="the whole ends by then")
    parser.add_argument(
        "--share", type=int, choices=SHARES, default=2, help="a half, a third, ... of its need"
    )
    parser.add_argument("--new-tokens", type=int, default=2000, help="of the part generate")
    parser.add_argument("--caches", nargs="+", default=["dynamic", "static"])
    parser.add_argument("--only", nargs="+", default=[], help="of shapes, pages, fits, moe")
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=list(ROUTERS))
    parser.add_argument(
        "--settings",
        nargs="+",
        default=["default", "64MiB/4MiB", "64MiB/16MiB"],
        help="of the part pages: look-ahead, or look-ahead/page",
    )
    parser.add_argument("--passes", type=int, default=500, help="of the part random")
    parser.add_argument("--steps", type=int, default=12, help="that are timed in a row")
    parser.add_argument("--cycles", type=int, default=1000, help="of the part cycles")
    parser.add_argument("--small", action="store_true", help="in little, on the emulated GPU")
    return parser.parse_args()


@torch.no_grad()
def main() -> int:
    args = arguments()
    return run_all(
        args,
        lambda suite: {(name, "", ""): partial(PARTS[name], suite) for name in args.parts},
    )


if __name__ == "__main__":
    sys.exit(main())
