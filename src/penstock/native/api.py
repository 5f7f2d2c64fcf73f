# SPDX-License-Identifier: Apache-2.0
"""The C interface as its headers declare it, by cffi: nothing of it is written down twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cffi import FFI

from penstock.errors import EnvironmentProblem

HEADERS = ("penstock", "budget", "packing", "simulate", "torch")
# In the package; in a source tree, where they are written.
FOLDERS = (
    Path(__file__).parents[1] / "include",
    Path(__file__).parents[3] / "native/api/include/penstock",
)
_CPLUSPLUS = re.compile(r"^#ifdef __cplusplus\n.*?^#endif$", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^#.*$", re.MULTILINE)


def declarations() -> str:
    """What the headers declare, as a C compiler has it behind its preprocessor.

    Raises:
        EnvironmentProblem: If they are not there.
    """
    try:
        folder = next(each for each in FOLDERS if (each / "penstock.h").is_file())
        text = "".join((folder / f"{name}.h").read_text("utf-8") for name in HEADERS)
    except (OSError, StopIteration) as error:
        raise EnvironmentProblem(
            f"the native library's headers are not in {FOLDERS[0]}",
            remedy="reinstall penstock (pip install --force-reinstall penstock)",
        ) from error
    return _DIRECTIVE.sub("", _CPLUSPLUS.sub("", text)).replace("PENSTOCK_API ", "")


ffi = FFI()
ffi.cdef(declarations())


def new(name: str, **fields: Any) -> Any:
    """A struct penstock_<name>, its size set where it carries one, zero but for these fields."""
    if names(name)[0] == "struct_size":
        fields["struct_size"] = ffi.sizeof(f"penstock_{name}")
    return ffi.new(f"penstock_{name}*", fields)


def new_array(name: str, items: Sequence[Any] | int) -> Any:
    """An array of penstock_<name>: of these dicts or tuples of fields, or of so many zeros."""
    return ffi.new(f"penstock_{name}[]", items)


def names(name: str) -> list[str]:
    """The fields of a struct penstock_<name>."""
    return [field for field, _ in ffi.typeof(f"penstock_{name}").fields]


def as_dict(struct: Any) -> dict[str, Any]:
    """The fields of a struct that mean something to a caller."""
    kind = ffi.typeof(struct)
    fields = (kind.item if kind.kind == "pointer" else kind).fields
    return {
        name: getattr(struct, name) for name, _ in fields if name not in ("struct_size", "reserved")
    }


def address(pointer: Any) -> int:
    """Where a pointer points; 0 for NULL."""
    return int(ffi.cast("uintptr_t", pointer))
