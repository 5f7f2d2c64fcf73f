# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a fine-tune: all that the next step depends on.

Invariant: a folder that is called ``step-N`` was whole when it got that name. It is written under
another, forced to the disk and renamed, so that whatever ends a run (a kill, a full disk) leaves
the newest whole one to go on from; and it is held against its manifest before it is gone on from,
so that what happened to it since is an error and never another curve. The batch of a step follows
from its number, so the step is the position in the data; the state of each process's random
numbers (dropout) is kept.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from penstock.errors import FailedError
from penstock.files import discard, publish, read_json, remedy_of

from .engine import Engine
from .group import Group
from .history import History
from .manifest import check_manifest, write_manifest
from .memory import out_of_memory
from .request import Request
from .weights import UNREADABLE, copy_tokenizer, said_by

STATE = "state.json"
FORMAT = 2
# One to go on from, and the one before it.
KEEP = 2
_NAME, _PARTIAL = "step-", ".partial-step-"
_LEFT = (f"{_PARTIAL}*", f".removed-{_NAME}*")
# What a write meets where another run makes and removes the same folders.
_OF_OTHERS = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
# What decides a loss curve; a run that differs in any of it is another run.
_DECIDING = (
    *("model", "strategy", "batch", "seq_len", "gpus", "zero", "fsdp", "data", "data_field"),
    *("lengths", "seed", "lr", "lora_rank", "dtype"),
)
# Processes of a run that was killed are there a moment longer than it.
_PATIENCE_S = 3.0


@contextmanager
def alone(request: Request, group: Group) -> Iterator[None]:
    """The run has its folder of checkpoints, which is made, to itself: two would mix theirs.

    Raises:
        FailedError: If the folder cannot be made, or another run has it.
    """
    assert request.checkpoint is not None
    held, problem = None, None
    if group.leads:
        try:
            held = _take(Path(request.checkpoint))
        except BlockingIOError:
            problem = ("another run saves its checkpoints there", "another folder, or wait for it")
        except OSError as error:
            problem = (str(error.strerror), "a folder that can be written")
    try:
        problem = group.gather(problem)[0]
        if problem is not None:
            what, remedy = problem
            raise FailedError(f"--checkpoint: {request.checkpoint}: {what}", remedy=remedy)
        yield
    finally:
        if held is not None:
            os.close(held)


