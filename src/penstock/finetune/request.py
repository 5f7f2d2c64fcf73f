# SPDX-License-Identifier: Apache-2.0
"""What is asked of a fine-tune, checked as far as that can be done without torch.

Invariant: a `Request` that passed `checked()` names a known shape or a folder that is there, files
that are there, and counts and engines that make sense together. Pure Python; a request turns into
JSON and back, which is how the processes of several GPUs get it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.config import Settings
from penstock.config.checks import check_known, check_least, sequence_length
from penstock.errors import FailedError, UsageError
from penstock.models.shapes import Shape, find_shape, unknown_model

from .strategy import Strategy, parse_strategy

ALLOCATORS = ("stitch", "native", "expandable")
MEMORIES = ("auto", "paged", "resident")
LENGTHS = ("fixed", "varied")
DTYPES = ("mixed", "float32", "bfloat16")
SYNTHETIC = "synthetic"
DEFAULT_SEQ_LEN = 512
# Adapters start at nothing and bear more than weights that were trained for long.
LEARNING_RATES = {True: 2e-4, False: 2e-5}


@dataclass(frozen=True)
class Request:
    """One fine-tune.

    Attributes:
        model: Name of a shape, or the folder of a checkpoint.
        strategy: Letters, as `parse_strategy` takes them.
        batch: Sequences per step on each GPU.
        seq_len: Most tokens a sequence; None for 512 or as many as the model has positions.
        steps: Steps in all, those before a checkpoint included.
        gpus: Processes, one per GPU.
        zero: Stage of DeepSpeed's ZeRO, or None.
        fsdp: Whether FSDP2 shards the model.
        allocator: One of `ALLOCATORS`.
        memory: One of `MEMORIES`: whether Penstock pages what does not fit, on one GPU.
        data: `SYNTHETIC`, or a file of text or JSON lines.
        data_field: Which field of a JSON line is the text.
        lengths: One of `LENGTHS`, of synthetic sequences.
        eval_every: Steps between evaluations; None for none.
        eval_data: File to evaluate on; None holds synthetic sequences out.
        checkpoint: Folder of checkpoints, or None.
        save_every: Steps between checkpoints; None saves at the end alone.
        resume: Whether to go on from the newest checkpoint, where there is one.
        seed: Decides random weights, sequences, their order and dropout.
        lr: AdamW's learning rate; None takes `LEARNING_RATES`.
        lora_rank: Rank of the adapters.
        dtype: "mixed" (fp32 weights where they are trained, bf16 where frozen, bf16 autocast),
            or one dtype for weights, gradients and optimizer state.
        find_batch: Whether to look for the largest batch first, and train with that.
        settings: Device, budget and what else the table of options decides.
    """

    model: str
    strategy: str = "N"
    batch: int = 8
    seq_len: int | None = None
    steps: int = 10
    gpus: int = 1
    zero: int | None = None
    fsdp: bool = False
    allocator: str = "stitch"
    memory: str = "auto"
    data: str = SYNTHETIC
    data_field: str = "text"
    lengths: str = "fixed"
    eval_every: int | None = None
    eval_data: str | None = None
    checkpoint: str | None = None
    save_every: int | None = None
    resume: bool = False
    seed: int = 0
    lr: float | None = None
    lora_rank: int = 64
    dtype: str = "mixed"
    find_batch: bool = False
    settings: Settings = field(default_factory=Settings)

    @property
    def ways(self) -> Strategy:
        """The strategy's parts."""
        return parse_strategy(self.strategy)

    @property
    def shape(self) -> Shape | None:
        """The named shape; None where `model` is a folder."""
        return find_shape(self.model)

    @property
    def engine(self) -> str:
        """Who runs the step: "single", "ddp", "fsdp", "zero0" to "zero3"."""
        if self.zero is not None:
            return f"zero{self.zero}"
        if self.fsdp:
            return "fsdp"
        return "single" if self.gpus == 1 else "ddp"

    @property
    def paged(self) -> bool:
        """Whether Penstock's pager serves this run: one GPU, beyond its budget.

        A search for the largest batch asks what fits with everything resident, unless O is said.
        """
        if self.engine != "single" or self.memory == "resident":
            return False
        if self.memory == "paged" or self.ways.offload:
            return True
        return self.has_budget and not self.find_batch

    @property
    def has_budget(self) -> bool:
        """Whether somebody set one."""
        return self.settings.gpu_memory != "auto"

    @property
    def learning_rate(self) -> float:
        """`lr`, or its default for the strategy."""
        return LEARNING_RATES[self.ways.lora] if self.lr is None else self.lr

    def longest(self, positions: int) -> int:
        """Most tokens a sequence, for a model of so many positions.

        Raises:
            UsageError: If `seq_len` is more.
        """
        return sequence_length(self.seq_len, DEFAULT_SEQ_LEN, positions, self.model)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Request:
        """The request that `dataclasses.asdict` gave."""
        values = dict(document)
        return Request(settings=Settings(**values.pop("settings")), **values)


