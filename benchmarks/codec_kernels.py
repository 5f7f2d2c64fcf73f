# SPDX-License-Identifier: Apache-2.0
"""The kernels that encode and decode pages, alone and beside matrix products, by their grids.

    python benchmarks/codec_kernels.py --output benchmarks/results/compression/kernels-h100.json

Needs nvcc and a CUDA device. Bits first: codes made on the device are those that the host makes,
and decode to what they were made from, for sizes that are a multiple of nothing, all patterns,
noise and both widths of a place. Then times of a page of 32 MiB of normally distributed weights, of
which eight take turns, so that none is in the cache; what one core of the host does; and how long
products take beside pages that come in over the link and are decoded, and how many do. `used` marks
the grid that the driver gives.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import torch
from measure import output_parser
from record import Record

from penstock.units import MIB

ROOT = Path(__file__).parent.parent
PAGE = 32 * MIB
USED = (132, 512)
GRIDS = [(b, t) for t in (256, 512, 1024) for b in (8, 16, 32, 66, 132, 264, 528)]
BESIDE = [(b, t) for t in (256, 512, 1024) for b in (32, 66, 132, 264)]
SHAPES = {
    "8192 x 8192 x 8192": (8192, 8192, 8192, 60),
    "2048 x 4096 x 14336": (2048, 4096, 14336, 250),
}


class Survey(ctypes.Structure):
    """Room for what the codec's C++ calls so."""

    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


def built(folder: str) -> ctypes.CDLL:
    """The library of codec_kernels.cu."""
    library = Path(folder) / "codec.so"
    codec = ROOT / "native" / "codec" / "bf16.cpp"
    flags = ["-O3", "-std=c++20", f"-I{ROOT / 'native'}"]
    host = ["g++", *flags, "-fPIC", "-c", str(codec), "-o", f"{folder}/bf16.o"]
    subprocess.run(host, check=True)
    device = ["nvcc", *flags, "-arch=native", "-shared", "-Xcompiler", "-fPIC", f"{folder}/bf16.o"]
    source = Path(__file__).with_suffix(".cu")
    subprocess.run([*device, str(source), "-o", str(library)], check=True)
    found = ctypes.CDLL(str(library))
    found.host_survey.restype = c_size_t
    return found


class Page:
    """Memory, its code by the host, and both on the device."""

    def __init__(self, lib: ctypes.CDLL, raw: torch.Tensor, width: int = 0) -> None:
        self.lib, self.raw, self.bytes = lib, raw.contiguous(), raw.nbytes
        self.survey, self.counts = Survey(), torch.zeros(256, dtype=torch.int32)
        self.count_on_host()
        size = lib.host_survey(
            _at(self.counts), c_size_t(self.bytes), c_uint(width), byref(self.survey)
        )
        self.code = torch.zeros(size, dtype=torch.uint8).pin_memory()
        self.encode_on_host()
        self.on_device = self.raw.cuda()
        self.coded = self.code.cuda()

    def count_on_host(self) -> None:
        self.lib.host_counts(_at(self.raw), c_size_t(self.bytes), _at(self.counts))

    def encode_on_host(self) -> None:
        self.lib.host_encode(
            byref(self.survey), _at(self.raw), c_size_t(self.bytes), _at(self.code)
        )

    def seal(self) -> bool:
        given = byref(self.survey), _at(self.raw), c_size_t(self.bytes), _at(self.code)
        return bool(self.lib.host_seal(*given))

    def count(self, counts: torch.Tensor) -> None:
        self.lib.launch_survey(
            _at(counts), _at(self.on_device), c_size_t(self.bytes), 264, _stream()
        )

    def encode(self, to: torch.Tensor) -> None:
        self.lib.launch_encode(byref(self.survey), _at(to), _at(self.on_device), _stream())

    def decode(self, to: torch.Tensor, grid: tuple[int, int], code: torch.Tensor) -> None:
        self.lib.launch_decode(byref(self.survey), _at(to), _at(code), *grid, _stream())

    def bits(self) -> dict[str, bool]:
        """Whether the device makes of it what the host does."""
        counts = torch.zeros(256, dtype=torch.int32, device="cuda")
        code = torch.full_like(self.coded, 0xEE)
        raw = torch.zeros_like(self.on_device)
        self.count(counts)
        self.encode(code)
        self.decode(raw, USED, code)
        return {
            "same_counts": torch.equal(counts.cpu(), self.counts),
            "same_code": torch.equal(code.cpu(), self.code),
            "comes_back": torch.equal(raw, self.on_device),
            "sealed": self.seal(),
        }


