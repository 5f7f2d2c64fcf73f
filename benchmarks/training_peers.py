# SPDX-License-Identifier: Apache-2.0
"""Peers of the training benchmark, on one GPU: FSDP2 and DeepSpeed's ZeRO, with their offload.

    python benchmarks/training_peers.py --model llama_7b_1x1024 --how ZeRO-2 --budget 24GiB

Weights (but ZeRO-2's), gradients and optimizer state live in page-locked memory, and the CPU
updates, in the precision that the other rows have. Each peer has the settings that suit it best
within the budget; its row says which. From the first step on PyTorch's allocator hands out no more
than the budget: before, the whole model lies on the card, and what the driver and NCCL take comes
on top. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from kit.card import Card
from kit.measure import alone, script_parser
from kit.record import Record
from kit.under import run
from models.peers import limited
from torch import nn
from training.bench import Bench
from training.jobs import JOBS

from penstock.host import check_host_memory
from penstock.units import parse_size

# What has steps, what steps it, its backward, its settings.
Started = tuple[nn.Module, Any, Callable[[torch.Tensor], None], dict[str, Any]]
AHEAD = 2  # layers that are fetched before their turn
# Of the budget, for weights that stay from forward to backward: with FSDP2 all layers of a 7B in
# 24 GiB; ZeRO-3 wants room for parameters that it gathers ahead.
KEPT = {"FSDP2": 0.6, "ZeRO-3": 0.4}


# ---- FSDP2 ---------------------------------------------------------------------------------


def layers_of(module: nn.Module) -> list[nn.Module]:
    """What is in a model's lists, in their order; lists within these belong to them."""
    parts = (
        list(child) if isinstance(child, nn.ModuleList) else layers_of(child)
        for child in module.children()
    )
    return list(chain.from_iterable(parts))


def fsdp2(bench: Bench, budget: int) -> Started:
    """CPUOffloadPolicy, with layers that come ahead of their turn, and the last of which stay."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl" if bench.cuda else "gloo")
    model, optimizer = bench.make()
    reduced = torch.bfloat16 if bench.job.half else torch.float32
    share = partial(
        fully_shard,
        mesh=init_device_mesh(bench.device.type, (1,)),
        mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduced),
        offload_policy=CPUOffloadPolicy(pin_memory=bench.cuda),
    )
    layers: list[Any] = layers_of(model)
    room, kept = KEPT["FSDP2"] * budget, 0
    for layer in reversed(layers):
        room -= sum(2 * parameter.numel() for parameter in layer.parameters())
        share(layer, reshard_after_forward=room < 0)
        kept += room >= 0
    share(model)
    for number, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 1 + AHEAD])
        layer.set_modules_to_backward_prefetch(layers[max(0, number - AHEAD) : number][::-1])
    settings = {
        "sharded": f"{len(layers)} layers, and the rest",
        "policy": "CPUOffloadPolicy(pin_memory=True)",
        "prefetch": f"{AHEAD} layers, forward and backward",
        "kept_until_backward": f"{kept} layers",
        "dtypes": f"bfloat16, reduced in {reduced}",
        "optimizer": f"{type(optimizer).__name__}, fused, on the CPU",
    }
    return model, bench.optimizer(model), torch.Tensor.backward, settings


# ---- DeepSpeed -----------------------------------------------------------------------------


def zero(stage: int, bench: Bench, budget: int) -> Started:
    """ZeRO-Offload, or ZeRO-3 with weights on the host too; DeepSpeed's Adam is compiled once."""
    import deepspeed

    if not bench.cuda:  # gloo has collectives without a minute of compiling
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if bench.cuda else "gloo")
    model: Any
    model, optimizer = bench.make()
    place = {"device": "cpu", "pin_memory": True}
    sharding: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 200_000_000,
        "offload_optimizer": place,
    }
    if stage == 3:
        # Parameters leave saved tensors too, which the other kind takes for a change of shape.
        model.gradient_checkpointing_enable({"use_reentrant": True})
        kept = int(KEPT["ZeRO-3"] * budget) // 2
        ahead = min(kept, 400_000_000)  # two layers of 7B
        sharding |= {
            "offload_param": place,
            "stage3_prefetch_bucket_size": ahead,
            "stage3_max_live_parameters": kept + 2 * ahead,
            "stage3_max_reuse_distance": 3 * kept,  # in forward, recomputed, in backward
            "stage3_param_persistence_threshold": 100_000,
        }
    half, usual = bench.job.half, optimizer.defaults
    config = {
        "train_micro_batch_size_per_gpu": len(bench.batches[0]),
        "bf16": {
            "enabled": True,
            "check_grad_overflow": False,
            "bf16_master_weights_and_grads": half,
            "bf16_optimizer_states": half,
        },
        "optimizer": {
            "type": "AdamW",
            "params": {name: usual[name] for name in ("lr", "betas", "eps", "weight_decay")},
        },
        "zero_optimization": sharding,
        "gradient_clipping": 0.0,  # else a norm of 1
        "steps_per_print": 10**9,
    }
    trained = [each for each in model.parameters() if each.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=dict(config))
    return engine, engine, engine.backward, {"deepspeed": deepspeed.__version__, **config}


