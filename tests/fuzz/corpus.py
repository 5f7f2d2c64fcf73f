# SPDX-License-Identifier: Apache-2.0
"""What fuzzing begins with: one small input, or a few, of every kind of file that is read.

Made once; who changes one changes a copy.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from functools import cache
from typing import Any

import numpy as np

from penstock.models.checkpoint import shipped_checkpoint
from penstock.results import PROMISED, with_head
from penstock.trace.work import HEADER, MAGIC, RECORD

MIB = 1 << 20


@cache
def npz() -> list[bytes]:
    """Traces of allocations, packed and not."""
    count = 40
    arrays = {
        "op": np.array([0] * 20 + [2] * 20, np.uint8),
        "id": np.array([*range(20), *range(20)], np.uint32),
        "size": np.full(count, MIB, np.uint64),
        "stream": np.zeros(count, np.uint32),
        "time_us": np.arange(count, dtype=np.uint64),
    }
    found = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, **arrays)
        found.append(stream.getvalue())
    return found


@cache
def snapshot() -> dict[str, Any]:
    """What torch.cuda.memory._snapshot() gives, on a small scale."""
    base, step = 0x7F0000000000, 2 * MIB
    events = [
        {"action": "alloc", "addr": base + n * step, "size": MIB, "stream": 0, "time_us": n}
        for n in range(10)
    ]
    for n in range(5):
        for action in ("free_requested", "free_completed"):
            events.append({**events[n], "action": action, "time_us": 20 + n})
    block = {"size": step, "requested_size": MIB, "state": "active_allocated", "address": base}
    segment = {"device": 0, "address": base, "total_size": 16 * step, "stream": 0}
    return {
        "segments": [{**segment, "blocks": [block, {**block, "state": "inactive"}]}],
        "device_traces": [events, []],
        "allocator_settings": {},
    }


@cache
def pickles() -> list[bytes]:
    """Snapshots in every protocol that is read."""
    return [pickle.dumps(snapshot(), protocol) for protocol in (2, 3, 4, 5)]


@cache
def recording() -> bytes:
    """A program that goes over eight blocks six times."""
    header = np.zeros(1, HEADER)
    for field, value in (
        *(("magic", MAGIC), ("version", 1), ("header_bytes", HEADER.itemsize)),
        *(("record_bytes", RECORD.itemsize), ("budget", 16 * MIB), ("device_bytes", 64 * MIB)),
    ):
        header[field] = value
    records = [(1, 0, 0, block, 10 * block, 4 * MIB) for block in range(8)]
    time = 100
    for _ in range(6):
        for block in range(8):
            records += [(3, 0, 0, 1, time, block + 1), (4, 0, 0, block, 0, 0)]
            time += 50_000
    return header.tobytes() + np.array(records, RECORD).tobytes()


@cache
def results() -> list[Any]:
    """A document of every verb."""

    def whole(verb: str, values: dict[str, Any]) -> dict[str, Any]:
        return with_head(verb, {**dict.fromkeys(PROMISED[verb]), **values})

    simulated = {
        **{"trace": "a", "policy": "lru", "gpu_memory_bytes": 1 << 30, "step_ms": [1.0, 2.0, 3.0]},
        **{"steady_steps": 2, "link_gb_per_s": 55.0, "ideal_ms": 1.0, "ratio_to_ideal": 1.5},
        **{"hit_ratio": 0.5, "bytes_in": 1, "bytes_out": 1},
    }
    curve = {"ms": [0, 1, 2], "requested": [1, 2, 3], "reserved": [2, 3, 4]}
    tuned = {
        **{"model": "m", "strategy": "LR", "allocator": "stitch"},
        **{"loss": [3.0, 2.0, None], "step_ms": [1.0, 2.0, 3.0], "peak_reserved_bytes": 1 << 30},
        **{"timed_from": 1, "memory": "paged", "bytes_in": [1, 2, 3], "bytes_out": [1, 2, 3]},
        **{"memory_over_time": curve, "utilisation": 0.9, "batch": 2, "seq_len": 16},
    }
    generated = {
        **{"model": "m", "device": "cuda:0", "memory": "vmm", "gpu_memory_bytes": 1 << 30},
        **{"step_ms": [4.0, 5.0], "output_sha256": "0", "bytes_in": [1, 2], "bytes_out": [0, 0]},
    }
    replayed = {"trace": "t", "allocator": "native", "events": 4, "peak_reserved_bytes": 9}
    rows = [
        {"name": "a", "result": whole("finetune", tuned), "loss_difference": 0.0, "exit_code": 0},
        {"name": "b", "exit_code": 4, "error": "out of memory"},
    ]
    compared = {"work": ["finetune"], "rows": rows}
    return [
        whole("simulate", simulated),
        whole("finetune", tuned),
        whole("gpt", generated),
        [whole("replay", replayed)] * 2,
        whole("compare", compared),
    ]


def options() -> bytes:
    """A configuration."""
    return (
        b'gpu_memory = "8GiB"\nrecord = "x"\n[emulated]\ncapacity = "1GiB"\nseed = 3\n'
        b'delay_us = 4\n[allocator]\nstitch = true\nreuse_limit = 2.5\nchunk = "2MiB"\n'
    )


@cache
def checkpoint() -> tuple[dict[str, Any], bytes]:
    """A configuration of a model and a file of its tensors: the shipped one, of one small layer."""
    folder = shipped_checkpoint()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    smaller = {config["vocab_size"]: 16, config["n_positions"]: 8}
    for times in (1, 3, 4):
        smaller[times * config["n_embd"]] = times * config["n_head"]
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    end = 0
    kept = {}
    for name, tensor in header.items():
        if name == "__metadata__" or (".h." in name and ".h.0." not in name):
            continue
        shape = [smaller[size] for size in tensor["shape"]]
        begin, end = end, end + 4 * math.prod(shape)
        kept[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    config |= {"n_layer": 1, "n_embd": config["n_head"], "n_inner": 4 * config["n_head"]}
    config |= {"vocab_size": 16, "n_positions": 8}
    text = json.dumps(kept).encode()
    return config, len(text).to_bytes(8, "little") + text + bytes(end)
