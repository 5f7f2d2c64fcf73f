# SPDX-License-Identifier: Apache-2.0
"""attach_training() under the loops of other libraries: transformers' Trainer, PEFT's adapters."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from training_tower import both_ways, same_weights

from penstock import attach_training
from penstock.units import KIB, MIB

transformers = pytest.importorskip("transformers")

GRANULE = 16 * KIB


def tiny():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=2, vocab_size=96, n_positions=16,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def attach(model, optimizer, share=0.6):
    paged = 3 * sum(parameter.nbytes for parameter in model.parameters())
    return attach_training(
        model,
        optimizer,
        gpu_memory=int(share * paged) // GRANULE * GRANULE,
        chunk_size=GRANULE,
        device="emulated",
        emulated={"granularity": GRANULE, "capacity": 64 * MIB, "seed": 1, "max_delay_us": 50},
    )


def rows(count=16):
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 96, (12,), generator=generator) for _ in range(count)]
    return [{"input_ids": each, "labels": each} for each in ids]


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trainer_clips_and_reports_the_true_norm(tmp_path, accumulation):
    pytest.importorskip("accelerate")

    def run(model, optimizer):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to=[],
            gradient_accumulation_steps=accumulation, save_strategy="no", logging_steps=1,
            disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows(), optimizers=(optimizer, None)
        )
        trainer.train()
        keys = ("loss", "grad_norm")
        seen = [[h[k] for k in keys] for h in trainer.state.log_history if "grad_norm" in h]
        assert min(norm for _, norm in seen) > 0
        return seen

    assert both_ways(tiny(), run, attach=attach).iteration_bytes_in > 0


def test_lora_by_peft():
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], lora_dropout=0.0)
    plain = peft.get_peft_model(tiny(), config)
    paged = copy.deepcopy(plain)

    def run(model, optimizer):
        losses = []
        for row in rows(12):
            loss = model(**{key: value[None] for key, value in row.items()}).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def optimizer(model):
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    want = run(plain, optimizer(plain))
    second = optimizer(paged)
    with attach(paged, second, share=0.2) as attached:
        assert run(paged, second) == want
        assert attached.stats().iteration_bytes_in > 0
        with torch.no_grad():
            paged.merge_adapter()
            merged = {key: value.clone() for key, value in paged.state_dict().items()}
            paged.unmerge_adapter()
    plain.merge_adapter()
    assert all(torch.equal(value, merged[key]) for key, value in plain.state_dict().items())


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_the_trainer_with_peft_and_recomputation_is_one_line_more(tmp_path, reentrant):
    peft = pytest.importorskip("peft")
    pytest.importorskip("accelerate")

    def script(attach_here):
        torch.manual_seed(2)
        config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], lora_dropout=0.1)
        model = peft.get_peft_model(tiny(), config)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=8, report_to=[],
            gradient_checkpointing=True, save_strategy="no", logging_steps=1, disable_tqdm=True,
            gradient_checkpointing_kwargs={"use_reentrant": reentrant}, use_cpu=True, seed=3,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows(32), optimizers=(optimizer, None)
        )
        attached = attach_here(model, optimizer)
        trainer.train()
        keys = ("loss", "grad_norm")
        seen = [[h[k] for k in keys] for h in trainer.state.log_history if "grad_norm" in h]
        return seen, model, attached

    want, plain, _ = script(lambda model, optimizer: None)
    got, paged, attached = script(partial(attach, share=0.6))
    assert got == want
    stats = attached.stats()
    attached.detach()
    assert stats.iteration_bytes_in > 0
    assert stats.activation_bytes_in > 0
    assert min(norm for _, norm in want) > 0
    assert same_weights(plain, paged)
