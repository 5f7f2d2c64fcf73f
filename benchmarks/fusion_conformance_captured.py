# SPDX-License-Identifier: Apache-2.0
"""Part of the fused layers' checks on a card: as CUDA graphs they are what they are by the host."""

from __future__ import annotations

import torch
from fusion_checks import Report
from torch import Tensor

from penstock.errors import FailedError
from penstock.fusion import VARIANTS
from penstock.fusion import dropout_layernorm as rows
from penstock.fusion.captured import Captured, record
from penstock.fusion.decode import Decoder
from penstock.fusion.parts import parts_for
from penstock.models.configs import get_config
from penstock.models.gpt import GPT, KVCache


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
