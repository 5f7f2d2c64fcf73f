# SPDX-License-Identifier: Apache-2.0
"""Options of a table as the library takes them; what is auto is left out."""

from __future__ import annotations

from penstock.units import parse_size

from .schema import STITCH_WHEN, Settings


def emulated_options(settings: Settings) -> dict[str, int]:
    """Options of the emulated GPU, as `penstock.attach` takes them."""
    sizes = _sizes(settings, "emulated", capacity="capacity", granularity="granularity")
    return {"seed": settings.emulated_seed, "max_delay_us": settings.emulated_delay_us, **sizes}


def allocator_options(settings: Settings) -> dict[str, int | float]:
    """The fields of penstock_allocator_options that somebody set.

    ``allocator.stitch`` is not among them: where it is off, the allocator is not used at all.
    The budget is not either, since its share of the device's memory is not known here.
    """
    limits = {"stitch_limit": "stitch_limit", "range_limit": "range_limit"}
    options: dict[str, int | float] = {
        "stitch_when": STITCH_WHEN.index(settings.allocator_stitch_when),
        "grow_exactly": int(settings.allocator_grow_exactly),
        **_sizes(settings, "allocator", chunk_bytes="chunk", growth_bytes="growth", **limits),
    }
    if settings.allocator_reuse_limit != "auto":
        options["reuse_limit"] = float(settings.allocator_reuse_limit)
    return options


def _sizes(settings: Settings, table: str, **keys: str) -> dict[str, int]:
    """Bytes, by the library's names for these keys of the table."""
    texts = {field: getattr(settings, f"{table}_{key}") for field, key in keys.items()}
    return {
        field: parse_size(text, name=f"{table}.{keys[field]}")
        for field, text in texts.items()
        if text != "auto"
    }
