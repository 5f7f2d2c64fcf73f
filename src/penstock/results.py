# SPDX-License-Identifier: Apache-2.0
"""The schema of results, for who writes the JSON of a verb and who reads it.

A result says which verb wrote it, and has every key that this verb promises to scripts. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._version import __version__

# Counts changes to what is not promised.
SCHEMA_VERSION = 1

# Of each verb whose results are runs: keys that keep their names and meanings. A value may be null.
# `penstock report` refuses a file without one, so a key that is added here makes older ones unread.
PROMISED: dict[str, list[str]] = {
    "finetune": (
        "model strategy allocator loss step_ms peak_requested_bytes peak_active_bytes "
        "peak_reserved_bytes utilisation tokens_per_second"
    ).split(),
    "compare": ["work", "rows"],
    "gpt": (
        "model device memory gpu_memory_bytes weight_bytes step_ms tokens_per_second bytes_in "
        "bytes_out peak_device_bytes hit_ratio link_gb_per_s ideal_ms ratio_to_ideal output_sha256"
    ).split(),
    "replay": (
        "trace allocator events allocations frees peak_requested_bytes peak_reserved_bytes "
        "utilisation map_calls modelled_driver_ms modelled_driver_ms_second_half trace_ms ns_per_op"
    ).split(),
    "simulate": (
        "trace policy gpu_memory_bytes link_gb_per_s hit_ratio bytes_in bytes_out step_ms ideal_ms "
        "ratio_to_ideal steady_steps"
    ).split(),
}


def with_head(verb: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A result: the keys that its verb promises, in their order, the head, and the other values.

    Raises:
        KeyError: If a promised key is not among `values`.
    """
    promised = {key: values[key] for key in PROMISED.get(verb, ())}
    head = {"schema_version": SCHEMA_VERSION, "verb": verb, "version": __version__}
    return {**promised, **head, **values}


def rows_of(document: Any) -> list[dict[str, Any]]:
    """The results in a document (`replay` gives a list), maybe of another version; [] for none."""
    rows = document if isinstance(document, list) else [document]
    ours = all(isinstance(row, dict) and "schema_version" in row for row in rows)
    return rows if ours else []
