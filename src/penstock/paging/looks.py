# SPDX-License-Identifier: Apache-2.0
"""Code that walks through a model's tensors for what they are, and not for what they hold.

``next(model.parameters()).device`` is how programs, and transformers and diffusers for each token,
ask where a model is. Whoever gets a tensor outside every use may change it in ways that leave no
trace, so that its block has to be copied to the device again; who gets it for its device may not.
Where it is not certain the answer is no.
"""

from __future__ import annotations

import dis
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType

from torch import nn

from .tables import Table

_WALKS = {
    walk.__code__
    for walk in (
        nn.Module.parameters,
        nn.Module.named_parameters,
        nn.Module.buffers,
        nn.Module.named_buffers,
        nn.Module._named_members,
        Table.items,
        Table._list,
    )
}
_ATTRIBUTES = frozenset({"device", "dtype", "is_cuda", "shape", "requires_grad"})
_FUNCTIONS = frozenset(
    {
        ("transformers.modeling_utils", "device"),
        ("transformers.modeling_utils", "dtype"),
        ("transformers.modeling_utils", "num_parameters"),
        ("transformers.modeling_utils", "get_memory_footprint"),
        ("diffusers.models.modeling_utils", "get_parameter_device"),
        ("diffusers.models.modeling_utils", "get_parameter_dtype"),
    }
)


def only_looks(frame: FrameType | None) -> bool:
    """Whether the code that walks here takes no more of a tensor than an attribute.

    Args:
        frame: The innermost one of the walk.
    """
    while frame is not None and frame.f_code in _WALKS:
        frame = frame.f_back
    if frame is not None and _takes_attribute(frame.f_code, frame.f_lasti):
        return True
    while frame is not None and frame.f_code.co_name.startswith("<"):  # a generator of its own
        frame = frame.f_back
    if frame is None:
        return False
    return (str(frame.f_globals.get("__name__")), frame.f_code.co_name) in _FUNCTIONS


@lru_cache(maxsize=256)
def _takes_attribute(code: CodeType, at: int) -> bool:
    """Whether what the call at this instruction returns is asked for an attribute, and dropped."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for call, then in pairwise(instructions):
        if call.offset == at:
            named = then.opname == "LOAD_ATTR" and then.argval in _ATTRIBUTES
            return named and call.opname.startswith("CALL")
    return False
