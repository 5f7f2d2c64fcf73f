# SPDX-License-Identifier: Apache-2.0
"""Rounds at random for as long as is asked for, each compared bit for bit with plain PyTorch.

A round attaches a model or several, or trains one; changes the budget, runs threads, asks for more
than there is, fails a driver call; detaches, or drops everything. Now and then programs at random
run on the engines (streams, graphs, pins, threads: the native property tests), and processes are
killed (kills.py). On a card also an unchanged program under `penstock run` and `penstock.enable()`.
On it, most of the time a model of several times its budget goes over the link, each of its bytes
summed up and each sum compared with that of the resident model (summed.py). Between rounds, when
nothing is attached, what the process holds is counted (growth.py): none of it may grow.

Usage: python tests/soak/soak.py [--seconds S | --rounds N] [--seed N] [--device emulated|cuda]
       [--native build/dev/native_tests] [--output FILE]
FILE is a result file, to which the run is added.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import kills
import torch
from growth import Growth
from summed import ROOM, Summed
from torch import nn

import penstock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runs import add_run

# What does not fit: PyTorch's own error where its allocator asks for memory of a card.
NO_ROOM = (penstock.OutOfMemory, torch.OutOfMemoryError)
# An unchanged program: its losses, bit for bit.
PROGRAM = """
import torch
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
if {enabled}:
    import penstock
    penstock.enable()