def _take(folder: Path) -> int:
    """The folder, open; no other process gets it while it is."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(0.1)
                continue
            os.close(held)
            raise
        except OSError:  # a file system without locks
            pass
        return held


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
        """Refuse checkpoints that nobody asked to go on from, and damaged ones.

        Raises:
            FailedError: If the folder holds checkpoints and this run is not to resume, or the
                newest one is not as it was written, or another run's.
        """
        newest = self.newest()
        if newest is None:
            return
        if not self._request.resume:
            raise FailedError(
                f"--checkpoint: {self._folder} holds {newest.name} already",
                remedy="--resume to go on from it, or another folder",
            )
        # One process reads it all; the others hear what came of it.
        damage = self._group.gather(self._damage(newest) if self._group.leads else None)[0]
        if damage is not None:
            raise FailedError(damage, remedy=self._without(newest))
        self._state(newest)

    def newest(self) -> Path | None:
        """The last checkpoint."""
        found = self._all()
        return found[-1] if found else None

    def _all(self) -> list[Path]:
        """Folders that are called as checkpoints are, oldest first."""
        found = self._folder.glob(f"{_NAME}*")
        named = [path for path in found if re.fullmatch(r"\d+", path.name.removeprefix(_NAME))]
        return sorted(named, key=lambda path: int(path.name.removeprefix(_NAME)))

    def _damage(self, folder: Path) -> str | None:
        """What happened to a checkpoint since it was written."""
        try:
            check_manifest(folder)
        except FailedError as error:
            return error.what
        return None

    def _without(self, damaged: Path) -> str:
        """What to do instead: go on from the checkpoint before, where that is whole."""
        for before in reversed(self._all()):
            if before != damaged and self._damage(before) is None:
                return f"rm -r {damaged}; --resume then goes on from {before.name}"
        return "a copy of it that is whole, or another --checkpoint to begin anew"

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
        try:
            engine.load(newest)
            random = torch.load(newest / self._random_file(), weights_only=True)
            torch.set_rng_state(random["cpu"])
            if engine.device.is_cuda:
                torch.cuda.set_rng_state(random["cuda"], engine.device.torch_device)
            return History.from_json(state["history"])
        except UNREADABLE as error:
            if out_of_memory(error):
                raise
            raise FailedError(
                f"{newest} cannot be loaded: {said_by(error)}", remedy=self._without(newest)
            ) from error

    def save(self, engine: Engine, history: History) -> None:
        """Write a checkpoint of the steps that are done.

        Raises:
            FailedError: If it cannot be written; those before are there still, and no part of it.
        """
        partial = self._folder / f"{_PARTIAL}{history.done:08d}"
        before = self.newest()
        try:
            self._write(engine, history, partial)
        except (OSError, SafetensorError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            after = f"; --resume then goes on from {before.name}" if before else ""
            shared = getattr(error, "errno", None) in _OF_OTHERS
            helps = remedy_of(error, "room on that disk")
            remedy = "a folder that no other run writes to" if shared else f"{helps}{after}"
            raise FailedError(
                f"--checkpoint: step {history.done} cannot be written to {self._folder}: {said}",
                remedy=remedy,
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write(self, engine: Engine, history: History, partial: Path) -> None:
        if self._group.leads:
            self._clear_left()
            partial.mkdir()
        self._group.wait()
        engine.save(partial)
        if self._group.leads and self._request.shape is None:
            copy_tokenizer(Path(self._request.model), partial)
        random = {"cpu": torch.get_rng_state()}
        if engine.device.is_cuda:
            random["cuda"] = torch.cuda.get_rng_state(engine.device.torch_device)
        content = io.BytesIO()
        torch.save(random, content)
        (partial / self._random_file()).write_bytes(content.getvalue())
        self._group.wait()
        if self._group.leads:
            state = {"format": FORMAT, "request": self._deciding(), "history": asdict(history)}
            (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
            write_manifest(partial)
            publish(partial, self._folder / f"{_NAME}{history.done:08d}")
            for old in self._all()[:-KEEP]:
                discard(old)
        self._group.wait()

    def _clear_left(self) -> None:
        """Remove what a run that was killed was about to write, or to remove."""
        for pattern in _LEFT:
            for left in self._folder.glob(pattern):
                shutil.rmtree(left)

    def _random_file(self) -> str:
        return f"random-{self._group.rank}.pt"

    def _deciding(self) -> dict[str, Any]:
        return {name: getattr(self._request, name) for name in _DECIDING}

    def _state(self, folder: Path) -> dict[str, Any]:
        """What a checkpoint says about its run, if it is a run like this one."""
        state: Any = read_json(folder / STATE, remedy="another folder")
        theirs = state.get("request") if isinstance(state, dict) else None
        if not isinstance(theirs, dict) or state.get("format") != FORMAT:
            raise FailedError(
                f"{folder / STATE} is not of a checkpoint of this Penstock", remedy="another folder"
            )
        for name, mine in self._deciding().items():
            if theirs.get(name) != mine:
                flag = "--" + name.replace("_", "-")
                without = theirs.get(name) is None or theirs.get(name) is False
                given = f"without {flag}" if without else f"with {flag} {theirs.get(name)}"
                raise FailedError(
                    f"{folder} was made {given}, this run has {mine or 'none'}",
                    remedy=f"the same {given}, or another --checkpoint",
                )
        found: dict[str, Any] = state
        return found
