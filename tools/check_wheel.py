# SPDX-License-Identifier: Apache-2.0
"""Check the wheel: its tag, its content, how it was hardened, and that it works without torch.

It is installed into a new environment of each Python from 3.10 on that is at hand, in which only
click and rich are added; `penstock doctor`, `estimate` and `--help` must work there.  For those
that are not at hand, pip must find it and its dependencies.  The sdist must hold every file that
builds it.  Exits 1 if anything does not hold.

Usage: python tools/check_wheel.py FOLDER   (the folder holds one wheel and one sdist)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINORS = range(10, 15)  # of the Pythons that the package is for
TAG = "py3-none-manylinux_2_28_x86_64"
MUST_HOLD = (
    "penstock/lib/libpenstock.so",
    "penstock/include/penstock.h",
    "penstock/include/interpose.h",
    "penstock/include/budget.h",
    "penstock/include/packing.h",
    "penstock/include/simulate.h",
    "penstock/include/torch.h",
    "penstock/preload/libcuda.so.1",
    "penstock/preload/site/sitecustomize.py",
    "penstock/py.typed",
    "penstock/cli/main.py",
)
LIBRARIES = tuple(name for name in MUST_HOLD if ".so" in name)
HARDENED = ("BIND_NOW", "GNU_RELRO", "__stack_chk_fail", "_chk@")  # the last: FORTIFY
# Neither tests, nor C++ sources, nor anything beside the package and its metadata.
MAY_HOLD = re.compile(r"(?!.*(__pycache__|/tests/|\.[ch]pp$))penstock(-[^/]+\.dist-info)?/.+")
# What the sdist must hold, as git names it.
SOURCES = ("CMakeLists.txt", "LICENSE", "README.md", "native", "pyproject.toml", "src")
COMMANDS = (("--version",), ("--help",), ("doctor",), ("estimate", "gpt3_6.7b"), ("config", "show"))


def check_contents(wheel: Path) -> list[str]:
    """What is wrong with the file itself, one line each."""
    found = [] if wheel.name.endswith(f"-{TAG}.whl") else [f"the tag is not {TAG}"]
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    found += [f"{name} is missing" for name in MUST_HOLD if name not in names]
    found += [f"{name} does not belong there" for name in names if not MAY_HOLD.fullmatch(name)]
    return found


def check_hardening(wheel: Path) -> list[str]:
    """Which library lacks what a hardened one has, one line each."""
    found = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in LIBRARIES:
            library = archive.extract(name, folder)
            command = ["readelf", "--dynamic", "--segments", "--dyn-syms", "--wide", library]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found += [f"{name} has no {mark}" for mark in HARDENED if mark not in told]
    return found


def check_sources(sdist: Path) -> list[str]:
    """Which tracked sources the sdist lacks, one line each."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *SOURCES]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = [name for name in listing.split("\0") if name and (ROOT / name).is_file()]
    return [f"the sdist lacks {name}" for name in tracked if name not in names]


def interpreters() -> dict[str, str]:
    """Pythons that are on the PATH or installed beside this one, by version."""
    beside = Path(sys.base_prefix).parent.glob("3.*/bin/python3")
    named = (shutil.which(f"python3.{minor}") for minor in MINORS)
    found = {}
    for program in [sys.executable, *map(str, beside), *filter(None, named)]:
        asked = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=False)
        version = done.stdout.strip()
        if done.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 10):
            found.setdefault(version, program)
    return found


def check_use(wheel: Path, python: str) -> list[str]:
    """What does not work after an installation without extras, one line each."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    clean.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        programs = Path(folder) / "bin"
        pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q")
        subprocess.run([*pip, wheel], check=True, env=clean)
        found = []
        for arguments in COMMANDS:
            done = subprocess.run(
                [programs / "penstock", *arguments],
                capture_output=True,
                text=True,
                cwd=folder,
                env=clean,
                check=False,
            )
            if done.returncode or not done.stdout:
                said = (done.stderr or done.stdout).strip()
                found.append(f"penstock {' '.join(arguments)}: exit {done.returncode}\n{said}")
        has_torch = subprocess.run(
            [programs / "python", "-c", "import torch"], capture_output=True, check=False
        )
        if has_torch.returncode == 0:
            found.append("torch was installed unasked")
    return found


def check_resolves(wheel: Path, version: str) -> list[str]:
    """What pip says against an installation for a Python that is not here, one line each."""
    with tempfile.TemporaryDirectory() as folder:
        for_it = ["--python-version", version, "--only-binary", ":all:", "--target", folder]
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", *for_it, wheel]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [f"does not resolve\n{done.stderr.strip()}"] if done.returncode else []


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]).resolve()
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        print(f"{folder}: {len(wheels)} wheels and {len(sdists)} sdists", file=sys.stderr)
        return 1
    found = check_contents(wheels[0]) + check_sources(sdists[0])
    found = found or check_hardening(wheels[0])
    pythons = interpreters()
    missing = [f"3.{minor}" for minor in MINORS if f"3.{minor}" not in pythons]
    for version, python in {} if found else pythons.items():
        found += [f"Python {version}: {line}" for line in check_use(wheels[0], python)]
    for version in missing:
        found += [f"Python {version}: {line}" for line in check_resolves(wheels[0], version)]
    for violation in found:
        print(violation, file=sys.stderr)
    versions = ", ".join([*pythons, *(f"{version}: resolved, not tried" for version in missing)])
    size = wheels[0].stat().st_size / 1e6
    print(
        f"wheel: {len(found)} violation(s)" if found else f"wheel: ok ({size:.1f} MB; {versions})"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
