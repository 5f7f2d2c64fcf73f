# SPDX-License-Identifier: Apache-2.0
"""What pages gain that travel encoded: without, with and without again, in one process.

    python benchmarks/compressed_pages.py --output benchmarks/results/compression/h200.json

`stream` is page-ins and nothing else: one row of numbers through 24 weights of 128 MiB within
1 GiB. `llama` is a forward of 1 x 1,024 within several budgets. Bits are compared with the resident
model's. `--small` runs everything in little on the emulated GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from budget_card import Card, same_bits
from held_out_models import outputs, subject
from measure import output_parser, spread
from record import Record
from torch import nn

from penstock.units import GIB, MIB

SETTINGS = ("off", "bf16", "off")


def figures(card: Card, held: Any, step: Callable[[], Any], references: Any) -> dict[str, Any]:
    """Times of a step, and what it moved."""
    exact = [same_bits(outputs(step()), references)]
    times = card.time(step)
    exact.append(same_bits(outputs(step()), references))
    stats = held.stats()
    return {
        "exact": all(exact),
        **spread(times),
        "link_gb_per_s": round(held.link()[0], 2),
        "iteration_bytes_in": stats.iteration_bytes_in,
        "iteration_page_loads": stats.iteration_page_loads,
        "stall_ms": stats.stall_ms,
        "page_locked_bytes": stats.host_bytes,
        "encoded_bytes": stats.encoded_bytes,
        "code_bytes": stats.code_bytes,
    }


def rows(
    card: Card,
    part: str,
    model: Callable[[], nn.Module],
    load: Any,
    given: dict[str, Any],
    references: Any,
    budgets: list[int],
) -> Iterator[dict[str, Any]]:
    """One row a setting and budget."""
    for compress in SETTINGS:
        began = time.perf_counter()
        with card.attached(model(), budgets[0], load=load, compress=compress) as (held, watch):
            attach_s = time.perf_counter() - began
            for budget in budgets:
                if budget != budgets[0]:
                    held.resize(budget + watch.kept)
                    held.model(**given)
                    watch.forget()
                row = {"part": part, "compress": compress, "budget_bytes": budget}
                row.update(figures(card, held, partial(held.model, **given), references))
                row.update(attach_s=round(attach_s, 2), within_budget=watch.peak() <= budget)
                yield row


class Wide(nn.Sequential):
    """Weights that are read once for a single row."""

    def __init__(self, width: int) -> None:
        wide = [nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(24)]
        super().__init__(*wide)


def stream(card: Card) -> Iterator[dict[str, Any]]:
    width = 256 if card.small else 8192

    def load(name: str, to: torch.Tensor) -> None:
        torch.manual_seed(int(name.split(".")[0]))
        to.copy_(torch.randn(to.shape, device=card.device, dtype=to.dtype) * 0.02)

    def build() -> nn.Module:
        with torch.device("meta"):
            return Wide(width).eval()

    resident = build().to_empty(device=card.device)
    for name, parameter in resident.named_parameters():
        load(name, parameter.data)
    given = {"input": torch.randn(1, width, device=card.device, dtype=torch.bfloat16)}
    references = [tensor.cpu() for tensor in outputs(resident(**given))]
    budget = MIB if card.small else GIB
    del resident
    yield from rows(card, "stream", build, load, given, references, [budget])


def llama(card: Card) -> Iterator[dict[str, Any]]:
    recipe = subject("llama", small=card.small)
    model = recipe.resident(card.device)
    given = recipe.make_inputs(model, 1, 16 if card.small else 1024, card.device)
    references = [tensor.cpu() for tensor in outputs(model(**given))]
    times = spread(card.time(partial(model, **given)))
    yield {"part": "llama", "compress": "resident", **times}
    weights = sum(parameter.nbytes for parameter in model.parameters())
    budgets = [weights * 2 // 3, weights // 2] if card.small else [8 * GIB, 4 * GIB, 2 * GIB]
    del model
    build = partial(recipe.build, "meta")
    load = recipe.loader(card.device)
    yield from rows(card, "llama", build, load, given, references, budgets)


@torch.no_grad()
def main() -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--small", action="store_true", help="in little, on the emulated GPU")
    args = parser.parse_args()
    card, record = Card(small=args.small), Record(args.output, card=not args.small)
    for row in chain(stream(card), llama(card)):
        record.add(row, str({key: value for key, value in row.items() if key != "samples_ms"}))
    return int(not all(row.get("exact", True) for row in record.rows))


if __name__ == "__main__":
    raise SystemExit(main())
