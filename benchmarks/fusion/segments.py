# SPDX-License-Identifier: Apache-2.0
"""Each fused segment by itself: torch's own layers, the fused op, and torch.compile.

The fair comparison of what a variant does: the compiler gets exactly the tensors that the op gets.
Calls follow each other without a wait, as layers do; then once more as CUDA graphs, which leaves
the GPU's time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fusion.models import DTYPE, Suite
from penstock.fusion import (
    attention_projection,
    dropout_add_layer_norm,
    layer_norm_linear,
    layer_norm_mlp,
    tuning,
)
from penstock.fusion.captured import record

HEADS = {1600: 25, 4096: 32, 5120: 40}
P = 0.1
SAMPLE_MS = 10.0
ROUNDS = 11


def segments(suite: Suite) -> None:
    """Every segment, width and number of rows; forward, and with backward at 4,096 rows."""
    for d in HEADS:
        for rows, training in ((1024, False), (8192, False), (4096, True)):
            for name, make in SEGMENTS.items():
                suite.row(
                    "segment",
                    14,
                    lambda make=make, d=d, rows=rows, training=training: segment_row(
                        make, d, rows, training
                    ),
                    fusion=name,
                    d=d,
                    rows=rows,
                    training=training,
                )
    torch.compiler.reset()


Pair = tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]


def tensor(*shape: int, std: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * std).to(DTYPE)


def add_norm(d: int, rows: int, p: float) -> Pair:
    inputs = [tensor(rows, d), tensor(rows, d), tensor(d), tensor(d)]

    def plain(x: Tensor, residual: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        z = residual + F.dropout(x, p)
        return F.layer_norm(z, (d,), w, b), z

    def fused(x: Tensor, residual: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return dropout_add_layer_norm(x, residual, w, b, p=p)

    return plain, fused, inputs


def norm_qkv(d: int, rows: int, p: float) -> Pair:
    inputs = [tensor(rows, d), tensor(d), tensor(d), tensor(3 * d, d, std=0.02), tensor(3 * d)]

    def plain(x: Tensor, w: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.layer_norm(x, (d,), w, b), weight, bias)

    return plain, layer_norm_linear, inputs


def project(d: int, rows: int, p: float) -> Pair:
    batch = max(1, rows // 1024)
    inputs = [
        *(tensor(batch, rows // batch, 3 * d), tensor(d, d, std=0.02)),
        *(tensor(d), tensor(batch, rows // batch, d)),
    ]
    heads = HEADS[d]

    def plain(qkv: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        shape = (*residual.shape[:2], heads, d // heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in qkv.split(d, 2))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return residual + F.dropout(F.linear(out.transpose(1, 2).flatten(2), weight, bias), p)

    def fused(qkv: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return attention_projection(qkv, weight, bias, residual, n_heads=heads, attention_p=p, p=p)

    return plain, fused, inputs


def feed_forward(d: int, rows: int, p: float) -> Pair:
    inputs = [
        *(tensor(rows, d), tensor(d), tensor(d), tensor(4 * d, d, std=0.02), tensor(4 * d)),
        *(tensor(d, 4 * d, std=0.02), tensor(d)),
    ]

    def plain(
        x: Tensor, w: Tensor, b: Tensor, up: Tensor, up_b: Tensor, down: Tensor, down_b: Tensor
    ) -> Tensor:
        inner = F.gelu(F.linear(F.layer_norm(x, (d,), w, b), up, up_b), approximate="tanh")
        return x + F.dropout(F.linear(inner, down, down_b), p)

    def fused(*parts: Tensor) -> Tensor:
        return layer_norm_mlp(*parts, p=p)

    return plain, fused, inputs


SEGMENTS: dict[str, Callable[[int, int, float], Pair]] = {
    "dropout_layernorm": add_norm,
    "attention_layernorm": norm_qkv,
    "attention_projection": project,
    "ffn_layernorm": feed_forward,
}


def segment_row(
    make: Callable[[int, int, float], Pair], d: int, rows: int, training: bool
) -> dict[str, Any]:
    """Milliseconds of the three, and of the first once more; from the host, and captured."""
    plain, fused, inputs = make(d, rows, P if training else 0.0)
    torch.compiler.reset()
    ways = {
        "baseline": plain,
        "fused": fused,
        "compiled": torch.compile(plain, dynamic=False),
        "baseline_again": plain,
    }
    steps = {name: _step(way, inputs, training) for name, way in ways.items()}
    if not training:
        with tuning.measuring():
            steps["fused"]()
    for step in steps.values():
        step()
    found = {f"{name}_ms": ms for name, ms in in_turns(steps).items()}
    replays = {name: record(step)[0].replay for name, step in steps.items()}
    return found | {f"{name}_captured_ms": ms for name, ms in in_turns(replays).items()}


def in_turns(steps: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Milliseconds of a call of each, the median of samples taken in turns.

    A sample is calls back to back, as layers follow each other. One way after the other would
    compare a GPU behind a pause with one behind a search for tiles: the same kernels were 14 %
    apart so.
    """
    calls = {
        name: max(2, min(400, int(SAMPLE_MS / tuning.back_to_back(step, 4))))
        for name, step in steps.items()
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(tuning.back_to_back(step, calls[name]))
    return {name: round(statistics.median(taken), 4) for name, taken in times.items()}


def _step(way: Callable[..., Any], inputs: list[Tensor], training: bool) -> Callable[[], Any]:
    if not training:

        def forward() -> Any:
            with torch.no_grad():
                return way(*inputs)

        return forward
    leaves = [part.detach().requires_grad_(True) for part in inputs]
    with torch.no_grad():
        like = way(*inputs)
    many = like if isinstance(like, tuple) else (like,)
    grads = [torch.randn_like(part) for part in many]

    def both() -> None:
        out = way(*leaves)
        with torch.autograd.set_multithreading_enabled(False):  # as training steps here have it
            torch.autograd.grad(out if isinstance(out, tuple) else (out,), leaves, grads)

    return both
