# SPDX-License-Identifier: Apache-2.0
"""Forward passes of a GPT larger than its budget: Penstock, resident, a stream made by hand.

    python benchmarks/gpt_inference.py --model gpt3_6.7b --gpu-memory 8GiB --gpu-memory 4GiB \
        --output benchmarks/results/gpt3_6.7b.json

All in one process on one card: the link's speed, the resident time (twice: the second is the A/A
row), then every budget. Logits are compared bit for bit on the GPU, and the memory used is read
from the driver while passes run.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from typing import Any

import torch
from kit.measure import MemoryWatch, driver_used, output_parser, release, spread, time_steps
from kit.record import Record
from torch import nn

from penstock.bound import must_cross, shortest_ms
from penstock.models.configs import get_config
from penstock.models.gpt import GPT, build_on_meta
from penstock.models.weights import load_model, synthetic_loader
from penstock.paging import attach
from penstock.units import parse_size


def arguments() -> argparse.Namespace:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--model", default="gpt3_6.7b")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--gpu-memory", action="append", default=[])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmups", type=int, default=4)
    parser.add_argument("--chunk-size", default=None)
    parser.add_argument("--look-ahead", default=None)
    parser.add_argument("--safety", nargs="+", default=["normal"], help="each in turn")
    parser.add_argument("--hand-made", action="store_true")
    return parser.parse_args()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A page-locked copy on the host, of the exact size (torch's own rounds up)."""
    host = torch.empty_like(tensor, device="cpu")
    result = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0)
    if result.value != 0:
        raise RuntimeError(f"cudaHostRegister: {result}")
    return host.copy_(tensor)


