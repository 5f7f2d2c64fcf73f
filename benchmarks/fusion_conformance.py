# SPDX-License-Identifier: Apache-2.0
"""The fused layers' kernels on the card against float64: what the benchmark stands on.

    python benchmarks/fusion_conformance.py                exits 1 if anything is off
    python benchmarks/fusion_conformance.py --only rows    in this process, for a tool to watch

The rule: the error against float64 is at most twice that of torch's own layers in the same dtype,
plus a little. Every tile of the product kernel is run; masks are compared bit for bit with the
reference's; whole models of every combination are compared in logits and gradients, and with
themselves within a budget (fusion/checks.py). Nearly all of the time is Triton's,
compiling some hundred kernels on one core each: the checks are dealt out to processes, 150 s of
them on 16 cores in well under 60.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fusion.checks import Report, check_captured, check_decoder, check_paged
from kit.measure import script_parser
from torch import Tensor
from torch.library import opcheck

from penstock.fusion import VARIANTS, Fusion, activation, layer_norm_linear, layer_norm_mlp, product
from penstock.fusion import dropout_layernorm as rows
from penstock.fusion.contest import sets_of
from penstock.fusion.parts import parts_for
from penstock.fusion.philox import keep
from penstock.models.configs import get_config
from penstock.models.gpt import GPT

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def random(*shape: int, dtype: torch.dtype, shift: float = 0.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") + shift).to(dtype)


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> list[Tensor]:
    grads = [torch.cos(torch.arange(o.numel(), device=o.device)).view_as(o) for o in outputs]
    grads = [grad.to(output) for grad, output in zip(grads, outputs, strict=True)]
    return list(torch.autograd.grad(outputs, inputs, grads))


def plain_row(x: Any, residual: Any, x_bias: Any, w: Any, b: Any, stays: Tensor | None) -> Any:
    """Dropout, add and LayerNorm by torch's own layers, with a given mask."""
    dropped = x + x_bias
    if stays is not None:
        dropped = dropped * stays.to(dropped) / (1 - 0.1)
    z = residual + dropped
    return F.layer_norm(z, z.shape[-1:], w, b), z


def check_rows(report: Report) -> None:
    for d in (192, 1600, 3000, 4096, 5120):
        for m, dtype, p in (
            (1, DTYPES[0], 0.1),
            (257, DTYPES[0], 0.1),
            (257, DTYPES[1], 0.0),
            (63, DTYPES[2], 0.1),
        ):
            shapes = ((m, d), (m, d), (d,), (d,), (d,))
            inputs = [random(*shape, dtype=dtype).requires_grad_() for shape in shapes]
            seed = torch.randint(-(2**63), 2**63 - 1, (1,), device="cuda")
            stays = keep(seed, m, d, p) if p else None
            x, residual, x_bias, w, b = inputs
            got = rows.dropout_add_layer_norm(x, residual, w, b, p=p, x_bias=x_bias, seed=seed)
            plain = plain_row(*inputs, stays)
            wide = [part.detach().double().requires_grad_() for part in inputs]
            exact = plain_row(*wide, stays)
            names = ("y", "z", "dx", "dresidual", "dx_bias", "dweight", "dbias")
            triples = zip(
                names,
                (*got, *gradients(got, inputs)),
                (*plain, *gradients(plain, inputs)),
                (*exact, *gradients(exact, wide)),
                strict=False,
            )
            for name, mine, theirs, truth in triples:
                report.rule(f"row {m} x {d} {dtype} p={p} {name}", mine, theirs, truth)


def check_activations(report: Report) -> None:
    """Backward of the activations: its three results, one tile and many, edges and none."""
    for rows_of, columns in ((1, 6400), (257, 1000), (1024, 6400), (4096, 20480), (8200, 130)):
        for dtype in DTYPES:
            for name in ("gelu_tanh", "relu"):
                grad, before = (random(rows_of, columns, dtype=dtype) for _ in range(2))
                ways = {"summed": True, "again": True}
                plain = activation.reference(grad, before, name, **ways)
                exact = activation.reference(grad.double(), before.double(), name, **ways)
                got = activation.activation_backward(grad, before, name, **ways)
                report.true("backward ran on the kernel", got[0] is grad)
                parts = zip(("gradient", "sum", "result"), got, plain, exact, strict=True)
                for part, *values in parts:
                    what = f"{name}, {rows_of} x {columns}, {dtype}: {part}"
                    report.rule(what, *(value for value in values if value is not None))


