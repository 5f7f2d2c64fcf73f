# SPDX-License-Identifier: Apache-2.0
"""Peers of the training benchmark: FSDP2 with CPUOffloadPolicy, on one GPU.

Parameters, gradients and optimizer state live on the host; layers are gathered for their forward
and backward; AdamW (fused) runs on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from measure import alone


def fsdp_offload(bench: Any) -> dict[str, Any]:
    """The step of FSDP2 with CPUOffloadPolicy, of a GPT-2.

    Args:
        bench: training_budget.Bench.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    alone()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if bench.cuda else "gloo", rank=0, world_size=1)
    mesh = init_device_mesh(bench.device.type, (1,))
    model = bench.make()[0].cpu()
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=bench.cuda),
    }
    for layer in model.transformer.h:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    with bench.watched() as watch:
        row: dict[str, Any] = bench.run(model, bench.optimizer(model))
    if bench.cuda:
        row["used_bytes"] = watch.peak() + watch.kept
    dist.destroy_process_group()
    return row
