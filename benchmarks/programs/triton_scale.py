# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel over tensors that are swept again and again. Knows nothing of Penstock.

python benchmarks/programs/triton_scale.py
"""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl
from steps import script_parser, timed

BLOCK = 1024


@triton.jit
def scale_and_add(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside) * factor + tl.load(y + at, mask=inside)
    tl.store(y + at, value, mask=inside)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tensors", type=int, default=40)
    parser.add_argument("--mib", type=int, default=64, help="of a tensor")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    count = args.mib << 18
    tensors = [torch.randn(count, device="cuda") for _ in range(args.tensors)]
    result = {"need_bytes": args.tensors * count * 4, "step_ms": [], "digests": []}
    for _ in range(args.steps):
        with timed(result["step_ms"], torch.cuda.synchronize):
            for x, y in zip(tensors, tensors[1:] + tensors[:1], strict=True):
                scale_and_add[(triton.cdiv(count, BLOCK),)](x, y, count, 0.5, BLOCK=BLOCK)
    # Bits, so that order of addition plays no part.
    result["digests"] = [int(t.view(torch.int32).to(torch.int64).sum()) for t in tensors]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
