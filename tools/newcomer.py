# SPDX-License-Identifier: Apache-2.0
"""Time a newcomer's first minutes: from an installation to a first useful result.

Three ways, each in a folder of its own, after everything has been downloaded:

* wheel: the wheel alone, in a bare environment of each Python from 3.10 on that is at hand; then
  `penstock doctor` and `penstock estimate`;
* torch: the wheel beside a torch that is there; then the README's Python block;
* clone: a fresh clone; then `make run`, which compiles and runs the main job.

Prints a line for each, and how long this tree is. Exits 1 if one fails or takes longer than
`LIMIT_S`. Usage: python tools/newcomer.py FOLDER [--ways wheel torch clone] [--json FILE]
(the folder holds one wheel)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from check_wheel import interpreters

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 60.0
WAYS = ("wheel", "torch", "clone")
RESULTS = (("doctor",), ("estimate", "gpt3_6.7b", "--gpu-memory", "8GiB"))
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# What people read and maintain, by suffix.
COUNTED = {
    "src": (".py",),
    "native": (".cpp", ".hpp", ".c", ".h", ".def", ".cu"),
    "benchmarks": (".py", ".cu"),
    "docs": (".md",),
}


def clean() -> dict[str, str]:
    """The environment without what a developer has set."""
    dropped = ("PENSTOCK_", "PYTHON", "MAKE", "SKBUILD")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def run(*command: str | Path, cwd: str | Path) -> None:
    """One command; its output only if it fails."""
    done = subprocess.run(command, cwd=cwd, env=clean(), capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{said}")


def pip(python: Path, folder: str, *arguments: str | Path) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=folder)


def by_wheel(wheel: Path, python: str, folder: str) -> float:
    """Seconds from an empty environment to what a model needs."""
    downloaded = Path(folder) / "downloaded"
    run(python, "-m", "venv", "first", cwd=folder)
    pip(Path(folder, "first/bin/python"), folder, "download", "-q", "-d", downloaded, wheel)
    began = time.monotonic()
    run(python, "-m", "venv", "second", cwd=folder)
    inside = Path(folder, "second/bin/python")
    pip(inside, folder, "install", "-q", "--no-index", "--find-links", downloaded, wheel)
    for arguments in RESULTS:
        run(inside.with_name("penstock"), *arguments, cwd=folder)
    return time.monotonic() - began


def beside_torch(wheel: Path, folder: str) -> float:
    """Seconds from a torch that is there to the first output of a model beyond its budget."""
    first = Path(folder) / "first.py"
    first.write_text(BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0])
    environment = Path(folder) / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=folder)
    inside = environment / "bin/python"
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (borrowed,) = environment.glob("lib/python3.*/site-packages")
    began = time.monotonic()
    pip(inside, folder, "install", "-q", "--no-deps", wheel)
    (borrowed / "borrowed.pth").write_text("\n".join(ours))
    run(inside, first, cwd=folder)
    return time.monotonic() - began


def by_clone(folder: str) -> float:
    """Seconds of `make run` in a clone whose environment has its downloads."""
    run("git", "clone", "-q", ROOT, "clone", cwd=folder)
    clone = Path(folder) / "clone"
    run("make", ".venv/stamps/venv", cwd=clone)
    extras = ("click", "rich", "safetensors", "tokenizers", "numpy")
    pip(clone / ".venv/bin/python", folder, "install", "-q", *extras)
    began = time.monotonic()
    run("make", "run", "DEVICE=emulated", cwd=clone)
    return time.monotonic() - began


def lines() -> dict[str, int]:
    """Of the tracked files, by folder."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True
    )
    names = [name for name in listing.stdout.split("\0") if (ROOT / name).is_file()]
    return {
        folder: sum(
            (ROOT / name).read_bytes().count(b"\n")
            for name in names
            if name.startswith(f"{folder}/") and name.endswith(suffixes)
        )
        for folder, suffixes in COUNTED.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    (wheel,) = args.folder.resolve().glob("*.whl")
    ways: dict[str, Callable[[str], float]] = {}
    if "wheel" in args.ways:
        for version, python in interpreters().items():
            ways[f"wheel, Python {version}"] = lambda to, python=python: by_wheel(wheel, python, to)
    if "torch" in args.ways:
        ways["wheel beside torch"] = lambda to: beside_torch(wheel, to)
    if "clone" in args.ways:
        ways["clone, make run"] = by_clone
    found, failed = {}, 0
    for name, way in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[name] = round(way(folder), 1)
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed += 1
                continue
        late = found[name] > LIMIT_S
        failed += late
        print(f"{name}: {found[name]} s{f', more than {LIMIT_S:.0f}' if late else ''}", flush=True)
    counted = lines()
    print("lines:", ", ".join(f"{folder} {count:,}" for folder, count in counted.items()))
    if args.json:
        args.json.write_text(json.dumps({"seconds": found, "lines": counted}, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
