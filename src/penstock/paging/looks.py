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


def only_saves(frame: FrameType | None) -> bool:
    """Whether it is PyTorch's own state_dict() that walks here: what it takes is replaced.

    Args:
        frame: The innermost one of the walk.
    """
    frame = walker(frame)
    return frame is not None and frame.f_code is nn.Module._save_to_state_dict.__code__


def walker(frame: FrameType | None) -> FrameType | None:
    """The frame of the code that walks, of its innermost one."""
    while frame is not None and frame.f_code in _WALKS:
        frame = frame.f_back
    return frame


def only_looks(frame: FrameType | None) -> bool:
    """Whether the code that walks here takes no more of a tensor than an attribute.

    Args:
        frame: The innermost one of the walk.
    """
    frame = walker(frame)
    if frame is None:
        return False
    if _takes_attribute(frame.f_code, frame.f_lasti) and "next" not in frame.f_globals:
        return True
    while frame.f_code.co_name.startswith("<") and frame.f_back is not None:  # its generator
        frame = frame.f_back
    return (str(frame.f_globals.get("__name__")), frame.f_code.co_name) in _FUNCTIONS


@lru_cache(maxsize=256)
def _takes_attribute(code: CodeType, at: int) -> bool:
    """Whether the call at this instruction is that of ``next(model.parameters()).device``.

    Nothing else may get hold of the tensor: neither what the walk is handed to, such as a function
    for map() or reduce(), nor a name that the result is given.
    """
    skipped = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG", "NOT_TAKEN"}
    found = [each for each in dis.get_instructions(code) if each.opname not in skipped]
    index = next((n for n, each in enumerate(found) if each.offset == at), 0)
    if index < 3 or index + 1 >= len(found):
        return False
    walk, walked, then = found[index - 2], found[index - 1], found[index + 1]
    if not (_calls(found[index], 1) and then.opname == "LOAD_ATTR" and then.argval in _ATTRIBUTES):
        return False
    if not (_calls(walked, 0) and walk.argval in ("parameters", "buffers")):
        return False
    before = index - 3  # the model, by names, attributes and indices
    while before >= 0 and found[before].argval != "next" and _is_plain(found[before]):
        before -= 1
    return before >= 0 and found[before].opname == "LOAD_GLOBAL" and found[before].argval == "next"


def _calls(instruction: dis.Instruction, arguments: int) -> bool:
    return instruction.opname.startswith("CALL") and instruction.arg == arguments


def _is_plain(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith(("LOAD_", "BINARY_SUBSCR"))