class HandMadeStream:
    """The stream an expert writes for this one model: double-buffered, ordered by events.

    Keeps the first `resident` layers and streams the rest, page-locked, through two slots.

    Args:
        model: A resident GPT on the GPU; its streamed layers lose their device memory.
        resident: How many layers stay.
    """

    def __init__(self, model: GPT, resident: int) -> None:
        self.model = model
        self.streamed = list(model.blocks)[resident:]
        self.resident = resident
        self.copies = torch.cuda.Stream()
        self.flat: list[torch.Tensor] = []
        self.views: list[list[tuple[nn.Parameter, int, torch.Size]]] = []
        for block in self.streamed:
            parameters = list(block.parameters())
            layout, offset = [], 0
            for parameter in parameters:
                layout.append((parameter, offset, parameter.shape))
                offset += -(-parameter.numel() // 256) * 256
            host = torch.zeros(offset, dtype=parameters[0].dtype)
            for parameter, start, _ in layout:
                host[start : start + parameter.numel()].copy_(parameter.detach().reshape(-1))
            self.flat.append(pin(host))
            self.views.append(layout)
            for parameter in parameters:
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        torch.cuda.empty_cache()
        device = next(model.parameters()).device
        self.slots = [torch.empty_like(self.flat[0], device=device) for _ in range(2)]
        self.arrived = [torch.cuda.Event() for _ in range(2)]
        self.done = [torch.cuda.Event() for _ in range(2)]
        self.next = 0
        for _ in range(2):
            self._fetch()

    def _fetch(self) -> None:
        slot = self.next % 2
        with torch.cuda.stream(self.copies):
            self.copies.wait_event(self.done[slot])
            self.slots[slot].copy_(self.flat[self.next % len(self.flat)], non_blocking=True)
            self.arrived[slot].record(self.copies)
        self.next += 1

    def __call__(self, idx_BT: torch.Tensor) -> torch.Tensor:
        model = self.model
        positions = torch.arange(idx_BT.shape[1], device=idx_BT.device)
        x = model.token_embedding(idx_BT) + model.position_embedding(positions)
        first = self.next - 2
        for index, block in enumerate(model.blocks):
            if index < self.resident:
                x = block(x)
                continue
            number = index - self.resident
            slot = (first + number) % 2
            torch.cuda.current_stream().wait_event(self.arrived[slot])
            for parameter, start, shape in self.views[number]:
                parameter.data = self.slots[slot][start : start + shape.numel()].view(shape)
            x = block(x)
            self.done[slot].record()
            self._fetch()
        return model.lm_head(model.final_norm(x))

    def close(self) -> None:
        """Unlock the host memory."""
        torch.cuda.synchronize()
        for flat in self.flat:
            torch.cuda.cudart().cudaHostUnregister(flat.data_ptr())


class Bench:
    """One model, one input, one reference."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.config = get_config(args.model)
        generator = torch.Generator().manual_seed(1)
        shape = (args.batch, args.seq_len)
        self.tokens = torch.randint(0, self.config.vocab_size, shape, generator=generator).cuda()

    def loader(self) -> Any:
        return synthetic_loader(self.config, 0)

    def time(self, model: Any, steps: int | None = None) -> list[float]:
        args = self.args
        return time_steps(
            lambda: model(self.tokens), warmups=args.warmups, steps=steps or args.steps
        )

    def resident(self) -> Any:
        return load_model(self.config, self.loader(), dtype=self.args.dtype, device="cuda")

    def run_resident(self) -> list[dict[str, Any]]:
        model = self.resident()
        self.reference = model(self.tokens)
        torch.cuda.reset_peak_memory_stats()
        first, second = self.time(model), self.time(model)
        weights = sum(p.nbytes for p in model.parameters())
        self.activations = torch.cuda.max_memory_allocated() - weights - self.reference.nbytes
        self.weights = weights
        self.resident_ms = statistics.median(first)
        row = {"how": "resident", "weight_bytes": weights, **spread(first)}
        again = {"how": "resident, again (A/A)", **spread(second)}
        return [row, again]

    def run_hand_made(self, model: Any, budget: int) -> dict[str, Any]:
        layer = sum(p.nbytes for p in model.blocks[0].parameters())
        outside = self.weights - layer * len(model.blocks)
        room = budget - outside - self.activations - 2 * layer
        resident = max(0, min(len(model.blocks), room // layer))
        stream = HandMadeStream(model, int(resident))
        exact = torch.equal(stream(self.tokens), self.reference)
        times = self.time(stream)
        stream.close()
        return {
            "how": f"hand-made stream, {resident} of {len(model.blocks)} layers stay",
            "gpu_memory_bytes": budget,
            "bytes_in": layer * (len(model.blocks) - int(resident)),
            "exact": exact,
            **spread(times),
        }

    def run_penstock(self, budget: int, safety: str) -> dict[str, Any]:
        args = self.args
        release()
        used_before = driver_used()
        torch_before = torch.cuda.memory_reserved()
        attached = attach(
            build_on_meta(self.config, dtype=args.dtype),
            gpu_memory=budget + torch_before,
            device="cuda",
            load=self.loader(),
            chunk_size=args.chunk_size,
            look_ahead=args.look_ahead,
            safety=safety,
        )
        model = attached.model
        exact = [torch.equal(model(self.tokens), self.reference) for _ in range(3)]
        times = self.time(model)
        with MemoryWatch() as watch:
            exact += [torch.equal(model(self.tokens), self.reference) for _ in range(3)]
        aa = self.time(model)
        stats = asdict(attached.stats())
        link = attached.link()[0]
        # The room that an ideal would have: the whole budget less what activations and workspace
        # take at their peak, none of it lost to transfer.
        used = watch.highest - used_before
        blocks = stats["device_bytes"]
        others = max(0, used - blocks)
        room = budget - others
        ideal = shortest_ms(self.resident_ms, (must_cross(self.weights, room), link))
        # The same, not counting tables of which a pass reads only rows.
        needed = stats["paged_bytes"] + stats["pinned_bytes"]
        floor = shortest_ms(self.resident_ms, (must_cross(needed, room), link))
        median = statistics.median(times)
        row = {
            "how": "penstock",
            "safety": safety,
            "gpu_memory_bytes": budget,
            "used_by_driver_bytes": used,
            "within_budget": used <= budget,
            "activations_and_workspace_bytes": others,
            "link_gb_per_s": round(link, 2),
            "ideal_ms": round(ideal, 3),
            "ratio_to_ideal": round(median / ideal, 4),
            "floor_ms": round(floor, 3),
            "ratio_to_floor": round(median / floor, 4),
            "ratio_to_resident": round(median / self.resident_ms, 4),
            "exact": all(exact),
            **spread(times),
            "again": spread(aa),
            "stats": stats,
        }
        print(attached.explain(), flush=True)
        attached.detach()
        return row


@torch.no_grad()
def main() -> None:
    args = arguments()
    bench = Bench(args)
    shape = f"{args.model}, {args.dtype}, {args.batch} x {args.seq_len} tokens"
    work = {k: str(v) for k, v in vars(args).items() if k != "output"}
    record = Record(args.output, title=f"Forward pass: {shape}", work=work)
    for row in bench.run_resident():
        record.add(row)
    for size in args.gpu_memory:
        release()
        budget = parse_size(size)
        for safety in args.safety:
            record.add(bench.run_penstock(budget, safety))
        if budget > bench.weights:  # beside the same thing resident, once more
            model = bench.resident()
            record.add({"how": "resident, beside it", **spread(bench.time(model))})
            del model
        if args.hand_made and budget < bench.weights:
            model = bench.resident()
            record.add(bench.run_hand_made(model, budget))
            del model


if __name__ == "__main__":
    main()
