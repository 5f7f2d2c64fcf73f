# SPDX-License-Identifier: Apache-2.0
"""Tensors over memory that Penstock owns, by DLPack.

DLPack, unlike __cuda_array_interface__, does not ask the driver about the pointer, so that a
tensor can stand for device addresses that nothing is mapped to at the moment. The memory must
outlive every tensor made here: detaching a model replaces them all.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

import torch

_KIND = {"cpu": 1, "cuda": 2}
_UINT8 = (1, 8, 1)  # kDLUInt, bits, lanes


class _Device(Structure):
    _fields_ = [("kind", c_int32), ("index", c_int32)]


class _DType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _ManagedTensor(Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]

# A tensor has its descriptor freed when it dies, on whatever thread and whenever that is: the C
# library's free() needs no interpreter for it.
_libc = ctypes.CDLL(None)
_libc.malloc.restype = c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [c_void_p]
_FREE = ctypes.cast(_libc.free, c_void_p)
_SHAPE_AT = ctypes.sizeof(_ManagedTensor)  # behind it, in one piece of memory


def bytes_at(address: int, size: int, device: torch.device) -> torch.Tensor:
    """A flat uint8 tensor over `size` bytes at `address`, without ownership.

    Args:
        address: A host address for device "cpu", a device address for "cuda".
        size: Bytes, at least 1.
        device: Where the address lives.

    Returns:
        Tensor of shape (size,), dtype torch.uint8, with a storage of its own.
    """
    place = _libc.malloc(_SHAPE_AT + ctypes.sizeof(c_int64))
    if not place:
        raise MemoryError("no memory for the descriptor of a tensor")
    c_int64.from_address(place + _SHAPE_AT).value = size
    ctypes.memset(place, 0, _SHAPE_AT)
    managed = _ManagedTensor.from_address(place)
    managed.tensor.data = address
    managed.tensor.device = _Device(_KIND[device.type], device.index or 0)
    managed.tensor.ndim = 1
    managed.tensor.dtype = _DType(*_UINT8)
    managed.tensor.shape = ctypes.cast(place + _SHAPE_AT, ctypes.POINTER(c_int64))
    managed.deleter = _FREE
    try:
        return torch.utils.dlpack.from_dlpack(_new_capsule(place, b"dltensor", None))
    except BaseException:
        _libc.free(place)
        raise


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage, flat."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())


def view_as(
    flat: torch.Tensor,
    dtype: torch.dtype,
    size: torch.Size | tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """A view of a flat byte tensor with this dtype, shape, stride and offset (in elements)."""
    item = dtype.itemsize
    whole = flat[: flat.numel() // item * item].view(dtype)
    return whole.as_strided(size, stride, offset)
