# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays that are swept again and again: its own kernels, and cuBLAS. Plain CuPy.

python benchmarks/programs/cupy_sweep.py
"""

from __future__ import annotations

import json

import cupy as cp
from steps import script_parser, timed


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--arrays", type=int, default=40)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    random = cp.random.default_rng(0)
    side = args.side
    scale = side**-0.5
    weights = [random.standard_normal((side, side), dtype=cp.float32) for _ in range(args.arrays)]
    for weight in weights:
        weight *= scale
    start = random.standard_normal((256, side), dtype=cp.float32)
    result = {"need_bytes": args.arrays * side * side * 4, "step_ms": [], "digests": []}
    for _ in range(args.steps):
        with timed(result["step_ms"], cp.cuda.Device().synchronize):
            x = start
            for weight in weights:
                x = cp.tanh(x @ weight)
        result["digests"].append(int(x.view(cp.int32).astype(cp.int64).sum()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
