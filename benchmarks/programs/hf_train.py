# SPDX-License-Identifier: Apache-2.0
"""Training of a Hugging Face GPT-2 of random weights with AdamW. Plain PyTorch.

    python benchmarks/programs/hf_train.py --model gpt2-xl --steps 12
    torchrun --nproc-per-node 2 benchmarks/programs/hf_train.py --fsdp

Layers are recomputed; under FSDP2 they are not.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import torch.distributed as dist
from steps import SHAPES, repeat_bit_for_bit, script_parser, train, trained_gpt2


def sharded(model: Any) -> int:
    """Shard it among the processes that torchrun started; the rank of this one."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return dist.get_rank()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-xl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeatable", action="store_true", help="deterministic kernels alone")
    parser.add_argument("--fsdp", action="store_true", help="by all processes of torchrun")
    args = parser.parse_args()
    rank = 0
    if args.fsdp:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if args.repeatable:
        repeat_bit_for_bit()
    torch.manual_seed(0)
    model = trained_gpt2(args.model)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if args.fsdp:
        rank = sharded(model)
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
    result = train(model, args.steps, (args.batch, args.seq_len), rank)
    if rank == 0:
        told = {"model": args.model, **result, "weight_bytes": weights}
        print(json.dumps(told), flush=True)
    if args.fsdp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