def check_autocast(report: Report) -> None:
    """Float32 weights and stream, products in bfloat16; before and after calls in float32."""
    d, rows_of = 1600, 257
    shapes = {"x": (rows_of, d), "w": (d,), "b": (d,), "up": (4 * d, d), "up_b": (4 * d,)}
    shapes |= {"down": (d, 4 * d), "qkv": (3 * d, d)}
    t = {name: random(*shape, dtype=torch.float32) for name, shape in shapes.items()}
    for matrix in ("up", "down", "qkv"):
        t[matrix] *= 0.02

    def normed(t: dict[str, Tensor]) -> Tensor:
        return F.layer_norm(t["x"], (d,), t["w"], t["b"])

    def inner(t: dict[str, Tensor]) -> Tensor:
        return F.gelu(F.linear(normed(t), t["up"], t["up_b"]), approximate="tanh")

    def stream(t: dict[str, Tensor]) -> Tensor:
        z = t["x"] + (F.linear(inner(t), t["down"]) + t["b"])
        return z + F.layer_norm(z, (d,), t["w"], t["b"])

    def rows_after(t: dict[str, Tensor]) -> Tensor:
        hidden = F.linear(inner(t), t["down"])
        y, z = rows.dropout_add_layer_norm(hidden, t["x"], t["w"], t["b"], x_bias=t["b"])
        return y + z

    def mlp(t: dict[str, Tensor], level: int) -> Tensor:
        parts = (t[name] for name in ("x", "w", "b", "up", "up_b", "down", "b"))
        return layer_norm_mlp(*parts, recompute=level)

    def plain_mlp(t: dict[str, Tensor]) -> Tensor:
        return t["x"] + F.linear(inner(t), t["down"], t["b"])

    ways: dict[str, tuple[Callable[[dict[str, Tensor]], Tensor], ...]] = {
        "rows": (rows_after, stream),
        "layer_norm_linear": (
            lambda t: layer_norm_linear(t["x"], t["w"], t["b"], t["qkv"], None),
            lambda t: F.linear(normed(t), t["qkv"]),
        ),
        **{
            f"layer_norm_mlp, recompute {level}": (partial(mlp, level=level), plain_mlp)
            for level in (0, 1, 2)
        },
    }

    def results(way: Callable[[dict[str, Tensor]], Tensor], dtype: torch.dtype, on: bool) -> Any:
        given = {name: part.to(dtype).requires_grad_() for name, part in t.items()}
        with torch.autocast("cuda", torch.bfloat16, enabled=on):
            out = way(given)
        weights = torch.cos(torch.arange(out.numel(), device="cuda")).view_as(out)
        loss = (out.to(dtype) * weights).sum()
        grads = torch.autograd.grad(loss, list(given.values()), allow_unused=True)
        return {"result": out, **dict(zip(given, grads, strict=True))}

    for name, (fused, plain) in ways.items():
        exact = results(plain, torch.float64, False)
        for on in (False, True, False):  # a kernel compiled for one dtype is not for another
            mine, theirs = (results(way, torch.float32, on) for way in (fused, plain))
            for part, truth in exact.items():
                if truth is not None:
                    what = f"{'autocast' if on else 'float32'}, {name}: {part}"
                    report.true(f"{what} has torch's dtype", mine[part].dtype == theirs[part].dtype)
                    report.rule(what, mine[part], theirs[part], truth)


def check_masks(report: Report) -> None:
    ones = torch.ones(4096, 1600, device="cuda", dtype=torch.bfloat16)
    for p in (0.1, 0.5, 0.9):
        seed = torch.randint(-(2**63), 2**63 - 1, (1,), device="cuda")
        kept = rows.dropout_add(ones, None, p=p, seed=seed) != 0
        report.true(f"mask p={p} is the reference's", torch.equal(kept, keep(seed, 4096, 1600, p)))
        deviation = abs(float(kept.double().mean()) - (1 - p)) / (p * (1 - p) / kept.numel()) ** 0.5
        report.true(f"keep rate p={p}: {deviation:.1f} sigma off", deviation < 5)
    graph, x = torch.cuda.CUDAGraph(), ones[:64]
    rows.dropout_add(x, None, p=0.5)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = rows.dropout_add(x, None, p=0.5)
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(out.clone())
    report.true("replays of a CUDA graph draw new masks", not torch.equal(*drawn))