def _at(tensor: torch.Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _stream() -> c_void_p:
    return c_void_p(torch.cuda.current_stream().cuda_stream)


def values(count: int) -> torch.Tensor:
    torch.manual_seed(1)
    return (torch.randn(count) * 0.02).bfloat16().view(torch.int16)


def exact(lib: ctypes.CDLL) -> list[dict[str, Any]]:
    pieces = {
        f"{n} weights": values(n) for n in (1, 7, 8, 1023, 1025, 8191, 8193, 100_001, 1 << 24)
    }
    pieces["all patterns"] = torch.arange(-32768, 32768).to(torch.int16)
    pieces["noise"] = torch.randint(-32768, 32768, (300_001,)).to(torch.int16)
    for kinds in (1, 9, 16, 17):
        exponents = torch.randint(0, kinds, (200_003,)) + 100
        low = torch.randint(0, 128, exponents.shape)
        pieces[f"{kinds} exponents"] = (exponents << 7 | low).to(torch.int16)
    return [{"part": "bits", "work": name, **Page(lib, raw).bits()} for name, raw in pieces.items()]


def median_us(work: Callable[[int], None], samples: int = 20, launches: int = 32) -> float:
    """Of one of many launches that follow each other, so that none waits for the host."""
    spans = []
    for _ in range(samples + 1):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # while the host gives the first ones
        began.record()
        for i in range(launches):
            work(i)
        ended.record()
        ended.synchronize()
        spans.append(began.elapsed_time(ended) * 1e3 / launches)
    return statistics.median(spans[1:])


def rate(name: str, microseconds: float, **more: Any) -> dict[str, Any]:
    found = {"part": "alone", "work": name, "us": round(microseconds, 1)}
    return {**found, "gb_per_s": round(PAGE / microseconds / 1e3, 1), **more}


def decoding(lib: ctypes.CDLL, width: int) -> list[dict[str, Any]]:
    """One row a grid."""
    page = Page(lib, values(PAGE // 2), width)
    codes = [page.coded.clone() for _ in range(8)]
    to = [torch.empty_like(page.on_device) for _ in range(8)]

    def took(grid: tuple[int, int]) -> float:
        return median_us(lambda i: page.decode(to[i % 8], grid, codes[i % 8]))

    same = {"bits": width, "code_share": round(page.code.nbytes / PAGE, 4)}
    return [rate("decode", took(grid), **same, **_grid(grid)) for grid in GRIDS]


def encoding(lib: ctypes.CDLL) -> list[dict[str, Any]]:
    """One row a kernel, and one a function of the host."""
    page = Page(lib, values(PAGE // 2))
    codes = [page.coded.clone() for _ in range(8)]
    counts = torch.zeros(256, dtype=torch.int32, device="cuda")
    rows = [
        rate("survey", median_us(lambda _: page.count(counts))),
        rate("encode", median_us(lambda i: page.encode(codes[i % 8]))),
    ]
    on_host: dict[str, Callable[[], Any]] = {
        "survey": page.count_on_host,
        "encode": page.encode_on_host,
        "seal": page.seal,
    }
    for name, work in on_host.items():
        spans = []
        for _ in range(9):
            began = time.perf_counter()
            work()
            spans.append((time.perf_counter() - began) * 1e6)
        rows.append(rate(f"{name}, one core", statistics.median(spans)))
    return rows


def _grid(grid: tuple[int, int]) -> dict[str, Any]:
    return {"blocks": grid[0], "threads": grid[1], "used": grid == USED}


def beside(lib: ctypes.CDLL, shape: str) -> list[dict[str, Any]]:
    """Products without pages, with pages that are copied, and with pages that are decoded too."""
    m, k, n, count = SHAPES[shape]
    a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((m, k), (k, n)))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    page = Page(lib, values(PAGE // 2))
    stages = [page.coded.clone() for _ in range(2)]
    to = [torch.empty_like(page.on_device) for _ in range(2)]
    computing, copying, decoding = (torch.cuda.Stream() for _ in range(3))

    def run(pages: bool, grid: tuple[int, int] | None) -> tuple[float, int]:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        copied, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
        with torch.cuda.stream(computing):
            began.record()
            for _ in range(count):
                torch.mm(a, b, out=c)
            ended.record()
        done = 0
        while pages and not ended.query():
            turn = done % 2
            free[turn].synchronize()
            with torch.cuda.stream(copying):
                stages[turn].copy_(page.code, non_blocking=True)
                copied[turn].record()
            with torch.cuda.stream(decoding):
                copied[turn].wait()
                if grid is not None:
                    page.decode(to[turn], grid, stages[turn])
                free[turn].record()
            done += 1
        torch.cuda.synchronize()
        return began.elapsed_time(ended), done

    def row(what: str, pages: bool, grid: tuple[int, int] | None) -> dict[str, Any]:
        found = [run(pages, grid) for _ in range(8)][1:]
        more = {} if grid is None else _grid(grid)
        return {
            "part": "beside",
            "work": shape,
            "with": what,
            **more,
            "ms": round(statistics.median(ms for ms, _ in found), 2),
            "pages": statistics.median(pages for _, pages in found),
        }

    rows = [row("nothing", False, None), row("nothing", False, None), row("copies", True, None)]
    rows += [row("copies and decoding", True, grid) for grid in BESIDE]
    return [*rows, row("nothing", False, None)]


def main(argv: list[str] | None = None) -> int:
    args = output_parser(__doc__, required=False).parse_args(argv)
    record = Record(args.output)
    with tempfile.TemporaryDirectory() as folder:
        lib = built(folder)
        for row in exact(lib):
            record.add(row)
        right = all(value for row in record.rows for value in row.values())
        for rows in (decoding(lib, 3), decoding(lib, 4), encoding(lib)):
            for row in rows:
                record.add(row)
        for shape in SHAPES:
            for row in beside(lib, shape):
                record.add(row)
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
