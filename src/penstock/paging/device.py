# SPDX-License-Identifier: Apache-2.0
"""Which device an argument of attach() means."""

from __future__ import annotations

import torch

from penstock.errors import UsageError
from penstock.native import CUDA, EMULATED, Device
from penstock.native.structs import DeviceOptions


def open_device(
    device: str | torch.device, emulated: dict[str, int]
) -> tuple[Device, torch.device]:
    """The Penstock device and the torch device that `device` means."""
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "emulated"
    if name == "emulated":
        known = {field for field, *_ in DeviceOptions._fields_} - {"struct_size", "kind", "ordinal"}
        for option in emulated.keys() - known:
            raise UsageError(
                f"the emulated GPU has no option '{option}'", remedy=", ".join(sorted(known))
            )
        return Device(EMULATED, **emulated), torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdigit() or not index):
        raise UsageError(f"device '{name}' is unknown", remedy="auto, cuda, cuda:N or emulated")
    opened = Device(CUDA, int(index or 0))
    torch_device = torch.device("cuda", int(index or 0))
    torch.zeros(1, device=torch_device)  # the context, before memory is counted
    return opened, torch_device


def unless_auto(text: str) -> str | None:
    """A setting, or None where it says "auto"."""
    return None if text == "auto" else text
