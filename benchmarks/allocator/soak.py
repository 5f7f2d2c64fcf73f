# SPDX-License-Identifier: Apache-2.0
"""The threads of the allocator soak.

A pattern is start, start + 1, ... in 32-bit integers; starts are drawn anew for every tensor, so
that two tensors that share memory do not agree. Checks write their counts of wrong elements into a
table on the device, which the host reads once it is full: nothing waits for a single check.

Thread rule: a worker belongs to its thread; what threads share is in Shared, behind its locks.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from penstock.finetune.memory import out_of_memory

CHECKS = 128  # results kept on the device before the host looks at them
PIECE = 4 << 20  # elements compared at once
SPAN = 1 << 30  # starts and patterns stay below 2**31
TRIES = 200  # to find memory for a check
DELAY = 2_000_000  # at most so many clock cycles of waiting put into a stream


@dataclass
class Item:
    """A live tensor, the stream that owns it and what it must hold."""

    tensor: torch.Tensor
    stream: Any
    start: int


class Checker:
    """Fills tensors and verifies them on the device; finds out later what was wrong."""

    def __init__(self, shared: Any, number: int, device: str, stream: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.mismatches: list[dict[str, Any]] = []
        self._shared, self._number, self._stream = shared, number, stream
        self._notes: list[dict[str, Any]] = []
        with on(stream):
            self._table = torch.zeros(CHECKS, dtype=torch.int64, device=device)
        wait_for(stream)

    def fill(self, tensor: torch.Tensor, start: int) -> None:
        torch.arange(start, start + tensor.numel(), dtype=tensor.dtype, out=tensor)
        if tensor.numel() and self._shared.take_sabotage():
            tensor[tensor.numel() // 2] = -1

    def verify(self, tensor: torch.Tensor, start: int, stream: Any, what: str) -> None:
        """Compare on the current stream; `stream` is the one it is reported with."""
        slot = self._table[len(self._notes)]
        for begin in range(0, tensor.numel(), PIECE):
            piece = tensor[begin : begin + PIECE]
            first = start + begin
            expected = torch.arange(
                first, first + piece.numel(), dtype=tensor.dtype, device=tensor.device
            )
            slot.add_((piece != expected).sum())
        self._notes.append(
            {
                "what": what,
                "thread": self._number,
                "stream": handle(stream),
                "bytes": tensor.nbytes,
                "address": hex(tensor.data_ptr()),
                "start": start,
            }
        )
        self.counts["verified"] += 1
        self.counts["verified_bytes"] += tensor.nbytes
        if len(self._notes) == CHECKS:
            self.settle()

    def settle(self) -> None:
        """Wait for the device and look at all results so far."""
        if torch.cuda.is_available() and self._table.is_cuda:
            for stream in {note["stream"] for note in self._notes}:
                torch.cuda.ExternalStream(stream).synchronize()
        with on(self._stream):
            wrong = self._table.tolist()
            self._table.zero_()
        wait_for(self._stream)
        for note, count in zip(self._notes, wrong, strict=False):
            if count:
                note["wrong_elements"] = count
                self.mismatches.append(note)
                print(f"MISMATCH {note}", file=sys.stderr, flush=True)
        self._notes.clear()

    def finish(self) -> None:
        self.settle()
        self._shared.add(self.counts, self.mismatches)


def on(stream: Any) -> Any:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def handle(stream: Any) -> int:
    return int(stream.cuda_stream) if stream is not None else 0


def wait_for(stream: Any) -> None:
    if stream is not None:
        stream.synchronize()


@contextmanager
def running_out(counts: Counter[str]) -> Iterator[None]:
    """Out of memory is expected here; anything else is not."""
    try:
        yield
    except RuntimeError as error:
        # torch's own allocator cannot give cached memory back while any thread captures.
        refused = "captures_underway" in str(error)
        if not (refused or out_of_memory(error)):
            raise
        counts["out_of_memory"] += 1
        counts["refused_during_capture"] += refused
        counts[f"out_of_memory as {type(error).__name__}"] += 1


class Worker:
    """One thread: a random walk over what programs do with tensors."""

    def __init__(self, shared: Any, number: int) -> None:
        args = shared.args
        self.shared, self.number = shared, number
        self.cuda = args.device == "cuda"
        self.device = args.device
        self.draw = random.Random(args.seed * 1000 + number)
        self.limit = args.cap // 2 // (args.threads + 1)
        self.largest = max(1, min(32 << 20, self.limit // 16))  # elements
        self.live: list[Item] = []
        self.held: list[Item] = []  # what exhaust() took
        self.bytes = 0

    def begin(self) -> None:
        count = self.shared.args.streams
        self.streams = [torch.cuda.Stream() if self.cuda else None for _ in range(count)]
        self.check = Checker(self.shared, self.number, self.device, self.streams[0])

    def run(self) -> None:
        self.begin()
        moves = [
            (self.make, 40), (self.drop, 25), (self.lend, 12), (self.delay, 8), (self.hand_over, 6),
            (self.take_over, 6), (self.beyond, 1), (self.exhaust, 0.2), (self.empty, 0.3),
        ]  # fmt: skip
        names, weights = zip(*moves, strict=True)
        while not self.shared.stop.is_set():
            self.draw.choices(names, weights)[0]()
        while self.live:
            self.drop()
        self.check.finish()

    def elements(self) -> int:
        """Small, medium or large, of any length."""
        kind = self.draw.random()
        most = (256 << 10) if kind < 0.5 else (5 << 20) if kind < 0.8 else self.largest
        return self.draw.randint(1, min(most, self.largest))

    def start(self) -> int:
        return self.draw.randrange(SPAN)

    def new(self, elements: int) -> Item | None:
        """A filled tensor of one of this thread's streams."""
        stream = self.draw.choice(self.streams)
        start = self.start()
        with running_out(self.check.counts), on(stream):
            tensor = torch.empty(elements, dtype=torch.int32, device=self.device)
            self.check.fill(tensor, start)
            self.check.counts["allocated"] += 1
            return Item(tensor, stream, start)
        return None

    def make(self) -> None:
        item = self.new(self.elements())
        if item is None:
            self.halve()
            return
        self.live.append(item)
        self.bytes += item.tensor.nbytes
        while self.bytes > self.limit or len(self.live) > 300:
            self.drop()

    def halve(self) -> None:
        for _ in range(len(self.live) // 2):
            self.drop()

    def pop(self) -> Item | None:
        if not self.live:
            return None
        item = self.live.pop(self.draw.randrange(len(self.live)))
        self.bytes -= item.tensor.nbytes
        return item

    def verify(self, item: Item, stream: Any, what: str) -> None:
        """On `stream`; its temporary tensors may meet the end of memory, so try again with less."""
        for _ in range(TRIES):
            with running_out(self.check.counts), on(stream):
                self.check.verify(item.tensor, item.start, stream, what)
                return
            self.release_one()
            time.sleep(0.005)  # the others give memory back as well
        raise RuntimeError(f"no memory to verify {item.tensor.nbytes} bytes after {TRIES} tries")

    def release_one(self) -> None:
        """Give a tensor back unverified: there is no memory to verify it with."""
        item = self.held.pop() if self.held else self.pop()
        self.check.counts["dropped_unverified"] += item is not None

    def drop(self) -> None:
        """Verify on its own stream and free at once, while the check is still queued."""
        item = self.pop()
        if item is not None:
            self.verify(item, item.stream, "own stream")

    def lend(self) -> None:
        """Another stream reads it, late; it is freed now."""
        item = self.pop()
        if item is None:
            return
        other = self.draw.choice(self.streams)
        if self.cuda:
            other.wait_stream(item.stream)
            with on(other):
                torch.cuda._sleep(self.draw.randrange(1, DELAY))
            item.tensor.record_stream(other)
            self.check.counts["record_stream"] += 1
        self.verify(item, other, "lent to another stream")

    def delay(self) -> None:
        if self.cuda:
            with on(self.draw.choice(self.streams)):
                torch.cuda._sleep(self.draw.randrange(1, DELAY))

    def hand_over(self) -> None:
        """Leave a tensor for another thread."""
        item = self.pop()
        if item is not None:
            self.shared.put(item)

    def take_over(self) -> None:
        """Verify on a stream of this thread, free in this thread."""
        item = self.shared.take()
        if item is None:
            return
        mine = self.draw.choice(self.streams)
        if self.cuda:
            mine.wait_stream(item.stream)
            item.tensor.record_stream(mine)
        self.verify(item, mine, "from another thread")
        self.check.counts["handed_over"] += 1

    def beyond(self) -> None:
        """Ask for more than there is."""
        if not self.cuda:
            return
        with self.shared.capture:
            before = self.check.counts["out_of_memory"]
            with running_out(self.check.counts), on(self.draw.choice(self.streams)):
                torch.empty(2 * self.shared.args.cap, dtype=torch.uint8, device=self.device)
            if self.check.counts["out_of_memory"] == before:
                raise RuntimeError("twice the cap was allocated: the cap does not hold")

    def exhaust(self) -> None:
        """Take all that is left, in patterned pieces, until memory runs out; verify; recover."""
        if not self.cuda:
            return
        piece = min(16 << 20, self.largest)
        with self.shared.capture:
            while not self.shared.stop.is_set():
                item = self.new(self.draw.randint(piece // 2, piece))
                if item is None:
                    self.check.counts["exhausted"] += 1
                    break
                self.held.append(item)
            while self.held:
                item = self.held.pop()
                self.verify(item, item.stream, "at the end of memory")

    def empty(self) -> None:
        if not self.cuda:
            return
        with self.shared.capture:
            torch.cuda.empty_cache()
        self.check.counts["empty_cache"] += 1


class GraphWorker(Worker):
    """Captures graphs, alone and two in one pool, and replays them among the other threads' work.

    A graph turns x into x + 2 + key through temporary tensors of its private pool: memory of the
    pool that was lent to anyone else shows as that one's mismatch, and the reverse as this one's.
    """

    def run(self) -> None:
        self.begin()
        self.shared.stop.wait(1.0)  # the others load their kernels, which a capture may not meet
        while not self.shared.stop.is_set():
            self.cycle()
        while self.live:
            self.drop()
        self.check.finish()

    def body(self, static: torch.Tensor, key: int) -> torch.Tensor:
        one = static + 1
        two = one + one
        del one
        three = two - static
        del two
        return three + key

    def captured(self, static: torch.Tensor, key: int, pool: Any, stream: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = self.body(static, key)
        self.check.counts["captures"] += 1
        return graph, result

    def cycle(self) -> None:
        stream = self.streams[0]
        elements = self.draw.randint(1, min(4 << 20, self.largest))
        keys = [self.draw.randrange(1000) for _ in range(self.draw.choice((1, 2)))]
        graphs: list[Any] = []
        with running_out(self.check.counts):
            with on(stream):
                static = torch.zeros(elements, dtype=torch.int32, device=self.device)
                self.body(static, 1)  # load the kernels before the capture
            stream.synchronize()
            with self.shared.capture:
                for key in keys:
                    pool = graphs[0][0].pool() if graphs else None
                    graphs.append(self.captured(static, key, pool, stream))
        if len(graphs) < len(keys):
            return
        for _ in range(self.draw.randint(2, 12)):
            if self.shared.stop.is_set():
                break
            self.replay(static, graphs, keys, stream)
            for _ in range(self.draw.randrange(6)):
                self.draw.choice((self.make, self.make, self.drop, self.lend))()
        stream.synchronize()

    def replay(self, static: torch.Tensor, graphs: Any, keys: list[int], stream: Any) -> None:
        """New input, every graph in the order of capture, every result verified."""
        start = self.draw.randrange(SPAN // 4)
        with on(stream):
            self.check.fill(static, start)
            for graph, _ in graphs:
                graph.replay()
        for (_, result), key in zip(graphs, keys, strict=True):
            self.verify(Item(result, stream, start + 2 + key), stream, "result of a graph")
        self.check.counts["replays"] += len(graphs)
