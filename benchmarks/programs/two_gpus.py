# SPDX-License-Identifier: Apache-2.0
"""A network whose halves lie on two GPUs of one process. Plain PyTorch.

python benchmarks/programs/two_gpus.py
"""

from __future__ import annotations

import json

import torch
from steps import digest, script_parser, timed


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--layers", type=int, default=40, help="on each GPU")
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    halves = [
        [torch.randn(args.side, args.side, device=f"cuda:{gpu}") for _ in range(args.layers)]
        for gpu in range(2)
    ]
    start = torch.randn(256, args.side, device="cuda:0")
    result = {"need_bytes": args.layers * args.side**2 * 4, "step_ms": [], "digests": []}
    for _ in range(args.steps):
        with timed(result["step_ms"], lambda: [torch.cuda.synchronize(gpu) for gpu in range(2)]):
            x = start
            for gpu, weights in enumerate(halves):
                x = x.to(f"cuda:{gpu}")
                for weight in weights:
                    x = torch.tanh(x @ weight)
            back = x.to("cuda:0")
        result["digests"].append(digest(back))
    result["used_bytes"] = [
        torch.cuda.mem_get_info(gpu)[1] - torch.cuda.mem_get_info(gpu)[0] for gpu in range(2)
    ]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
