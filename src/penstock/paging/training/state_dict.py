# SPDX-License-Identifier: Apache-2.0
"""state_dict() and load_state_dict() of an optimizer whose state is paged.

Saving gives tensors on the host with the current content. Loading never has more than one unit's
state on the device: what belongs into blocks is kept from torch's own loading and moved in after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .state import StateStore
from .update import Update


class StateDicts:
    """The hooks of one optimizer.

    Args:
        update: The optimizer.
        state: Its state.
        used: Called when state is about to be given or loaded.
        loaded: Called when state has been loaded and lies outside the blocks.
    """

    def __init__(
        self,
        update: Update,
        state: StateStore,
        used: Callable[[], None],
        loaded: Callable[[], None],
    ) -> None:
        self._update = update
        self._state = state
        self._used = used
        self._when_loaded = loaded
        self._loaded: dict[nn.Parameter, dict[str, torch.Tensor]] = {}

    def register(self) -> list[Any]:
        """Put the hooks on; what is returned takes them off."""
        optimizer = self._update.optimizer
        return [
            optimizer.register_state_dict_post_hook(self._give),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    def _numbered(self, groups: list[dict[str, Any]]) -> dict[int, nn.Parameter]:
        numbers = [number for group in groups for number in group["params"]]
        return dict(zip(numbers, self._update.parameters(), strict=False))

    def _give(self, optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._used()
        self._state.flush()
        parameters = self._numbered(state_dict["param_groups"])
        state = {
            number: {**values, **self._state.host_state(parameters[number])}
            if number in parameters
            else values  # of all parameters together
            for number, values in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    def _before_load(self, optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._used()
        parameters = self._numbered(state_dict["param_groups"])
        self._loaded, rest = {}, {}
        for number, values in state_dict["state"].items():
            parameter = parameters.get(number)
            if parameter is not None and self._state.is_paged(parameter):
                large = {
                    key: value
                    for key, value in values.items()
                    if isinstance(value, torch.Tensor) and value.numel() > 1
                }
                self._loaded[parameter] = large
                values = {key: value for key, value in values.items() if key not in large}
            rest[number] = values
        return {**state_dict, "state": rest}

    def _after_load(self, optimizer: Any) -> None:
        for parameter, values in self._loaded.items():
            self._update.optimizer.state[parameter].update(
                {key: _as_loaded(value, parameter) for key, value in values.items()}
            )
        self._loaded = {}
        self._when_loaded()


def _as_loaded(value: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """In the parameter's type, as torch.optim loads it."""
    if parameter.is_floating_point() and value.is_floating_point():
        return value.to(parameter.dtype)
    return value
