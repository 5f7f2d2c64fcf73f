# SPDX-License-Identifier: Apache-2.0
"""What is asked of the runner, checked as far as that can be done without torch.

Invariant: a `Request` that passed `checked()` names a known model or a checkpoint, a known dtype
and counts that make sense together; only what a checkpoint says can still refuse it. Pure Python,
so that wrong usage is answered before torch is imported, or where it is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.config import Settings
from penstock.config.checks import check_known, check_least, sequence_length
from penstock.errors import FailedError, UsageError
from penstock.fusion.variants import AUTO, BASELINE, split
from penstock.models.configs import GPTConfig, dtype_name, get_config

MEMORIES = ("vmm", "managed", "resident")
DEFAULT_MODEL = "gpt2_small"
DEFAULT_STEPS = 10
DEFAULT_WARMUPS = 2
DEFAULT_SEQ_LEN = 1024
DEFAULT_GENERATE = 100
# The fields of a shape that decide whether weights of the one fit the other.
_SHAPE = ("n_layers", "n_heads", "d_model", "vocab_size", "n_positions", "d_ff")


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        model: Name of a shape; None takes the checkpoint's, or `DEFAULT_MODEL`.
        memory: One of `MEMORIES`.
        fusion: Variants of the layers, as `penstock.fusion.split` takes them.
        compile: Whether torch.compile compiles the layers.
        cuda_graph: Whether a step, or a token, runs as one CUDA graph.
        batch: Sequences per step.
        seq_len: Tokens a sequence; None for 1,024 or as many as the model has positions.
        dtype: Dtype of weights and activations.
        steps: Timed steps; None for 10, or for none where there is a prompt.
        warmups: Steps before the timed ones.
        seed: Decides made-up weights, inputs and draws.
        weights: Directory of a checkpoint; None for made-up weights.
        prompt: Text to continue; the weights are then those of a checkpoint.
        generate: Tokens to add to the prompt.
        temperature: Of the draws; 0 takes the most likely token.
        check: Whether to compare with the resident baseline.
        prefetch: Whether managed memory is prefetched.
        num_streams: Streams that managed prefetches take in turn.
        cudnn_benchmark: Whether cuDNN may try its algorithms out.
        allow_oversubscription: Whether managed memory may exceed the card's free memory.
        settings: Device, budget and what else the table of options decides.
    """

    model: str | None = None
    memory: str = "vmm"
    fusion: str = BASELINE
    compile: bool = False
    cuda_graph: bool = False
    batch: int = 1
    seq_len: int | None = None
    dtype: str = "float32"
    steps: int | None = None
    warmups: int = DEFAULT_WARMUPS
    seed: int = 0
    weights: Path | None = None
    prompt: str | None = None
    generate: int | None = None
    temperature: float = 0.7
    check: bool = False
    prefetch: bool = False
    num_streams: int = 3
    cudnn_benchmark: bool = False
    allow_oversubscription: bool = False
    settings: Settings = field(default_factory=Settings)

    @property
    def bitwise(self) -> bool:
        """Whether the outputs are to be those of the baseline, bit for bit.

        A captured token is attention over a cache of a fixed length, which adds up differently.
        """
        captured_text = self.cuda_graph and self.prompt is not None
        return self.fusion == BASELINE and not self.compile and not captured_text

    @property
    def timed_steps(self) -> int:
        """Steps over made-up tokens: 0 where only text was asked for."""
        if self.steps is not None:
            return self.steps
        return DEFAULT_STEPS if self.prompt is None else 0

    @property
    def new_tokens(self) -> int:
        """Tokens to add to the prompt."""
        return DEFAULT_GENERATE if self.generate is None else self.generate

    def tokens_in_a_sequence(self, config: GPTConfig) -> int:
        """`seq_len`, or its default for the shape.

        Raises:
            UsageError: If the shape has fewer positions.
        """
        return sequence_length(self.seq_len, DEFAULT_SEQ_LEN, config.n_positions, config.name)


def checked(request: Request) -> Request:
    """The request with its dtype spelled out, if everything in it makes sense.

    Raises:
        UsageError: If something does not.
    """
    check_known("--memory", request.memory, MEMORIES)
    fusion = ",".join(split(request.fusion, what="--fusion"))
    if request.compile and request.memory != "resident":
        raise UsageError(
            f"--compile with --memory {request.memory}: the hooks between modules leave a "
            "compiler nothing to fuse",
            remedy="--memory resident",
        )
    if request.cuda_graph and request.memory != "resident":
        raise UsageError(
            f"--cuda-graph with --memory {request.memory}: a graph holds addresses, and pages "
            "come and go",
            remedy="--memory resident",
        )
    if request.settings.compress == "bf16" and request.memory != "vmm":
        raise UsageError(
            f"--compress bf16 with --memory {request.memory}, where no page is encoded",
            remedy="--memory vmm, or --compress auto",
        )
    if request.compile and fusion == AUTO:
        raise UsageError(
            "--compile with --fusion auto, which is measured without it",
            remedy="--fusion baseline, or a list of variants",
        )
    check_least(
        ("--batch", request.batch, 1),
        ("--seq-len", request.seq_len, 1),
        ("--steps", request.steps, 1),
        ("--warmups", request.warmups, 0),
        ("--generate", request.generate, 1),
        ("--num-streams", request.num_streams, 0),
        ("--seed", request.seed, 0),
    )
    if request.seed >= 2**63:
        raise UsageError(f"--seed {request.seed} makes no sense", remedy="less than 2**63")
    if not 0.0 <= request.temperature < float("inf"):
        raise UsageError(f"--temperature {request.temperature} makes no sense", remedy="0 or more")
    config = None if request.model is None else get_config(request.model)
    _check_text(request)
    if request.weights is None and request.prompt is None:
        request.tokens_in_a_sequence(config or get_config(DEFAULT_MODEL))
    return replace(request, dtype=dtype_name(request.dtype), fusion=fusion)


def _check_text(request: Request) -> None:
    if request.prompt is None:
        if request.generate is not None:
            raise UsageError("--generate needs a text to continue", remedy="--prompt TEXT")
        return
    if not request.prompt:
        raise UsageError("--prompt is empty", remedy="a text of one word or more")
    try:
        request.prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--prompt is not UTF-8: character {error.start + 1} is a lone byte",
            remedy="a text in UTF-8",
        ) from error
    if request.weights is None and request.model is not None:
        raise UsageError(
            f"{request.model} has made-up weights here, and no tokenizer",
            remedy="--weights DIR, or --prompt without --model for the checkpoint that is included",
        )


def check_shape(wanted: str | None, found: GPTConfig) -> None:
    """Refuse a checkpoint that is not of the model that was named with it.

    Raises:
        FailedError: With the first difference.
    """
    if wanted is None:
        return
    config = get_config(wanted)
    for name in _SHAPE:
        if getattr(config, name) != getattr(found, name):
            raise FailedError(
                f"the checkpoint {found.name} has {name} {getattr(found, name)}, "
                f"{config.name} has {getattr(config, name)}",
                remedy="--weights without --model",
            )
