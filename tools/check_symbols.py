# SPDX-License-Identifier: Apache-2.0
"""Check what libpenstock.so shows to the world and what it asks of it.

It exports every function of its headers and nothing without the prefix, so that it can share a
process with any other library, and it links neither CUDA nor torch nor a C++ runtime that could
differ from the program's. Exits 1 if that does not hold.

Usage: python tools/check_symbols.py [LIBRARY]   (default: that of the installed package)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PREFIX = "penstock_"
HEADERS = tuple(Path(__file__).resolve().parent.parent.glob("native/api/include/penstock/*.h"))
ALLOWED_NEEDS = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-x86-64)\.so\.\d+")


def exported(library: Path) -> set[str]:
    """Names of the symbols that the library defines for others."""
    lines = _output("nm", "--dynamic", "--defined-only", "--format=posix", str(library))
    return {line.split()[0].partition("@")[0] for line in lines if line.strip()}


def needed(library: Path) -> list[str]:
    """Names of the libraries that it links."""
    lines = _output("readelf", "--dynamic", "--wide", str(library))
    return [line.partition("[")[2].rstrip("]") for line in lines if "(NEEDED)" in line]


def declared(header: Path) -> set[str]:
    """Names of the functions that the header promises."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    return set(re.findall(r"PENSTOCK_API[^;(]*?\b(penstock_\w+)\s*\(", text))


def check(library: Path, *headers: Path) -> list[str]:
    """What is wrong with the library, one line each; without headers, by the public ones."""
    symbols = exported(library)
    found = [f"exports {name}" for name in sorted(symbols) if not name.startswith(PREFIX)]
    promised = set[str]().union(*map(declared, headers or HEADERS))
    found += [f"does not export {name}" for name in sorted(promised - symbols)]
    found += [f"links {name}" for name in needed(library) if not ALLOWED_NEEDS.fullmatch(name)]
    return found


def _output(*command: str) -> list[str]:
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def _installed() -> Path:
    import penstock

    return Path(penstock.__file__).parent / "lib" / "libpenstock.so"


def main(arguments: list[str]) -> int:
    library = Path(arguments[0]) if arguments else _installed()
    found = check(library)
    for violation in found:
        print(f"{library.name}: {violation}", file=sys.stderr)
    count = len(exported(library))
    print(f"symbols: {len(found)} violation(s)" if found else f"symbols: ok ({count} exported)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
