# SPDX-License-Identifier: Apache-2.0
"""Which variants of the layers a run takes, and the measuring that belongs to it.

Done before the model is loaded: measuring needs room, and beside a model that is being paged it
would be wrong and in the way.
"""

from __future__ import annotations

from typing import Any

from penstock.fusion import auto
from penstock.fusion.variants import AUTO, Fusion, parse

from .device import RunDevice
from .request import Request
from .subject import Subject


def choose_fusion(request: Request, subject: Subject, device: RunDevice) -> Fusion:
    """The variants of a run: those it names, or for "auto" the fastest for its timed steps.

    Text, where there are no timed steps, is measured for the steps of one token.
    """
    how: dict[str, Any] = {
        "dtype": subject.dtype,
        "device": device.torch_device,
        "batch": request.batch if request.timed_steps else 1,
        "seq_len": request.tokens_in_a_sequence(subject.config) if request.timed_steps else 1,
    }
    if request.fusion == AUTO:
        return auto.choose(subject.config, **how, captured=request.cuda_graph)
    fusion = parse(request.fusion)
    if not request.compile:
        auto.warm(fusion, auto.Step(subject.config, **how))
    return fusion
