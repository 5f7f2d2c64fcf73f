# SPDX-License-Identifier: Apache-2.0
"""The models that are attached now, and what cannot be attached beside them."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

from penstock.errors import UsageError

from .blocks import check_model
from .holding import close_unused
from .tables import is_attached
from .wrappers import plain_parts

if TYPE_CHECKING:
    from .attachment import BaseAttachment

LIVE: weakref.WeakSet[BaseAttachment[Any]] = weakref.WeakSet()


def attachments() -> list[BaseAttachment[Any]]:
    """The models attached now."""
    return list(LIVE)


def refuse_attached(model: nn.Module) -> None:
    """Refuse what cannot be attached, or is already, whole, in part, or by a weight it shares.

    Raises:
        UsageError: If so; nothing has been touched.
    """
    close_unused()
    check_model(model)
    for name, module in model.named_modules():
        if is_attached(module):
            what = f"{name}, a part of the model, is" if name else "the model is"
            raise UsageError(f"{what} attached already", remedy="detach it first")
    taken = {address for attached in LIVE for address in attached.store.addresses()}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        parts = plain_parts(tensor) if taken else []
        if any(part.untyped_storage().data_ptr() in taken for part in parts):
            raise UsageError(
                f"{name} is a weight of another model that is attached already",
                remedy="attach a module that holds both, or detach that one first",
            )


def _in_child() -> None:
    for attached in list(LIVE):
        attached._in_child()


os.register_at_fork(after_in_child=_in_child)
