# SPDX-License-Identifier: Apache-2.0
"""torch.compile and CUDA graphs around attached models.

Code that Dynamo compiles ends before what brings pages in, which runs as it is, and goes on after
it: a model in one piece cannot be had. A CUDA graph cannot be had at all, nor a graph of operators
as of torch.export, since a replay calls nothing that would bring them in.
"""

from __future__ import annotations

import sys
from functools import cache

import torch

from penstock.errors import UsageError

PACKAGES = ("penstock.paging", "penstock.native")  # not penstock.fusion, which may be compiled


def keep_out(*, anyway: bool) -> None:
    """Have Dynamo leave what pages as it is.

    It would compile those functions, with the addresses and counts that it finds there as
    constants, again and again, and fail at times.

    Args:
        anyway: Import it, which takes a second, if nobody has so far: the model may be compiled
            later on.
    """
    if anyway or "torch._dynamo" in sys.modules:
        _keep_out()


@cache
def _keep_out() -> None:
    from torch._dynamo import trace_rules

    for package in PACKAGES:
        trace_rules.add(package)


def refuse_trace() -> None:
    """A pass begins.

    Raises:
        UsageError: If its operators would be recorded into a graph, as torch.export and
            torch.jit.trace do.
    """
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    if traced or (proxies is not None and proxies.get_proxy_mode() is not None):
        raise UsageError(
            "a pass of an attached model cannot be recorded into a graph of operators: it would "
            "read weights that have left the device",
            remedy="torch.export, torch.jit.trace or make_fx() before attach(), or after detach()",
        )


def refuse_capture() -> None:
    """A pass on a GPU begins.

    Raises:
        UsageError: If it would be recorded into a CUDA graph.
    """
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a pass of an attached model cannot be captured into a CUDA graph: its replays would "
            "read weights that have left the device",
            remedy="run it without a graph (torch.compile: not mode='reduce-overhead')",
        )
