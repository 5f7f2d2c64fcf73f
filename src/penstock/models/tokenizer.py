# SPDX-License-Identifier: Apache-2.0
"""The checkpoint's own tokenizer: text to token ids and back.

Invariant: a thin cover over the tokenizers library, which is imported when a tokenizer is opened
and not before; `decode(encode(text))` is the text for a byte-level vocabulary such as GPT-2's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import EnvironmentProblem, FailedError

_END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """Text to token ids and back.

    Args:
        backend: A ``tokenizers.Tokenizer``.

    Attributes:
        vocab_size: Ids are below this number.
        end_id: Id of the token that ends a text, or None where the vocabulary has none.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size()
        self.end_id: int | None = backend.token_to_id(_END_OF_TEXT)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; an empty list for an empty text."""
        return list(self._backend.encode(text).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of `ids` piece by piece, as they come.

        A piece is held back while its last character is not complete; joined, the pieces are
        what `decode` gives.
        """
        seen: list[int] = []
        shown = ""
        for token in ids:
            seen.append(token)
            text = self.decode(seen)
            if not text.endswith("\ufffd") and len(text) > len(shown):
                yield text[len(shown) :]
                shown = text
        rest = self.decode(seen)[len(shown) :]
        if rest:
            yield rest


def open_tokenizer(directory: str | Path) -> Tokenizer:
    """Open tokenizer.json, or else vocab.json and merges.txt, of a checkpoint.

    Raises:
        FailedError: If neither is there, or what is there cannot be read.
        EnvironmentProblem: If the tokenizers library is not installed.
    """
    try:
        import tokenizers
    except ImportError:
        raise EnvironmentProblem(
            "turning text into tokens needs the tokenizers package",
            remedy="pip install 'penstock[hf]'",
        ) from None
    directory = Path(directory)
    whole = directory / "tokenizer.json"
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    if not whole.is_file() and not (vocab.is_file() and merges.is_file()):
        raise FailedError(
            f"{directory}: neither tokenizer.json nor vocab.json with merges.txt is there",
            remedy="copying the tokenizer's files beside config.json",
        )
    try:
        if whole.is_file():
            backend = tokenizers.Tokenizer.from_file(str(whole))
        else:
            backend = tokenizers.ByteLevelBPETokenizer.from_file(str(vocab), str(merges))
            if backend.token_to_id(_END_OF_TEXT) is not None:
                backend.add_special_tokens([_END_OF_TEXT])
    except Exception as error:  # the library raises bare Exception for a damaged file
        shown = whole if whole.is_file() else vocab
        raise FailedError(f"{shown}: not a readable tokenizer: {error}") from None
    return Tokenizer(backend)
