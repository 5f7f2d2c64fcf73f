# SPDX-License-Identifier: Apache-2.0
"""The allocator's options as the library takes them."""

from __future__ import annotations

from penstock.units import parse_size

from .schema import STITCH_WHEN, Settings


def allocator_options(settings: Settings) -> dict[str, int | float]:
    """The fields of penstock_allocator_options that somebody set; what is auto is left out.

    ``allocator.stitch`` is not among them: where it is off, the allocator is not used at all.
    The budget is not either, since its share of the device's memory is not known here.
    """
    options: dict[str, int | float] = {
        "stitch_when": STITCH_WHEN.index(settings.allocator_stitch_when),
        "grow_exactly": int(settings.allocator_grow_exactly),
    }
    for field, text, key in (
        ("chunk_bytes", settings.allocator_chunk, "chunk"),
        ("growth_bytes", settings.allocator_growth, "growth"),
        ("stitch_limit", settings.allocator_stitch_limit, "stitch_limit"),
        ("range_limit", settings.allocator_range_limit, "range_limit"),
    ):
        if text != "auto":
            options[field] = parse_size(text, name=f"allocator.{key}")
    if settings.allocator_reuse_limit != "auto":
        options["reuse_limit"] = float(settings.allocator_reuse_limit)
    return options
