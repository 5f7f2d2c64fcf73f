# SPDX-License-Identifier: Apache-2.0
"""Which device an argument of attach() means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from penstock import config
from penstock.errors import UsageError
from penstock.native import CUDA, EMULATED, Device
from penstock.native.api import names


def open_device(
    device: str | torch.device, emulated: dict[str, int]
) -> tuple[Device, torch.device]:
    """The Penstock device and the torch device that `device` means."""
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "emulated"
    if name == "emulated":
        _check(emulated)
        return Device(EMULATED, **emulated), torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdigit() or not index):
        raise UsageError(f"device '{name}' is unknown", remedy="auto, cuda, cuda:N or emulated")
    opened = Device(CUDA, int(index or 0))
    torch_device = torch.device("cuda", int(index or 0))
    torch.zeros(1, device=torch_device)  # the context, before memory is counted
    return opened, torch_device


def _check(emulated: Any) -> None:
    """Refuse options of the emulated GPU that it does not have, or that are no counts."""
    known = sorted(set(names("device_options")) - {"struct_size", "kind", "ordinal"})
    if not isinstance(emulated, Mapping):
        raise UsageError(
            f"emulated={emulated!r} is no dictionary", remedy='emulated={"capacity": 1 << 30}'
        )
    for option, value in emulated.items():
        if option not in known:
            raise UsageError(f"the emulated GPU has no option '{option}'", remedy=", ".join(known))
        # -N means the Nth call and all after it.
        least = -(1 << 63) if option == "fail_at_call" else 0
        if not isinstance(value, int) or not least <= value < 1 << 63:
            raise UsageError(
                f"{option} of the emulated GPU cannot be {value!r}", remedy="a whole number"
            )


def settle(
    emulated: dict[str, int] | None, **arguments: Any
) -> tuple[Device, torch.device, dict[str, Any]]:
    """What the arguments of an attach function amount to, with settings for what is left out.

    Args:
        emulated: Options of the emulated GPU; None: those of the settings.
        arguments: By the names of the settings, `device` among them; None where left out.

    Returns:
        (Penstock's device, torch's, the other settings by name, with None for "auto").

    Raises:
        UsageError: If a setting makes no sense.
        EnvironmentProblem: If the device is not there.
    """
    settings = config.load(arguments=arguments)
    options = config.emulated_options(settings) if emulated is None else emulated
    values = {name: getattr(settings, name) for name in arguments if name != "device"}
    chosen = {name: None if value == "auto" else value for name, value in values.items()}
    return *open_device(settings.device, options), chosen
