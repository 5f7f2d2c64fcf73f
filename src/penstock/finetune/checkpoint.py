# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a fine-tune: all that the next step depends on.

Invariant: a folder that is called ``step-N`` is whole. It is written under another name, forced to
the disk and renamed, so that whatever ends a run (a kill, too) leaves the newest whole one to go on
from. The batch of a step follows from its number, so the step is the position in the data; the
state of each process's random numbers (dropout) is kept.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from penstock.errors import FailedError

from .engine import Engine
from .group import Group
from .history import History
from .request import Request
from .weights import copy_tokenizer

STATE = "state.json"
FORMAT = 1
# One to go on from, and the one before it.
KEEP = 2
_NAME, _PARTIAL = "step-", ".partial-step-"
# What decides a loss curve; a run that differs in any of it is another run.
_DECIDING = (
    *("model", "strategy", "batch", "seq_len", "gpus", "zero", "fsdp", "data", "data_field"),
    *("lengths", "seed", "lr", "lora_rank", "dtype"),
)


class Store:
    """The checkpoints of one run.

    Args:
        request: A checked request with a folder.
        group: The processes; all of them call `save` and `load`.
    """

    def __init__(self, request: Request, group: Group) -> None:
        assert request.checkpoint is not None
        self._request = request
        self._folder = Path(request.checkpoint)
        self._group = group

    def prepare(self) -> None:
        """Make the folder, and refuse one with checkpoints that nobody asked to go on from.

        Raises:
            FailedError: If it cannot be made, or holds checkpoints and this run is not to resume.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FailedError(f"--checkpoint: {self._folder}: {error.strerror}") from error
        newest = self.newest()
        if newest is not None and not self._request.resume:
            raise FailedError(
                f"--checkpoint: {self._folder} holds {newest.name} already",
                remedy="--resume to go on from it, or another folder",
            )
        if newest is not None:
            self._state(newest)

    def newest(self) -> Path | None:
        """The last whole checkpoint."""
        found = self._whole()
        return found[-1] if found else None

    def _whole(self) -> list[Path]:
        """All whole ones, oldest first; a folder that somebody copied in half is none."""
        found = self._folder.glob(f"{_NAME}*")
        return sorted(path for path in found if (path / STATE).is_file())

    def load(self, engine: Engine) -> History:
        """Bring the engine, and random numbers, to where the newest checkpoint was.

        Returns:
            The history so far; empty where there is no checkpoint.

        Raises:
            FailedError: If it was made by another run.
        """
        newest = self.newest()
        if newest is None:
            return History()
        state = self._state(newest)
        engine.load(newest)
        random = torch.load(newest / self._random_file(), weights_only=True)
        torch.set_rng_state(random["cpu"])
        if engine.device.is_cuda:
            torch.cuda.set_rng_state(random["cuda"], engine.device.torch_device)
        return History.from_json(state["history"])

    def save(self, engine: Engine, history: History) -> None:
        """Write a checkpoint of the steps that are done."""
        name = f"{_NAME}{history.done:08d}"
        partial = self._folder / f"{_PARTIAL}{history.done:08d}"
        if self._group.leads:
            self._clear_partial()
            partial.mkdir()
        self._group.wait()
        engine.save(partial)
        if self._group.leads and self._request.shape is None:
            copy_tokenizer(Path(self._request.model), partial)
        random = {"cpu": torch.get_rng_state()}
        if engine.device.is_cuda:
            random["cuda"] = torch.cuda.get_rng_state(engine.device.torch_device)
        torch.save(random, partial / self._random_file())
        self._group.wait()
        if self._group.leads:
            state = {
                "format": FORMAT,
                "request": self._deciding(),
                "history": history.to_json(),
            }
            (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
            _to_disk(partial)
            os.replace(partial, self._folder / name)
            for old in self._whole()[:-KEEP]:
                shutil.rmtree(old)
        self._group.wait()

    def _clear_partial(self) -> None:
        for left in self._folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left)

    def _random_file(self) -> str:
        return f"random-{self._group.rank}.pt"

    def _deciding(self) -> dict[str, Any]:
        document = self._request.to_json()
        return {name: document[name] for name in _DECIDING}

    def _state(self, folder: Path) -> dict[str, Any]:
        """What a checkpoint says about its run, if it is a run like this one."""
        try:
            state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
            theirs = state["request"]
        except (OSError, ValueError, KeyError) as error:
            raise FailedError(
                f"{folder} is no checkpoint of penstock finetune: {error}", remedy="another folder"
            ) from error
        for name, mine in self._deciding().items():
            if theirs.get(name) != mine:
                flag = "--" + name.replace("_", "-")
                raise FailedError(
                    f"{folder} was made with {flag} {theirs.get(name)}, this run has {mine}",
                    remedy=f"{flag} {theirs.get(name)}, or another --checkpoint",
                )
        return state


def _to_disk(folder: Path) -> None:
    """Wait until the files are on the disk, so that the rename is not there before them."""
    for path in (*(each for each in folder.rglob("*") if each.is_file()), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
