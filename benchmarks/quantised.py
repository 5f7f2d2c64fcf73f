# SPDX-License-Identifier: Apache-2.0
"""A Llama of 8 billion weights, quantised by torchao or bitsandbytes, within half of what it takes.

    python benchmarks/quantised.py --only torchao-int8 bitsandbytes-nf4 --output quantised.json

Each is quantised on the card and makes some tokens there, twice over, before it goes to the host
and is attached; its tokens are to be the same. `--small` runs it in little, on the emulated GPU.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attach.suite import Suite, memory, run_all
from kit.measure import output_parser, spread
from models.held_out import subject
from torch import nn

from penstock.units import KIB, MIB

TOKENS = 32


def int8(model: nn.Module) -> None:
    """torchao, weights alone."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())


def int4(model: nn.Module) -> None:
    """torchao, weights alone, in groups of 128."""
    from torchao.quantization import Int4WeightOnlyConfig, quantize_

    quantize_(model, Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"))


def float8(model: nn.Module) -> None:
    """torchao, weights alone."""
    from torchao.quantization import Float8WeightOnlyConfig, quantize_

    quantize_(model, Float8WeightOnlyConfig())


def nf4(model: nn.Module) -> None:
    """bitsandbytes, NF4 with scales that are quantised as well."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, module in [*model.named_modules()]:
        if not isinstance(module, nn.Linear) or name.endswith("lm_head"):
            continue
        weight, bias = module.weight, module.bias
        made = Linear4bit(
            module.in_features,
            module.out_features,
            bias=bias is not None,
            compute_dtype=weight.dtype,
            quant_type="nf4",
            device="meta",
        )
        made.weight = Params4bit(weight.data.cpu(), requires_grad=False, quant_type="nf4")
        if bias is not None:
            made.bias = nn.Parameter(bias.data.cpu(), requires_grad=False)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made.to(weight.device))


KINDS: dict[str, Callable[[nn.Module], None]] = {
    "torchao-int8": int8,
    "torchao-int4": int4,
    "torchao-float8": float8,
    "bitsandbytes-nf4": nf4,
}


def run(suite: Suite, name: str) -> None:
    """The rows of one kind."""
    card = suite.card
    card.clear()
    before = card.allocated()
    recipe = subject("llama", small=card.small)
    model: Any = recipe.resident(card.device)
    KINDS[name](model)
    gc.collect()
    card.clear()
    weights = card.allocated() - before or sum(p.nbytes for p in model.parameters())
    given = recipe.make_inputs(model, 1, 16 if card.small else 128, card.device)
    tokens = 4 if card.small else TOKENS

    def generate() -> torch.Tensor:
        more = {"do_sample": False, "max_new_tokens": tokens, "disable_compile": True}
        return model.generate(**given, **more).cpu()

    card.forget_peak()
    made = generate()
    others = max(0, card.peak() - before - weights)
    common = {"weight_bytes": weights, "others_bytes": others}
    times = card.time(generate)
    suite.row("bits", name, "resident", lambda: {**common, **spread(times)})
    again = {"exact": torch.equal(generate(), made), **spread(card.time(generate, warmups=0))}
    suite.row("bits", name, "resident, again (A/A)", lambda: again)
    model.to("cpu")
    card.clear()
    half = (weights + others) // 2
    budget = max(half, 256 * KIB) if card.small else half // MIB * MIB

    def attached() -> dict[str, Any]:
        with card.attached(model, budget) as (held, watch):
            exact = torch.equal(generate(), made)
            own = spread(card.time(generate))
            exact = exact and torch.equal(generate(), made)
            table = model.get_input_embeddings().weight.nbytes  # read by rows, on the host
            missing = max(0, weights - table + others - budget) * tokens
            link = held.link()[0]
            bound = max(spread(times)["median_ms"], missing / link / 1e6) if link else 0.0
            figures = {"ideal_ms": round(bound, 3), "missing_bytes": missing}
            row = {"exact": exact, **own, **suite.against(figures, own["median_ms"])}
            return {**row, **memory(held, watch, budget)}

    suite.row("bits", name, "attached, half of it", attached)


@torch.no_grad()
def main() -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=560, help="the whole ends by then")
    parser.add_argument("--steps", type=int, default=6, help="that are timed in a row")
    parser.add_argument("--small", action="store_true", help="in little, on the emulated GPU")
    args = parser.parse_args()
    return run_all(
        args, lambda suite: {("bits", name, ""): partial(run, suite, name) for name in args.only}
    )


if __name__ == "__main__":
    sys.exit(main())
