# SPDX-License-Identifier: Apache-2.0
"""The optimizer's state, in blocks of the pager.

Most optimizers make their state in the first step. That step runs unit by unit, and after each the
new tensors move into blocks, so that only one unit's state is ever outside. Once one matrix has
shown that its state has the shape of the parameter (as AdamW's has), the blocks of all the others
are laid out in the order of the modules, packed as weights are; what turns out otherwise gets a
range of its own. Tensors of one element (step counts) stay what they are, and those in lists and
dicts stay on the device.

A tensor that is made of others, as torchao's 8-bit state is, has a piece for each of these.

Whose a piece is says the optimizer alone: what a state's tensor lies in. So optimizers and programs
may exchange state, share it, or keep a tensor that another has replaced; a piece holds something
else only when no tensor lies in it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

from penstock.errors import UsageError
from penstock.native import Pager

from ..blocks import align, arenas
from ..dlpack import bytes_at, view_as
from ..store import like
from ..watch import block_of
from ..wrappers import Path, keeps_its_tensors, leaves_of, made_of
from .between import Part
from .hooks import TrainingUses
from .units import Unit
from .update import Update

_CPU = torch.device("cpu")
_PLAIN = (torch.Tensor, nn.Parameter)


@dataclass(slots=True, eq=False)
class Piece:
    """Room for one tensor of a state, contiguous: a block of its own.

    Attributes:
        path: The key that it was made for, and behind it the names within a tensor made of others.
    """

    path: Path
    shape: torch.Size
    dtype: torch.dtype
    address: int
    host: torch.Tensor = field(repr=False)
    _storage: StorageWeakRef | None = None

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def name(self) -> str:
        """For reports."""
        return f"optimizer state {'.'.join(self.path)}"

    @property
    def taken(self) -> bool:
        """Whether a tensor lies in it."""
        return self._storage is not None and not self._storage.expired()

    def take(self, device: torch.device) -> torch.Tensor:
        """The tensor that lies in it from here on, over its device addresses."""
        flat = bytes_at(self.address, self.nbytes, device)
        strides = torch.empty(self.shape, device="meta").stride()
        self._storage = StorageWeakRef(flat.untyped_storage())
        return view_as(flat, self.dtype, self.shape, strides, 0)


def _leaves(state: dict[str, Any]) -> Iterator[tuple[Path, torch.Tensor]]:
    """The plain tensors of more than one element that a parameter's state is made of."""
    for key, value in state.items():
        if type(value) in _PLAIN:
            if value.numel() > 1:
                yield (key,), value
        elif is_traceable_wrapper_subclass(value):
            found = ((at, leaf) for at, leaf, _ in leaves_of(value))
            yield from (((key, *at), leaf) for at, leaf in found if leaf.numel() > 1)
        elif isinstance(value, torch.Tensor) and value.numel() > 1:
            yield (key,), value


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
        self._pieces: dict[int, list[Piece]] = {}  # by the parameter that they were made for
        self._expected: set[int] = set()  # groups whose state has been laid out

    @property
    def nbytes(self) -> int:
        """Bytes of state in blocks."""
        return sum(piece.nbytes for piece in self._all())

    def _all(self) -> list[Piece]:
        return [piece for pieces in self._pieces.values() for piece in pieces]

    def _part_of(self, value: torch.Tensor) -> Part | None:
        """What the tensor lies in, if that comes and goes."""
        parts = self._uses.between.parts
        if type(value) in _PLAIN and value.layout is torch.strided:
            return parts.get(value.data_ptr()) or parts.get(value.untyped_storage().data_ptr())
        return block_of(value, parts)

    def parts_of(self, parameters: Iterable[nn.Parameter]) -> list[Part]:
        """What the state of these lies in, as far as that comes and goes."""
        found = {
            part.address: part
            for parameter in parameters
            for _, value in _leaves(self._optimizer.state.get(parameter, {}))
            if (part := self._part_of(value)) is not None
        }
        return list(found.values())

    def shared(self) -> bool:
        """Whether parameters have a tensor of state in common, so that their order matters."""
        states = [state for state in self._optimizer.state.values() if isinstance(state, dict)]
        tensors = [
            id(value)
            for state in states
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.numel() > 1
        ]
        return len(set(tensors)) < len(tensors)

    # ---- In --------------------------------------------------------------------------------

    def outside(self, unit: Unit) -> list[tuple[nn.Parameter, Path, torch.Tensor]]:
        """State of a unit's paged parameters that lies in tensors of its own."""
        found = []
        for parameter in unit.parameters:
            if not self.is_paged(parameter):
                continue  # it stays on the device; so does its state, by being left alone
            for path, value in _leaves(self._optimizer.state.get(parameter, {})):
                if not isinstance(self._part_of(value), Piece):
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
        lies_in = (self._part_of(value) for _, _, value in found)  # weights, perhaps
        sizes = {x.address: x.nbytes for x in (*placed, *lies_in) if x is not None}
        touched = [(address, nbytes, True) for address, nbytes in sizes.items()]
        use = self._uses.define(f"{unit.name} (new state)", touched)
        inside: dict[nn.Parameter, dict[Path, torch.Tensor]] = {}
        with self._uses.during(use):
            for piece, (parameter, path, value) in zip(placed, found, strict=True):
                made = inside.setdefault(parameter, {})[path] = piece.take(self._device)
                made.copy_(value)
        for parameter, (key, *_), _ in found:
            state = self._optimizer.state[parameter]
            state[key] = _with_leaves(key, state[key], inside[parameter])
        return True

    def _check(self, unit: Unit, found: list[tuple[nn.Parameter, Path, torch.Tensor]]) -> None:
        for parameter, path, leaf in found:
            value = self._optimizer.state[parameter][path[0]]
            wrapped = is_traceable_wrapper_subclass(value)
            if type(leaf) in _PLAIN and leaf.layout is torch.strided:
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
        self.adopt(unit)

    def is_paged(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter itself comes and goes, and so its state."""
        return parameter.untyped_storage().data_ptr() in self._paged

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
        """A free piece for each, which fits; those that are made now lie together."""
        free = {
            id(p): [piece for piece in self._pieces.get(id(p), ()) if not piece.taken]
            for p, _, _ in found
        }
        placed: list[Piece | None] = []
        missing = []
        for parameter, path, value in found:
            kind = value.shape, value.dtype
            fit = [x for x in free[id(parameter)] if (x.shape, x.dtype) == kind]
            fit.sort(key=lambda piece, path=path: piece.path != path)  # type: ignore[misc]
            placed.append(fit[0] if fit else None)
            if fit:
                free[id(parameter)].remove(fit[0])
            else:
                missing.append((parameter, path, *kind))
        made = iter(self._lay_out(missing))
        return [next(made) if piece is None else piece for piece in placed]

    def _lay_out(
        self, wanted: list[tuple[nn.Parameter, Path, torch.Size, torch.dtype]]
    ) -> list[Piece]:
        def size(each: tuple[nn.Parameter, Path, torch.Size, torch.dtype]) -> int:
            return each[2].numel() * each[3].itemsize

        self._check_host(sum(align(size(each)) for each in wanted))
        pieces: list[Piece] = []
        for arena in arenas(wanted, size):
            made = self._pager.create_range(sum(align(size(each)) for each in arena))
            offset = 0
            for parameter, path, shape, dtype in arena:
                nbytes = shape.numel() * dtype.itemsize
                host = bytes_at(made.host + offset, nbytes, _CPU)
                piece = Piece(path, shape, dtype, made.address + offset, host)
                self._pieces.setdefault(id(parameter), []).append(piece)
                self._uses.between.parts[piece.address] = piece
                pieces.append(piece)
                offset += align(nbytes)
        return pieces

    # ---- Out -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make every host copy current."""
        for piece in self._all():
            if piece.taken:
                self._pager.flush(piece.address, piece.nbytes)

    def host_state(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Copies of a parameter's paged state on the host, by key; flush() first."""
        state = self._optimizer.state.get(parameter, {})
        with _disable_current_modes():  # another's, in a pass, would count them as the device's
            leaves = {
                path: like(value, part.host).clone()
                for path, value in _leaves(state)
                if isinstance(part := self._part_of(value), Piece)
            }
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
