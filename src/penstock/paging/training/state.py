# SPDX-License-Identifier: Apache-2.0
"""The optimizer's state, in blocks of the pager.

Most optimizers make their state in the first step. That step runs unit by unit, and after each the
new tensors move into blocks, so that only one unit's state is ever outside. Once one matrix has
shown that its state has the shape of the parameter (as AdamW's has), the blocks of all the others
are laid out in the order of the modules, packed as weights are; what turns out otherwise gets a
range of its own. Tensors of one element (step counts) stay what they are, and those in lists and
dicts stay on the device.

A tensor that is made of others, as torchao's 8-bit state is, has a piece for each of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

from penstock.errors import UsageError
from penstock.native import Pager

from ..blocks import ARENA_BYTES, align
from ..dlpack import bytes_at, view_as
from ..wrappers import Path, keeps_its_tensors, leaves_of, made_of
from .hooks import TrainingUses
from .units import Unit
from .update import Update

_CPU = torch.device("cpu")


@dataclass(slots=True, eq=False)
class Piece:
    """One tensor of a parameter's state, contiguous, in a block of its own.

    Attributes:
        path: Its key, and behind it the names within a tensor that is made of others.
    """

    parameter: nn.Parameter = field(repr=False)
    path: Path
    shape: torch.Size
    dtype: torch.dtype
    address: int
    host: torch.Tensor = field(repr=False)
    filled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def name(self) -> str:
        """For reports."""
        return f"optimizer state {'.'.join(self.path)}"

    def on(self, device: torch.device) -> torch.Tensor:
        """A new tensor of its shape over its device addresses."""
        return _view(bytes_at(self.address, self.nbytes, device), self.dtype, self.shape)

    def on_host(self) -> torch.Tensor:
        """Its host copy, of its shape."""
        return _view(self.host, self.dtype, self.shape)


def _view(flat: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    strides = torch.empty(shape, device="meta").stride()
    return view_as(flat, dtype, shape, strides, 0)


def _leaves(state: dict[str, Any]) -> Iterator[tuple[Path, torch.Tensor]]:
    """The plain tensors of more than one element that a parameter's state is made of."""
    for key, value in state.items():
        if not isinstance(value, torch.Tensor):
            continue
        if is_traceable_wrapper_subclass(value):
            found = [((key, *path), leaf) for path, leaf, _ in leaves_of(value)]
        else:
            found = [((key,), value)]
        yield from ((path, leaf) for path, leaf in found if leaf.numel() > 1)


def _with_leaves(key: str, value: torch.Tensor, leaves: dict[Path, torch.Tensor]) -> torch.Tensor:
    """The same value, made of these; what is not among them it keeps."""
    if not is_traceable_wrapper_subclass(value):
        return leaves.get((key,), value)
    own = {path: leaf for path, leaf, _ in leaves_of(value)}
    made = made_of(value, lambda path: leaves.get((key, *path), own[path]))
    return made  # type: ignore[no-any-return]


