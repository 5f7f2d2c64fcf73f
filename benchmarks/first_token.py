# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint on disk to a model's first token, by penstock.from_pretrained().

    python benchmarks/first_token.py --folder llama --output first_token.json

Writes the Llama-8B shape of models/held_out.py with random weights, reads the files once, so that
they lie in the page cache, and loads them in a process of its own. The bound is one copy of the
files' bytes into memory that is page-locked already, by the same threads, in the same run. Host
memory is what the machine has less available than before, every 20 ms: clean pages of files are
available.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

import torch
from kit.measure import MemoryWatch, host_used, output_parser
from kit.record import Record
from kit.under import run
from models.held_out import subject
from transformers import AutoModelForCausalLM

import penstock
from penstock.units import GIB, MIB

PROMPT = (1, 128)
LIMIT_S = 600.0  # of one load


def copied(folder: Path) -> float:
    """Seconds for one copy of the files' bytes into page-locked memory."""
    room = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    begin = time.perf_counter()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as source:
            mapped = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        content = torch.frombuffer(mapped, dtype=torch.uint8)
        for part in content.split(len(room)):
            room[: len(part)].copy_(part)
    return time.perf_counter() - begin


def load(folder: Path, budget: str | None) -> dict[str, Any]:
    """Load and run once: what it took."""
    prompt = torch.arange(PROMPT[1], device="cuda").expand(PROMPT)
    torch.cuda.synchronize()
    bound = copied(folder)
    with MemoryWatch(host_used, 0.02) as host:
        begin = time.perf_counter()
        if budget is None:
            model = AutoModelForCausalLM.from_pretrained(folder).to("cuda")
            loaded = time.perf_counter()
        else:
            attached = penstock.from_pretrained(AutoModelForCausalLM, folder, gpu_memory=budget)
            loaded, model = time.perf_counter(), attached.model
        with torch.no_grad():
            token = int(model(input_ids=prompt, logits_to_keep=1).logits.argmax())
        ended = time.perf_counter()
    weights = sum(each.nbytes for each in model.parameters())
    peak = host.highest - host.before
    return {
        "token": token,
        "bound_s": round(bound, 3),
        "loaded_s": round(loaded - begin, 3),
        "first_token_s": round(ended - begin, 3),
        "to_bound": round((ended - begin) / bound, 2),
        "weights_bytes": weights,
        "host_peak_bytes": peak,
        "host_to_weights": round(peak / weights, 3),
    }


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoint goes")
    parser.add_argument("--budgets", nargs="+", default=["8GiB", "4GiB"])
    parser.add_argument("--load", help="one budget in this process, or 'plain'")
    args = parser.parse_args()
    if args.load:
        print(json.dumps(load(args.folder, None if args.load == "plain" else args.load)))
        return 0
    record = Record(args.output, title="First token of a checkpoint in the page cache")
    if not args.folder.exists():
        model = subject("llama", small=False).resident("cuda")
        model.save_pretrained(args.folder, max_shard_size=4 * GIB)
        del model
        torch.cuda.empty_cache()
    for file in args.folder.glob("*.safetensors"):
        with file.open("rb") as source:
            while source.read(64 * MIB):
                pass
    words = [sys.executable, __file__, "--folder", str(args.folder), "--output", str(args.output)]
    tokens = set()
    for budget in ("plain", *args.budgets, *args.budgets):
        row = {"budget": budget, **run([*words, "--load", budget], LIMIT_S)}
        tokens.add(row.get("token"))
        record.add(row)
    return 0 if len(tokens) == 1 and None not in tokens else 1


if __name__ == "__main__":
    sys.exit(main())
