# SPDX-License-Identifier: Apache-2.0
"""``penstock estimate``: what a model needs and how fast it can be, from its shape alone.

Invariant: needs neither torch nor a GPU and allocates nothing. The figures are bounds, not
forecasts: no run is faster than ``max(T, (M - S) / B)`` a step, where T is the time with
everything resident, M the bytes that a step touches, S the part of them that the budget can keep
and B the speed of the link.  Of an embedding table a step reads a few rows, from the host where
room is short; so tables do not count in M, unless lm_head multiplies by them (a tied head).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from penstock.bound import copy_ms, must_cross
from penstock.config import Settings
from penstock.config.checks import sequence_length
from penstock.errors import OutOfMemory, UsageError
from penstock.models.configs import GPTConfig, dtype_bytes, dtype_name, get_config
from penstock.models.folder import Folder, read_folder
from penstock.models.shapes import find_shape, unknown_model
from penstock.report.table import Column, print_table
from penstock.results import with_head
from penstock.units import MIB, format_bytes, format_number, parse_size

from .common import LINKS, STDOUT, Output, between, verb

# Device memory is handed out in multiples of this by the drivers we know.
GRANULARITY = 2 * MIB
# cuBLAS keeps 32 MiB for itself on recent GPUs, and torch rounds what it takes up to segments.
WORKSPACE_BYTES = 40 * MIB
# Page-locked copies over PCIe 5.0 x16, as measured on an H200.
LINK_GB_PER_S = 55.0
# Sequences of a step beyond which nobody goes.
MOST_BATCH = 10**9
# Shares of what a step touches for which the table shows what a step costs.
SHARES = (0.1, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Work:
    """What is to be run, and on what.

    Attributes:
        name: Of the model.
        parameters: How many it has.
        weight_bytes: Bytes of all parameters.
        touched_bytes: M: the bytes of the weights that a step reads.
        largest_layer_bytes: The most that has to be resident at one moment.
        link_gb_per_s: Speed of page-locked copies to the device, in decimal GB/s.
        batch: Sequences a step; None where activations are not counted.
        seq_len: Tokens per sequence.
        dtype: Dtype of weights and activations; None where the files decide it.
        activation_bytes: Peak of the activations of one forward pass; None: not counted.
        compute_tflops: What the device computes at, or None where that is not counted.
        compute_ms: T: the time of a step with everything resident.
        expert_bytes: Bytes of experts, of which a router chooses.
        chosen_share: The share of them that a step reads.
    """

    name: str
    parameters: int
    weight_bytes: int
    touched_bytes: int
    largest_layer_bytes: int
    link_gb_per_s: float
    batch: int | None = None
    seq_len: int | None = None
    dtype: str | None = None
    activation_bytes: int | None = None
    compute_tflops: float | None = None
    compute_ms: float | None = None
    expert_bytes: int = 0
    chosen_share: float = 1.0

    @property
    def fixed_bytes(self) -> int:
        """What the budget has to hold besides weights."""
        return _round_up((self.activation_bytes or 0) + WORKSPACE_BYTES)

    @property
    def smallest_budget_bytes(self) -> int:
        """The largest layer, which may begin and end inside a chunk, and what is not weights."""
        layer = min(self.largest_layer_bytes + GRANULARITY, self.weight_bytes)
        return self.fixed_bytes + _round_up(layer)

    @property
    def resident_budget_bytes(self) -> int:
        """The budget from which on nothing has to move."""
        unread = int(self.expert_bytes * (1 - self.chosen_share))
        return self.fixed_bytes + _round_up(self.touched_bytes + unread)

    def at(self, budget: int) -> Step:
        """What a step costs at best within a budget of `budget` bytes."""
        chosen = int(self.expert_bytes * self.chosen_share)
        moved = must_cross(
            self.touched_bytes - chosen,
            max(0, budget - self.fixed_bytes),
            experts=self.expert_bytes,
            chosen=chosen,
        )
        link_ms = copy_ms(moved, self.link_gb_per_s)
        return Step(budget, moved, link_ms, max(link_ms, self.compute_ms or 0.0))


def of_shape(
    config: GPTConfig, batch: int, seq_len: int, dtype: str, link: float, tflops: float | None
) -> Work:
    """A step of a shape that is known: activations and compute follow from it."""
    counts = config.module_parameter_counts()
    tables = counts["position_embedding"] + (0 if config.tied else counts["token_embedding"])
    flops = config.flops_per_token(seq_len) * batch * seq_len
    return Work(
        name=config.name,
        parameters=config.parameter_count(),
        weight_bytes=config.weight_bytes(dtype),
        touched_bytes=config.weight_bytes(dtype) - tables * dtype_bytes(dtype),
        largest_layer_bytes=config.largest_module_bytes(dtype),
        link_gb_per_s=link,
        batch=batch,
        seq_len=seq_len,
        dtype=dtype,
        activation_bytes=config.activation_bytes(batch, seq_len, dtype),
        compute_tflops=tflops,
        compute_ms=None if tflops is None else flops / tflops / 1e9,
    )


def of_folder(folder: Folder, link: float) -> Work:
    """A step of one token through the model of a checkpoint: of it the weights are known."""
    return Work(
        name=folder.name,
        parameters=folder.parameters,
        weight_bytes=folder.weight_bytes,
        touched_bytes=folder.touched_bytes,
        largest_layer_bytes=folder.largest_module_bytes,
        link_gb_per_s=link,
        expert_bytes=folder.expert_bytes,
        chosen_share=folder.chosen_share,
    )


@dataclass(frozen=True)
class Step:
    """The best that a step can be within a budget: bytes over the link, and milliseconds."""

    gpu_memory_bytes: int
    bytes_in: int
    link_ms: float
    step_ms: float


@click.command()
@click.argument("model", required=False, metavar="MODEL|FOLDER")
@click.option(
    "--batch", type=click.IntRange(1, MOST_BATCH), default=1, show_default=True, help="Sequences."
)
@click.option("--seq-len", type=click.IntRange(1), help="Tokens per sequence.  [default: 1024]")
@click.option(
    "--dtype", default="float32", show_default=True, help="Type of weights and activations."
)
@click.option(
    "--link",
    type=float,
    callback=between(*LINKS, " GB/s"),
    metavar="GB/s",
    default=LINK_GB_PER_S,
    show_default=True,
    help="Speed of the host link; penstock doctor measures yours.",
)
@click.option(
    "--compute-tflops",
    type=float,
    callback=between(1e-3, 1e9),
    metavar="TFLOPS",
    help="What the GPU computes at; not counted unless given.",
)
@verb("gpu_memory", check_file=False)
def command(
    model: str | None,
    batch: int,
    seq_len: int | None,
    dtype: str,
    link: float,
    compute_tflops: float | None,
    settings: Settings,
    output: Output,
) -> None:
    """Say what a model needs and how fast it can be.

    Weights, activations, the smallest budget, and the shortest step that the link
    and the GPU allow. Of a FOLDER with safetensors files, any model's or pipeline's,
    the weights: what a token reads of them, experts by how many are chosen. Needs no
    GPU and no torch.

    \b
    Examples:
      penstock estimate gpt3_6.7b --dtype float16 --gpu-memory 8GiB --link 55
      penstock estimate path/to/checkpoint --gpu-memory 8GiB
    """  # noqa: D301
    if model is None and output.flag == "--json" and output.json_file not in (None, STDOUT):
        # "--json MODEL": the word after --json was meant as the model.
        model, output = output.json_file, Output(STDOUT)
    output.check()
    if model is None:
        raise UsageError("no model was given", remedy="penstock estimate gpt2_xl")
    if find_shape(model) is None:
        if not os.path.isdir(model):
            if os.path.exists(model):
                parent = os.path.dirname(model) or "."
                raise UsageError(f"{model} is a file", remedy=f"penstock estimate {parent}")
            raise unknown_model(model)
        _refuse_shapes(model)
        work = of_folder(read_folder(Path(model)), link)
    else:
        config = get_config(model)
        length = sequence_length(seq_len, 1024, config.n_positions, config.name)
        work = of_shape(config, batch, length, dtype_name(dtype), link, compute_tflops)
    chosen = _chosen(work, settings.gpu_memory)
    output.emit(_document(work, chosen), lambda: _print(work, chosen))


def _refuse_shapes(folder: str) -> None:
    """Refuse what is asked of activations and compute, of which a folder tells nothing.

    Raises:
        UsageError: If any of it was given.
    """
    context = click.get_current_context()
    for name in ("batch", "seq_len", "dtype", "compute_tflops"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} cannot be given with {folder}, of which the weights alone are known",
                remedy=f"leave {flag} out",
            )


def _chosen(work: Work, gpu_memory: str) -> Step | None:
    """The step within the budget that was asked for, if one was.

    Raises:
        OutOfMemory: If the budget is too small for the model.
    """
    if gpu_memory == "auto":
        return None
    budget = parse_size(gpu_memory, name="--gpu-memory")
    smallest = work.smallest_budget_bytes
    if budget < smallest:
        raise OutOfMemory(
            f"{format_bytes(budget)} cannot hold the largest layer of {work.name} "
            f"({format_bytes(work.largest_layer_bytes)}) and its activations and workspace "
            f"({format_bytes(work.fixed_bytes)})",
            remedy=f"--gpu-memory {smallest // MIB}MiB",
            needed_bytes=smallest,
            budget_bytes=budget,
        )
    return work.at(budget)


def _table(work: Work) -> list[Step]:
    """Steps over budgets from the smallest to everything resident."""
    smallest = work.smallest_budget_bytes
    budgets = {smallest, max(smallest, work.resident_budget_bytes)}
    for share in SHARES:
        budget = _round_up(int(share * work.touched_bytes)) + work.fixed_bytes
        if budget > 1.1 * smallest:
            budgets.add(budget)
    return [work.at(budget) for budget in sorted(budgets)]


def _verdict(work: Work, chosen: Step | None) -> str:
    name = work.name
    if chosen is None:
        return (
            f"{name} runs in any budget from {_mib(work.smallest_budget_bytes)}; from "
            f"{_mib(work.resident_budget_bytes)} on nothing has to move"
        )
    budget = format_bytes(chosen.gpu_memory_bytes)
    if chosen.bytes_in == 0:
        return f"{name} fits in {budget}: nothing has to move"
    if work.compute_ms is None:
        pace = f"the link needs {_ms(chosen.link_ms)} for that"
    elif chosen.link_ms > work.compute_ms:
        pace = f"{_ms(chosen.step_ms)} at best, {chosen.step_ms / work.compute_ms:.1f} x resident"
    else:
        pace = f"hidden behind {_ms(chosen.step_ms)} of compute"
    return f"{name} runs in {budget}: {format_bytes(chosen.bytes_in)} move a step, {pace}"


def _document(work: Work, chosen: Step | None) -> dict[str, Any]:
    values = {
        "model": work.name,
        "batch": work.batch,
        "seq_len": work.seq_len,
        "dtype": work.dtype,
        "link_gb_per_s": work.link_gb_per_s,
        "compute_tflops": work.compute_tflops,
        "parameters": work.parameters,
        "weight_bytes": work.weight_bytes,
        "touched_bytes": work.touched_bytes,
        "activation_bytes": work.activation_bytes,
        "workspace_bytes": WORKSPACE_BYTES,
        "largest_layer_bytes": work.largest_layer_bytes,
        "smallest_gpu_memory_bytes": work.smallest_budget_bytes,
        "resident_gpu_memory_bytes": work.resident_budget_bytes,
        "host_memory_bytes": work.weight_bytes,
        "compute_ms": work.compute_ms,
        "gpu_memory_bytes": chosen.gpu_memory_bytes if chosen else None,
        "bytes_in": chosen.bytes_in if chosen else None,
        "step_ms": chosen.step_ms if chosen else None,
        "budgets": [asdict(step) for step in _table(work)],
        "verdict": _verdict(work, chosen),
    }
    return with_head("estimate", values)


def _print(work: Work, chosen: Step | None) -> None:
    shape = "one token" if work.batch is None else f"{work.batch} x {work.seq_len:,} tokens"
    dtype = "" if work.dtype is None else f", {work.dtype}"
    click.echo(f"{work.name}: {work.parameters:,} parameters, {shape}{dtype}\n")
    activations = work.activation_bytes
    compute = "not counted" if work.compute_ms is None else _ms(work.compute_ms)
    for name, value in (
        ("weights", format_bytes(work.weight_bytes)),
        ("read each step", format_bytes(work.touched_bytes)),
        ("activations", "not counted" if activations is None else format_bytes(activations)),
        ("workspace", format_bytes(WORKSPACE_BYTES)),
        ("largest layer", format_bytes(work.largest_layer_bytes)),
        ("smallest budget", _mib(work.smallest_budget_bytes)),
        ("host memory", format_bytes(work.weight_bytes)),
        ("compute", compute),
    ):
        click.echo(f"{name:16} {value:>12}")
    click.echo()
    steps = _table(work) if chosen is None else [chosen]
    columns = [Column(title, right=True) for title in ("budget", "moved a step", "ms at best")]
    rows = [
        (_mib(step.gpu_memory_bytes), format_bytes(step.bytes_in), format_number(step.step_ms))
        for step in steps
    ]
    print_table(columns, rows)
    click.echo(f"\n{_verdict(work, chosen)} (estimated, link {work.link_gb_per_s:g} GB/s)")


def _round_up(count: int) -> int:
    return -(-count // GRANULARITY) * GRANULARITY


def _mib(count: int) -> str:
    """A size that can be given back as a budget: exact, in MiB."""
    return f"{count // MIB} MiB"


def _ms(value: float) -> str:
    return f"{format_number(value)} ms"
