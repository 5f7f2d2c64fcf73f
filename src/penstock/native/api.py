# SPDX-License-Identifier: Apache-2.0
"""The C interface for ctypes, read from its headers: no struct or signature is written down twice.

The headers keep to a part of C that a few patterns read: structs without a name, enums, functions
and types of callbacks; no macro but PENSTOCK_API.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import EnvironmentProblem

HEADERS = ("penstock", "budget", "packing", "simulate", "torch")
# In the package; in a source tree, where they are written.
FOLDERS = (
    Path(__file__).parents[1] / "include",
    Path(__file__).parents[3] / "native/api/include/penstock",
)
_LEFT_OUT = re.compile(
    r"/\*.*?\*/|^#ifdef __cplusplus\n.*?^#endif|^#.*?$", re.DOTALL | re.MULTILINE
)
_STRUCT = re.compile(r"typedef struct \{(.*?)\} penstock_(\w+);", re.DOTALL)
_CALLBACK = re.compile(r"typedef ([\w ]+?\**) ?\(\*(\w+)\)\((.*?)\);", re.DOTALL)
_FUNCTION = re.compile(r"PENSTOCK_API ([\w ]+?\**) ?\b(penstock_\w+)\((.*?)\);", re.DOTALL)
_OPAQUE = re.compile(r"^(?:typedef )?struct (\w+)(?: \w+)?;", re.MULTILINE)
_TYPE_AND_NAME = re.compile(r"(?:const |struct )*(\w+)\s*(\**)\s*(.*)", re.DOTALL)

_SCALARS: dict[str, Any] = {
    "penstock_status": ctypes.c_int32,
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    **{
        f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}

Signature = tuple[Any, list[Any]]  # result, arguments


def header_text() -> str:
    """What the headers declare, without comments and directives.

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
    return _LEFT_OUT.sub("", text)


class Interface:
    """What the headers declare.

    Attributes:
        structs: The ctypes type of each struct, by its name without "penstock_".
        callbacks: That of each function that the library calls, by its whole name.
        functions: The signature of each function, by its whole name.
    """

    def __init__(self, text: str) -> None:
        self.structs: dict[str, type[ctypes.Structure]] = {}
        self.callbacks: dict[str, Any] = {}
        # By C's name; None of what only an address is known of.
        self._known: dict[str, Any] = dict.fromkeys(("void", *_OPAQUE.findall(text))) | _SCALARS
        for body, name in _STRUCT.findall(text):
            kind = type(name, (ctypes.Structure,), {"_fields_": list(self._fields(body))})
            self.structs[name] = self._known[f"penstock_{name}"] = kind
        for result, name, arguments in _CALLBACK.findall(text):
            made = ctypes.CFUNCTYPE(*self._signature(result, arguments))
            self.callbacks[name] = self._known[name] = made
        self.functions: dict[str, Signature] = {}
        for result, name, arguments in _FUNCTION.findall(text):
            kind, *others = self._signature(result, arguments)
            self.functions[name] = kind, others

    def _fields(self, body: str) -> Iterable[tuple[str, Any]]:
        for declaration in filter(None, map(str.strip, body.split(";"))):
            kind, stars, listed = self._parts(declaration)
            for field in listed.split(","):
                name, _, count = field.strip().partition("[")
                base = self._type(kind, stars)
                yield name, base * int(count.rstrip("]")) if count else base

    def _signature(self, result: str, arguments: str) -> list[Any]:
        kinds = [result] if arguments.strip() == "void" else [result, *arguments.split(",")]
        return [self._type(*self._parts(kind.strip())[:2]) for kind in kinds]

    @staticmethod
    def _parts(declaration: str) -> tuple[str, str, str]:
        found = _TYPE_AND_NAME.fullmatch(declaration)
        assert found is not None, declaration
        return found[1], found[2], found[3]

    def _type(self, name: str, stars: str) -> Any:
        """Handles, and what else Python does not look into, are addresses."""
        if (name, stars) == ("char", "*"):
            return ctypes.c_char_p
        if stars == "**":
            return ctypes.POINTER(ctypes.c_void_p)
        kind = self._known[name]
        if stars and kind is None:
            return ctypes.c_void_p
        return ctypes.POINTER(kind) if stars else kind


INTERFACE = Interface(header_text())


def new(name: str, **fields: Any) -> Any:
    """A struct penstock_<name>, its size set where it carries one, zero but for these fields."""
    made = INTERFACE.structs[name](**fields)
    if hasattr(made, "struct_size"):
        made.struct_size = ctypes.sizeof(made)
    return made


def names(name: str) -> list[str]:
    """The fields of a struct penstock_<name>."""
    return [field[0] for field in INTERFACE.structs[name]._fields_]


def as_dict(struct: ctypes.Structure) -> dict[str, Any]:
    """The fields of a struct that mean something to a caller."""
    return {
        name: getattr(struct, name)
        for name, *_ in struct._fields_
        if name not in ("struct_size", "reserved")
    }


def new_array(name: str, items: Sequence[tuple[Any, ...]] | int) -> Any:
    """An array of penstock_<name>: of these fields, or of so many that are zero."""
    kind = INTERFACE.structs[name]
    if isinstance(items, int):
        return (kind * items)()
    return (kind * len(items))(*[kind(*fields) for fields in items])
