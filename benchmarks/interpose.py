# SPDX-License-Identifier: Apache-2.0
"""What the proxy of `penstock run` costs, and whether it sees everything; on a GPU.

    python benchmarks/interpose.py --output interpose.json

Builds the proxy and a small program (cc, nvcc), and measures: the cost of a launch without the
proxy, with it and no engine, and with an engine for which everything is resident, in turns; the
launches that the proxy counts against CUPTI's, framework by framework; the time that a process
without CUDA takes more to start. The engine is the one named by PENSTOCK_LIBRARY if it has
penstock_interpose, else the one of the tests, which lets every allocation pass.

CUPTI's count is torch.profiler's: every kernel that the device ran, whoever launched it. Kernels of
a graph are recorded one by one, so a graph's are told by how often it was launched. With the proxy
before it, `--case CASE` counts one framework's in this process and prints a line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kit.measure import output_parser, write_result
from kit.under import PROGRAMS, run

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
STARTS = 100
CASE_LIMIT_S = 70
# As the package is built; another compiler may warn of other things.
QUICK = ("-O2", "-Wno-error")
# Of penstock_proxy_counters in interpose.h.
COUNTERS = (
    "calls launches graph_launches captured copies fills announced touches opaque unknown_layouts "
    "allocations engine_allocations foreign_bytes unknown_forms late"
).split()


def counters() -> dict[str, int]:
    """What the proxy has seen so far."""
    words = (ctypes.c_uint64 * (len(COUNTERS) + 1))()
    words[0] = ctypes.sizeof(words)
    ctypes.CDLL("libcuda.so.1").penstock_proxy_get_counters(words)
    return dict(zip(COUNTERS, list(words)[1:], strict=True))


def eager() -> Callable[[], Any]:
    """A forward pass of GPT-2 XL's shape, as Hugging Face writes it."""
    import torch

    sys.path.insert(0, str(PROGRAMS))
    from steps import gpt2

    model = gpt2("gpt2-xl").half().eval()
    tokens = torch.randint(0, 50257, (1, 1024), device="cuda")
    return torch.no_grad()(lambda: model(tokens).logits)


def compiled() -> Callable[[], Any]:
    """Linear layers and what goes between them, by torch.compile."""
    import torch

    layers = [torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512)]
    model = torch.nn.Sequential(*layers * 4).cuda()
    x = torch.randn(64, 512, device="cuda")
    run = torch.compile(model)
    return torch.no_grad()(lambda: run(x))


def training() -> Callable[[], Any]:
    """A step with a fused and a foreach optimizer."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(40)]).cuda()
    optimizers = [
        torch.optim.AdamW(model.parameters(), fused=True),
        torch.optim.AdamW(model.parameters(), foreach=True),
    ]
    x = torch.randn(32, 256, device="cuda")

    def step() -> None:
        model(x).square().mean().backward()
        for optimizer in optimizers:  # the gradients stay until both had them
            optimizer.step()
        model.zero_grad()

    return step


def graph() -> Callable[[], Any]:
    """A captured graph, launched again and again."""
    import torch

    model = torch.nn.Linear(512, 512).cuda()
    x = torch.randn(64, 512, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.no_grad():
        model(x)
        with torch.cuda.graph(captured):
            model(x)
    return captured.replay


def triton() -> Callable[[], Any]:
    """A kernel of Triton's own."""
    import torch

    sys.path.insert(0, str(PROGRAMS))
    from triton_scale import BLOCK, scale_and_add

    x, y = torch.randn(2, 1 << 16, device="cuda")
    grid = (len(x) // BLOCK,)
    return lambda: scale_and_add[grid](x, y, len(x), 0.5, BLOCK=BLOCK)


def cupy() -> Callable[[], Any]:
    """Element-wise kernels, a reduction, a matrix product."""
    import cupy as cp

    a = cp.random.rand(512, 512)
    return lambda: ((a @ a + a) * 2).sum()


def jax() -> Callable[[], Any]:
    """A jitted function."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((512, 512))
    function = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    return lambda: function(a).block_until_ready()


CASES = {case.__name__: case for case in (eager, compiled, training, graph, triton, cupy, jax)}


def counted(name: str) -> None:
    """A framework's launches by both counts."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    step = CASES[name]()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]):  # CUPTI's own beginning
        step()
        torch.cuda.synchronize()
    before = counters()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(ROUNDS):
            step()
        torch.cuda.synchronize()
    seen = {name: after - before[name] for name, after in counters().items()}
    events = profiler.events()
    on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    # The profiler's own ranges (Optimizer.step) are on the device's list too.
    device = [event.name for event in on_device if not event.is_user_annotation]
    kernels = [name for name in device if not name.startswith(("Memcpy", "Memset"))]
    graphs = [event.name for event in events if "GraphLaunch" in event.name]
    print(
        json.dumps(
            {
                "case": name,
                "cupti_kernels": len(kernels),
                "cupti_graph_launches": len(graphs),
                "cupti_copies_and_sets": len(device) - len(kernels),
                "ranges": len(on_device) - len(device),
                "seen": seen,
            }
        )
    )


def build(folder: Path) -> dict[str, Path]:
    """The proxy with the driver beside it, an engine, the program."""
    sys.path.append(str(ROOT / "tests" / "preload"))
    from proxy_stack import HERE, build_proxy, compile_c, shared

    from penstock.preload.folder import find_driver

    driver = find_driver()
    assert driver is not None, "there is no NVIDIA driver here"
    build_proxy(folder, *QUICK)
    (folder / "libcuda_real.so.1").symlink_to(driver)
    engine = folder / "libengine_double.so"
    compile_c(engine, [HERE / "engine_double.c"], *shared(engine.name), *QUICK)
    named = os.environ.get("PENSTOCK_LIBRARY")
    if named and hasattr(ctypes.CDLL(named), "penstock_interpose"):
        engine = Path(named)
    program = folder / "launch"
    source = PROGRAMS / "launch.cu"
    subprocess.run(["nvcc", "-O2", "-arch=native", "-o", program, source], check=True)
    return {"proxy": folder / "libcuda.so.1", "engine": engine, "program": program}


def environments(built: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Without the proxy; with it and nothing behind it; with an engine."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_PRELOAD", "PENSTOCK_LIBRARY")
    }
    proxied = {**plain, "LD_PRELOAD": str(built["proxy"])}
    return {
        "plain": plain,
        "proxy": {**proxied, "PENSTOCK_LIBRARY": "/nowhere/libpenstock.so"},
        "engine": {**proxied, "PENSTOCK_LIBRARY": str(built["engine"]), "DOUBLE_PASSES": "1"},
    }


