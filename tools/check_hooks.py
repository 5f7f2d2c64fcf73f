# SPDX-License-Identifier: Apache-2.0
"""Check the list of hooks against everything that is made from it or has to agree with it.

Every row of native/preload/hooks.def has one body, every body a row; no name stands twice; twins
are complete; launches, copies and fills, of which a missing form would go past the engine, have the
forms that CUDA has for a thread's own stream. Where the built library is given or installed, its
exports are the rows and nothing more. Where a cudaTypedefs.h is found, each row's version is one
that it names. Prints one line a violation; exits 1 if there is any.

Usage: python tools/check_hooks.py [LIBRARY]   (default: that of the installed package, if any)
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRELOAD = ROOT / "native" / "preload"
# One row as the preprocessor leaves it, its fields told apart by a sign that C declarations lack.
PROBE = """
#define PENSTOCK_HOOK_AND_BODY(exported, hook, base, since, stream, kind, body, declared, names) \\
  @exported|hook|base|since|stream|kind|body|declared
#include "{path}"
"""
BODY = re.compile(r"\bpenstock_on_(\w+)\(\s*penstock_hook\* self")
# Beside the driver's names; interpose.h names those with the prefix.
OWN_EXPORTS = re.compile(r"dlopen|penstock_proxy_\w+")
STREAMED = {"LAUNCH", "COPY", "FILL", "VALUE", "GRAPH_LAUNCH", "CAPTURE"}
# Functions of which CUDA has one form for all streams.
SINGLE = {"cuLaunchCooperativeKernelMultiDevice", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"}


@dataclass(frozen=True)
class Row:
    """One exported name: what cuGetProcAddress calls it, since which CUDA, and what it is.

    `body` and `declared`, the parameters, are C text.
    """

    exported: str
    hook: str
    base: str
    since: int
    stream: str
    kind: str
    body: str
    declared: str


def read_rows(path: Path) -> list[Row]:
    """The rows of the list, twins as two."""
    command = ["cc", "-E", "-P", "-x", "c", f"-I{PRELOAD.parent}", "-"]
    source = PROBE.format(path=path.resolve())
    done = subprocess.run(command, input=source, check=True, capture_output=True, text=True)
    rows = []
    for row in " ".join(done.stdout.split()).split("@")[1:]:
        exported, hook, base, since, stream, kind, body, declared = row.split("|")
        inside = (body.strip()[1:-1], declared.strip()[1:-1])
        rows.append(Row(exported, hook, base.strip('"'), int(since), stream, kind, *inside))
    return rows


def check_list(rows: list[Row]) -> list[str]:
    """What the list says of itself."""
    found = []
    for name, count in Counter(row.exported for row in rows).items():
        if count > 1:
            found.append(f"{name} stands {count} times")
    forms = Counter((row.base, row.since, row.stream) for row in rows)
    found += [
        f"{base} has two forms since {since}" for (base, since, _), n in forms.items() if n > 1
    ]
    for row in rows:
        suffixed = row.exported.endswith(("_ptsz", "_ptds"))
        if suffixed != (row.stream == "PER_THREAD"):
            found.append(f"{row.exported}: its name and its default stream disagree")
        if row.kind in STREAMED and row.stream == "NO_STREAM" and row.base not in SINGLE:
            found.append(f"{row.exported}: which default stream?")
    have = {(row.hook, row.stream) for row in rows}
    for row in rows:
        needs_twin = row.stream == "LEGACY" and row.base not in SINGLE
        if needs_twin and (row.hook, "PER_THREAD") not in have:
            found.append(f"{row.exported}: no form for a thread's own stream")
    return found


def check_bodies(rows: list[Row], folder: Path) -> list[str]:
    """Every hook has one body, in its rows or in a file, and every body in a file a row."""
    bodies = Counter(
        name for path in sorted(folder.glob("*.c")) for name in BODY.findall(path.read_text())
    )
    hooks = {row.hook for row in rows if row.body == "OWN"}
    found = [f"no body for {hook}" for hook in sorted(hooks - set(bodies))]
    found += [f"penstock_on_{name} has no row" for name in sorted(set(bodies) - hooks)]
    found += [f"penstock_on_{name} is there {n} times" for name, n in bodies.items() if n > 1]
    return found


def check_exports(rows: list[Row], library: Path) -> list[str]:
    """What the built library shows is what the list says."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    exported = {line.split()[0].partition("@")[0] for line in output.splitlines() if line.strip()}
    names = {row.exported for row in rows}
    found = [f"{library.name} does not export {name}" for name in sorted(names - exported)]
    return found + [
        f"{library.name} exports {name}"
        for name in sorted(exported - names)
        if not OWN_EXPORTS.fullmatch(name)
    ]


def check_versions(rows: list[Row], header: Path) -> list[str]:
    """Each row's version is one that NVIDIA's own list of forms names, unless it is newer."""
    forms = re.findall(r"PFN_(\w+?)_v(\d+)(_ptds|_ptsz)?\)", header.read_text(encoding="utf-8"))
    known = {(name, int(version), bool(twin)) for name, version, twin in forms}
    names = {name for name, _, _ in known}
    newest = max((version for _, version, _ in known), default=0)
    return [
        f"{row.exported}: no form of {row.base} came with {row.since}"
        for row in rows
        if row.base in names
        and row.since <= newest
        and (row.base, row.since, row.stream == "PER_THREAD") not in known
    ]


def find_header() -> Path | None:
    """NVIDIA's cudaTypedefs.h, where a toolkit is installed."""
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    headers = [Path(place) / "include" / "cudaTypedefs.h" for place in places if place]
    return next((header for header in headers if header.is_file()), None)


def _installed() -> Path | None:
    spec = importlib.util.find_spec("penstock")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "preload" / "libcuda.so.1"
    return library if library.is_file() else None


def main(arguments: list[str]) -> int:
    rows = read_rows(PRELOAD / "hooks.def")
    found = check_list(rows) + check_bodies(rows, PRELOAD)
    looked_at = ["list", "bodies"]
    library = Path(arguments[0]) if arguments else _installed()
    if library is not None:
        found += check_exports(rows, library)
        looked_at.append("exports")
    header = find_header()
    if header is not None:
        found += check_versions(rows, header)
        looked_at.append("versions")
    for violation in found:
        print(violation, file=sys.stderr)
    said = f"{len(rows)} rows; {', '.join(looked_at)}"
    print(f"hooks: {len(found)} violation(s)" if found else f"hooks: ok ({said})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
