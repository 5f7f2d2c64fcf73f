# SPDX-License-Identifier: Apache-2.0
"""Opening the data of a fine-tune: synthetic, a text, or JSON lines.

Invariant: everything that is wrong with a file is found here, before a model is built. Files are
read and tokenised whole: fine-tuning sets are of megabytes, and a token takes eight bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import FailedError

from .data import Source, Synthetic, Texts
from .model import Plan
from .request import SYNTHETIC, Request

_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")


def open_source(request: Request, plan: Plan) -> Source:
    """The sequences that the request means.

    Raises:
        FailedError: If a file cannot be read, holds no text, or the checkpoint has no tokenizer.
    """
    longest = request.longest(plan.positions)
    if request.data == SYNTHETIC and request.eval_data is None:
        varied = request.lengths == "varied"
        return Synthetic(plan.vocabulary, longest, varied=varied, seed=request.seed)
    tokenizer = _open_tokenizer(plan)
    held_out: list[Tensor] = []
    if request.eval_data is not None:
        held_out = _sequences(request.eval_data, request.data_field, tokenizer, longest)
    if request.data == SYNTHETIC:
        raise FailedError(
            "--eval-data with --data synthetic: random tokens teach nothing about a text",
            remedy="--data FILE, or without --eval-data",
        )
    return Texts(
        _sequences(request.data, request.data_field, tokenizer, longest), held_out, request.seed
    )


def _open_tokenizer(plan: Plan) -> Any:
    """The checkpoint's own tokenizer."""
    from transformers import AutoTokenizer

    assert plan.folder is not None
    try:
        # Without a vocabulary some classes make a tokenizer that knows nothing.
        if not any(file for pattern in _VOCABULARIES for file in plan.folder.glob(pattern)):
            raise FileNotFoundError(plan.folder)
        tokenizer = AutoTokenizer.from_pretrained(
            plan.folder, local_files_only=True, trust_remote_code=False
        )
        size = len(tokenizer)
    except Exception as error:  # each kind of tokenizer fails in its own way
        raise FailedError(
            f"{plan.folder} has no tokenizer that can be read",
            remedy="tokenizer.json beside its config.json, or --data synthetic",
        ) from error
    if not size or size > plan.vocabulary:
        raise FailedError(
            f"the tokenizer of {plan.folder} knows {size} tokens, the model {plan.vocabulary}",
            remedy="the tokenizer that the checkpoint was made with",
        )
    return tokenizer


def _sequences(name: str, field: str, tokenizer: Any, longest: int) -> list[Tensor]:
    """A file in tokens; what is longer than a sequence may be goes on in the next."""
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    found: list[Tensor] = []
    for text in _texts(Path(name), field):
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], *ends]
        for at in range(0, len(ids), longest):
            piece = ids[at : at + longest]
            if len(piece) > 1:  # one token has nothing to predict
                found.append(torch.tensor(piece, dtype=torch.long))
    if not found:
        raise FailedError(f"{name} holds no text to learn from", remedy="paragraphs of text")
    return found


def _texts(path: Path, field: str) -> Iterator[str]:
    """The texts of a file: a field of each JSON line, or paragraphs."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FailedError(f"{path} cannot be read: {error}", remedy="a file in UTF-8") from error
    if path.suffix not in (".jsonl", ".json", ".ndjson"):
        yield from (part.strip() for part in content.split("\n\n") if part.strip())
        return
    # Not splitlines(): JSON may have U+2028 and the like within a text.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield _field(path, number, line, field)


def _field(path: Path, number: int, line: str, field: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise FailedError(
            f"{path}, line {number} is not JSON: {said}", remedy="one object a line"
        ) from error
    if not isinstance(record, dict):
        raise FailedError(f"{path}, line {number} is not an object", remedy="one object a line")
    if not isinstance(record.get(field), str):
        known = ", ".join(f"{name}: {type(value).__name__}" for name, value in record.items())
        raise FailedError(
            f"{path}, line {number} has no text in '{field}' (there is {known})",
            remedy="--data-field NAME",
        )
    text = str(record[field])
    try:
        text.encode()
    except UnicodeEncodeError as error:  # no tokenizer takes it
        raise FailedError(
            f"{path}, line {number} has half of a letter in '{field}'",
            remedy="escapes in pairs, or the letter itself in UTF-8",
        ) from error
    return text
