# SPDX-License-Identifier: Apache-2.0
"""What a fused op costs the host, beside torch's own layers: no GPU is needed.

    python benchmarks/fusion_host.py [--output benchmarks/results/fusion_host.json]
    python benchmarks/fusion_host.py --device cuda --output benchmarks/results/fusion_host_cuda.json

Tensors of a few rows on the CPU, so that arithmetic hardly counts; the Triton kernels take every
step to a launch, with a driver in Triton's that launches nothing. torch's layers do compute, a few
us of their figures. On a GPU everything is launched, in bf16, and the host's time is what it takes
to ask for it: kernels of so few rows are done sooner. Small models are bound by this: 48 layers of
four ops in 10 ms leave 50 us.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from measure import output_parser, provenance
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from penstock.fusion import (
    attention_projection,
    dropout_add,
    dropout_add_layer_norm,
    kernels,
    layer_norm_linear,
    layer_norm_mlp,
    residual_linear,
)

D, HEADS, P = 64, 8, 0.1
CALLS, ROUNDS = 1000, 7


class NoDriver:
    """What Triton asks a driver for, where there is no card and nothing is launched."""

    def __init__(self) -> None:
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 1, 2, 32, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *_: None


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, the least of some rounds."""
    best = float("inf")
    call()  # compiles, and measures the ways of a product
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - begin)
    return round(best / CALLS * 1e6, 1)


def tensors(device: str, grad: bool) -> dict[str, Tensor]:
    shapes = {
        **{"x": (2, 4, D), "residual": (2, 4, D), "w": (D,), "b": (D,), "more": (D,)},
        **{"square": (D, D), "up": (4 * D, D), "up_b": (4 * D,), "down": (D, 4 * D)},
        "qkv": (2, 4, 3 * D),
    }
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return {
        name: torch.randn(shape, device=device, dtype=dtype, requires_grad=grad)
        for name, shape in shapes.items()
    }


def pairs(t: dict[str, Tensor], p: float) -> dict[str, tuple[Callable[[], Any], ...]]:
    """Each op, and the same in torch's layers."""
    x, residual, w, b, more = t["x"], t["residual"], t["w"], t["b"], t["more"]
    mlp = (t["up"], t["up_b"], t["down"], b)

    def plain_add() -> Tensor:
        return residual + F.dropout(x + more, p)

    def plain_norm(z: Tensor) -> Tensor:
        return F.layer_norm(z, (D,), w, b)

    def plain_mlp() -> Tensor:
        inner = F.gelu(F.linear(plain_norm(x), t["up"], t["up_b"]), approximate="tanh")
        return x + F.dropout(F.linear(inner, t["down"], b), p)

    def plain_attention() -> Tensor:
        shape = (2, 4, HEADS, D // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in t["qkv"].split(D, 2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return residual + F.linear(out.transpose(1, 2).flatten(2), t["square"], b)

    return {
        "dropout_add": (lambda: dropout_add(x, residual, p=p, x_bias=more), plain_add),
        "dropout_add_layer_norm": (
            lambda: dropout_add_layer_norm(x, residual, w, b, p=p, x_bias=more)[0],
            lambda: plain_norm(plain_add()),
        ),
        "layer_norm_linear": (
            lambda: layer_norm_linear(x, w, b, t["square"], b),
            lambda: F.linear(plain_norm(x), t["square"], b),
        ),
        "residual_linear": (
            lambda: residual_linear(x, t["square"], b, residual),
            lambda: residual + F.linear(x, t["square"], b),
        ),
        "layer_norm_linear, GELU, our kernel": (
            lambda: layer_norm_linear(
                *(x, w, b, t["up"], t["up_b"]), activation="gelu_tanh", implementation="triton"
            ),
            lambda: F.gelu(F.linear(plain_norm(x), t["up"], t["up_b"]), approximate="tanh"),
        ),
        "residual_linear, our kernel": (
            lambda: residual_linear(x, t["square"], b, residual, implementation="triton"),
            lambda: residual + F.linear(x, t["square"], b),
        ),
        "layer_norm_mlp": (lambda: layer_norm_mlp(x, w, b, *mlp, p=p), plain_mlp),
        "attention_projection": (
            lambda: attention_projection(t["qkv"], t["square"], b, residual, n_heads=HEADS),
            plain_attention,
        ),
    }


def with_backward(call: Callable[[], Tensor], t: dict[str, Tensor]) -> Callable[[], None]:
    grad = torch.ones_like(t["x"])

    def both() -> None:
        call().backward(grad)
        for part in t.values():
            part.grad = None

    return both


def main() -> None:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # what no kernel wrote may be any number
    torch.autograd.set_multithreading_enabled(False)  # as penstock finetune has it
    where = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__}
    if args.device == "cpu":
        driver.set_active(NoDriver())
        kernels.usable = lambda device_type: True
    else:
        where |= provenance()
    rows = []
    for mode in ("eval", "training"):
        t = tensors(args.device, mode == "training")
        for name, calls in pairs(t, P if mode == "training" else 0.0).items():
            if mode == "training" and "kernel" in name:
                continue  # a graph takes the library's product
            row: dict[str, Any] = {"op": name, "mode": mode}
            for side, call in zip(("fused_us", "torch_us"), calls, strict=True):
                with torch.set_grad_enabled(mode == "training"):
                    row[side] = microseconds(call)
                    if mode == "training":
                        both = side.replace("_us", "_with_backward_us")
                        row[both] = microseconds(with_backward(call, t))
            rows.append(row)
            print(row, flush=True)
    if args.output:
        args.output.write_text(json.dumps({"where": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
