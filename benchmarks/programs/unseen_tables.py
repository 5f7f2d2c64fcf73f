# SPDX-License-Identifier: Apache-2.0
"""Kernels that reach tensors through a table which another kernel has built. Plain PyTorch, Triton.

python benchmarks/programs/unseen_tables.py

The addresses come to the device in disguise, and a kernel takes it off there: nobody between the
program and the driver can see which tensors the next kernels read and write.
"""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl
from steps import digest, script_parser, timed

DISGUISE = 0x5A5A5A5A5A5A5A5A


@triton.jit
def scale_through(table, which, factor, count, BLOCK: tl.constexpr):
    """Scale the tensor whose address is entry `which` of the table."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(table + which).to(tl.pointer_type(tl.float32))
    inside = at < count
    tl.store(values + at, tl.load(values + at, mask=inside) * factor + 1.0, mask=inside)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tensors", type=int, default=48)
    parser.add_argument("--mib", type=int, default=32, help="of each tensor")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(0)
    count = args.mib * 2**18
    tensors = [torch.randn(count, device="cuda") for _ in range(args.tensors)]
    disguised = torch.tensor([tensor.data_ptr() ^ DISGUISE for tensor in tensors])
    table = disguised.cuda() ^ DISGUISE
    result: dict[str, list[object]] = {"step_ms": [], "digests": []}
    for step in range(args.steps):
        with timed(result["step_ms"], torch.cuda.synchronize):
            for which in range(args.tensors):
                # A few are used in sight as well, so that they come and go in both ways.
                if (which + step) % 3 == 0:
                    tensors[which].add_(0.5)
                grid = (triton.cdiv(count, 1024),)
                scale_through[grid](
                    table, (which * 7 + step) % args.tensors, 0.5, count, BLOCK=1024
                )
        result["digests"].append(digest(tensors[step]))
    result["digests"] += [digest(tensor) for tensor in tensors]
    print(json.dumps({"need_bytes": torch.cuda.max_memory_allocated(), **result}))


if __name__ == "__main__":
    main()
