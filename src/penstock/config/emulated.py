# SPDX-License-Identifier: Apache-2.0
"""The emulated GPU's options as its driver takes them."""

from __future__ import annotations

from penstock.units import parse_size

from .schema import Settings


def emulated_options(settings: Settings) -> dict[str, int]:
    """Options of the emulated GPU, as `penstock.attach` takes them; what is auto is left out."""
    options = {"seed": settings.emulated_seed, "max_delay_us": settings.emulated_delay_us}
    for key, text in (
        ("capacity", settings.emulated_capacity),
        ("granularity", settings.emulated_granularity),
    ):
        if text != "auto":
            options[key] = parse_size(text, name=f"emulated.{key}")
    return options
