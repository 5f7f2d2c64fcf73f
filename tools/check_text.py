# SPDX-License-Identifier: Apache-2.0
"""Check the text of every file that git tracks: what must be there, and what must not.

Sources begin with an SPDX line, are ASCII and stay below a length that can be read in one
sitting. Nothing carries a note to finish it later, a path of somebody's machine or the address
of a package index. Prints one line a violation; exits 1 if there is any.

Usage: python tools/check_text.py [ROOT]
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = {".py", ".cpp", ".hpp", ".c", ".h", ".def", ".sh"}
SOURCE_NAMES = {"Makefile", "run"}
TEXTS = SOURCES | {".md", ".toml", ".txt", ".json", ".cfg", ".yml", ".yaml", ".cmake", ""}
NOT_OURS = ("LICENSE", "tests/native/third_party/")
MOST_LINES = 500
# In the head of what a tool of ours has made: nobody reads it, or can split it.
GENERATED = "not to be edited"
# The patterns are written so that this file does not match them itself.
FORBIDDEN = {
    "a note to finish it later": re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b"),
    "a path of somebody's machine": re.compile(
        r"(?<![\w.<>])/(hom[e]|wor[k]|roo[t]|User[s])/[\w.]"
    ),
    "a temporary path": re.compile(r"(?<![\w.<>])/tm[p]/[\w.]"),
    "the address of a package index": re.compile(
        r"(pypi\.or[g]|pythonhosted\.or[g]|download\.pytorch\.or[g]|anaconda\.or[g])"
    ),
    "the number of an issue": re.compile(r"\b[Ii]ssu[e] #?\d"),
}
# Where results and data are kept, numbers and names of any kind are expected, but no paths.
DATA = ("benchmarks/results/", "traces/")


def tracked(root: Path) -> list[Path]:
    """The files that git tracks and that are still there."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], check=True, capture_output=True, text=True
    )
    names = [name for name in listing.stdout.split("\0") if name and not name.startswith(NOT_OURS)]
    return [root / name for name in names if (root / name).is_file()]


def violations(root: Path) -> Iterator[str]:
    """Check every tracked text."""
    for path in tracked(root):
        place = str(path.relative_to(root))
        if path.suffix not in TEXTS:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            if path.suffix in SOURCES:
                yield f"{place}: not UTF-8"
            continue
        if path.suffix in SOURCES or path.name in SOURCE_NAMES:
            yield from _source_violations(place, text)
        forbidden = {
            what: pattern
            for what, pattern in FORBIDDEN.items()
            if "path" in what or not place.startswith(DATA)
        }
        for number, line in enumerate(text.splitlines(), start=1):
            for what, pattern in forbidden.items():
                if pattern.search(line):
                    yield f"{place}:{number}: {what}: {line.strip()[:60]}"


def _source_violations(place: str, text: str) -> Iterator[str]:
    lines = text.splitlines()
    if lines and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield f"{place}: no SPDX line at the top"
    if len(lines) > MOST_LINES and not any(GENERATED in line for line in lines[:3]):
        yield f"{place}: {len(lines)} lines; split it ({MOST_LINES} at most)"
    for number, line in enumerate(lines, start=1):
        if not line.isascii():
            yield f"{place}:{number}: not ASCII: {line.strip()[:60]!a}"


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = list(violations(root))
    for violation in found:
        print(violation, file=sys.stderr)
    print(f"text: {len(found)} violation(s)" if found else "text: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
