# SPDX-License-Identifier: Apache-2.0
"""The ZeRO-3 workload of the allocator benchmark: DeepSpeed's partitioning on one device.

With one process nothing is exchanged, yet ZeRO-3 gathers and drops every layer's parameters, which
is what makes its pattern of allocations.
"""

from __future__ import annotations

from typing import Any

import torch
from allocator_models import Batches, Workload, build_model
from measure import alone

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,  # what a step takes is given to it, whatever this says
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True},
    "steps_per_print": 10**9,
}


class Zero3Training:
    """Forward, backward and step through a DeepSpeed engine."""

    def __init__(self, work: Workload, device: str, *, small: bool) -> None:
        alone()
        import deepspeed

        deepspeed.init_distributed("nccl" if device == "cuda" else "gloo")
        model = build_model(work, device, small=small).train()
        # DeepSpeed swaps parameters out of saved tensors, which the other way of recomputing
        # takes for a change of shape.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model.enable_input_require_grads()
        trained = [p for p in model.parameters() if p.requires_grad]
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=CONFIG)
        self._vocabulary = model.config.vocab_size
        self.use(work, device)

    def use(self, work: Workload, device: str) -> None:
        """Take other batches from here on."""
        self.batches = Batches(work, self._vocabulary, device)

    def step(self, number: int) -> torch.Tensor:
        tokens = self.batches(number)
        loss = self.engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def recover(self) -> None:
        """After a step that ran out of memory."""
        self.engine.zero_grad()
