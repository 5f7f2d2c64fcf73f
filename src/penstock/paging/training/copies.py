# SPDX-License-Identifier: Apache-2.0
"""Copies of activations out of the device and back, beside its work.

On CUDA a stream a direction, so that both go on at once. All order is between streams: the host
waits for nothing. What is copied out is read after the work that is by then in the stream that it
was saved in. Its memory may be freed after wait(): the program's stream has the copy behind it from
there on, and whatever the allocator hands out next is used in that stream. What is copied in lies
in memory of the program's stream that earlier work may still use, so the copy waits for that, and
each stream for the copy in which what it brought is asked for. record_stream() would leave memory
in the allocator's care until the host sees the copy's end, which the host, far ahead, would have to
wait for; it is called with the program's own stream, and so costs nothing unless the memory is
another stream's.

On the emulated GPU copies are over when they return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Copies:
    """What carries bytes; tensors are flat, of dtype uint8. Here as on the emulated GPU.

    Args:
        count: Called with a storage that is made on the device.
    """

    pinned = False

    def __init__(self, count: Callable[[torch.UntypedStorage], None]) -> None:
        self._count = count

    def here(self) -> Any:
        """The program's stream at this moment."""

    def out(self, content: torch.Tensor, host: torch.Tensor, source: Any) -> Any:
        """Copy device bytes to the host.

        Args:
            content: The bytes.
            host: Where they go.
            source: The program's stream in which they were saved, which may be another by now.

        Returns:
            What tells of the copy's end.
        """
        host.copy_(content)

    def wait(self, content: torch.Tensor, done: Any) -> None:
        """What is in the program's stream from here on comes after a copy.

        It may use the device bytes that the copy reads or writes, or have their memory.
        """

    def into(self, host: torch.Tensor, nbytes: int, written: Any) -> tuple[torch.Tensor, Any]:
        """Copy host bytes into device memory of their own.

        Args:
            host: The bytes.
            nbytes: How many.
            written: Tells of the end of the copy that wrote them.

        Returns:
            (the device bytes, what tells of the copy's end).
        """
        with _disable_current_modes():  # backward may run where none follows what is made
            content = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        self._count(content.untyped_storage())
        content.copy_(host)
        return content, None

    def read(self, done: Any) -> None:
        """The host bytes that a copy in has read may be written by later copies out."""


class CudaCopies(Copies):
    """Copies beside the work of one GPU.

    Args:
        device: PyTorch's device.
    """

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)
        self._in = torch.cuda.Stream(device)

    def here(self) -> Any:
        """See Copies."""
        return torch.cuda.current_stream(self._device)

    def out(self, content: torch.Tensor, host: torch.Tensor, source: Any) -> Any:
        """See Copies."""
        self._out.wait_stream(source)
        with torch.cuda.stream(self._out):
            host.copy_(content, non_blocking=True)
        return self._out.record_event()

    def wait(self, content: torch.Tensor, done: Any) -> None:
        """See Copies."""
        here = self.here()
        here.wait_event(done)
        content.record_stream(here)

    def into(self, host: torch.Tensor, nbytes: int, written: Any) -> tuple[torch.Tensor, Any]:
        """See Copies."""
        content = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        self._in.wait_stream(self.here())
        self._in.wait_event(written)
        with torch.cuda.stream(self._in):
            content.copy_(host, non_blocking=True)
        return content, self._in.record_event()

    def read(self, done: Any) -> None:
        """See Copies."""
        self._out.wait_event(done)
