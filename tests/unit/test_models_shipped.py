# SPDX-License-Identifier: Apache-2.0
"""The small GPT-2 that comes with Penstock: small, whole, the same as transformers, readable."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from penstock.models.checkpoint import open_checkpoint, shipped_checkpoint
from penstock.models.generate import generate
from penstock.models.gpt import KVCache
from penstock.models.tokenizer import open_tokenizer
from penstock.models.weights import load_model

CORPUS = Path(__file__).parents[2] / "examples" / "tiny_gpt2" / "corpus.txt.xz"
PROMPT = "The function returns"


@pytest.fixture(scope="module")
def shipped():
    config, load = open_checkpoint(shipped_checkpoint())
    return load_model(config, load), open_tokenizer(shipped_checkpoint())


def test_it_is_small_and_says_where_it_comes_from():
    files = {path.name: path.stat().st_size for path in shipped_checkpoint().iterdir()}
    assert set(files) == {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
    assert sum(files.values()) < 6e6
    readme = (shipped_checkpoint() / "README.md").read_text()
    assert "Python Software Foundation" in readme
    assert "Node.js contributors" in readme


def test_tokenizer_and_model_belong_together(shipped):
    model, tokenizer = shipped
    assert tokenizer.vocab_size == model.config.vocab_size
    assert tokenizer.end_id == 0
    assert tokenizer.decode(tokenizer.encode(PROMPT)) == PROMPT


@torch.no_grad()
def test_logits_are_those_of_transformers(shipped):
    transformers = pytest.importorskip("transformers")
    model, tokenizer = shipped
    theirs = transformers.GPT2LMHeadModel.from_pretrained(
        shipped_checkpoint(), dtype=torch.float32
    ).eval()
    text = lzma.decompress(CORPUS.read_bytes()).decode()[5000:7000]
    idx_BT = torch.tensor([tokenizer.encode(text)[: model.config.n_positions]])
    assert idx_BT.shape == (1, model.config.n_positions)
    ours_BTV, theirs_BTV = model(idx_BT), theirs(idx_BT).logits
    assert float((ours_BTV - theirs_BTV).abs().max()) < 1e-4
    assert float(theirs_BTV.std()) > 1


@torch.no_grad()
def test_it_has_learnt_its_language(shipped):
    """Perplexity far below the 2,048 of a model that knows nothing, on text it was not shown.

    The training script keeps every 33rd paragraph back.
    """
    model, tokenizer = shipped
    held_out = "".join(lzma.decompress(CORPUS.read_bytes()).decode().splitlines(True)[::33])
    rows = torch.tensor(tokenizer.encode(held_out)).unfold(0, 257, 257)
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    assert loss.exp() < 60


def test_what_it_writes_can_be_read(shipped):
    model, tokenizer = shipped
    prompt = tokenizer.encode(PROMPT)
    cache = KVCache(model.config)
    new = generate(
        model, model.config, prompt, max_new_tokens=120, temperature=0.7, seed=1, cache=cache
    )
    text = tokenizer.decode(new)
    words = re.findall(r"[a-z]+", text.lower())
    known = set(re.findall(r"[a-z]+", lzma.decompress(CORPUS.read_bytes()).decode().lower()))
    assert len(words) > 60
    assert sum(word in known for word in words) > 0.9 * len(words)
