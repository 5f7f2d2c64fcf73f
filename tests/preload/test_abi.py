# SPDX-License-Identifier: Apache-2.0
"""The proxy's own declarations against NVIDIA's cuda.h, where there is one on this machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from proxy_stack import PROXY, ROOT
from proxy_sweep import check_hooks, read_rows

PLACES = (
    os.environ.get("CUDA_HOME", ""),
    os.environ.get("CUDA_PATH", ""),
    "/usr/local/cuda",
    *sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True),
)
# The parts of structs that the proxy reads.
LAYOUTS = {
    "CUlaunchConfig": "hStream attrs numAttrs",
    "CUDA_LAUNCH_PARAMS": "function hStream kernelParams",
    "CUDA_MEMCPY2D": "srcXInBytes srcY srcMemoryType srcHost srcDevice srcPitch dstXInBytes dstY "
    "dstMemoryType dstHost dstDevice dstPitch WidthInBytes Height",
    "CUDA_MEMCPY3D": "srcXInBytes srcY srcZ srcMemoryType srcHost srcDevice srcPitch srcHeight "
    "dstXInBytes dstY dstZ dstMemoryType dstHost dstDevice dstPitch dstHeight WidthInBytes Height "
    "Depth",
    "CUDA_MEMCPY3D_PEER": "srcXInBytes srcY srcZ srcMemoryType srcHost srcDevice srcPitch "
    "srcHeight dstXInBytes dstY dstZ dstMemoryType dstHost dstDevice dstPitch dstHeight "
    "WidthInBytes Height Depth",
    "CUmemcpy3DOperand": "type op.ptr.ptr op.ptr.rowLength op.ptr.layerHeight op.array.array",
    "CUDA_MEMCPY3D_BATCH_OP": "src dst extent flags",
    "CUmemDecompressParams": "srcNumBytes dstNumBytes dstActBytes src dst",
    "CUstreamBatchMemOpParams": "operation waitValue.operation waitValue.address "
    "atomicReduction.operation atomicReduction.address",
    "CUDA_RESOURCE_DESC": "resType res.linear.devPtr flags",
    "CUDA_KERNEL_NODE_PARAMS_v1": "func kernelParams extra",
    "CUDA_KERNEL_NODE_PARAMS_v2": "func kernelParams extra kern ctx",
    "CUDA_MEMSET_NODE_PARAMS_v1": "dst pitch elementSize width height",
    "CUDA_MEMCPY_NODE_PARAMS": "copyParams",
    "CUDA_BATCH_MEM_OP_NODE_PARAMS": "ctx count paramArray flags",
    "CUDA_CONDITIONAL_NODE_PARAMS": "size phGraph_out",
    "CUDA_MEMCPY_BATCH_NODE_PARAMS_V1": "count dsts srcs sizes",
    "CUgraphNodeParams": "type kernel memcpy memset graph.graph memOp conditional memcpyBatch",
    "CUDA_GRAPH_INSTANTIATE_PARAMS": "flags",
    "CUtensorMap": "opaque",
    "CUipcMemHandle": "reserved",
}


@pytest.fixture(scope="module")
def include():
    for place in PLACES:
        if place and (Path(place) / "include" / "cuda.h").is_file():
            return Path(place) / "include"
    pytest.skip("there is no cuda.h here")


def version_of(include: Path) -> int:
    text = (include / "cuda.h").read_text()
    return int(re.search(r"#define CUDA_VERSION (\d+)", text)[1])


def constants() -> list[str]:
    text = (PROXY / "cuda_abi.h").read_text()
    return re.findall(r"^\s*(?:enum \{ )?(CU\w+) = ", text, re.MULTILINE) + re.findall(
        r"(?<=, )(CU\w+) = ", text
    )


def compile_and_run(folder: Path, name: str, source: str, *flags: str) -> str:
    path = folder / f"{name}.c"
    path.write_text(source)
    program = folder / name
    command = ["cc", "-std=c11", "-Wall", "-Werror", f"-I{ROOT / 'native'}", *flags]
    done = subprocess.run(
        [*command, str(path), "-o", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_layouts_and_values(include, tmp_path):
    known = set(re.findall(r"\w+", (include / "cuda.h").read_text()))
    lines = []
    for struct, members in LAYOUTS.items():
        if struct not in known:  # newer than this cuda.h
            continue
        lines.append(f'  printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [
            f'  printf("{struct}.{member} %zu %zu\\n", offsetof({struct}, {member}), '
            f"sizeof((({struct}*)0)->{member}));"
            for member in members.split()
            # The last parts of nested forms grew; only where they begin is read.
            if struct != "CUgraphNodeParams" or "." in member or member == "type"
            if known.issuperset(member.split("."))
        ]
    names = [name for name in constants() if name in known]
    lines += [f'  printf("{name} %ld\\n", (long){name});' for name in names]
    assert len(names) > 40
    body = "\n".join(lines)
    source = "#include <stddef.h>\n#include <stdio.h>\n%s\nint main(void) {\n%s\n  return 0;\n}\n"
    ours = source % ('#include "preload/cuda_abi.h"', body)
    theirs = source % ("#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>", body)
    assert compile_and_run(tmp_path, "ours", ours) == compile_and_run(
        tmp_path, "theirs", theirs, f"-I{include}"
    )


def test_prototypes(include, tmp_path):
    """The compiler refuses a second declaration that says something else."""
    rows = [row for row in read_rows(PROXY / "hooks.def") if row.since <= version_of(include)]
    assert len(rows) > 150
    declared = "\n".join(f"CUresult {row.exported}({row.declared});" for row in rows)
    source = f"""
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
{declared}
#define PENSTOCK_USE(exported, base, since, parameters) CUresult exported parameters;
#include "preload/uses.def"
int main(void) {{ return 0; }}
"""
    compile_and_run(tmp_path, "prototypes", source, f"-I{include}", "-Wno-deprecated-declarations")


def test_versions(include):
    """cudaTypedefs.h names each form by the CUDA that brought it."""
    rows = read_rows(PROXY / "hooks.def")
    assert check_hooks.check_versions(rows, include / "cudaTypedefs.h") == []


def test_no_form_is_missing(include):
    """Every form of a function that the list has is in it, but those of before CUDA 3.2."""
    text = (include / "cudaTypedefs.h").read_text()
    rows = read_rows(PROXY / "hooks.def")
    bases = {row.base for row in rows} - {"cuStreamDestroy", "cuDevicePrimaryCtxReset"}
    have = {(row.base, row.since, row.stream == "PER_THREAD") for row in rows}
    missing = []
    for name, version, twin in set(re.findall(r"PFN_(\w+?)_v(\d+)(_ptds|_ptsz)?\)", text)):
        form = (name, int(version), bool(twin))
        if name in bases and form not in have and int(version) >= 3020:
            missing.append(form)
    assert sorted(missing) == []