def product_cases() -> Iterator[tuple[int, int, int, torch.dtype, str, str | None, float]]:
    for m, n, k, shift in ((300, 4800, 1600, 0.0), (1024, 512, 5120, 50.0), (77, 200, 66, 3.0)):
        for dtype in DTYPES if k < 5120 else DTYPES[:1]:
            yield m, n, k, dtype, "norm", None, shift
            yield m, n, k, dtype, "norm", "gelu_tanh", shift
            yield m, n, k, dtype, "residual", None, shift
            if dtype == torch.bfloat16:
                yield m, n, k, dtype, "plain", "gelu_tanh", shift
                yield m, n, k, dtype, "transposed", None, shift
    for m in (1, 7):
        for what, act in (("norm", None), ("norm", "gelu_tanh"), ("residual", None)):
            yield m, 4800, 1600, torch.bfloat16, what, act, 0.0


def check_products(report: Report, share: int, shares: int) -> None:
    """A share of all products; what compiles to the same kernel is in the same one."""
    groups: dict[tuple[Any, ...], int] = {}
    for m, n, k, dtype, what, act, shift in product_cases():
        x, bias = random(m, k, dtype=dtype, shift=shift), random(n, dtype=dtype)
        weight = random(n, k, dtype=dtype) * 0.05
        if what == "transposed":
            weight = weight.T.contiguous().T
        gamma, beta = random(k, dtype=dtype, shift=1.0), random(k, dtype=dtype)
        residual = random(m, n, dtype=dtype) if what == "residual" else None
        normed = what in ("norm", "transposed")
        parts = (gamma if normed else None, beta if normed else None, weight, bias, residual)
        made = product.Product(x, *parts, act, 1e-5)
        wide = (q if q is None else q.double() for q in (x, *parts))
        plain, exact = made.plain(), product.Product(*wide, act, 1e-5).plain()
        for name, way in made.ways().items():
            if dtype != torch.bfloat16 and ":" in name and not name.endswith(last_tile(m, dtype)):
                continue  # one tile is enough for the other dtypes
            # In `transposed` and `plain` the strides and epilogues differ as well.
            compiled = (name, dtype, what, act, k % 16, k > 1600)
            if groups.setdefault(compiled, len(groups)) % shares != share:
                continue
            try:
                got = way()
            except Exception as error:  # shown, and counted as a failure
                report.failures.append(f"product {name} {what} {m}x{n}x{k} {dtype}: {error}"[:300])
                continue
            report.rule(f"product {name} {what} {act} {m}x{n}x{k} {dtype}", got, plain, exact)


def last_tile(m: int, dtype: torch.dtype) -> str:
    return product.tiles(m, dtype)[-1].name


