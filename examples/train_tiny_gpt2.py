# SPDX-License-Identifier: Apache-2.0
"""Train the small GPT-2 that Penstock ships, on a CPU, in a quarter of an hour on two cores.

Reads examples/tiny_gpt2/corpus.txt.xz (its terms: LICENSES.md there), trains a byte-level BPE
vocabulary and a GPT-2 of 2.7 million parameters, and writes both in the Hugging Face layout.
The same seed and number of threads give the same weights.

    nice -n 10 python examples/train_tiny_gpt2.py --output src/penstock/models/data/tiny-gpt2
"""

from __future__ import annotations

import argparse
import lzma
import math
import time
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from penstock.models.configs import GPTConfig
from penstock.models.generate import generate
from penstock.models.gpt import GPT, KVCache
from penstock.models.tokenizer import Tokenizer

CORPUS = Path(__file__).resolve().parent / "tiny_gpt2" / "corpus.txt.xz"
END_OF_TEXT = "<|endoftext|>"
CONFIG = GPTConfig(
    "tiny-gpt2", n_layers=5, n_heads=6, d_model=192, vocab_size=2048, n_positions=256, tied=True
)
PEAK_RATE = 2e-3
WARMUP_STEPS = 100
HELD_OUT = 0.03


def train_vocabulary(corpus: str) -> tokenizers.Tokenizer:
    """A byte-level BPE, as GPT-2's own, of `CONFIG.vocab_size` tokens."""
    vocabulary = tokenizers.Tokenizer(models.BPE())
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    vocabulary.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    return vocabulary


def new_model() -> GPT:
    """A model to train: GPT-2's initial weights; attention without dropout.

    Dropout inside attention would take it off the fused CPU kernel: 1,100 tokens/s for 4,100.
    """
    model = GPT(CONFIG)
    residual_std = 0.02 / math.sqrt(2 * CONFIG.n_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            residual = name.endswith(("attn.out.weight", "mlp.down.weight"))
            nn.init.normal_(parameter, std=residual_std if residual else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    for module in model.modules():
        if hasattr(module, "dropout_p"):
            module.dropout_p = 0.0
    return model


def loss_of(model: GPT, rows_BT: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of every token of a row given those before it."""
    logits_BTV = model(rows_BT[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), rows_BT[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: GPT, tokens: Tensor) -> float:
    """Loss over the whole of `tokens`, cut into rows of the model's length."""
    length = CONFIG.n_positions + 1
    rows = tokens[: len(tokens) // length * length].view(-1, length)
    model.eval()
    losses = [float(loss_of(model, part)) * len(part) for part in rows.split(8)]
    model.train()
    return sum(losses) / len(rows)


def rate_at(step: int, steps: int) -> float:
    """Learning rate: a linear rise, then half a cosine down to a tenth."""
    if step < WARMUP_STEPS:
        return PEAK_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return PEAK_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train(model: GPT, tokens: Tensor, *, steps: int, batch: int) -> None:
    """Train on rows drawn anywhere in `tokens`, printing the losses now and then."""
    cut = int(len(tokens) * (1 - HELD_OUT))
    tokens, held_out = tokens[:cut], tokens[cut:]
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=True)
    offsets_T = torch.arange(CONFIG.n_positions + 1)
    began = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        starts_B = torch.randint(len(tokens) - CONFIG.n_positions, (batch, 1))
        loss = loss_of(model, tokens[starts_B + offsets_T])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            print(
                f"step {step + 1}/{steps}  loss {loss.item():.3f}  "
                f"held out {held_out_loss(model, held_out):.3f}  "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )


@torch.no_grad()
def save(model: GPT, folder: Path, end_id: int | None) -> None:
    """Write the weights as transformers' GPT-2 has them: in the same order, matrices turned."""
    config = GPT2Config(
        vocab_size=CONFIG.vocab_size,
        n_positions=CONFIG.n_positions,
        n_embd=CONFIG.d_model,
        n_layer=CONFIG.n_layers,
        n_head=CONFIG.n_heads,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    theirs = GPT2LMHeadModel(config).half()
    mine = model.named_parameters()
    for (name, parameter), other in zip(mine, theirs.parameters(), strict=True):
        turned = name.startswith("blocks") and parameter.ndim == 2
        other.copy_(parameter.T if turned else parameter)
    theirs.save_pretrained(folder)


def main() -> None:
    """Train, write the checkpoint, and show what it says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=8, help="rows of 256 tokens a step")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_flush_denormal(True)
    corpus = lzma.decompress(CORPUS.read_bytes()).decode()
    vocabulary = train_vocabulary(corpus)
    tokenizer = Tokenizer(vocabulary)
    tokens = torch.tensor(tokenizer.encode(corpus))
    model = new_model()
    print(f"{len(tokens)} tokens, {CONFIG.parameter_count()} parameters", flush=True)
    train(model, tokens, steps=args.steps, batch=args.batch)
    save(model, args.output, tokenizer.end_id)
    vocabulary.save(str(args.output / "tokenizer.json"), pretty=False)
    prompt = tokenizer.encode("The function returns")
    new = generate(
        model.eval(), CONFIG, prompt, max_new_tokens=100, temperature=0.7, cache=KVCache(CONFIG)
    )
    print(tokenizer.decode([*prompt, *new]))


if __name__ == "__main__":
    main()
