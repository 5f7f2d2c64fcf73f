# SPDX-License-Identifier: Apache-2.0
"""Build what a CUDA build of torch links, without a GPU and without NVIDIA's packages.

For each library that torch's own need and the system does not have: a shared object of its name
whose functions are exactly those that torch imports, with their versions. libcudart.so.13 and
libcuda.so.1 are fake_cudart.c and fake_cuda.c plus stubs for the rest, which answer "not
supported", except that the registration and the launch of kernels do nothing. The stubs of every
other library answer 0.

Usage: python tests/torch_cuda/stubs.py TORCH_LIB_FOLDER EMULATED_LIBCUDA OUTPUT_FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Libraries that do something: the source beside the stubs.
FAKES = {"libcudart.so.13": HERE / "fake_cudart.c", "libcuda.so.1": HERE / "fake_cuda.c"}
# Libraries whose symbols carry no version, by how those symbols begin.
PREFIXES = {
    "nccl": "libnccl.so",
    "cuFile": "libcufile.so",
    "cusparseLt": "libcusparseLt.so",
    "nvshmem": "libnvshmem_host.so",
    "cudnn": "libcudnn.so",
    "cupti": "libcupti.so",
    "cu": "libcuda.so",
}
# Of the stubs beside a fake: what happens at every start, and kernels.
DOES_NOTHING = re.compile(r"__cuda|cudaLaunch|cudaGraph|cudaFuncSet|cudaProfiler|cudaThread")
NOT_SUPPORTED = 801
FLAGS = ["-shared", "-fPIC", "-O1", "-w", "-Wl,--hash-style=gnu"]


def run(*command: str | Path) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout


def needed(library: Path) -> list[str]:
    """The sonames that the library links."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", "-W", library))


def imported(library: Path) -> list[tuple[str, str]]:
    """(name, version or "") of each symbol that the library takes from others."""
    found = []
    for line in run("readelf", "--dyn-syms", "-W", library).splitlines():
        match = re.match(r"\s*\d+:\s+\w+\s+\d+\s+\w+\s+\w+\s+\w+\s+UND\s+(\S+)", line)
        if match:
            name, _, version = match[1].partition("@")
            found.append((name, version.lstrip("@")))
    return found


def defined_by(fake: Path) -> set[str]:
    """The functions that a fake exports."""
    text = fake.read_text(encoding="utf-8")
    return set(re.findall(r"EXPORT [^(;{]*?\b(\w+)\(", text))


def missing_libraries(torch: list[Path]) -> set[str]:
    """Sonames of CUDA's libraries that torch links."""
    own = {library.name for library in torch}
    wanted = {name for library in torch for name in needed(library)} - own
    return {name for name in wanted if re.match(r"lib(cu|nv|nccl)", name)}


def assign(torch: list[Path], libraries: set[str]) -> dict[str, dict[str, str]]:
    """Library -> {symbol: version} that it has to define."""
    versions = {"NVSHMEM": next((name for name in libraries if "nvshmem" in name), "")}
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, version in {pair for library in torch for pair in imported(library)}:
        target = version if version in libraries else versions.get(version, "")
        if not version:
            stem = next((PREFIXES[begin] for begin in PREFIXES if name.startswith(begin)), "-")
            target = next((lib for lib in libraries if lib.startswith(stem)), "")
        if target:
            found[target][name] = version
    return found


def build(library: str, symbols: dict[str, str], emulated: Path, output: Path) -> None:
    """One shared object with these symbols."""
    work = output / "source"
    work.mkdir(exist_ok=True)
    fake = FAKES.get(library)
    own = defined_by(fake) if fake else set()
    lines = []
    for name in sorted(set(symbols) - own):
        answer = NOT_SUPPORTED if fake and not DOES_NOTHING.match(name) else 0
        lines.append(f"void* {name}(void) {{ return (void*){answer}; }}")
    source = work / f"{library}.c"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # What torch imports without a version is exported without one.
    of_version: dict[str, list[str]] = defaultdict(list)
    for name, version in sorted(symbols.items()):
        of_version[version].append(name)
    nodes = [
        f"{version} {{ global: {'; '.join(names)}; }};"
        for version, names in of_version.items()
        if version
    ]
    script = work / f"{library}.map"
    script.write_text("\n".join(nodes), encoding="utf-8")
    options = [f"-Wl,--version-script={script}"] if nodes else []
    sources = [source, fake] if fake else [source]
    run(
        *("gcc", *FLAGS, f'-DEMULATED="{emulated.resolve()}"', *options),
        *(f"-Wl,-soname,{library}", "-o", output / library, *sources, "-ldl"),
    )


def main(arguments: list[str]) -> int:
    torch_lib, emulated, output = map(Path, arguments)
    output.mkdir(parents=True, exist_ok=True)
    torch = sorted(torch_lib.glob("*.so*"))
    libraries = missing_libraries(torch)
    symbols = assign(torch, libraries)
    for library in sorted(libraries):
        build(library, symbols.get(library, {}), emulated, output)
    print(f"{output}: {len(libraries)} libraries, {sum(map(len, symbols.values()))} symbols")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
