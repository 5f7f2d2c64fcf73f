# SPDX-License-Identifier: Apache-2.0
"""The tokenizer: any text comes back, pieces join to the whole, damaged files are refused."""

from __future__ import annotations

import builtins

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import EnvironmentProblem, FailedError
from penstock.models.tokenizer import Tokenizer, open_tokenizer

TEXT = ["the cat sat on the mat", "a caf\u00e9 and a na\u00efve \U0001f408", "the end of the text"]


def byte_level_bpe(vocab_size=300):
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        TEXT * 4, vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False
    )
    return bpe


BPE = byte_level_bpe()


@pytest.fixture(params=["tokenizer.json", "vocab.json and merges.txt"])
def directory(request, tmp_path):
    if request.param == "tokenizer.json":
        BPE.save(str(tmp_path / "tokenizer.json"))
    else:
        BPE.save_model(str(tmp_path))
    return tmp_path


def test_text_goes_to_ids_and_back(directory):
    tokenizer = open_tokenizer(directory)
    assert tokenizer.vocab_size == BPE.get_vocab_size()
    ids = tokenizer.encode(TEXT[1])
    assert ids == BPE.encode(TEXT[1]).ids
    assert tokenizer.decode(ids) == TEXT[1]
    assert tokenizer.encode("") == []


def test_the_end_of_text_is_one_token_and_not_shown(directory):
    tokenizer = open_tokenizer(directory)
    assert tokenizer.encode("cat<|endoftext|>")[-1] == tokenizer.end_id == 0
    assert tokenizer.decode(tokenizer.encode("cat<|endoftext|>")) == "cat"


@given(st.text(max_size=40))
def test_any_text_comes_back_and_pieces_join_to_the_whole(text):
    tokenizer = Tokenizer(BPE)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(tokenizer.decode_stream(ids)) == text


@given(st.lists(st.integers(0, BPE.get_vocab_size() - 1), max_size=30))
def test_any_ids_stream_as_they_decode(ids):
    tokenizer = Tokenizer(BPE)
    assert "".join(tokenizer.decode_stream(ids)) == tokenizer.decode(ids)


def test_a_piece_waits_for_its_last_character():
    tokenizer = Tokenizer(BPE)
    ids = tokenizer.encode("a\u4e16b")
    assert len(ids) == 5  # three bytes that training never saw together
    assert list(tokenizer.decode_stream(ids)) == ["a", "\u4e16", "b"]


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FailedError, match=r"neither tokenizer.json nor vocab.json"):
        open_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FailedError, match=r"neither tokenizer.json nor vocab.json"):
        open_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("no merges\n here at all\n")
    with pytest.raises(FailedError, match=r"vocab.json: not a readable tokenizer"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model":')
    with pytest.raises(FailedError, match=r"tokenizer.json: not a readable tokenizer") as caught:
        open_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_the_library_the_remedy_is_named(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def no_tokenizers(name, *args, **kwargs):
        if name == "tokenizers":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_tokenizers)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'penstock\[hf\]'"):
        open_tokenizer(tmp_path)
