# SPDX-License-Identifier: Apache-2.0
"""Tensors of one allocator between two GPUs of one process, every byte checked, and how fast.

    python benchmarks/allocator_peers.py --allocator stitch --json peers.json

Copies both ways of tensors that lie in one piece, that are stitched, that are strided (there the
kernel of one GPU reads the other's memory), before and after the second GPU is first used, and a
step of DataParallel, whose collectives read peer memory through NCCL.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import allocators
from allocator_workloads import write

MIB = 1 << 20


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    allocators.add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args(argv)


def pattern(torch: Any, count: int, seed: int, device: str) -> Any:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    small = torch.randint(0, 256, (4099,), dtype=torch.uint8, generator=generator).to(device)
    return small.repeat(count // 4099 + 1)[:count].contiguous()


def fragmented(torch: Any, device: str) -> list[Any]:
    """Every other one of many blocks freed, so that a large one has to be joined from pieces."""
    made = [torch.empty(24 * MIB, dtype=torch.uint8, device=device) for _ in range(64)]
    return made[::2]


def check_copies(torch: Any, first: str, second: str) -> dict[str, int]:
    """How many copies were compared, and how many differed."""
    checked = wrong = 0
    early = pattern(torch, 300 * MIB, 1, first)  # before `second` has an allocator
    held = [fragmented(torch, device) for device in (first, second)]
    for seed, size in enumerate((1, 513, 3 * MIB + 7, 40 * MIB, 700 * MIB)):
        for source, target in ((first, second), (second, first)):
            there = pattern(torch, size, seed, source)
            back = there.to(target).to(source)
            checked, wrong = checked + 1, wrong + int(not torch.equal(there, back))
    turned = early[: 256 * MIB].view(16384, 16384).t().to(second)
    same = torch.equal(turned.cpu(), early[: 256 * MIB].view(16384, 16384).t().cpu())
    checked, wrong = checked + 1, wrong + int(not same)
    into = torch.zeros(64 * MIB, dtype=torch.uint8, device=second)
    into[::2].copy_(early[: 32 * MIB])
    same = torch.equal(into[::2].cpu(), early[: 32 * MIB].cpu())
    checked, wrong = checked + 1, wrong + int(not same)
    del held
    return {"checked": checked, "wrong": wrong}


def copy_speed(torch: Any, first: str, second: str, rounds: int) -> list[float]:
    """GB/s of copies of 1 GiB, each waited for."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=first)
    target = torch.empty(1 << 30, dtype=torch.uint8, device=second)
    rates = []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        torch.cuda.synchronize(second)
        rates.append((1 << 30) / start.elapsed_time(end) / 1e6)
    return [round(rate, 1) for rate in rates[2:]]


def data_parallel(torch: Any, steps: int) -> dict[str, Any]:
    """Losses of a small model trained on both GPUs, and of the same on one."""
    losses = {}
    for devices in ([0, 1], [0]):
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)
        ).cuda()
        wrapped = torch.nn.DataParallel(model, devices)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        curve = []
        for step in range(steps):
            torch.manual_seed(step)
            batch = torch.randn(64, 2048).cuda()
            loss = (wrapped(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(round(loss.item(), 5))
        losses[len(devices)] = curve
    worst = max(abs(a - b) / b for a, b in zip(losses[2], losses[1], strict=True))
    return {"losses": losses, "largest_difference": worst}


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    allocators.prepare(args.allocator)
    import torch

    allocators.install(args.allocator, device=args.device, cap=args.cap)
    if args.device == "cpu" or torch.cuda.device_count() < 2:
        sys.exit("two GPUs are needed")
    first, second = "cuda:0", "cuda:1"
    copies = check_copies(torch, first, second)
    parallel = data_parallel(torch, 10)
    rates = copy_speed(torch, first, second, args.rounds)
    result = {
        "allocator": args.allocator,
        "can_reach": torch.cuda.can_device_access_peer(0, 1),
        "copies": copies,
        "gb_per_s": {"median": statistics.median(rates), "samples": rates},
        "data_parallel": parallel,
    }
    write(result, args.json)
    return 1 if copies["wrong"] or parallel["largest_difference"] > 1e-3 else 0


if __name__ == "__main__":
    sys.exit(main())
