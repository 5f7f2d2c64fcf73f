# SPDX-License-Identifier: Apache-2.0
"""Make recorded traces small enough to keep beside the tests.

Every event is kept as it is, in size, stream and order. Ids are numbered anew, so that one that
is free again is used again, and times are cut to whole milliseconds; both make the file several
times smaller. A trace can be cut off after some events. Says what there is in each file.

Usage: python benchmarks/pack_trace.py FOLDER TRACE[:EVENTS]...
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from measure import script_parser

from penstock.trace import OP_ALLOCATE, OP_FREE_COMPLETED, Trace, read_traces


def renumbered(trace: Trace, count: int) -> npt.NDArray[np.uint32]:
    """Ids of the first events: the one that became free last is used next."""
    numbers: dict[int, int] = {}
    spare: list[int] = []
    ids = np.empty(count, dtype=np.uint32)
    for index in range(count):
        old = int(trace.id[index])
        if trace.op[index] == OP_ALLOCATE:
            numbers[old] = spare.pop() if spare else len(numbers)
        ids[index] = numbers[old]
        if trace.op[index] == OP_FREE_COMPLETED:
            spare.append(numbers.pop(old))
    return ids


def write(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """An .npz whose members are packed with LZMA: half the size of what numpy writes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            # A fixed date: the same cut is the same file.
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue(), zipfile.ZIP_LZMA)


def pack(source: Path, most: int | None, folder: Path) -> Path:
    (trace,) = read_traces(source)
    count = len(trace) if most is None else min(most, len(trace))
    times = (trace.time_us[:count] - trace.time_us[0]) // 1000 * 1000
    target = folder / source.name
    write(
        target,
        {
            "op": trace.op[:count],
            "id": renumbered(trace, count),
            "size": trace.size[:count],
            "stream": trace.stream[:count].astype(np.uint16),
            "time_us": times.astype(np.uint32),
        },
    )
    share = count / len(trace)
    print(
        f"{target.name}: {count:,} of {len(trace):,} events ({share:.0%}), "
        f"{int(times[-1]) / 1e6:.1f} s, {target.stat().st_size / 1024:.0f} KiB"
    )
    return target


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("traces", nargs="+", metavar="TRACE[:EVENTS]")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for trace in args.traces:
        source, _, most = trace.partition(":")
        pack(Path(source), int(most) if most else None, args.folder)


if __name__ == "__main__":
    main()
