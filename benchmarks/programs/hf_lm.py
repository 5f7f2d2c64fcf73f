# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face language model with random weights: forwards, then generation. Plain PyTorch.

    python benchmarks/programs/hf_lm.py --model gpt2-xl --steps 10 --generate 16

Knows nothing of Penstock: it is what `penstock run` is measured with. Prints one JSON object: the
time of every step, a digest of what each gave, and how much memory torch had allocated at most.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SHAPES = {
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "6.7b": {"n_embd": 4096, "n_layer": 32, "n_head": 32, "n_positions": 2048},
    "short": {"n_embd": 2560, "n_layer": 12, "n_head": 20},
    "small": {"n_embd": 256, "n_layer": 4, "n_head": 4},
}


def digest(tensor: torch.Tensor) -> str:
    raw = tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=SHAPES, default="gpt2-xl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--generate", type=int, default=0, help="tokens")
    parser.add_argument("--rounds", type=int, default=3, help="of the generation")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-digests", action="store_true", help="nothing between the steps")
    parser.add_argument("--output", default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(GPT2Config(**SHAPES[args.model])).eval()
    torch.set_default_dtype(torch.float32)
    run = torch.compile(model) if args.compile else model
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    result = {"model": args.model, "weight_bytes": weights, "step_ms": [], "digests": []}
    with torch.inference_mode():
        for step in range(args.steps):
            torch.manual_seed(100 + step % 2)
            tokens = torch.randint(0, 50257, (args.batch, args.seq_len)).cuda()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            logits = run(tokens, use_cache=False).logits
            torch.cuda.synchronize()
            result["step_ms"].append(round((time.perf_counter() - begin) * 1e3, 3))
            if not args.no_digests:
                result["digests"].append(digest(logits))
            del logits
        result["token_ms"], result["generated"] = [], []
        for _ in range(args.rounds if args.generate else 0):
            torch.manual_seed(7)
            prompt = torch.randint(0, 50257, (args.batch, 128)).cuda()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            made = model.generate(
                prompt,
                max_new_tokens=args.generate,
                min_new_tokens=args.generate,
                do_sample=False,
                pad_token_id=0,
            )
            torch.cuda.synchronize()
            elapsed = (time.perf_counter() - begin) * 1e3
            result["token_ms"].append(round(elapsed / args.generate, 3))
            result["generated"].append(digest(made))
    result["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    result["used_bytes"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    text = json.dumps(result)
    print(text)
    if args.output:
        with open(args.output, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
