# SPDX-License-Identifier: Apache-2.0
"""A model of models/held_out.py: forward passes, or tokens. Plain PyTorch.

    python benchmarks/programs/held_out.py --model whisper --tokens 16

Knows nothing of Penstock. Prints one JSON object: the time of every step, a digest of what each
gave, how many passes over the weights a step makes, and what torch had allocated at most.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.held_out import outputs, subject
from models.shapes import SIZES
from steps import digest, repeat_bit_for_bit, script_parser, timed


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=0, help="a step; 0: forward passes")
    args = parser.parse_args()
    repeat_bit_for_bit(warn_only=True)
    recipe = subject(args.model)
    model = recipe.resident("cuda")
    given = recipe.make_inputs(model, *SIZES.get(args.model, (1, args.length)), "cuda")
    if args.tokens:
        given = {key: value for key, value in given.items() if not key.startswith("decoder")}
        given |= {"max_new_tokens": args.tokens, "do_sample": False}
    result = {"model": args.model, "passes": max(1, args.tokens), "step_ms": [], "digests": []}
    with torch.no_grad():
        for _ in range(args.steps):
            with timed(result["step_ms"], torch.cuda.synchronize):
                made = model.generate(**given) if args.tokens else model(**given)
            result["digests"].append(digest(outputs(made)[0]))
    result["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
