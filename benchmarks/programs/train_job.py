# SPDX-License-Identifier: Apache-2.0
"""Training steps of a job of training/jobs.py. Plain PyTorch.

    python benchmarks/programs/train_job.py --job llama_8b_lora --steps 10

Knows nothing of Penstock. Prints one JSON object: the time of every step, its loss as a digest,
and what torch had allocated at most.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps import repeat_bit_for_bit, script_parser, timed
from training.jobs import JOBS


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--job", choices=JOBS, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeatable", action="store_true", help="deterministic kernels alone")
    args = parser.parse_args()
    if args.repeatable:
        repeat_bit_for_bit()
    job = JOBS[args.job]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = job.make(False).train()
    optimizer = job.optimizer([p for p in model.parameters() if p.requires_grad])
    batches = [batch.cuda() for batch in job.batches(tiny=False)]
    result = {"model": args.job, "step_ms": [], "digests": []}
    for step in range(args.steps):
        with timed(result["step_ms"], torch.cuda.synchronize):
            with torch.autocast("cuda", torch.bfloat16, enabled=not job.half):
                loss = job.loss(model, batches[step % 2])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        result["digests"].append(float(loss).hex())
    result["need_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
