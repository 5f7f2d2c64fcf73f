# SPDX-License-Identifier: Apache-2.0
"""Feed every reader of files with what somebody may have changed: it may refuse, and nothing else.

An input is a finding if the reader raises anything but a PenstockError, takes more than `MOST_S`
seconds, or more memory than the process may have. A finding is written into the folder named, with
its kind and its place, and the program ends with 1.

Usage: python tests/fuzz/readers.py [--kinds npz,work,...] [--seconds S | --inputs N] [--seed N]
       [--findings FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import corpus
from mutate import altered, mutated

from penstock.config import resolve
from penstock.errors import PenstockError
from penstock.native.replay import ALLOCATORS, replay
from penstock.native.simulate import POLICIES, simulate
from penstock.report.columns import print_results
from penstock.report.fields import load
from penstock.report.page import page
from penstock.report.verbs import results_of
from penstock.trace import read_traces, read_work

# Of a reader: of a processor's time, and of a clock's, where it waits for what does not come.
MOST_S = 20
MOST_WAITING_S = 600
# Address space beyond what is mapped once everything is imported.
MOST_BYTES = 4 << 30
# What of inputs goes through what takes much longer than the reader does.
RARELY = 0.01
PAGES = find_spec("bokeh") is not None
# What moves a cursor, or turns the direction of writing; and halves of surrogate pairs.
UNFIT = {*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x2028, 0x202F)} - {10}
UNFIT |= {*range(0x2066, 0x206A), *range(0xD800, 0xE000)}

Draw = random.Random
Make = Callable[[Draw], bytes]


class Slow(BaseException):
    """A reader took too long."""


def take_trace(path: Path, draw: Draw) -> None:
    for trace in read_traces(path):
        # Without a bound the tables of an allocator take longer than all the rest.
        capacity = 0 if draw.random() < RARELY else draw.choice((1 << 30, 1 << 34))
        replay(trace, allocator=draw.choice(list(ALLOCATORS)), capacity=capacity)


def take_work(path: Path, draw: Draw) -> None:
    recorded = read_work(path)
    budget = draw.choice((recorded.budget_bytes, 16 << 20)) or 16 << 20
    simulate(recorded, budget=budget, policy=draw.choice(list(POLICIES)))


def take_result(path: Path, draw: Draw) -> None:
    document = load(path)
    results = results_of(document, name="n", place="p")
    if draw.random() < RARELY and PAGES:  # takes a hundred times as long as all the rest
        page(results, title=results[0].name, command="c", data=document).encode()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        print_results(results)
    unfit = set(map(ord, shown.getvalue())) & UNFIT
    assert not unfit, f"printed {sorted(unfit)}"


def take_options(path: Path, draw: Draw) -> None:
    path.replace(path.with_name("penstock.toml"))
    resolve(environ={}, folder=path.parent)


def take_checkpoint(path: Path, draw: Draw) -> None:
    from penstock.models.checkpoint import open_checkpoint

    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.with_name("config.json").write_bytes(content[8 : 8 + length])
    path.with_name("model.safetensors").write_bytes(content[8 + length :])
    open_checkpoint(path.parent)


def result_document(draw: Draw) -> bytes:
    return json.dumps(altered(draw.choice(corpus.results()), draw)).encode()


def snapshot_document(draw: Draw) -> bytes:
    return pickle.dumps(altered(corpus.snapshot(), draw), draw.choice((2, 4)))


def checkpoint_files(draw: Draw) -> bytes:
    """config.json behind its length, then the tensors, of which the header is changed."""
    config, tensors = corpus.checkpoint()
    length = int.from_bytes(tensors[:8], "little")
    head = tensors[8 : 8 + length]
    if draw.random() < 0.5:
        config = altered(config, draw)
    else:
        head = mutated(head, draw)
        length = draw.choice((len(head), length, 2**31, 2**63, 0))
    text = json.dumps(config).encode()
    body = length.to_bytes(8, "little") + head + tensors[8 + len(head) :]
    return len(text).to_bytes(8, "little") + text + body


KINDS: dict[str, tuple[Make, Callable[[Path, Draw], None]]] = {
    "npz": (lambda draw: mutated(draw.choice(corpus.npz()), draw), take_trace),
    "pickle": (lambda draw: mutated(draw.choice(corpus.pickles()), draw), take_trace),
    "snapshot": (snapshot_document, take_trace),
    "work": (lambda draw: mutated(corpus.recording(), draw), take_work),
    "result": (result_document, take_result),
    "json": (
        lambda draw: mutated(json.dumps(draw.choice(corpus.results())).encode(), draw),
        take_result,
    ),
    "options": (lambda draw: mutated(corpus.options(), draw), take_options),
    "checkpoint": (checkpoint_files, take_checkpoint),
}


def once(kind: str, seed: int, folder: Path) -> tuple[bytes, str | None, bool]:
    """One input: its bytes, where the reader failed, and whether it refused."""
    draw = random.Random(seed)
    make, take = KINDS[kind]
    content = make(draw)
    path = folder / kind / "input"
    path.write_bytes(content)
    limit(MOST_S, MOST_WAITING_S)
    try:
        take(path, draw)
    except PenstockError as error:
        assert not set(map(ord, str(error))) & {*UNFIT, ord("\n")}, error
        return content, None, True
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "penstock" in frame.filename
        ]
        where = f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else "outside"
        return content, f"{kind}-{type(error).__name__}-{where}", False
    finally:
        limit(0, 0)
    return content, None, False


def limit(processor_s: float, clock_s: float) -> None:
    """Have Slow raised after that; 0: not at all."""
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    signal.setitimer(signal.ITIMER_REAL, clock_s)


@contextlib.contextmanager
def folders(kinds: list[str]) -> Iterator[Path]:
    """A place for the inputs, in memory if there is one there; one for each kind."""
    within = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=within) as name:
        for kind in kinds:
            (Path(name) / kind).mkdir()
        yield Path(name)


def bound() -> None:
    """Limit the time of a reader, and the memory of this process."""

    def late(*_: object) -> None:
        raise Slow

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    # Before memory and time are bounded.
    if "checkpoint" in kinds:
        import penstock.models.checkpoint
    if PAGES and {"result", "json"}.intersection(kinds):
        import penstock.report.charts  # noqa: F401
    bound()
    gc.freeze()  # what is imported is not gone through again and again
    end = None if options.seconds is None else time.monotonic() + options.seconds
    seen: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    found: Counter[str] = Counter()
    number = 0
    with folders(kinds) as folder:
        while number < options.inputs if end is None else time.monotonic() < end:
            kind = kinds[number % len(kinds)]
            content, finding, no = once(kind, options.seed + number, folder)
            seen[kind] += 1
            refused[kind] += no
            number += 1
            if finding is not None:
                if not found[finding]:
                    options.findings.mkdir(parents=True, exist_ok=True)
                    (options.findings / finding).write_bytes(content)
                    print(
                        f"{finding}: --kinds {kind} --seed {options.seed + number - 1} --inputs 1"
                    )
                found[finding] += 1
    failed = Counter(place.partition("-")[0] for place in found.elements())
    for kind in kinds:
        print(
            f"{kind}: {seen[kind]} inputs, {refused[kind]} refused, {failed[kind]} findings",
            flush=True,
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
