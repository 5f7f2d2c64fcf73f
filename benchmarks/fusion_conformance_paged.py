# SPDX-License-Identifier: Apache-2.0
"""Part of the fused layers' checks on a card: variants within a budget are what they are without.

Every byte: losses, logits and trained weights are compared bit for bit, with those operators of
torch that are deterministic. A use that the pager was not told of would read other data or nothing.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from fusion_checks import Report
from torch import Tensor

from penstock import attach, attach_training
from penstock.fusion import VARIANTS
from penstock.fusion.parts import parts_for
from penstock.models.configs import get_config
from penstock.models.gpt import GPT, build_on_meta
from penstock.models.weights import synthetic_loader


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
