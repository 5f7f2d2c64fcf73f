# SPDX-License-Identifier: Apache-2.0
"""Single words read through addresses that nobody named, while other kernels sweep the memory.

python benchmarks/programs/hidden_reads.py --tries 10000

The addresses lie in device memory in disguise, and the reading kernel takes it off: nobody between
the program and the driver can see what it will read. Each word says where it is from, so that one
try is right, wrong, or a fault of the GPU. A fault ends the CUDA context and with it a group of
tries; groups are children that are forked before there is one.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from steps import script_parser

DISGUISE = 0x5A5A5A5A5A5A5A5A
NOT_READ = -1
FAULT = "illegal memory access"


@triton.jit
def read_through(table, which, at, found, disguise):
    """Store a word of the tensor whose address is entry `which` of the table."""
    words = (tl.load(table + which) ^ disguise).to(tl.pointer_type(tl.int32))
    tl.store(found, tl.load(words + at))


def outcomes(found: list[int], wanted: list[int], *, faulted: bool) -> dict[str, int]:
    """What became of tries. A fault is one of those not read; the others were not made."""
    made = [(got, want) for got, want in zip(found, wanted, strict=True) if got != NOT_READ]
    if faulted == (len(made) == len(wanted)):
        how = "a fault" if faulted else "no fault"
        raise ValueError(f"{how}, and {len(made)} of {len(wanted)} reads have come")
    right = sum(got == want for got, want in made)
    return {"right": right, "wrong": len(made) - right, "fault": int(faulted)}


def in_child(run: Callable[[], dict[str, int]]) -> dict[str, int]:
    """What `run` returns, in a process of its own; ValueError with its words if it fails."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            answer = json.dumps(run())
        except BaseException as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        os.write(send, answer.encode())
        os._exit(0)  # nothing of the parent's is to be cleaned up, nor a context that has faulted
    os.close(send)
    with os.fdopen(receive) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not said:
        raise ValueError(f"a group of tries ended with status {status} and said nothing")
    answer = json.loads(said)
    if "error" in answer:
        raise ValueError(f"a group of tries failed: {answer['error']}")
    return answer


def count_all(
    tries: int, group: Callable[[int, int], dict[str, int]], until: float = math.inf
) -> dict[str, int]:
    """Groups, as group(number, tries), until there were so many tries or it is that late."""
    total = {"right": 0, "wrong": 0, "fault": 0, "groups": 0}
    while (made := total["right"] + total["wrong"] + total["fault"]) < tries:
        if time.monotonic() > until:
            break
        counted = group(total["groups"], tries - made)
        if sum(counted.values()) == 0:
            raise ValueError("a group of tries made none")
        for key, count in counted.items():
            total[key] += count
        total["groups"] += 1
    return total


def read_group(seed: int, tries: int, tensors: int, count: int) -> dict[str, int]:
    """Sweep `tensors` of `count` words and read among them; until a fault, or so many tries."""
    draw = random.Random(seed)
    blocks = [torch.arange(i * count, (i + 1) * count, dtype=torch.int32, device="cuda")
              for i in range(tensors)]  # fmt: skip
    scratch = torch.empty(count, dtype=torch.int32, device="cuda")
    table = torch.tensor([block.data_ptr() ^ DISGUISE for block in blocks]).cuda()
    found = torch.full((tries,), NOT_READ, dtype=torch.int32, pin_memory=True)
    aside = torch.cuda.Stream()
    torch.cuda.synchronize()
    wanted: list[int] = []
    faulted = False
    try:
        while len(wanted) < tries:
            for block in blocks:
                torch.add(block, 1, out=scratch)
                if len(wanted) < tries and draw.random() < 0.25:
                    which, at = draw.randrange(tensors), draw.randrange(count)
                    with torch.cuda.stream(draw.choice([aside, torch.cuda.current_stream()])):
                        read_through[(1,)](table, which, at, found[len(wanted) :], DISGUISE)
                    wanted.append(which * count + at)
            if draw.random() < 0.25:  # else the host runs ahead of the device
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    except RuntimeError as error:
        if FAULT not in str(error):
            raise
        faulted = True
    return outcomes(found[: len(wanted)].tolist(), wanted, faulted=faulted)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tries", type=int, default=10000)
    parser.add_argument("--tensors", type=int, default=48)
    parser.add_argument("--mib", type=int, default=32, help="of each tensor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no group begins later")
    args = parser.parse_args()
    begin = time.monotonic()

    def group(number: int, tries: int) -> dict[str, int]:
        seed = args.seed + number
        return in_child(lambda: read_group(seed, tries, args.tensors, args.mib << 18))

    try:
        total = count_all(args.tries, group, begin + args.seconds)
    except ValueError as error:
        sys.exit(f"error: {error}")
    need = (args.tensors + 1) * (args.mib << 20)
    seconds = round(time.monotonic() - begin, 1)
    tries = total["right"] + total["wrong"] + total["fault"]
    print(json.dumps({"need_bytes": need, "tries": tries, **total, "seconds": seconds}))


if __name__ == "__main__":
    main()
