# SPDX-License-Identifier: Apache-2.0
"""Part of the fused layers' checks on a card: captured or paged, they are what they are without.

As CUDA graphs variants give what they give by the host. Within a budget it is every byte: losses,
logits and trained weights are compared bit for bit, with those operators of torch that are
deterministic. A use that the pager was not told of would read other data or nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock import attach, attach_training
from penstock.errors import FailedError
from penstock.fusion import VARIANTS
from penstock.fusion import dropout_layernorm as rows
from penstock.fusion.captured import Captured, record
from penstock.fusion.decode import Decoder
from penstock.fusion.parts import parts_for
from penstock.models.configs import get_config
from penstock.models.gpt import GPT, KVCache, build_on_meta
from penstock.models.weights import synthetic_loader

TINY = {torch.float32: 1e-6, torch.bfloat16: 1e-4, torch.float16: 1e-5}


@dataclass
class Report:
    """What was checked and what failed."""

    checks: int = 0
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)

    def rule(self, what: str, got: Tensor, plain: Tensor, exact: Tensor) -> None:
        """error(got) <= 2 x error(plain) + tiny, in root mean square."""
        self.checks += 1
        got, plain, exact = got.detach(), plain.detach(), exact.detach()
        size = float(exact.double().square().mean().sqrt()) + 1e-30
        mine, theirs = (
            float((value.double() - exact.double()).square().mean().sqrt()) / size
            for value in (got, plain)
        )
        bound = 2 * theirs + TINY[got.dtype]
        self.worst = max(self.worst, mine / bound)
        if not mine <= bound:
            self.failures.append(f"{what}: {mine:.3g}, torch's own {theirs:.3g}")

    def true(self, what: str, holds: bool) -> None:
        """Something that simply holds."""
        self.checks += 1
        if not holds:
            self.failures.append(what)


# ---- As CUDA graphs ----------------------------------------------------------------------------


def check_decoder(report: Report) -> None:
    config = get_config("gpt2_xl", n_layers=2, vocab_size=512)
    with torch.device("cuda"):
        model = GPT(config, parts_for("attention_projection")).bfloat16().eval()
    tokens = torch.randint(0, 512, (1, 300), device="cuda")
    decoder, cache = Decoder(model, config), KVCache(config, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        whole = model.double()(tokens)
        model.bfloat16()
        decoder(tokens[:, :120], decoder.cache)
        model(tokens[:, :120], cache)
        steps = [tokens[:, at : at + 1] for at in range(120, 300)]
        got = torch.cat([decoder(token, decoder.cache).clone() for token in steps], 1)
        plain = torch.cat([model(token, cache) for token in steps], 1)
    report.rule("captured steps 120 to 300", got, plain, whole[:, 120:])
    report.true(f"graphs captured: {decoder.graphs}", decoder.graphs == 3)


def check_captured(report: Report) -> None:
    """A step as a CUDA graph is the step: forward bit for bit, with the gradients of its inputs."""
    config = get_config("gpt2_xl", n_layers=2, vocab_size=512, dropout=0.0)
    everything = ",".join(VARIANTS)
    one, other = (torch.randint(0, 512, (2, 200), device="cuda") for _ in range(2))
    for name in ("baseline", everything):
        with torch.device("cuda"):
            model = GPT(config, parts_for(name)).bfloat16()
        parameters = list(model.parameters())

        def step(tokens: Tensor, model: GPT = model) -> Tensor:
            model.zero_grad(set_to_none=True)
            loss = model(tokens).float().sin().mean()
            loss.backward()
            return loss

        captured = Captured(step, one)
        for tokens in (one, other, one):
            loss = captured(tokens).clone()
            got = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
            report.true(f"captured {name}: gradients of all", len(got) == len(parameters))
            held = [parameter.grad for parameter in parameters]
            wanted = step(tokens)
            report.true(f"captured {name}: loss", torch.equal(loss, wanted))
            for mine, parameter in zip(got, parameters, strict=True):
                far = (mine.float() - parameter.grad.float()).norm() / parameter.grad.float().norm()
                # Not bit for bit: backward of attention adds up in no fixed order.
                report.true(f"captured {name}: gradient {far:.2g}", bool(far <= 1e-2))
            for parameter, grad in zip(parameters, held, strict=True):
                parameter.grad = grad  # those that a replay writes
        with torch.no_grad():
            model.eval()
            forward = Captured(torch.no_grad()(model), one)
            for tokens in (other, one):
                report.true(f"captured {name}", torch.equal(forward(tokens), model(tokens)))
    check_captured_dropout(report)


def check_captured_dropout(report: Report) -> None:
    """Each replay draws anew; forward and backward of one replay draw the same."""
    x, residual = (torch.randn(256, 1600, device="cuda") for _ in range(2))
    w, b = torch.ones(1600, device="cuda"), torch.zeros(1600, device="cuda")
    x.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        x.grad = None
        _, z = rows.dropout_add_layer_norm(x, residual, w, b, p=0.3)
        z.sum().backward()
        assert x.grad is not None
        return z, x.grad

    graph, (z, grad) = record(step)
    kept = []
    for _ in range(3):
        graph.replay()
        dropped = (z - residual).abs() < 1e-6
        kept.append(~dropped)
        report.true("captured: dropout in both directions", torch.equal(dropped, grad == 0))
        share = float(dropped.float().mean())
        report.true(f"captured: {share:.3f} dropped", abs(share - 0.3) < 0.01)
    report.true("captured: drawn anew", not torch.equal(kept[0], kept[1]))
    report.true("captured: drawn anew", not torch.equal(kept[1], kept[2]))

    def waits() -> Tensor:
        return x.detach() * float(x.detach().sum())

    try:
        record(waits)
        report.true("captured: a step that waits was refused", False)
    except FailedError as error:
        report.true(f"captured: refused, {error}", "cannot be captured" in str(error))
    report.true("captured: the card works on", torch.isfinite(x.detach().sum()).item())


# ---- Within a budget ---------------------------------------------------------------------------


def check_paged(report: Report) -> None:
    """Within a budget every variant trains and infers bit for bit as with everything resident."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    config = get_config("gpt2_xl", n_layers=8, vocab_size=512, dropout=0.1)
    load = synthetic_loader(config)
    tokens = torch.randint(0, 512, (2, 64), device="cuda")
    most = 400 << 20  # for 474 MiB of weights, with activations, workspace and kernels
    for name in ("baseline", *VARIANTS, ",".join(VARIANTS)):
        made = [build_on_meta(config, dtype="bfloat16", parts=parts_for(name)) for _ in range(2)]
        plain, paged = made[0].to_empty(device="cuda").train(), made[1].train()
        for key, parameter in plain.named_parameters():
            load(key, parameter)
        wanted = paged_losses(plain, torch.optim.SGD(plain.parameters(), lr=0.01), tokens)
        optimizer = torch.optim.SGD(paged.parameters(), lr=0.01)
        torch.cuda.empty_cache()
        budget = most + torch.cuda.memory_reserved()  # the other one stays where it is
        attached = attach_training(
            paged,
            optimizer,
            gpu_memory=budget,
            device="cuda",
            load=load,
            step_in_backward=True,
        )
        got = paged_losses(paged, optimizer, tokens)
        report.true(f"paged {name}: losses {got}, {wanted}", got == wanted)
        moved = attached.stats().iteration_bytes_in
        report.true(f"paged {name}: {moved} bytes in", moved > 0)
        attached.detach()
        for (key, one), other in zip(plain.named_parameters(), paged.parameters(), strict=True):
            report.true(f"paged {name}: {key}", torch.equal(one.cpu(), other))
        with torch.no_grad():
            logits = plain.eval()(tokens)
            with attach(paged.eval(), gpu_memory=budget, device="cuda"):
                for _ in range(3):
                    report.true(f"paged {name}: logits", torch.equal(paged(tokens), logits))


def paged_losses(model: GPT, optimizer: torch.optim.Optimizer, tokens: Tensor) -> list[float]:
    """Losses of a few steps; dropout is drawn alike in each."""
    found = []
    for number in range(5):
        torch.manual_seed(number)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(-1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found
