# SPDX-License-Identifier: Apache-2.0
"""What Penstock is compared with: the same GPT run in other ways on the same weights.

`HandMadeStream` is the stream an expert writes for this one model: some layers stay, the others
pass through two slots from page-locked memory, double-buffered, ordered by events.
"""

from __future__ import annotations

import torch
from torch import nn

from penstock.models.gpt import GPT


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A page-locked copy on the host, of the exact size (torch's own rounds up)."""
    host = torch.empty_like(tensor, device="cpu")
    result = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0)
    if result.value != 0:
        raise RuntimeError(f"cudaHostRegister: {result}")
    return host.copy_(tensor)


class HandMadeStream:
    """Keeps the first `resident` layers and streams the rest through two slots.

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
