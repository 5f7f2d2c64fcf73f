# SPDX-License-Identifier: Apache-2.0
"""Peers of the training benchmark: FSDP2 with CPUOffloadPolicy, on one GPU.

Parameters, gradients and optimizer state live on the host; layers are gathered for their forward
and backward; AdamW (fused) runs on the CPU.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch


def fsdp_offload(bench: Any) -> dict[str, Any]:
    """The step of FSDP2 with CPUOffloadPolicy for one model shape.

    Args:
        bench: training_budget.Bench.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if bench.cuda else "gloo", rank=0, world_size=1)
    free = torch.cuda.mem_get_info()[0] if bench.cuda else 0
    begin = time.perf_counter()
    mesh = init_device_mesh(bench.device.type, (1,))
    model = bench.model().cpu()
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=bench.cuda),
    }
    for layer in model.transformer.h:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = bench.optimizer(model)
    row = {"model": bench.name, "how": "FSDP2 CPUOffloadPolicy", "budget": ""}
    row["attach_ms"] = round((time.perf_counter() - begin) * 1e3, 1)
    if bench.cuda:
        torch.cuda.empty_cache()
    row.update(bench.run(lambda number: bench.step(model, optimizer, number)))
    if bench.cuda:
        row["used_bytes"] = free - row.pop("lowest_free_bytes")
    dist.destroy_process_group()
    return row
