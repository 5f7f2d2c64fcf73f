# SPDX-License-Identifier: Apache-2.0
"""Every architecture of a library, small, with random weights: the resident model's bits or not.

python benchmarks/architectures.py forward|encoded|generate|train [--only NAME...] [--json FILE]
python benchmarks/architectures.py forward|encoded|train --library timm|torchvision|diffusers
python benchmarks/architectures.py train --steps 11 --only mamba   # updates in backward as well

Nobody has chosen them: of transformers a configuration by default, made small (little.py), of each
family of timm the first model by its name that is small, of each module of torchvision the
smallest, and of diffusers each class, made small by its sizes' names. What cannot be made small
that way, does not run by itself or does not repeat itself is told apart.
`encoded` is a forward in bf16 whose weights travel encoded, and are verified after it.
Budgets are tried from the smallest up, on the emulated GPU; the first that is no OutOfMemory
counts.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from kit.measure import script_parser
from kit.record import Record
from models import of_diffusers, of_torchvision
from models.little import sizes_of
from pages.models import verdict
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers.models.auto import configuration_auto, modeling_auto

import penstock
from penstock.errors import OutOfMemory
from penstock.units import GIB, KIB, MIB

SHARES = {
    "forward": (0.6, 1, 2, 8),
    "encoded": (0.6, 1, 2, 8),
    "generate": (0.7, 1, 2, 8),
    "train": (2.5, 5, 12, 40),
}
SIDE = 128  # of a picture, where the model leaves that open
FORWARD = ("forward", "encoded")
LARGEST = 400 * MIB
MOST_MADE = 8 * GIB
EMULATED = {"granularity": 4 * KIB}
AT_ONCE = 8  # architectures of one process
TIMEOUT_S = 900


class Library(NamedTuple):
    """Where architectures come from.

    Attributes:
        names: Of those that do a kind of work.
        make: One of them, small; for a kind of work, by its name.
        inputs: What its forward is given.
    """

    names: Callable[[str], list[str]]
    make: Callable[[str, str], Any]
    inputs: Callable[[Any], dict[str, Any]]


def small_config(name: str) -> Any:
    """The default configuration, made small."""
    cls = configuration_auto.CONFIG_MAPPING[name]
    return cls(**sizes_of(cls()))


def classes(kind: str) -> dict[str, Any]:
    """The class, or the classes, of each architecture of transformers."""
    if kind in FORWARD:
        return dict(modeling_auto.MODEL_MAPPING_NAMES)
    return dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def of_transformers(kind: str, name: str) -> Any:
    """One of transformers."""
    names = classes(kind)
    cls = names[name] if isinstance(names[name], str) else names[name][0]
    return getattr(transformers, cls)(small_config(name)).eval()


def families(_: str) -> list[str]:
    """Those of timm."""
    import timm

    return sorted(timm.list_modules())


def of_timm(kind: str, family: str) -> Any:
    """One of timm, in training where it is trained: batch norm has buffers that it writes."""
    import timm

    for name in timm.list_models(module=family):
        with torch.device("meta"):
            size = weight_bytes(timm.create_model(name))
        if size <= LARGEST:
            return timm.create_model(name).train(kind == "train")
    raise ValueError("no model is small")


def picture(model: Any) -> dict[str, torch.Tensor]:
    """Two for a model of timm."""
    cfg = model.default_cfg
    channels, height, width = cfg["input_size"]
    if not cfg.get("fixed_input_size"):
        height, width = min(height, SIDE), min(width, SIDE)
    return {
        next(iter(inspect.signature(model.forward).parameters)): torch.randn(
            2, channels, height, width
        )
    }


def weight_bytes(model: Any) -> int:
    """What its parameters take."""
    return sum(p.nbytes for p in model.parameters())


def inputs_of(model: Any) -> dict[str, torch.Tensor]:
    """What its forward asks for, as far as that is of the usual kinds."""
    config, names = model.config, inspect.signature(model.forward).parameters
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", 32)
    side = side if isinstance(side, int) else side[0]
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": lambda: torch.randint(3, 299, (2, 12)),
        "decoder_input_ids": lambda: torch.randint(3, 299, (2, 6)),
        "pixel_values": lambda: torch.randn(2, 3, side, side),
        "input_values": lambda: torch.randn(2, 4000),
        "input_features": lambda: torch.randn(2, 80, 2 * config.max_source_positions),
    }
    return {name: make() for name, make in makers.items() if name in names}


def tensors(output: Any) -> list[torch.Tensor]:
    """All that came out."""
    plain = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [leaf for leaf in tree_leaves(plain) if isinstance(leaf, torch.Tensor)]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit for bit, but for what is no number."""
    return len(some) == len(others) and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(some, others, strict=True)
    )


def work_of(kind: str, model: Any, given: dict[str, Any], steps: int) -> Any:
    """What is done with a model, and gives tensors to compare; the same for each copy."""
    if kind in FORWARD:
        return lambda m: [t for _ in range(3) for t in tensors(m(**given))]
    ids = torch.randint(3, 290, (2, 12))
    if kind == "generate":
        options = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
        return lambda m: [m.generate(ids, **options) for _ in range(2)]
    text = isinstance(model, transformers.PreTrainedModel)

    def train(m: Any) -> list[torch.Tensor]:
        losses = []
        for step in range(steps):
            torch.manual_seed(step)  # dropout
            out = [m(input_ids=ids + step, use_cache=False).logits] if text else tensors(m(**given))
            loss = sum(one.float().square().mean() for one in out)
            loss.backward()
            m.optimizer.step()
            m.optimizer.zero_grad()
            losses.append(loss.detach().clone())
        return losses

    return train


