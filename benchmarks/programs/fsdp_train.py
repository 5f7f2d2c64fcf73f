# SPDX-License-Identifier: Apache-2.0
"""FSDP2 training of a Hugging Face GPT-2 of random weights. Plain PyTorch, under torchrun.

torchrun --nproc-per-node 2 benchmarks/programs/fsdp_train.py
"""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
from steps import SHAPES, repeat_bit_for_bit, timed, train_step, trained_gpt2
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=SHAPES, default="short")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeatable", action="store_true", help="deterministic kernels alone")
    args = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    if args.repeatable:
        repeat_bit_for_bit()
    torch.manual_seed(0)
    model = trained_gpt2(args.model)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    result = {"step_ms": [], "digests": []}
    for step in range(args.steps):
        torch.manual_seed(100 + 10 * (step % 4) + rank)
        tokens = torch.randint(0, 50257, (1, 512)).cuda()
        with timed(result["step_ms"], torch.cuda.synchronize):
            loss = train_step(model, optimizer, tokens)
            total = loss.detach().clone()
            dist.all_reduce(total)
        result["digests"].append(float(total).hex())
    result["need_bytes"] = torch.cuda.max_memory_allocated()
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
