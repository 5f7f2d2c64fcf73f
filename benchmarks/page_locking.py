# SPDX-License-Identifier: Apache-2.0
"""How long it takes to have page-locked host memory, in which everything that is paged begins.

    python benchmarks/page_locking.py --output benchmarks/results/page_locking.json

By the driver (cuMemHostAlloc), and as memory of the process that is registered (cuMemHostRegister),
with huge pages where the kernel gives them and without, in pieces of several sizes, by one thread
and by several. Each row is of fresh memory; a copy to the device follows, since what is registered
may be slower to read.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kit.measure import output_parser
from kit.record import Record

from penstock.units import GIB, MIB

PORTABLE = 1
HUGE = 2 * MIB
PIECES = [(size, threads) for size in (64 * MIB, 512 * MIB) for threads in (1, 4, 8, 16)]


class Driver:
    """The calls of libcuda.so.1 that are timed."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self.check(self._cuda.cuInit(0))
        self.check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0))

    @staticmethod
    def check(code: int) -> None:
        """Raise where a call failed."""
        if code:
            raise RuntimeError(f"the driver says {code}")

    def enter(self) -> None:
        """The context becomes this thread's."""
        self.check(self._cuda.cuCtxSetCurrent(self._context))

    def allocated(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """Memory that the driver makes: its address, and what frees it."""
        address = ctypes.c_void_p()
        size = ctypes.c_size_t(nbytes)
        self.check(self._cuda.cuMemHostAlloc(ctypes.byref(address), size, PORTABLE))
        return address.value or 0, lambda: self.check(self._cuda.cuMemFreeHost(address))

    def registered(self, nbytes: int, huge: bool) -> tuple[int, Callable[[], None]]:
        """The process's own memory, written to once and registered."""
        memory = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address = -(-start // HUGE) * HUGE
        ctypes.memset(address, 0, nbytes)
        pointer, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        self.check(self._cuda.cuMemHostRegister_v2(pointer, size, PORTABLE))

        def free() -> None:
            self.check(self._cuda.cuMemHostUnregister(pointer))
            ctypes.CDLL(None).madvise(pointer, size, mmap.MADV_DONTNEED)

        free.memory = memory  # type: ignore[attr-defined]
        return address, free

    def copy_speed(self, address: int, nbytes: int) -> float:
        """GB/s to the device, the better of two."""
        there, size = ctypes.c_uint64(), ctypes.c_size_t(nbytes)
        self.check(self._cuda.cuMemAlloc_v2(ctypes.byref(there), size))
        taken = []
        for _ in range(2):
            begin = time.perf_counter()
            self.check(self._cuda.cuMemcpyHtoD_v2(there, ctypes.c_void_p(address), size))
            taken.append(time.perf_counter() - begin)
        self.check(self._cuda.cuMemFree_v2(there))
        return nbytes / min(taken) / 1e9


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--gib", type=int, default=8, help="of each row")
    args = parser.parse_args()
    driver = Driver()
    driver.enter()
    ways: dict[str, Callable[[int], tuple[int, Callable[[], None]]]] = {
        "allocated": driver.allocated,
        "registered": lambda nbytes: driver.registered(nbytes, huge=False),
        "registered, huge pages": lambda nbytes: driver.registered(nbytes, huge=True),
    }
    record = Record(args.output, title="Page-locking")
    for piece, threads in PIECES:
        for way, make in ways.items():
            with ThreadPoolExecutor(threads, initializer=driver.enter) as pool:
                begin = time.perf_counter()
                made = list(pool.map(make, [piece] * (args.gib * GIB // piece)))
                seconds = time.perf_counter() - begin
                speed = driver.copy_speed(made[0][0], piece)
                begin = time.perf_counter()
                list(pool.map(lambda each: each[1](), made))
                freed = time.perf_counter() - begin
            row = {
                "way": way,
                "piece_bytes": piece,
                "threads": threads,
                "gb_per_s": round(args.gib * GIB / seconds / 1e9, 2),
                "freed_gb_per_s": round(args.gib * GIB / freed / 1e9, 2),
                "copy_gb_per_s": round(speed, 2),
            }
            record.add(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
