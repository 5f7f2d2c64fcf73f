# SPDX-License-Identifier: Apache-2.0
"""One program of a framework's, its launches counted by the proxy and by CUPTI.

    LD_PRELOAD=PROXY python benchmarks/interpose_coverage.py CASE

CUPTI's count is torch.profiler's: every kernel that the device ran, whoever launched it. Kernels of
a graph are recorded one by one, so a graph's are told by how often it was launched. Prints one line
of JSON. interpose_calls.py runs all cases.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

from measure import script_parser
from under import PROGRAMS

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
ROUNDS = 5


def main(name: str) -> None:
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


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("case", choices=CASES)
    main(parser.parse_args().case)
