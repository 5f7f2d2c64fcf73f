# SPDX-License-Identifier: Apache-2.0
"""What runs: a shape, the weights that fill it, and a tokenizer where text is asked for.

Invariant: everything that can refuse a request without memory for a model refuses it here: the
checkpoint is opened and checked, the prompt is in tokens and fits the positions. Nothing has been
loaded yet when `open_subject` returns; the files of a checkpoint are mapped.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.fusion.parts import parts_for
from penstock.fusion.variants import Fusion
from penstock.models.checkpoint import open_checkpoint, shipped_checkpoint
from penstock.models.configs import GPTConfig, get_config
from penstock.models.generate import generate
from penstock.models.gpt import GPT, build_on_meta
from penstock.models.tokenizer import Tokenizer, open_tokenizer
from penstock.models.weights import Loader, synthetic_loader

from .request import DEFAULT_MODEL, Request, check_shape


@dataclass(frozen=True)
class Subject:
    """A model that could be loaded.

    Attributes:
        config: Its shape.
        dtype: Dtype of its weights and activations, by its full name.
        load: Fills one parameter.
        source: Where the weights come from, for people.
        tokenizer: Where there is a prompt.
        prompt_ids: The prompt in tokens; empty where there is none.
    """

    config: GPTConfig
    dtype: str
    load: Loader
    source: str
    tokenizer: Tokenizer | None
    prompt_ids: tuple[int, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.config.weight_bytes(self.dtype)

    def on_meta(self, fusion: Fusion) -> GPT:
        """The model with shapes and no memory."""
        return build_on_meta(self.config, dtype=self.dtype, parts=parts_for(fusion))


def open_subject(request: Request) -> Subject:
    """Find what is to run.

    Args:
        request: A checked request.

    Raises:
        FailedError: If the checkpoint is not there, damaged, or not of the model named with it.
        UsageError: If the sequence or the prompt does not fit the model.
        EnvironmentProblem: If a package for checkpoints is missing.
    """
    folder = request.weights
    if folder is None and request.prompt is not None:
        folder = shipped_checkpoint()
    if folder is None:
        config = get_config(request.model or DEFAULT_MODEL)
        load = synthetic_loader(config, request.seed)
        subject = Subject(config, request.dtype, load, f"seed {request.seed}", None, ())
    else:
        config, load = open_checkpoint(folder)
        check_shape(request.model, config)
        tokenizer = None if request.prompt is None else open_tokenizer(folder)
        ids = tuple(tokenizer.encode(request.prompt or "")) if tokenizer else ()
        subject = Subject(config, request.dtype, load, str(folder), tokenizer, ids)
    if request.timed_steps:
        request.tokens_in_a_sequence(config)
    if subject.tokenizer is not None:
        _check_prompt(subject, request)
    return subject


def _check_prompt(subject: Subject, request: Request) -> None:
    """`generate` refuses what cannot be met when it is called; its model is used only later."""

    def never(*_: object) -> object:
        raise AssertionError("the request is checked before the model runs")

    generate(
        never,  # type: ignore[arg-type]
        subject.config,
        subject.prompt_ids,
        max_new_tokens=request.new_tokens,
        temperature=request.temperature,
    )
