# SPDX-License-Identifier: Apache-2.0
"""Compile native/driver/kernels/*.cu to PTX text that the library carries. Needs nvcc.

The driver compiles PTX for the card that it finds, so one text serves them all. Its version is set
to the oldest that has all it uses, since a driver refuses one that is newer than itself.

Each text names the SHA-256 of the source that it was made from, which `--check` compares, without
nvcc: a kernel that was changed and not compiled is found where there is no toolkit.

Usage: python tools/compile_kernels.py [--check]
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = Path(__file__).parent.parent / "native" / "driver" / "kernels"
VERSION = "7.0"  # CUDA 11.0
TARGET = "compute_75"

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from {source}; not to be edited. Its SHA-256:
// {digest}
#pragma once

namespace penstock::driver::cuda {{

inline constexpr char {name}[] = R"ptx(
"""
TAIL = """)ptx";

}  // namespace penstock::driver::cuda
"""


def compiled(source: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernel.ptx"
        command = ["nvcc", "--ptx", f"--gpu-architecture={TARGET}", "-O3", "-o", str(target)]
        subprocess.run([*command, str(source)], check=True)
        text = target.read_text()
        text = re.sub(r"^\s*(//.*)?\n", "", text, flags=re.MULTILINE)  # remarks and empty lines
        text = re.sub(r"^\.version .*$", f".version {VERSION}", text, flags=re.MULTILINE)
        target.write_text(text)
        # Does the older version have all of it?
        check = ["ptxas", "--gpu-name=sm_75", "-o", f"{folder}/kernel.cubin", str(target)]
        subprocess.run(check, check=True)
    return text.strip() + "\n"


def digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def stale(folder: Path = KERNELS) -> list[str]:
    """Names of the sources that were changed since their text was made, or never compiled."""
    found = []
    for source in sorted(folder.glob("*.cu")):
        made = source.with_name(f"{source.stem}_ptx.hpp")
        if not made.is_file() or f"// {digest(source)}\n" not in made.read_text():
            found.append(source.name)
    return found


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        names = stale()
        print(f"kernels: {', '.join(names)} changed since nvcc ran" if names else "kernels: ok")
        return 1 if names else 0
    for source in sorted(KERNELS.glob("*.cu")):
        name = "k" + "".join(part.title() for part in source.stem.split("_")) + "Ptx"
        head = HEAD.format(source=source.name, name=name, digest=digest(source))
        source.with_name(f"{source.stem}_ptx.hpp").write_text(head + compiled(source) + TAIL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
