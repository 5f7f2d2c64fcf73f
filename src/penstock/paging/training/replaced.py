# SPDX-License-Identifier: Apache-2.0
"""Names of PyTorch's that ours take the place of while somebody is attached.

None of them is documented. Where one is missing a warning says what does without it.

Thread rule: any thread may install and uninstall; what takes a name's place asks the thread it runs
in whose pass it is.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch


class Replacements:
    """Names that are replaced together.

    Args:
        owner: The module they are found in.
        made: By each name, dotted where it is an attribute's: what makes ours of PyTorch's.
        without: What it means that one is missing, for the warning.
        base: What a class has to be, to be that which is meant.
    """

    def __init__(
        self,
        owner: Any,
        made: dict[str, Callable[[Any], Any]],
        *,
        without: str,
        base: type = object,
    ) -> None:
        self._owner = owner
        self._made = made
        self._without = without
        self._base = base
        self._lock = threading.RLock()
        self._users = 0
        self._replaced: list[tuple[Any, str, Any]] = []  # (owner, name, what was there)

    def install(self) -> Callable[[], None]:
        """Put ours in place, if they are not; what is returned takes them off."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._replace()
        return self._uninstall

    def _replace(self) -> None:
        for dotted, make in self._made.items():
            *path, name = dotted.split(".")
            owner = self._owner
            for step in path:
                owner = getattr(owner, step, None)
            before = vars(owner).get(name) if owner is not None else None
            fits = (
                issubclass(before, self._base) if isinstance(before, type) else before is not None
            )
            if not fits:
                warnings.warn(
                    f"{self._owner.__name__} of PyTorch {torch.__version__} has no {dotted}: "
                    f"{self._without}",
                    stacklevel=3,
                )
                continue
            made = make(before.__func__ if isinstance(before, staticmethod) else before)
            setattr(owner, name, made)
            self._replaced.append((owner, name, before))

    def _uninstall(self) -> None:
        with self._lock:
            self._users -= 1
            while self._users == 0 and self._replaced:
                setattr(*self._replaced.pop())
