# SPDX-License-Identifier: Apache-2.0
"""Whether an optimizer's step for some parameters, and then for the others, is its step for all.

Of torch's own this is known. Any other is tried on small parameters of the same kinds, with the
settings that it has: an optimizer that takes a norm over all gradients, adapts one number to all
parameters or counts its calls (other than in its groups) gives something else in pieces, and cannot
be paged.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from penstock.errors import UsageError

from .groups import Groups

_WHOLE = ("LBFGS",)  # of torch's: looks at all gradients together, and runs the model itself
_STEPS = 12  # some do something else every ten
_RTOL, _ATOL = 1e-5, 1e-7  # the latter for weights and state
_SIZE = 6
_SCALES = (1e-3, 1.0, 30.0)  # of gradients: a common norm that is clipped must show
_REMEDY = "an optimizer that updates each parameter by itself, such as AdamW"


def is_torchs(step: Any) -> bool:
    """Whether a step function is one of torch's own optimizers."""
    return getattr(step, "__module__", "").startswith("torch.optim.")


def check_steps_in_pieces(optimizer: torch.optim.Optimizer, step: Any) -> None:
    """Refuse an optimizer whose update of one parameter needs the others.

    Args:
        optimizer: It.
        step: Its class's step function, without hooks.

    Raises:
        UsageError: If it is one, or if that cannot be told.
    """
    name = type(optimizer).__name__
    if is_torchs(step):
        if name in _WHOLE:
            raise UsageError(f"{name} needs all parameters and gradients at once", remedy=_REMEDY)
        return
    try:
        (whole, shared), (pieces, others) = (
            _run(optimizer, step, apart=apart) for apart in (False, True)
        )
    except Exception as error:
        raise UsageError(
            f"whether {name} updates each parameter by itself cannot be told: tried on small "
            f"parameters, its step fails with {type(error).__name__}: {error}",
            remedy=f"what that error asks for, before attach_training(), or {_REMEDY}",
        ) from error
    if not (_close(whole, pieces, _ATOL) and _close(shared, others)):
        lists = any(group.get("foreach", False) is not False for group in optimizer.param_groups)
        raise UsageError(
            f"{name} needs all parameters and gradients at once: stepped in pieces, it gives other "
            "weights, or other state",
            remedy="foreach=False, if it rounds lists of tensors in another way; else " * lists
            + _REMEDY,
        )


def _close(a: Any, b: Any, atol: float = 0.0) -> bool:
    """Whether two are equal but for rounding, as far as they can be compared."""
    if type(a) is not type(b):
        return False
    if type(a) in (torch.Tensor, nn.Parameter):
        return a.shape == b.shape and torch.allclose(a, b, _RTOL, atol, equal_nan=True)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key], atol) for key in a)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(_close(x, y, atol) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)):
        return math.isclose(a, b, rel_tol=_RTOL) or a != a
    return True


def _run(optimizer: torch.optim.Optimizer, step: Any, *, apart: bool) -> tuple[Any, Any]:
    """After some steps: small parameters with their state, and what all of them share."""
    random = torch.Generator().manual_seed(0)
    groups = [_small(group, random) for group in optimizer.param_groups]
    small: Any = _like(optimizer, groups)
    shared = Groups(small)
    every = [list(group["params"]) for group in groups]
    parameters = [p for some in every for p in some]
    pieces = [[p] for p in parameters] if apart else [parameters]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for _ in range(_STEPS):
            for parameter in parameters:
                scale = _SCALES[
                    int(torch.randint(len(_SCALES), (), generator=random, device="cpu"))
                ]
                grad = scale * _normal(parameter.shape, random)
                parameter.grad = grad.to(parameter)
            torch.manual_seed(0)
            for piece in pieces:
                chosen = {id(p) for p in piece}
                for group, some in zip(groups, every, strict=True):
                    group["params"] = [p for p in some if id(p) in chosen]
                with shared.piece():
                    step(small)
            shared.step_ends()
    own = {p: small.state.pop(p) for p in parameters if p in small.state}
    values = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    attributes = {k: v for k, v in vars(small).items() if k not in ("param_groups", "state")}
    weights = [p.detach() for p in parameters]
    return (weights, list(own.values())), (dict(small.state), values, attributes)


def _normal(shape: Sequence[int], random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random, device="cpu")  # whatever the program's default is


def _small(group: dict[str, Any], random: torch.Generator) -> dict[str, Any]:
    """A group of the same settings: the kinds of its parameters, each twice."""
    kinds = {
        (p.dim(), p.dtype, p.device if p.device.type != "meta" else "cpu"): p
        for p in group["params"]
    }
    made = [
        nn.Parameter(_normal([min(n, _SIZE) for n in p.shape], random).to(device, dtype))
        for (_, dtype, device), p in kinds.items()
        for _ in range(2)
    ]
    return {**{k: copy.deepcopy(v) for k, v in group.items() if k != "params"}, "params": made}


def _like(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer over other parameters, without their state and without hooks."""
    small: Any = object.__new__(type(optimizer))
    own = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    for key, value in vars(optimizer).items():
        if key in ("param_groups", "state") or key == "step":
            continue
        if isinstance(value, OrderedDict) and "hooks" in key:
            setattr(small, key, OrderedDict())
        else:
            setattr(small, key, copy.deepcopy(value, dict(own)))
    small.param_groups, small.state = groups, defaultdict(dict)
    shared = {k: v for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)}
    small.state.update(copy.deepcopy(shared, dict(own)))
    return small  # type: ignore[no-any-return]
