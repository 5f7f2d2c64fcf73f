# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator samples (torch.testing's op_db) on one GPU: what each gives, as a digest.

    python benchmarks/programs/torch_ops.py --seconds 60

Beside them weights are swept now and then, so that a tight budget is always full. Knows nothing of
Penstock: the same run with and without it has to give the same.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
import warnings
from typing import Any

import torch
from steps import script_parser
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

SAMPLES = 6  # of an operator and a type of element
TYPES = (torch.float32, torch.bfloat16, torch.int64)
SWEEP_EVERY = 4


def digest(values: Any) -> str:
    found = hashlib.sha256()
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            dense = leaf.detach().to_dense() if leaf.layout is not torch.strided else leaf.detach()
            dense = dense.resolve_conj().resolve_neg().cpu().contiguous()
            found.update(repr((dense.dtype, dense.shape)).encode())
            found.update(dense.flatten().view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()[:12]


def outcome(operator: Any, sample: Any) -> str:
    torch.manual_seed(0)
    try:
        return digest(operator(sample.input, *sample.args, **sample.kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--samples", type=int, default=1 << 30, help="groups of them")
    parser.add_argument("--ballast-mib", type=int, default=768)
    parser.add_argument("--seconds", type=float, default=math.inf)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    ballast = [torch.randn(4 << 20, device="cuda") for _ in range(args.ballast_mib // 16)]
    expected = [float(each.sum()) for each in ballast]
    begin = time.monotonic()
    outcomes: dict[str, list[str]] = {}
    wrong = 0
    skipped = ("empty", "nn.functional.dropout")  # what is not defined, or draws
    for operator, dtype in itertools.product(op_db, TYPES):
        if len(outcomes) == args.samples or time.monotonic() - begin > args.seconds:
            break
        if "empty" in operator.name or operator.name.startswith(skipped):
            continue
        if not operator.supports_dtype(dtype, "cuda"):
            continue
        name = f"{operator.full_name} {dtype}"
        torch.manual_seed(0)
        try:
            samples = list(operator.sample_inputs("cuda", dtype))[:SAMPLES]
        except Exception as error:
            outcomes[name] = [f"samples: {type(error).__name__}"]
            continue
        outcomes[name] = [outcome(operator, sample) for sample in samples]
        if len(outcomes) % SWEEP_EVERY == 0:
            wrong += sum(float(e.sum()) != x for e, x in zip(ballast, expected, strict=True))
    print(
        json.dumps(
            {
                "samples": len(outcomes),
                "wrong_ballast": wrong,
                "seconds": round(time.monotonic() - begin, 1),
                "outcomes": outcomes,
            }
        )
    )


if __name__ == "__main__":
    main()
