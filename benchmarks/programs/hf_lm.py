# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face language model with random weights: forwards, then generation. Plain PyTorch.

    python benchmarks/programs/hf_lm.py --model gpt2-xl --steps 10 --generate 16

Knows nothing of Penstock: it is what `penstock run` is measured with. Prints one JSON object: the
time of every step, a digest of what each gave, and how much memory torch had allocated at most.
"""

from __future__ import annotations

import json

import torch
from steps import SHAPES, digest, gpt2, script_parser, timed


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-xl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--generate", type=int, default=0, help="tokens")
    parser.add_argument("--rounds", type=int, default=3, help="of the generation")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-digests", action="store_true", help="nothing between the steps")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)
    model = gpt2(args.model).eval()
    torch.set_default_dtype(torch.float32)
    run = torch.compile(model) if args.compile else model
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    result = {"model": args.model, "weight_bytes": weights, "step_ms": [], "digests": []}
    with torch.inference_mode():
        for step in range(args.steps):
            torch.manual_seed(100 + step % 2)
            tokens = torch.randint(0, 50257, (args.batch, args.seq_len)).cuda()
            with timed(result["step_ms"], torch.cuda.synchronize):
                logits = run(tokens, use_cache=False).logits
            if not args.no_digests:
                result["digests"].append(digest(logits))
            del logits
        rounds, result["generated"] = [], []
        for _ in range(args.rounds if args.generate else 0):
            torch.manual_seed(7)
            prompt = torch.randint(0, 50257, (args.batch, 128)).cuda()
            with timed(rounds, torch.cuda.synchronize):
                made = model.generate(
                    prompt,
                    max_new_tokens=args.generate,
                    min_new_tokens=args.generate,
                    do_sample=False,
                    pad_token_id=0,
                )
            result["generated"].append(digest(made))
        result["token_ms"] = [round(each / args.generate, 3) for each in rounds]
    result["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    result["used_bytes"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