def prepared(kind: str, model: Any) -> Any:
    """A copy, with its optimizer where it is trained."""
    made = copy.deepcopy(model)
    if kind == "train":
        made.optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    return made


def run_within(kind: str, model: Any, budget: int, work: Any) -> tuple[Any, list[torch.Tensor]]:
    """Attach, work, detach; the statistics and what came out, weights and all."""
    options = {"device": "emulated", "emulated": EMULATED, "chunk_size": "16KiB"}
    if kind == "encoded":
        options["compress"] = "bf16"
    if kind == "train":
        attached = penstock.attach_training(model, model.optimizer, gpu_memory=budget, **options)
    else:
        attached = penstock.attach(model, gpu_memory=budget, **options)
    try:
        got = work(model)
        if kind == "encoded":
            attached.verify()
        stats = attached.stats()
    except BaseException:
        attached.detach(keep=False)
        raise
    attached.detach()
    return stats, [*got, *model.state_dict().values()]


LIBRARIES = {
    "transformers": Library(lambda kind: sorted(classes(kind)), of_transformers, inputs_of),
    "timm": Library(families, of_timm, picture),
    "torchvision": Library(of_torchvision.names, of_torchvision.make, of_torchvision.inputs),
    "diffusers": Library(of_diffusers.names, of_diffusers.make, of_diffusers.inputs),
}


@contextmanager
def limited() -> Iterator[None]:
    """Without what the host has not: some architectures' defaults take tens of gigabytes."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MADE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def judge(library: Library, kind: str, name: str, steps: int) -> dict[str, Any]:
    """One architecture's row."""
    try:
        torch.manual_seed(0)
        with limited():
            model = library.make(kind, name)
        weights = weight_bytes(model) // (2 if kind == "encoded" else 1)
        if weights > LARGEST:
            return {"name": name, "apart": f"{weights / MIB:.0f} MiB"}
        torch.manual_seed(1)
        given = library.inputs(model) if kind != "generate" else {}
        if kind == "encoded":
            model.bfloat16()
            given = tree_map_only(
                torch.Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t, given
            )
        work = work_of(kind, model, given, steps)
        with torch.set_grad_enabled(kind == "train"):
            first, again = prepared(kind, model), prepared(kind, model)
            came = work(first)
            if not came:
                return {"name": name, "apart": "gives no tensor"}
            want = [*came, *first.state_dict().values()]
            if not same(want, [*work(again), *again.state_dict().values()]):
                return {"name": name, "apart": "does not repeat itself"}
    except Exception as error:  # each fails in its own way
        return {"name": name, "apart": f"{type(error).__name__}: {error}".splitlines()[0][:120]}

    def run(budget: int) -> dict[str, Any]:
        stats, got = run_within(kind, prepared(kind, model), budget, work)
        keys = ["bytes_in", "mismatches"]
        keys += ["encoded_bytes", "code_bytes"] if kind == "encoded" else []
        return {"same": same(want, got), **{key: getattr(stats, key) for key in keys}}

    with torch.set_grad_enabled(kind == "train"):
        row = {"name": name, "weight_bytes": weights}
        return row | within_least(SHARES[kind], weights, run)


def within_least(
    shares: Iterable[float], weights: int, run: Callable[[int], dict[str, Any]]
) -> dict[str, Any]:
    """What came of the first budget, a share of the weights, that is no OutOfMemory."""
    row: dict[str, Any] = {}
    for share in shares:
        try:
            return {**row, "share": share, **run(int(share * weights) + 64 * KIB)}
        except OutOfMemory as error:
            row["out_of_memory"] = str(error)[:200]
        except Exception as error:  # whatever it is, it is ours
            return {**row, "failed": f"{type(error).__name__}: {error}"[:400]}
    return row


def judge_apart(library: str, kind: str, names: list[str], steps: int) -> list[dict[str, Any]]:
    """Rows of some, in a process that may end."""
    rows: list[dict[str, Any]] = []
    while left := names[len(rows) :]:
        command = [sys.executable, __file__, kind, "--library", library, "--rows"]
        command += ["--steps", str(steps), "--only", *left]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
            out, how = run.stdout, f"exit {run.returncode}"
        except subprocess.TimeoutExpired as error:
            out, how = (error.stdout or b"").decode(), f"more than {TIMEOUT_S} s"
        rows += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if len(rows) < len(names):
            rows.append({"name": names[len(rows)], "failed": f"the process ended: {how}"})
    return rows


def ended(record: Record) -> int:
    """Say how many there are of each verdict; an exit status."""
    counts = Counter(map(verdict, record.rows))
    print(", ".join(f"{count} {word}" for word, count in counts.most_common()))
    return int(bool(counts["other bits"] + counts["failed"]))


def main() -> int:
    """Judge all, or some."""
    parser = script_parser(__doc__)
    parser.add_argument("kind", choices=SHARES)
    parser.add_argument("--library", choices=LIBRARIES, default="transformers")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument(
        "--steps",
        type=int,
        default=3,
        help="of training; from the ninth on updates are in backward",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    library = LIBRARIES[given.library]
    if given.rows:
        for name in given.only:
            print(json.dumps(judge(library, given.kind, name, given.steps)), flush=True)
        return 0
    names = given.only or library.names(given.kind)
    record = Record(
        given.json,
        card=False,
        library=given.library,
        version=version(given.library),
        kind=given.kind,
        architectures=len(names),
        steps=given.steps,
    )
    for at in range(0, len(names), AT_ONCE):
        for row in judge_apart(given.library, given.kind, names[at : at + AT_ONCE], given.steps):
            record.add(row)
    return ended(record)


if __name__ == "__main__":
    sys.exit(main())
