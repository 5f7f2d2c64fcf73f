# SPDX-License-Identifier: Apache-2.0
"""Models and batches of the allocator benchmark: shapes of real work, synthetic weights.

Everything is seeded and made on the device, so that a workload gives the same losses whichever
allocator serves it. A batch is as long as its longest sequence; long and short batches take turns,
from the second pass on in another order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from kit.measure import alone, default_dtype

# Of a log-normal length distribution cut at 1,024: the longest of eight, batch after batch.
LENGTHS_OF_8 = (1024, 819, 845, 684, 720, 652, 458, 636, 1024, 680)
LENGTHS_OF_32 = (1024, 846, 762, 1013, 633)


ZERO3: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,  # what a step takes is given to it, whatever this says
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True},
    "steps_per_print": 10**9,
}


@dataclass(frozen=True)
class Workload:
    """One kind of work: what runs, on batches of which shapes."""

    name: str
    title: str
    model: str  # "opt" or "gpt2"
    shapes: tuple[tuple[int, int], ...]  # (sequences, tokens each): one pass over the data
    passes: int = 2  # the first warms up
    recompute: bool = False
    lora: bool = False
    new_tokens: int = 0  # not 0: generation
    zero3: bool = False

    def order(self, step: int) -> tuple[int, int]:
        """The shape of a step: each pass has all shapes, from the second on shuffled."""
        done, place = divmod(step, len(self.shapes))
        shapes = list(self.shapes)
        if done:
            random.Random(done).shuffle(shapes)
        return shapes[place]

    @property
    def steps(self) -> int:
        return self.passes * len(self.shapes)


def _of(sequences: int, lengths: tuple[int, ...], divisor: int = 1) -> tuple[tuple[int, int], ...]:
    return tuple((sequences, length // divisor) for length in lengths)


WORKLOADS = {
    work.name: work
    for work in (
        Workload(
            name="opt1.3b_full",
            title="OPT-1.3b shape, full fine-tune, varied lengths",
            model="opt",
            shapes=_of(8, LENGTHS_OF_8, 2),
            passes=3,
        ),
        Workload(
            name="opt1.3b_lora_recompute",
            title="OPT-1.3b shape, LoRA, recomputation, varied lengths",
            model="opt",
            shapes=_of(32, LENGTHS_OF_32),
            recompute=True,
            lora=True,
        ),
        Workload(
            name="gpt2xl_recompute",
            title="GPT-2 XL, recomputation, varied lengths",
            model="gpt2",
            shapes=_of(8, LENGTHS_OF_8),
            recompute=True,
        ),
        Workload(
            name="gpt2xl_generate",
            title="GPT-2 XL generation, varied batch and length",
            model="gpt2",
            shapes=((8, 446), (16, 517), (4, 568), (1, 350), (16, 249)),
            new_tokens=16,
        ),
        Workload(
            name="opt1.3b_lora_zero3",
            title="OPT-1.3b shape, LoRA, recomputation, DeepSpeed ZeRO-3, one GPU",
            model="opt",
            shapes=_of(160, (1024, 874, 1024, 758, 958), 2),
            recompute=True,
            lora=True,
            zero3=True,
        ),
    )
}


def tiny(work: Workload) -> Workload:
    """The same work with a few short sequences and two passes."""
    shapes = tuple((max(1, batch // 8), max(4, length // 32)) for batch, length in work.shapes[:3])
    return replace(work, shapes=shapes, passes=2, new_tokens=min(work.new_tokens, 3))


def with_batch(work: Workload, sequences: int) -> Workload:
    """The same lengths, a quarter as long, in batches of so many sequences.

    Short sequences make the number of them a fine measure: one of about a hundred.
    """
    lengths = [max(4, length // 4) for _, length in work.shapes]
    picked = sorted(set(lengths), reverse=True)
    # Longest first, so that what cannot fit fails at once; then short and long in turn.
    order = [picked[0], picked[len(picked) // 2], picked[1 % len(picked)], picked[-1], picked[0]]
    return replace(work, shapes=tuple((sequences, length) for length in order), passes=1)


def model_config(kind: str, *, small: bool) -> Any:
    """The configuration of OPT-1.3b or GPT-2 XL; small: two narrow layers."""
    from transformers import GPT2Config, OPTConfig

    if kind == "opt":
        width, layers, heads = (64, 2, 4) if small else (2048, 24, 32)
        return OPTConfig(
            vocab_size=512 if small else 50272,
            hidden_size=width,
            word_embed_proj_dim=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            ffn_dim=4 * width,
        )
    width, layers, heads = (64, 2, 4) if small else (1600, 48, 25)
    return GPT2Config(
        vocab_size=512 if small else 50257, n_embd=width, n_layer=layers, n_head=heads
    )


def build_model(work: Workload, device: str, *, small: bool) -> Any:
    """The model in bf16 on the device, random weights, adapters and recomputation as asked."""
    from transformers import GPT2LMHeadModel, OPTForCausalLM

    kind = OPTForCausalLM if work.model == "opt" else GPT2LMHeadModel
    config = model_config(work.model, small=small)
    torch.manual_seed(7)
    with default_dtype(torch.bfloat16), torch.device(device):
        model = kind(config)
    return prepare_model(work, model)


def prepare_model(work: Workload, model: Any) -> Any:
    """Recomputation and adapters (rank 64, the adapters in fp32 beside frozen bf16 weights)."""
    if work.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if work.lora:
        from peft import LoraConfig, get_peft_model

        targets = ["q_proj", "v_proj", "fc1", "fc2"]
        model = get_peft_model(
            model, LoraConfig(r=64, lora_alpha=128, lora_dropout=0.0, target_modules=targets)
        )
    return model


class Batches:
    """Tokens of a step; frequent ones are frequent, so that there is something to learn."""

    def __init__(self, work: Workload, vocabulary: int, device: str) -> None:
        self._work, self._vocabulary, self._device = work, vocabulary, device

    def __call__(self, step: int) -> torch.Tensor:
        shape = self._work.order(step)
        draw = torch.rand(shape, generator=torch.Generator().manual_seed(1000 + step))
        return (draw.pow(4) * (self._vocabulary - 1)).long().to(self._device)


class Training:
    """Forward, backward, AdamW."""

    def __init__(self, work: Workload, device: str, *, small: bool) -> None:
        self.model = build_model(work, device, small=small).train()
        self.use(work, device)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)

    def use(self, work: Workload, device: str) -> None:
        """Take other batches from here on; the model and its optimizer stay."""
        self.batches = Batches(work, self.model.config.vocab_size, device)

    def step(self, number: int) -> torch.Tensor:
        tokens = self.batches(number)
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def recover(self) -> None:
        """After a step that ran out of memory: let go of what it had made."""
        self.optimizer.zero_grad(set_to_none=True)


class Generation:
    """Greedy generation with a growing cache; the outcome is the mean of the new tokens' ids."""

    def __init__(self, work: Workload, device: str, *, small: bool) -> None:
        self.model = build_model(work, device, small=small).eval()
        self._new_tokens = work.new_tokens
        self.use(work, device)

    def use(self, work: Workload, device: str) -> None:
        self.batches = Batches(work, self.model.config.vocab_size, device)

    @torch.no_grad()
    def step(self, number: int) -> torch.Tensor:
        prompt = self.batches(number)
        out = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=self._new_tokens,
            min_new_tokens=self._new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return out[:, prompt.shape[1] :].double().mean()

    def recover(self) -> None:
        """Nothing outlives a call."""


class Zero3Training(Training):
    """Through a DeepSpeed engine that partitions parameters, on one device.

    With one process nothing is exchanged, yet ZeRO-3 gathers and drops every layer's parameters,
    which is what makes its pattern of allocations.
    """

    def __init__(self, work: Workload, device: str, *, small: bool) -> None:
        alone()
        import deepspeed

        deepspeed.init_distributed("nccl" if device == "cuda" else "gloo")
        self.model = build_model(work, device, small=small).train()
        # DeepSpeed swaps parameters out of saved tensors, which the other way of recomputing
        # takes for a change of shape.
        reentrant = {"use_reentrant": True}
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
        self.model.enable_input_require_grads()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.engine, *_ = deepspeed.initialize(
            model=self.model, model_parameters=trained, config=ZERO3
        )
        self.use(work, device)

    def step(self, number: int) -> torch.Tensor:
        tokens = self.batches(number)
        loss = self.engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def recover(self) -> None:
        self.engine.zero_grad()
