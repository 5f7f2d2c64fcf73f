# SPDX-License-Identifier: Apache-2.0
"""Training of a Hugging Face GPT-2 of random weights with AdamW. Plain PyTorch.

python benchmarks/programs/hf_train.py --model gpt2-xl --steps 12
"""

from __future__ import annotations

import argparse
import json

import torch
from steps import SHAPES, repeat_bit_for_bit, timed, train_step, trained_gpt2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=SHAPES, default="gpt2-xl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeatable", action="store_true", help="deterministic kernels alone")
    args = parser.parse_args()
    if args.repeatable:
        repeat_bit_for_bit()
    torch.manual_seed(0)
    model = trained_gpt2(args.model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    result = {"model": args.model, "step_ms": [], "digests": []}
    for step in range(args.steps):
        torch.manual_seed(100 + step % 4)
        tokens = torch.randint(0, 50257, (args.batch, args.seq_len)).cuda()
        with timed(result["step_ms"], torch.cuda.synchronize):
            loss = train_step(model, optimizer, tokens)
        result["digests"].append(float(loss).hex())
    result["need_bytes"] = torch.cuda.max_memory_allocated()
    result["weight_bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