layers = [torch.nn.Linear(2048, 2048) for _ in range(24)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
side = torch.cuda.Stream()
for step in range(12):
    with torch.cuda.stream(side):
        x = torch.full((16, 2048), float(step), device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
"""


class Soak:
    """The rounds, all drawn from one generator."""

    def __init__(self, draw: random.Random, device: str, native: Path | None) -> None:
        self.draw = draw
        self.native = native
        self.cuda = device == "cuda"
        self.width = 1024 if self.cuda else 64
        self.rounds: Counter[str] = Counter()
        self.kinds: list[str] = []  # those alone, if any
        self.refused = 0
        self.compared = 0
        self.bytes_in = self.bytes_out = 0
        self.summed: Summed | None = None  # once it is wanted
        self.large_s = 30.0 if self.cuda else 0.5

    # ---- Models ----------------------------------------------------------------------------

    def _stack(self) -> nn.Sequential:
        layers = self.draw.randrange(4, 14)
        model = nn.Sequential(*[nn.Linear(self.width, self.width) for _ in range(layers)])
        return model.to("cuda") if self.cuda else model

    def _rows(self, count: int) -> torch.Tensor:
        seeded = torch.Generator().manual_seed(self.draw.randrange(1 << 30))
        rows = torch.randn(count, self.width, generator=seeded)
        return rows.cuda() if self.cuda else rows

    def _where(self, fail_at: int = 0) -> dict[str, Any]:
        if self.cuda:
            return {"device": "cuda"}
        emulated = {"granularity": 4096, "capacity": 64 << 20, "fail_at_call": fail_at}
        emulated |= {
            "seed": self.draw.randrange(1000),
            "max_delay_us": self.draw.choice((0, 0, 50)),
        }
        return {"device": "emulated", "emulated": emulated}

    def _budget(self, *models: nn.Module) -> int:
        weights = sum(p.numel() * p.element_size() for m in models for p in m.parameters())
        room = ROOM if self.cuda else 24 << 10  # activations, and what the driver takes
        return room + int(weights * self.draw.uniform(0.35, 1.2))

    def _attached(self, models: list[nn.Module], **more: Any) -> penstock.Attachment | None:
        """None where the budget that was drawn is refused, which leaves the models as they were."""
        try:
            return penstock.attach(models, gpu_memory=self._budget(*models), **more)
        except penstock.PenstockError:
            self.refused += 1
            return None

    # ---- Rounds ----------------------------------------------------------------------------

    def inference(self) -> None:
        """Passes of one model or several, the budget changing, threads, and what cannot fit."""
        models: list[nn.Module] = [self._stack().eval() for _ in range(self.draw.choice((1, 1, 2)))]
        plain = copy.deepcopy(models)
        safety = self.draw.choice(("normal", "normal", "strict"))
        attachment = self._attached(models, safety=safety, **self._where())
        with torch.no_grad():
            for _ in range(self.draw.randrange(3, 25)):
                which = self.draw.randrange(len(models))
                step = self.draw.random()
                if attachment is not None and step < 0.1:
                    self._refusable(lambda: attachment.resize(self._budget(*models)))
                elif attachment is not None and step < 0.15 and not self.cuda:
                    self._refusable(lambda model=models[which]: model(self._rows(5000)))
                elif step < 0.25:
                    self._in_threads(models[which], plain[which])
                else:
                    self._same(models[which], plain[which])
        for ours, theirs in zip(models, plain, strict=True):
            for name, value in ours.state_dict().items():
                self._equal(value, theirs.state_dict()[name], name)
        self._paged(attachment)
        if attachment is not None and self.draw.random() < 0.7:
            attachment.detach()  # which gives them back on the CPU
            with torch.no_grad():
                self._same(models[0].to("cuda" if self.cuda else "cpu"), plain[0])

    def _same(self, ours: nn.Module, theirs: nn.Module) -> None:
        rows = self._rows(self.draw.randrange(1, 5))
        for _ in range(2):  # what does not fit is an error, after which the next pass fits
            try:
                found = ours(rows)
            except NO_ROOM:
                self.refused += 1
                continue
            self._equal(found, theirs(rows), "a pass gave other bits")
            return

    def _equal(self, ours: torch.Tensor, theirs: torch.Tensor, otherwise: str) -> None:
        assert torch.equal(ours.cpu(), theirs.cpu()), otherwise
        self.compared += 1

    def _paged(self, attachment: penstock.Attachment | None) -> None:
        """It is about to go: what it has moved counts."""
        if attachment is not None:
            stats = attachment.stats()
            self.bytes_in += stats.bytes_in
            self.bytes_out += stats.bytes_out

    def _refusable(self, call: Any) -> None:
        try:
            call()
        except penstock.PenstockError:
            self.refused += 1

    def _in_threads(self, ours: nn.Module, theirs: nn.Module) -> None:
        inputs = [self._rows(2) for _ in range(4)]
        found: list[Any] = [None] * 4

        def one(number: int) -> None:
            with torch.no_grad():
                try:
                    found[number] = ours(inputs[number])
                except BaseException as error:
                    found[number] = error

        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rows, value in zip(inputs, found, strict=True):
            if isinstance(value, NO_ROOM):
                self.refused += 1
            elif isinstance(value, BaseException):
                raise value
            else:
                self._equal(value, theirs(rows), "a thread got other bits")

    def failure(self) -> None:
        """One driver call fails: an error, after which everything is right."""
        model = self._stack().eval()
        plain = copy.deepcopy(model)
        attachment = self._attached([model], **self._where(self.draw.randrange(1, 400)))
        with torch.no_grad():
            for _ in range(6):
                rows = self._rows(2)
                try:
                    found = model(rows)
                except penstock.PenstockError:
                    self.refused += 1
                    continue
                self._equal(found, plain(rows), "after a failure a pass gave other bits")
        if attachment is not None:
            self._refusable(attachment.detach)

    def training(self) -> None:
        """Steps of an optimizer: losses, weights and state."""
        model, steps = self._stack(), self.draw.randrange(3, 9)
        plain = copy.deepcopy(model)
        make = self.draw.choice(
            (
                lambda p: torch.optim.AdamW(p, lr=1e-3),
                lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
                lambda p: torch.optim.RMSprop(p, lr=1e-3),
            )
        )
        ours, theirs = make(model.parameters()), make(plain.parameters())
        budget = 3 * self._budget(model)
        try:
            attachment = penstock.attach_training(model, ours, gpu_memory=budget, **self._where())
        except penstock.PenstockError:
            self.refused += 1
            return
        clip = self.draw.random() < 0.3
        whole = True
        for _ in range(steps):
            rows = self._rows(3)
            try:
                loss = self._step(model, ours, rows, clip=clip)
            except NO_ROOM:  # somewhere in a step, which nobody can take back
                self.refused += 1
                whole = False
                break
            assert loss == self._step(plain, theirs, rows, clip=clip), "a step gave another loss"
            self.compared += 1
        self._paged(attachment)
        attachment.detach()
        if not whole:
            return
        for name, value in model.state_dict().items():
            self._equal(value, plain.state_dict()[name], name)

    @staticmethod
    def _step(
        model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, *, clip: bool
    ) -> float:
        loss = model(rows).square().mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    def large(self) -> None:
        """A model of several times its budget, of which each pass reads and compares every byte."""
        if self.summed is None:
            self.summed = Summed(*((96, 4096) if self.cuda else (6, 64)), cuda=self.cuda)
        summed = self.summed
        model = summed.fresh()
        more: dict[str, Any] = {**self._where(), "load": summed.load}
        more["safety"] = self.draw.choice(("normal", "normal", "normal", "strict"))

        def tight() -> int:
            return summed.room + int(summed.bytes * self.draw.uniform(0.1, 0.6))

        try:
            attachment = penstock.attach(model, gpu_memory=tight(), **more)
        except penstock.PenstockError:
            self.refused += 1
            return
        end = time.monotonic() + self.large_s
        with torch.no_grad():
            while time.monotonic() < end:
                if self.draw.random() < 0.02:
                    self._refusable(lambda: attachment.resize(tight()))
                try:
                    found = summed.sums(model)
                except NO_ROOM:
                    self.refused += 1
                    continue
                self._equal(found, summed.expected, "weights had other bytes")
        self._paged(attachment)
        attachment.detach(keep=False)

    def engines(self) -> None:
        """Programs at random on the engines."""
        if self.native is not None:
            seed = {"PENSTOCK_PROPERTY_SEED": str(self.draw.randrange(1 << 30))}
            command = [str(self.native), "--test-case=property:*"]
            subprocess.run(
                command, env={**os.environ, **seed}, check=True, stdout=subprocess.DEVNULL
            )

    def kill(self) -> None:
        """Processes that are killed and resumed."""
        command = [sys.executable, kills.__file__, "--kills", "4"]
        command += ["--seed", str(self.draw.randrange(1 << 30))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def program(self) -> None:
        """An unchanged program, alone, within a budget, and on the stitching allocator."""
        said = []
        within = [sys.executable, "-m", "penstock", "run", "--gpu-memory", "1GiB", "--"]
        for before, enabled in (([], False), (within, False), ([], True)):
            with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                file.write(PROGRAM.format(enabled=enabled))
                file.flush()
                command = [*before, sys.executable, file.name]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            said.append(done.stdout)
        assert said[0] == said[1] == said[2], "a program gave other losses"

    def round(self) -> None:
        """One of these."""
        kinds = [self.inference] * 60 + [self.training] * 30 + [self.engines]
        if self.cuda:
            kinds += [self.large] * 12 + [self.program]
        else:
            kinds += [self.large] * 3 + [self.failure] * 30 + [self.kill]
        if self.kinds:
            kinds = [kind for kind in kinds if kind.__name__ in self.kinds]
        kind = self.draw.choice(kinds)
        kind()
        self.rounds[kind.__name__] += 1
        gc.collect()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("emulated", "cuda"), default="emulated")
    parser.add_argument("--kinds", nargs="+", default=[], help="of rounds; those alone")
    parser.add_argument("--native", type=Path, help="native_tests, for programs at random")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    soak = Soak(random.Random(options.seed), options.device, options.native)
    soak.kinds = options.kinds
    growth = Growth(cuda=soak.cuda)
    begin = time.monotonic()
    end = begin + options.seconds
    while soak.rounds.total() < options.rounds if options.rounds else time.monotonic() < end:
        try:
            soak.round()
        except BaseException:
            print(f"seed {options.seed}, after {soak.rounds.total()} rounds", flush=True)
            raise
        growth.look()
    grown = growth.grown()
    run = {
        "device": torch.cuda.get_device_name() if soak.cuda else "emulated",
        "seed": options.seed,
        "seconds": round(time.monotonic() - begin),
        "rounds": dict(sorted(soak.rounds.items())),
        "bytes_in": soak.bytes_in,
        "bytes_out": soak.bytes_out,
        "compared": soak.compared,
        "wrong": 0,  # the first one would have ended it
        "refused": soak.refused,
        "held": growth.held(),
        "grown": grown,
    }
    add_run(options.output, run)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