class StateStore:
    """The state of one optimizer.

    Args:
        update: The optimizer.
        units: All units of the model.
        uses: Declares uses of what is made here.
        pager: Where ranges are made.
        device: Of the parameters.
        check_host: Called with the bytes of page-locked memory about to be asked for.
    """

    def __init__(
        self,
        update: Update,
        units: list[Unit],
        uses: TrainingUses,
        pager: Pager,
        device: torch.device,
        check_host: Callable[[int], None],
    ) -> None:
        self._update = update
        self._optimizer = update.optimizer
        self._units = units
        self._uses = uses
        self._pager = pager
        self._device = device
        self._check_host = check_host
        self._paged = {block.address for unit in units for block in unit.blocks}
        self._pieces: dict[int, dict[Path, Piece]] = {}
        self._expected: set[int] = set()  # groups whose state has been laid out

    @property
    def nbytes(self) -> int:
        """Bytes of state in blocks."""
        return sum(piece.nbytes for piece in self._all())

    def _all(self) -> list[Piece]:
        return [piece for pieces in self._pieces.values() for piece in pieces.values()]

    def pieces_of(self, unit: Unit) -> list[Piece]:
        """The pieces of a unit that hold something."""
        return [
            piece
            for parameter in unit.parameters
            for piece in self._placed(parameter).values()
            if piece.filled
        ]

    # ---- In --------------------------------------------------------------------------------

    def outside(self, unit: Unit) -> list[tuple[nn.Parameter, Path, torch.Tensor]]:
        """State of a unit's paged parameters that lies in tensors of its own."""
        found = []
        for parameter in unit.parameters:
            if not self.is_paged(parameter):
                continue  # it stays on the device; so does its state, by being left alone
            placed = self._placed(parameter)
            for path, value in _leaves(self._optimizer.state.get(parameter, {})):
                piece = placed.get(path)
                if piece is None or value.data_ptr() != piece.address:
                    found.append((parameter, path, value))
        return found

    def adopt(self, unit: Unit) -> bool:
        """Move what lies outside into blocks; whether there was any.

        Raises:
            UsageError: If it is of a kind that cannot be moved.
        """
        found = self.outside(unit)
        if not found:
            return False
        self._check(unit, found)
        self._expect(found)
        placed = self._place(found)
        # What lies in blocks has changed places, and is read before any of them is written.
        blocks = self._uses.between.parts
        before = [blocks.get(value.data_ptr()) for _, _, value in found]
        sizes = {part.address: part.nbytes for part in (*placed, *before) if part is not None}
        touched = [(address, nbytes, True) for address, nbytes in sizes.items()]
        use = self._uses.define(f"{unit.name} (new state)", touched)
        with self._uses.during(use):
            values = [
                value if part is None else value.clone()
                for (_, _, value), part in zip(found, before, strict=True)
            ]
            inside: dict[int, dict[Path, torch.Tensor]] = {}
            for piece, value in zip(placed, values, strict=True):
                made = inside.setdefault(id(piece.parameter), {})[piece.path] = piece.on(
                    self._device
                )
                made.copy_(value)
                piece.filled = True
            for parameter, (key, *_), _ in found:
                state = self._optimizer.state[parameter]
                state[key] = _with_leaves(key, state[key], inside[id(parameter)])
        return True

    def _check(self, unit: Unit, found: list[tuple[nn.Parameter, Path, torch.Tensor]]) -> None:
        for parameter, path, leaf in found:
            value = self._optimizer.state[parameter][path[0]]
            wrapped = is_traceable_wrapper_subclass(value)
            if type(leaf) in (torch.Tensor, nn.Parameter) and leaf.layout is torch.strided:
                if not wrapped or keeps_its_tensors(value):
                    continue
                why = "does not hold the tensors that it is made of"
            else:
                why = "does not tell which plain tensors it is made of"
            raise UsageError(
                f"state {path[0]!r} of {unit.name_of(parameter)} cannot be paged: a "
                f"{type(value).__name__} {why}",
                remedy="an optimizer whose state is plain tensors",
            )

    def take(self, unit: Unit) -> None:
        """State that was there before, or has just been loaded: all of it where it belongs."""
        for parameter in unit.parameters:
            if parameter not in self._optimizer.state:
                continue
            # A state_dict() from before has this very dict, and is to keep what is in it.
            state = self._optimizer.state[parameter] = dict(self._optimizer.state[parameter])
            group = self._optimizer.param_groups[self._update.group_of(parameter)]
            on_device = bool(group.get("fused") or group.get("capturable"))
            stays = not self.is_paged(parameter)

            def moved(value: Any, on_device: bool = on_device) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                moves = value.numel() > 1 or on_device
                return value.to(self._device if moves else value.device, copy=True)

            for key, value in state.items():
                if not isinstance(value, torch.Tensor) or stays or value.numel() <= 1:
                    state[key] = tree_map(moved, value)
            for path, piece in self._placed(parameter).items():
                piece.filled = piece.filled and path[0] in state
        self.adopt(unit)

    def is_paged(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter itself comes and goes, and so its state."""
        return parameter.untyped_storage().data_ptr() in self._paged

    def _placed(self, parameter: nn.Parameter) -> dict[Path, Piece]:
        return self._pieces.get(id(parameter), {})

    def _expect(self, found: list[tuple[nn.Parameter, Path, torch.Tensor]]) -> None:
        """Lay out the state of a group when one of its matrices has shown what that is."""
        for parameter, _, _ in found:
            group = self._update.group_of(parameter)
            if group in self._expected or parameter.dim() < 2:
                continue
            values = {path: value for p, path, value in found if p is parameter}
            self._expected.add(group)
            if any(value.shape != parameter.shape for value in values.values()):
                continue
            keys = {path[0] for path in values}
            self._lay_out(
                [
                    (p, path, p.shape, value.dtype)
                    for unit in self._units
                    for p in unit.parameters
                    if p.requires_grad
                    and self.is_paged(p)
                    and self._update.group_of(p) == group
                    and id(p) not in self._pieces
                    and not self._optimizer.state.get(p, {}).keys() - {*keys, "step"}
                    for path, value in values.items()
                ]
            )

    def _place(self, found: list[tuple[nn.Parameter, Path, torch.Tensor]]) -> list[Piece]:
        """A piece for each, which fits; those that are made now lie together."""
        missing = []
        for parameter, path, value in found:
            piece = self._placed(parameter).get(path)
            if piece is None or piece.shape != value.shape or piece.dtype != value.dtype:
                missing.append((parameter, path, value.shape, value.dtype))
        if missing:
            self._lay_out(missing)
        return [self._pieces[id(parameter)][path] for parameter, path, _ in found]

    def _lay_out(self, wanted: list[tuple[nn.Parameter, Path, torch.Size, torch.dtype]]) -> None:
        sizes = [align(shape.numel() * dtype.itemsize) for _, _, shape, dtype in wanted]
        self._check_host(sum(sizes))
        at = 0
        while at < len(wanted):
            end, size = at + 1, sizes[at]
            while end < len(wanted) and size + sizes[end] <= ARENA_BYTES:
                size += sizes[end]
                end += 1
            made = self._pager.create_range(size)
            offset = 0
            for (parameter, path, shape, dtype), length in zip(
                wanted[at:end], sizes[at:end], strict=True
            ):
                nbytes = shape.numel() * dtype.itemsize
                host = bytes_at(made.host + offset, nbytes, _CPU)
                piece = Piece(parameter, path, shape, dtype, made.address + offset, host)
                self._pieces.setdefault(id(parameter), {})[path] = piece
                self._uses.between.parts[piece.address] = piece
                offset += length
            at = end

    # ---- Out -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make every host copy current."""
        for piece in self._all():
            if piece.filled:
                self._pager.flush(piece.address, piece.nbytes)

    def host_state(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Copies of a parameter's paged state on the host, by key; flush() first."""
        state = self._optimizer.state.get(parameter, {})
        parts = self._uses.between.parts
        lie_in = {path: parts.get(value.data_ptr()) for path, value in _leaves(state)}
        with _disable_current_modes():  # another's, in a pass, would count them as the device's
            leaves = {p: x.on_host().clone() for p, x in lie_in.items() if isinstance(x, Piece)}
        return {key: _with_leaves(key, state[key], leaves) for key in {key for key, *_ in leaves}}

    def move_out(self, *, keep: bool) -> None:
        """Give the optimizer ordinary tensors on the CPU; without `keep`, no state at all."""
        if keep:
            self.flush()
        for parameter in self._update.parameters():
            state: dict[str, Any] = self._optimizer.state.get(parameter, {})
            if not keep:
                self._optimizer.state.pop(parameter, None)
                continue
            state.update(self.host_state(parameter))
            for key, value in state.items():
                state[key] = tree_map(
                    lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, value
                )
        self._pieces.clear()