def loss_and_gradients(model: GPT, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    logits = model(tokens)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return logits, list(torch.autograd.grad(wide.sin().sum(), list(model.parameters())))


def check_models(report: Report) -> None:
    config = get_config("gpt2_xl", n_layers=2, vocab_size=512, dropout=0.0)
    tokens = torch.randint(0, 512, (2, 200), device="cuda")
    torch.manual_seed(1)
    with torch.device("cuda"):
        wide = GPT(config).double()
    state = wide.state_dict()
    exact = loss_and_gradients(wide, tokens)
    names = [name for name, _ in wide.named_parameters()]

    def built(fusion: Fusion, dtype: torch.dtype) -> GPT:
        with torch.device("cuda"):
            model = GPT(config, parts_for(fusion)).to(dtype)
        model.load_state_dict(state)
        return model

    for dtype in DTYPES[:2]:
        plain = loss_and_gradients(built(Fusion(), dtype), tokens)
        for number, name in enumerate(sets_of(VARIANTS)[1:]):
            fusion = Fusion(**dict.fromkeys(name.split(","), True), recompute=number % 3)
            model = built(fusion, dtype)
            got = loss_and_gradients(model, tokens)
            what = f"model {name} {dtype}"
            report.rule(f"{what} logits", got[0], plain[0], exact[0])
            for leaf, *grads in zip(names, got[1], plain[1], exact[1], strict=True):
                report.rule(f"{what} d {leaf}", *grads)
            with torch.no_grad():
                report.rule(f"{what} without a graph", model.eval()(tokens), plain[0], exact[0])


def check_operators(report: Report) -> None:
    """The operators as torch's own checker and a whole-graph compiler see them."""
    x, residual = (random(64, 1600, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    w, b, x_bias = (random(1600, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    seed = torch.tensor([5], device="cuda")
    arguments = (x, residual, x_bias, w, b, seed, 0.1, 1e-5)
    opcheck(torch.ops.penstock.dropout_layernorm.default, arguments)
    parts = (x.detach(), w.detach(), random(320, dtype=torch.float32))
    parts += (random(320, 1600, dtype=torch.bfloat16), random(320, dtype=torch.float32), None)
    tile = product.tiles(64, torch.bfloat16)[-1]
    shape = [tile.m, tile.n, tile.k, tile.stages, tile.warps]
    opcheck(torch.ops.penstock.layernorm_gemm.default, (*parts, 1, 1e-5, shape))

    def block(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y, z = rows.dropout_add_layer_norm(x, residual, w, b, p=0.1, x_bias=x_bias, seed=seed)
        return F.silu(y), z * 2

    eager = block(x, residual)
    compiled = torch.compile(block, fullgraph=True, dynamic=False)(x, residual)
    inputs = [x, residual, w, b, x_bias]
    pairs = zip(
        (*eager, *gradients(eager, inputs)), (*compiled, *gradients(compiled, inputs)), strict=True
    )
    for number, (one, other) in enumerate(pairs):
        size = float(one.float().abs().max())
        far = float((one.float() - other.float()).abs().max())
        report.true(f"compiled {number}: {far:.3g} of {size:.3g}", far <= 0.02 * size)


SHARES = 8  # of the products
CHECKS: dict[str, Callable[[Report], None]] = {
    "rows": check_rows,
    "activations": check_activations,
    "autocast": check_autocast,
    "operators": check_operators,
    "models": check_models,
    **{f"products {n}": partial(check_products, share=n, shares=SHARES) for n in range(SHARES)},
    "masks": check_masks,
    "decoder": check_decoder,
    "captured": check_captured,
    "paged": check_paged,
}
# A budget is counted by the driver's free memory, which others' work would change.
ALONE = {"paged"}


def one(name: str) -> tuple[Report, float]:
    """One of the checks, in a process of its own."""
    begin, report = time.perf_counter(), Report()
    torch.manual_seed(0)
    try:
        CHECKS[name](report)
    except Exception as error:  # the others still tell something
        report.failures.append(f"{name}: {type(error).__name__}: {error}"[:2000])
    return report, time.perf_counter() - begin


def finished() -> Iterator[tuple[str, Report, float]]:
    """Name, report and seconds of each check, as they end."""
    workers = max(1, min(len(CHECKS), (os.cpu_count() or 1) - 1))
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    for names in (CHECKS.keys() - ALONE, ALONE):
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            waited = {pool.submit(one, name): name for name in sorted(names)}
            for done in as_completed(waited):
                name = waited[done]
                try:
                    yield name, *done.result()
                except Exception as error:  # a process that died
                    died = f"{name}: {type(error).__name__}: {error}"
                    yield name, Report(failures=[died]), 0.0


def here(names: list[str]) -> Iterator[tuple[str, Report, float]]:
    """The same of some checks, one by one in this process."""
    for name in names:
        yield name, *one(name)


def run(only: list[str] | None = None) -> dict[str, Any]:
    """All checks, or some in this process; `failures` is empty where everything holds."""
    total, seconds = Report(), {}
    for name, report, took in here(only) if only else finished():
        if not report.checks and not report.failures:
            report.failures.append(f"{name}: nothing was checked")
        total.checks += report.checks
        total.worst = max(total.worst, report.worst)
        total.failures += report.failures
        seconds[name] = round(took, 1)
        print(
            f"{name}: {report.checks} checks, {len(report.failures)} failed, {took:.1f} s",
            flush=True,
        )
    for failure in total.failures[:40]:
        print("FAILED", failure, flush=True)
    return {
        "checks": total.checks,
        "failures": total.failures,
        "worst_share_of_the_bound": round(total.worst, 3),
        "seconds": seconds,
    }


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), metavar="CHECK")
    sys.exit(1 if run(parser.parse_args().only)["failures"] else 0)
