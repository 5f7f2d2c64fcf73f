# SPDX-License-Identifier: Apache-2.0
"""Training of a Hugging Face GPT-2 of random weights with AdamW. Plain PyTorch.

python benchmarks/programs/hf_train.py --model gpt2-xl --steps 12
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from hf_lm import SHAPES
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=SHAPES, default="gpt2-xl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.device("cuda"):
        model = GPT2LMHeadModel(GPT2Config(**SHAPES[args.model], **dropout)).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    result = {"model": args.model, "step_ms": [], "digests": []}
    for step in range(args.steps):
        torch.manual_seed(100 + step % 4)
        tokens = torch.randint(0, 50257, (args.batch, args.seq_len)).cuda()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        result["step_ms"].append(round((time.perf_counter() - begin) * 1e3, 3))
        result["digests"].append(float(loss).hex())
    result["need_bytes"] = torch.cuda.max_memory_allocated()
    result["weight_bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
