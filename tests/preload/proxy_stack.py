# SPDX-License-Identifier: Apache-2.0
"""Builds what the tests of the proxy run: the proxy, a driver, an engine, and programs.

Each set lies in a folder of its own, laid out as `penstock run` lays it out: the proxy as
libcuda.so.1, beside it the driver as libcuda_real.so.1.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from proxy_sweep import write_sweep

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROXY = ROOT / "native" / "preload"
COMMON = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")
INCLUDES = (f"-I{HERE}", f"-I{ROOT / 'native'}", f"-I{ROOT / 'native' / 'api' / 'include'}")
SANITIZERS = {
    "plain": (),
    "unbound": (),
    "asan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "tsan": ("-fsanitize=thread",),
}


@dataclass(frozen=True)
class Stack:
    """A proxy, a driver, an engine and the programs over them."""

    folder: Path

    @property
    def proxy(self) -> Path:
        return self.folder / "libcuda.so.1"

    @property
    def driver(self) -> Path:
        return self.folder / "driver" / "libcuda.so.570"

    def environment(self, *, preload: bool = True, **more: str) -> dict[str, str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "ULMS_", "LD_"))
        }
        clean.update(
            PENSTOCK_LIBRARY=str(self.folder / "libengine_double.so"),
            FAKE_DRIVER=str(self.driver),
            PROXY=str(self.proxy),
            LD_LIBRARY_PATH=str(self.driver.parent),
            # What the fake driver keeps, it keeps; the proxy comes before the sanitizer's library.
            ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0:exitcode=99",
            TSAN_OPTIONS="halt_on_error=1",
        )
        if preload:
            clean["LD_PRELOAD"] = str(self.proxy)
        clean.update(more)
        return clean

    def run(
        self, *command: str, preload: bool = True, seconds: float = 120, **more: str
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(self.folder / command[0]) if "/" not in command[0] else command[0], *command[1:]],
            env=self.environment(preload=preload, **more),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def compile_c(output: Path, sources: list[Path], *flags: str) -> None:
    """Run the C compiler; its words are the error."""
    command = ["cc", *COMMON, *INCLUDES, "-o", str(output), *map(str, sources), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def shared(name: str, *flags: str) -> tuple[str, ...]:
    return ("-shared", "-fPIC", f"-Wl,-soname,{name}", *flags)


def build_proxy(folder: Path, *sanitize: str) -> None:
    """The proxy as the package has it, over whatever libcuda_real.so.1 there will be."""
    stub = folder / "stub"
    stub.mkdir()
    compile_c(stub / "libcuda_real.so.1", [PROXY / "real_stub.c"], *shared("libcuda_real.so.1"))
    sources = [path for path in sorted(PROXY.glob("*.c")) if path.name != "real_stub.c"]
    compile_c(
        folder / "libcuda.so.1",
        sources,
        *shared("libcuda.so.1", "-fvisibility=hidden", "-Wl,-z,now", "-Wl,-z,nodelete"),
        "-Wl,--no-as-needed",
        str(stub / "libcuda_real.so.1"),
        "-Wl,-rpath,$ORIGIN",
        f"-Wl,--version-script={PROXY / 'exports.map'}",
        "-ldl",
        *sanitize,
    )


def build_stack(folder: Path, sanitizer: str) -> Stack:
    """Everything, with a sanitizer in the proxy and the programs."""
    stack = Stack(folder)
    flags = SANITIZERS[sanitizer]
    stack.driver.parent.mkdir()
    fakes = [HERE / f"fake_{part}.c" for part in ("driver", "memory", "work")]
    # Bound within itself, but for the tests of how the proxy takes a driver that is not.
    bound = () if sanitizer == "unbound" else ("-Wl,-Bsymbolic",)
    compile_c(stack.driver, fakes, *shared("libcuda.so.1", "-fvisibility=hidden", *bound))
    for link in ("libcuda.so.1", "libcuda.so"):
        (stack.driver.parent / link).symlink_to(stack.driver.name)
    build_proxy(folder, *flags)
    (folder / "libcuda_real.so.1").symlink_to(stack.driver)
    # Where `penstock run` looks for a proxy that belongs to PENSTOCK_LIBRARY.
    (folder / "preload").mkdir()
    (folder / "preload" / "libcuda.so.1").symlink_to(folder / "libcuda.so.1")
    compile_c(
        folder / "libengine_double.so",
        [HERE / "engine_double.c"],
        *shared("libengine_double.so"),
    )
    scenarios = [HERE / f"scenario_{part}.c" for part in ("work", "copies", "memory", "graphs")]
    sources = [HERE / "program.c", HERE / "faults.c", HERE / "api.c", *scenarios]
    compile_c(folder / "program", sources, "-ldl", *flags)
    driver = str(stack.driver.parent / "libcuda.so.1")
    compile_c(folder / "linked", [*sources], "-DLINKED", driver, "-ldl", *flags)
    sweep = folder / "sweep.c"
    write_sweep(PROXY / "hooks.def", sweep)
    compile_c(folder / "sweep", [sweep, HERE / "api.c"], "-ldl", *flags)
    compile_c(folder / "sweep_linked", [sweep, HERE / "api.c"], "-DLINKED", driver, "-ldl", *flags)
    return stack
