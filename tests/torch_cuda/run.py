# SPDX-License-Identifier: Apache-2.0
"""Run the tests of this folder against CUDA builds of torch, without a GPU.

For each version: download it without NVIDIA's packages, build the libraries that it links
(stubs.py), and run pytest in an environment where it finds those. What has been downloaded and
built is kept in FOLDER. A version without a wheel for this Python is left out and said so; it is
an error if that leaves none.

Usage: python tests/torch_cuda/run.py --driver EMULATED_LIBCUDA --folder FOLDER VERSION...
       (VERSION: 2.13.0, or the path of a wheel; further arguments after -- go to pytest)
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What the tests use beside the project's own test extra; without what these would pull in.
EXTRAS = ("accelerate", "psutil")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")


def install(requirement: str, target: Path) -> bool:
    """Put a package and nothing else into a folder, unless it is there."""
    stamp = target / f".{re.sub(r'[^A-Za-z0-9.]', '_', requirement)}"
    if stamp.exists():
        return True
    command = [*PIP, "--no-deps", "--no-compile", "--target", str(target), requirement]
    if subprocess.run(command, check=False).returncode != 0:
        return False
    stamp.touch()
    return True


def prepare(version: str, driver: Path, folder: Path) -> dict[str, str] | None:
    """The environment to run in; None where this torch cannot be had."""
    wheel = Path(version)
    name = wheel.name.split("-")[1] if version.endswith(".whl") else version
    # Three equal signs: 2.13.0+cpu, which an index may offer as well, is another version.
    requirement = str(wheel.resolve()) if version.endswith(".whl") else f"torch==={version}"
    target = folder / name
    if not install(requirement, target):
        return None
    extras = folder / "extras"
    for extra in EXTRAS:
        if not install(extra, extras):
            return None
    stubs = folder / f"stubs-{name}"
    subprocess.run(
        [sys.executable, HERE / "stubs.py", target / "torch/lib", driver, stubs], check=True
    )
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = str(stubs)
    inherited = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), inherited, str(extras)]))
    environment["FAKE_CUDA"] = name
    return environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("versions", nargs="+")
    own = sys.argv[1:]
    more: list[str] = []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    arguments = parser.parse_args(own)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    ran, failed = 0, 0
    for version in arguments.versions:
        environment = prepare(version, arguments.driver, arguments.folder.resolve())
        if environment is None:
            print(f"torch {version}: not to be had for this Python; left out", file=sys.stderr)
            continue
        print(f"==== torch {environment['FAKE_CUDA']}", flush=True)
        command = [sys.executable, "-m", "pytest", str(HERE), "-p", "no:cacheprovider"]
        done = subprocess.run([*command, *more], env=environment, check=False)
        ran += 1
        failed += done.returncode != 0
    if not ran:
        print("no torch was tested; try: a network, or the path of a wheel", file=sys.stderr)
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