def launch_costs(built: Mapping[str, Path]) -> dict[str, Any]:
    """Nanoseconds a launch, the three in turns; medians of the runs, and all runs."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(ROUNDS):
        for name, environment in environments(built).items():
            done = subprocess.run(
                [built["program"]], env=environment, capture_output=True, text=True, check=True
            )
            runs.setdefault(name, []).append(json.loads(done.stdout))
    figures = ("runtime_ns", "driver_ns")
    medians = {
        name: {each: statistics.median(run[each] for run in of) for each in figures}
        for name, of in runs.items()
    }
    more = {
        name: {each: round(found[each] - medians["plain"][each], 1) for each in figures}
        for name, found in medians.items()
        if name != "plain"
    }
    return {"median": medians, "more_than_plain": more, "runs": runs}


def coverage(built: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Each framework's launches by both counts; one that fails says how."""
    found = []
    environment = environments(built)["engine"]
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    for case in CASES:
        command = [sys.executable, __file__, "--case", case]
        result = {"case": case, **run(command, CASE_LIMIT_S, environment)}
        if "error" not in result:
            wanted = result["cupti_kernels"], result["cupti_graph_launches"]
            # Kernels of graphs are in CUPTI's count, and no launches of their own.
            if wanted[1]:
                result["all_seen"] = result["seen"]["graph_launches"] == wanted[1]
            else:
                result["all_seen"] = result["seen"]["launches"] == wanted[0]
        found.append(result)
    return found


def starts(built: Mapping[str, Path]) -> dict[str, Any]:
    """Milliseconds for a process that makes no call of CUDA."""
    commands = {"true": ["/bin/true"], "python": [sys.executable, "-S", "-c", "pass"]}
    samples: dict[str, list[float]] = {}
    for _ in range(STARTS):
        for name, environment in environments(built).items():
            for program, command in commands.items():
                if name == "proxy":
                    continue
                begin = time.perf_counter()
                subprocess.run(command, env=environment, check=True)
                taken = (time.perf_counter() - begin) * 1e3
                samples.setdefault(f"{program}_{name}", []).append(taken)
    return {name: round(statistics.median(each), 3) for name, each in samples.items()}


def main() -> None:
    parser = output_parser(__doc__, required=False)
    parts = {part.__name__: part for part in (launch_costs, starts, coverage)}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--case", choices=CASES, help="used by itself")
    arguments = parser.parse_args()
    if arguments.case:
        counted(arguments.case)
        return
    if arguments.output is None:
        parser.error("--output is missing")
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder))
        found: dict[str, Any] = {"engine": built["engine"].name}
        for name in arguments.parts:
            found[name] = parts[name](built)
            # What there is by now survives whatever comes next.
            write_result(arguments.output, found)
    if "launch_costs" in found:
        found["launch_costs"] = found["launch_costs"]["more_than_plain"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
