# SPDX-License-Identifier: Apache-2.0
"""Kill verbs and attachments with SIGKILL at random moments: nothing is left, and what is there is
whole.

Each child is a fork of this process, which has imported everything: so a kill costs a run, not the
start of Python. A fine-tune is killed and resumed until it ends, and has then the losses of one
that nobody killed, bit for bit.

Usage: python tests/soak/kills.py [--kills N] [--seed N] [--native build/dev/native_tests]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

import penstock
from penstock.cli.main import main as penstock_main
from penstock.report.fields import load
from penstock.trace.work import read_work

WORK = ["--model", "tiny", "--device", "emulated", "--seq-len", "16", "--lr", "1e-3"]
WORK += ["--batch", "2", "--steps", "8"]
LEAVE_S = 30.0


def run(*arguments: object) -> int:
    """A verb in this process, without a word."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        return penstock_main([str(word) for word in arguments])


def killed(work: Callable[[], object], after: float) -> bool:
    """Do it in a session of its own that is killed so many seconds later; whether it had ended.

    What it started has to go with it.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = int(work() or 0)
        finally:
            os._exit(code)
    end = time.monotonic() + after
    status = None
    while time.monotonic() < end and status is None:
        done, found = os.waitpid(child, os.WNOHANG)
        status = found if done else None
        time.sleep(0.001)
    if status is None:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    end = time.monotonic() + LEAVE_S
    while alive := _of_session(child):
        assert time.monotonic() < end, f"processes {alive} outlive the one that was killed"
        time.sleep(0.01)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFEXITED(status)


def _of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


class Kills:
    """So many kills of each kind, in a folder of their own."""

    def __init__(self, folder: Path, draw: random.Random, native: Path | None) -> None:
        self.folder = folder
        self.draw = draw
        self.native = native
        self.done: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.whole = folder / "whole.json"  # of a fine-tune that nobody kills
        assert run("finetune", *WORK, "--json", self.whole) == 0
        begin = time.monotonic()
        assert run("finetune", *WORK, "--json", self.whole, "--force") == 0
        self.most_s = 1.2 * (time.monotonic() - begin)

    def kill(self, kind: str, work: Callable[[], object], most_s: float) -> bool:
        """One, at a moment up to `most_s` from its start."""
        ended = killed(work, self.draw.uniform(0, most_s))
        self.done[kind] += not ended
        self.ended[kind] += ended
        return ended

    def finetune(self, kills: int) -> None:
        """A run that goes on after each."""
        wanted = json.loads(self.whole.read_text())["loss"]
        number = 0
        while self.done["finetune"] < kills:
            number += 1
            place, result = self.folder / f"run-{number}", self.folder / f"run-{number}.json"
            again = ["finetune", *WORK, "--checkpoint", place, "--save-every", "2", "--resume"]
            again += ["--json", result]
            for _ in range(4):
                if self.kill("finetune", lambda again=again: run(*again), self.most_s):
                    break
            assert run(*again) == 0
            assert json.loads(result.read_text())["loss"] == wanted, "resumed, the losses differ"
            left = [each.name for each in place.iterdir() if not each.name.startswith("step-")]
            assert not left, f"left in the folder of checkpoints: {left}"

    def report(self, kills: int) -> None:
        """A page and a document over old ones: the old or the new, and nothing beside."""
        page, document = self.folder / "page.html", self.folder / "all.json"
        words = ["report", self.whole, "--html", page, "--json", document]
        assert run(*words) == 0
        begin = time.monotonic()
        assert run(*words) == 0
        most = 1.2 * (time.monotonic() - begin)
        wanted = page.read_bytes(), document.read_bytes()
        named = 0
        while self.done["report"] < kills:
            self.kill("report", lambda: run(*words), most)
            assert (page.read_bytes(), document.read_bytes()) == wanted
            load(document)
            # Between a name for the new content and its move there are microseconds.
            for left in self.folder.glob(".penstock-*"):
                left.unlink()
                named += 1
        assert named <= 1 + kills // 20, f"{named} files were left"

    def attach(self, kills: int) -> None:
        """A model within a budget, in the middle of its passes."""
        before = set(os.listdir("/dev/shm"))

        def passes() -> None:
            model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)]).eval()
            penstock.attach(
                model, gpu_memory="128KiB", device="emulated", emulated={"granularity": 16384}
            )
            with torch.no_grad():
                for _ in range(100_000):
                    model(torch.ones(4, 64))

        for _ in range(kills):
            assert not self.kill("attach", passes, 0.3)
        assert set(os.listdir("/dev/shm")) == before

    def recording(self, kills: int) -> None:
        """A program under the engine of `penstock run`: what it recorded is whole records."""
        if self.native is None:
            return
        library = self.native.parent / "emulated_cuda"
        number = 0
        while self.done["run --record"] < kills:
            number += 1
            place = self.folder / f"recording-{number}"
            environment = {"LD_LIBRARY_PATH": str(library), "PENSTOCK_TEST_RECORD": str(place)}
            child = subprocess.Popen(
                [self.native, "--test-case=CUDA child: is recorded", "--no-skip"],
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(self.draw.uniform(0, 0.1))
            child.kill()
            was_killed = child.wait() == -signal.SIGKILL
            self.done["run --record"] += was_killed
            self.ended["run --record"] += not was_killed
            for path in self.folder.glob(f"recording-{number}*"):
                size = path.stat().st_size
                with contextlib.suppress(penstock.PenstockError):
                    read_work(path)
                assert size % 8 == 0, f"{path} ends within a record"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=8, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native", type=Path, help="native_tests, for recordings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    native = options.native.resolve() if options.native else None
    with tempfile.TemporaryDirectory() as name:
        kills = Kills(Path(name), random.Random(options.seed), native)
        os.chdir(name)
        each = max(1, options.kills // 4)
        for kind in (kills.attach, kills.report, kills.recording, kills.finetune):
            kind(each)
        os.chdir("/")
    print(", ".join(f"{kind}: {number} killed" for kind, number in kills.done.items()))
    print(f"ended before they were: {sum(kills.ended.values())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