# ---- All of them ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """One of them.

    Attributes:
        start: Makes and shards the model.
        weights: How many page-locked copies of the bf16 weights it has on the host at its peak.
        masters: How many of what the CPU updates and of its gradients.
    """

    start: Callable[[Bench, int], Started]
    weights: int
    masters: int

    def host_bytes(self, parameters: int, *, half: bool) -> int:
        """What it takes of the host: PyTorch page-locks powers of two, and Adam's state is not."""
        master = parameters * (2 if half else 4)
        locked = self.weights * [2 * parameters] + self.masters * [master]
        return sum(1 << (size - 1).bit_length() for size in locked) + 2 * master


PEERS = {
    "FSDP2": Peer(fsdp2, 0, 2),
    "ZeRO-2": Peer(partial(zero, 2), 1, 2),
    "ZeRO-3": Peer(partial(zero, 3), 3, 2),
}


def measured(bench: Bench, how: str, budget: int) -> dict[str, Any]:
    """A peer's row, in this process."""
    alone()
    with torch.device("meta"):
        count = sum(each.numel() for each in bench.job.make(not bench.cuda).parameters())
    need = PEERS[how].host_bytes(count, half=bench.job.half)
    check_host_memory(need)
    with bench.watched() as watch:
        model, optimizer, backward, settings = PEERS[how].start(bench, budget)
        bench.card.clear()
        watch.forget()
        with limited(bench.card, budget):
            row = bench.run(model, optimizer, backward=backward)
    if bench.cuda:
        row["used_bytes"] = watch.peak() + watch.kept
    settings["threads"] = torch.get_num_threads()
    return {"update": "host", "host_need_bytes": need, "settings": settings, **row}


def apart(bench: Bench, how: str, text: str, budget: int) -> dict[str, Any]:
    """A peer's row, by a process of its own, which leaves nothing behind."""
    bench.record.check_time()
    args, left = bench.args, bench.record.left
    options = {"model": bench.name, "how": how, "budget": budget, "device": args.device}
    options |= {"warmups": args.warmups, "steps": args.steps, "limit": left}
    command = [sys.executable, __file__, *(f"--{key}={value}" for key, value in options.items())]
    found = run(command, left + 30, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    return {"budget": text, "budget_bytes": budget, **found}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", choices=JOBS, required=True)
    parser.add_argument("--how", choices=PEERS, required=True)
    parser.add_argument("--budget", type=parse_size, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit", type=float, default=540, help="seconds")
    args = parser.parse_args()
    card = Card(small=args.device != "cuda")
    try:
        row = measured(
            Bench(args.model, args, card, Record(None, args.limit)), args.how, args.budget
        )
    except Exception as error:  # an answer too
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = [f"{Path(each.filename).name}:{each.lineno}, {each.name}" for each in frames]
        row = {"error": repr(error)[:600], "trace": where}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
