# SPDX-License-Identifier: Apache-2.0
"""Tensors made of others: quantised weights, as torchao's are.

A wrapper subclass has no storage of its own. It tells which plain tensors it is made of, and can be
made anew from such (``__tensor_flatten__`` and ``__tensor_unflatten__``, as torch.compile asks for
them). The plain ones are blocks like any other; while the model is attached its module has a
wrapper over them on the device, and the one from before when it is detached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .leaves import tree_leaves

Path = tuple[str, ...]


def leaves_of(wrapper: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """(path, plain tensor, the wrapper that holds it) of all that a wrapper is made of."""
    for name in wrapper.__tensor_flatten__()[0]:
        inner = getattr(wrapper, name)
        if is_traceable_wrapper_subclass(inner):
            yield from leaves_of(inner, (*path, name))
        else:
            yield (*path, name), inner, wrapper


def plain_parts(value: Any) -> list[Any]:
    """What a value is made of, as a list: of anything but a wrapper, itself."""
    if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
        return [leaf for _, leaf, _ in leaves_of(value)]
    return [value]


def plain_leaves(tree: Any) -> list[Any]:
    """What lies in a tree, with the plain tensors in the place of what is made of them."""
    return [part for leaf in tree_leaves(tree) for part in plain_parts(leaf)]


def made_of(wrapper: Any, leaf: Callable[[Path], torch.Tensor], path: Path = ()) -> Any:
    """A wrapper like this one, of other plain tensors.

    Args:
        wrapper: Like which one.
        leaf: Gives the tensor at a path.
        path: Of this wrapper, within the outermost.
    """
    names, context = wrapper.__tensor_flatten__()
    inner = {}
    for name in names:
        part, at = getattr(wrapper, name), (*path, name)
        inner[name] = made_of(part, leaf, at) if is_traceable_wrapper_subclass(part) else leaf(at)
    size, stride = wrapper.size(), wrapper.stride()
    return type(wrapper).__tensor_unflatten__(inner, context, size, stride)


def keeps_its_tensors(wrapper: torch.Tensor) -> bool:
    """Whether one that is made of the same tensors holds these, and no copies."""
    own = {path: leaf for path, leaf, _ in leaves_of(wrapper)}
    return all(
        leaf is own.get(path) and holder.__dict__.get(path[-1]) is leaf
        for path, leaf, holder in leaves_of(made_of(wrapper, own.__getitem__))
    )


@dataclass(slots=True, eq=False)
class Wrapper:
    """One parameter that is a wrapper, while its model is attached.

    Attributes:
        module: Whose it is.
        key: Under which name.
        before: What the module had.
        made: What it has instead.
    """

    module: nn.Module
    key: str
    before: torch.Tensor
    made: torch.Tensor

    @property
    def is_there(self) -> bool:
        """Whether the module still has it."""
        return dict.get(self.module._parameters, self.key) is self.made

    def with_leaves(self, leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """A wrapper of other tensors, each given for one of its own."""
        own = {path: tensor for path, tensor, _ in leaves_of(self.made)}
        return made_of(self.made, lambda path: leaf(own[path]))

    def put_back(self) -> None:
        """The module has what it had, which holds the same plain tensors."""
        if self.is_there:
            on_meta = self.before.device.type == "meta"
            back = self.with_leaves(lambda leaf: leaf) if on_meta else self.before
            self.module._parameters[self.key] = back  # type: ignore[assignment]


def wrap_anew(model: nn.Module, slots: Iterable[Any]) -> list[Wrapper]:
    """Give modules wrappers over their plain tensors, which lie on another device by now.

    Args:
        model: The model.
        slots: Of its tensors; they get the wrappers that hold them now.
    """
    wrappers: list[Wrapper] = []
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for key, before in dict.items(module._parameters):
            if before is None or not is_traceable_wrapper_subclass(before):
                continue
            if id(before) not in made:
                own = {path: tensor for path, tensor, _ in leaves_of(before)}
                wrapper = made_of(before, own.__getitem__)
                wrapper.requires_grad_(False)
                wrapper._is_param = isinstance(before, nn.Parameter)
                made[id(before)] = wrapper
            wrappers.append(Wrapper(module, key, before, made[id(before)]))
    held = {id(leaf): (at, each) for each in made.values() for _, leaf, at in leaves_of(each)}
    for slot in slots:
        if slot.wrapper is not None:
            slot.wrapper, slot.outermost = held[id(slot.tensor)]
    for wrapper in wrappers:
        wrapper.module._parameters[wrapper.key] = wrapper.made  # type: ignore[assignment]
    return wrappers
