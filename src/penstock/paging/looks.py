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
_READS = {Table._read.__code__, Table.__getitem__.__code__}
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


def only_asks(frame: FrameType | None) -> bool:
    """Whether the code that reads a tensor from its module asks for an attribute, or if it is None.

    Args:
        frame: The innermost one of the read.
    """
    while frame is not None and frame.f_code in _READS:
        frame = frame.f_back
    if frame is None or frame.f_code is not nn.Module.__getattr__.__code__:
        return False
    reader = frame.f_back
    return reader is not None and _drops_tensor(reader.f_code, reader.f_lasti)


@lru_cache(maxsize=256)
def _drops_tensor(code: CodeType, at: int) -> bool:
    """Whether what the instruction here has read is gone after the next, which is such a question.

    ``module.weight.dtype`` is one, and ``module.bias is not None``.
    """
    found = _instructions(code)
    index = next((n for n, each in enumerate(found) if each.offset == at), len(found))
    if index + 2 >= len(found) or found[index].opname != "LOAD_ATTR":
        return False
    then, last = found[index + 1 : index + 3]
    if then.opname == "LOAD_ATTR":
        return then.argval in _ATTRIBUTES
    none = then.opname == "LOAD_CONST" and then.argval is None
    return (none and last.opname == "IS_OP") or then.opname.endswith(("_IF_NONE", "_IF_NOT_NONE"))


def _instructions(code: CodeType) -> list[dis.Instruction]:
    skipped = {"CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG", "NOT_TAKEN"}
    return [each for each in dis.get_instructions(code) if each.opname not in skipped]


@lru_cache(maxsize=256)
def _takes_attribute(code: CodeType, at: int) -> bool:
    """Whether the call at this instruction is that of ``next(model.parameters()).device``.

    Nothing else may get hold of the tensor: neither what the walk is handed to, such as a function
    for map() or reduce(), nor a name that the result is given.
    """
    found = _instructions(code)
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
    # Python 3.14 has an index among its binary operations.
    return instruction.opname.startswith(("LOAD_", "BINARY_SUBSCR")) or instruction.argrepr == "[]"