def checked(request: Request) -> Request:
    """The request in its usual spelling, if everything in it makes sense.

    Raises:
        UsageError: If something does not.
        FailedError: If a file is not there.
    """
    ways = request.ways
    check_known("--allocator", request.allocator, ALLOCATORS)
    check_known("--memory", request.memory, MEMORIES)
    check_known("--lengths", request.lengths, LENGTHS)
    check_known("--dtype", request.dtype, DTYPES)
    _check_counts(request)
    _check_engine(request)
    _check_files(request)
    shape = request.shape
    if shape is None and not Path(request.model).is_dir():
        raise unknown_model(request.model)
    if shape is None and not (Path(request.model) / "config.json").is_file():
        raise FailedError(
            f"{request.model} holds no config.json",
            remedy="the folder of a Hugging Face checkpoint",
        )
    if shape is not None:
        request.longest(shape.positions)
        request = replace(request, model=shape.name)
        if request.data != SYNTHETIC or request.eval_data is not None:
            raise UsageError(
                f"{shape.name} has random weights here, and no tokenizer for a file of text",
                remedy="--model FOLDER of a checkpoint, or --data synthetic",
            )
    return replace(request, strategy=ways.name)


def _check_counts(request: Request) -> None:
    check_least(
        ("--batch", request.batch, 1),
        ("--seq-len", request.seq_len, 2),
        ("--steps", request.steps, 1),
        ("--gpus", request.gpus, 1),
        ("--eval-every", request.eval_every, 1),
        ("--save-every", request.save_every, 1),
        ("--seed", request.seed, 0),
        ("--lora-rank", request.lora_rank, 1),
    )
    if request.seed >= 2**32:
        raise UsageError(f"--seed {request.seed} makes no sense", remedy="less than 2**32")
    if request.zero is not None and not 0 <= request.zero <= 3:
        raise UsageError(f"--zero {request.zero} makes no sense", remedy="a stage from 0 to 3")
    if request.lr is not None and not 0.0 < request.lr < float("inf"):
        raise UsageError(f"--lr {request.lr:g} makes no sense", remedy="a number above zero")


def _check_engine(request: Request) -> None:
    """One engine a run; the pager is for one GPU."""
    if request.fsdp and request.zero is not None:
        raise UsageError("--fsdp and --zero are two engines", remedy="one of them")
    if request.memory == "paged" and request.engine != "single":
        raise UsageError(
            f"--memory paged is for one GPU; {request.engine} has its own offload",
            remedy="--strategy with O, or --gpus 1 without --zero and --fsdp",
        )
    if request.memory == "resident" and request.ways.offload:
        raise UsageError("--memory resident with O in --strategy", remedy="one of them")
    if request.ways.offload and request.engine in ("ddp", "zero0"):
        raise UsageError(
            f"{request.engine} keeps everything on every GPU and cannot offload",
            remedy="--fsdp, or --zero 1 to 3",
        )
    if request.engine != "single" and request.settings.device.startswith("cuda:"):
        raise UsageError(
            f"--device {request.settings.device}: {request.engine} takes a GPU for each process",
            remedy="CUDA_VISIBLE_DEVICES, and --device cuda",
        )
    if request.find_batch and request.engine != "single":
        raise UsageError("--find-batch looks on one GPU", remedy="--gpus 1")
    if request.find_batch and request.resume:
        raise UsageError("--find-batch with --resume, whose batch is decided", remedy="one of them")


def _check_files(request: Request) -> None:
    for flag, name in (("--data", request.data), ("--eval-data", request.eval_data)):
        if name not in (None, SYNTHETIC) and not Path(str(name)).is_file():
            raise FailedError(f"{flag}: there is no file {name}", remedy="a text or JSONL file")
    if request.eval_data is not None and request.eval_every is None:
        raise UsageError("--eval-data without --eval-every", remedy="--eval-every 50")
    if request.eval_every is not None and request.eval_data is None and request.data != SYNTHETIC:
        raise UsageError("--eval-every needs text that is not trained on", remedy="--eval-data")
    if request.checkpoint is None and (request.resume or request.save_every is not None):
        flag = "--resume" if request.resume else "--save-every"
        raise UsageError(f"{flag} needs a folder", remedy="--checkpoint FOLDER")
    if request.checkpoint is not None and Path(request.checkpoint).is_file():
        raise FailedError(f"--checkpoint: {request.checkpoint} is a file", remedy="a folder")
