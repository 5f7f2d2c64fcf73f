# SPDX-License-Identifier: Apache-2.0
"""Every way of PEFT's to tune a model, under attach_training(): the resident run's bits or not.

python benchmarks/tuners.py [--models llama bert t5] [--json FILE]

Fourteen steps of AdamW with each configuration that PEFT has, as small as it goes, and the variants
of LoRA; then a pass as it is, one without the adapter, one merged and one unmerged again, and the
adapter as save_pretrained() would write it. What PEFT cannot make of a model is told apart, and
`merges` whether merging was refused, as it gives weights another layout, or does not exist. Budgets
are tried from the smallest up, on the emulated GPU; the first that is no OutOfMemory counts.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from architectures import EMULATED, ended, same, weight_bytes, within_least
from kit.measure import script_parser
from kit.record import Record
from models.little import sizes_of

import penstock
from penstock.errors import UsageError
from penstock.paging.training import attach

SHARES = (0.7, 1, 1.6, 2.5, 5, 12)
STEPS = 14  # more than eight, after which updates are in backward
MODELS: dict[str, tuple[str, str, str, list[str]]] = {
    "llama": ("LlamaForCausalLM", "CAUSAL_LM", "embed_tokens", ["q_proj", "v_proj", "up_proj"]),
    "bert": ("BertForSequenceClassification", "SEQ_CLS", "word_embeddings", ["query", "value"]),
    "t5": ("T5ForConditionalGeneration", "SEQ_2_SEQ_LM", "shared", ["q", "v", "wi"]),
}
LORA: dict[str, dict[str, Any]] = {
    "lora": {"lora_dropout": 0.1},
    "lora, dora": {"use_dora": True},
    "lora, all layers": {"target_modules": "all-linear"},
}
OWN: dict[str, dict[str, Any]] = {
    "ADALORA": {"init_r": 6, "target_r": 3, "total_step": 16, "tinit": 2, "tfinal": 4},
    "IA3": {"feedforward_modules": []},
    "CPT": {"cpt_token_ids": [5, 6], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 2]},
    "VBLORA": {"num_vectors": 8, "vector_length": 16},
    "POLY": {"n_tasks": 2, "n_skills": 2, "n_splits": 2},
    "MULTITASK_PROMPT_TUNING": {"num_tasks": 2},
    "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 3},
}


def configs(model: str) -> dict[str, Callable[[], Any]]:
    """What makes each configuration, by a name of its own."""
    _, task, embedding, targets = MODELS[model]

    def lora(**more: Any) -> Any:
        return peft.LoraConfig(**{"r": 4, "target_modules": targets, "task_type": task, **more})

    def of(name: str, cls: Any) -> Any:
        small = {"r": 4, "num_virtual_tokens": 4, "target_modules": targets, "block_size": 8}
        if name == "TRAINABLE_TOKENS":
            small |= {"target_modules": [embedding], "token_indices": [3, 4, 5]}
        known = inspect.signature(cls).parameters
        fits = {key: value for key, value in small.items() if key in known}
        return cls(**fits, **OWN.get(name, {}), task_type=task)

    made = {name: lambda more=more: lora(**more) for name, more in LORA.items()}
    made["lora, embedding"] = lambda: lora(target_modules=[*targets, embedding])
    made["lora, embedding trained"] = lambda: lora(modules_to_save=[embedding])
    made["lora, tokens"] = lambda: lora(trainable_token_indices={embedding: [3, 5, 7]})
    for name, cls in sorted(peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items()):
        if name.value not in ("LORA", "FROD"):  # the latter decomposes weights for minutes
            made[name.value.lower()] = lambda name=name.value, cls=cls: of(name, cls)
    return made


def tuned(model: str, config: Any) -> Any:
    """A small model with the adapter."""
    torch.manual_seed(0)
    cls = getattr(transformers, MODELS[model][0])
    starts = {"decoder_start_token_id": 0} if model == "t5" else {}
    small = sizes_of(cls.config_class())
    return peft.get_peft_model(cls(cls.config_class(**small, **starts)), config)


def batch(model: str, name: str, n: int) -> dict[str, torch.Tensor]:
    """The nth one."""
    random = torch.Generator().manual_seed(n)
    ids = torch.randint(3, 299, (2, 12), generator=random)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    if model == "bert":
        given["labels"] = torch.randint(0, 2, (2,), generator=random)
    if name in ("poly", "multitask_prompt_tuning"):
        given["task_ids"] = torch.tensor([0, 1])
    if name == "cpt":
        given["input_type_mask"] = torch.ones_like(ids)
    return given


def work(model: str, name: str, tuner: Any, optimizer: Any) -> tuple[list[torch.Tensor], str]:
    """Train, use and save; what came out, and whether merging did."""
    tuner.train()
    got = []
    for n in range(STEPS):
        torch.manual_seed(n)  # dropout
        loss = tuner(**batch(model, name, n)).loss
        loss.backward()
        optimizer.step()
        if name == "adalora":
            tuner.base_model.update_and_allocate(n)
        optimizer.zero_grad()
        got.append(loss.detach().clone())
    tuner.eval()
    evaluate = lambda: tuner(**batch(model, name, STEPS)).loss.clone()  # noqa: E731
    with torch.no_grad():
        got.append(evaluate())
        with tuner.disable_adapter():
            got.append(evaluate())
        got += [x.clone() for x in peft.get_peft_model_state_dict(tuner).values()]
        try:
            tuner.merge_adapter()
            merged = [evaluate()]
            tuner.unmerge_adapter()
            merged.append(evaluate())
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            return got, "refused" if isinstance(error, UsageError) else "no"
    return [*got, *merged], "yes"


def judge(model: str, name: str, make: Callable[[], Any]) -> dict[str, Any]:
    """One row."""

    def run(budget: int | None) -> tuple[list[torch.Tensor], str, Any]:
        tuner = copy.deepcopy(first)
        trained = [p for p in tuner.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        torch.manual_seed(1)
        if budget is None:
            return *work(model, name, tuner, optimizer), None
        options = {"device": "emulated", "emulated": EMULATED, "chunk_size": "16KiB"}
        with penstock.attach_training(tuner, optimizer, gpu_memory=budget, **options) as attached:
            return *work(model, name, tuner, optimizer), attached.stats()

    row: dict[str, Any] = {"model": model, "name": name}
    try:
        first = tuned(model, make())
        want, merges, _ = run(None)
        if not same(want, run(None)[0]):
            return {**row, "apart": "does not repeat itself"}
    except Exception as error:  # each fails in its own way
        return {**row, "apart": f"{type(error).__name__}: {error}".splitlines()[0][:120]}

    def compared(budget: int) -> dict[str, Any]:
        try:
            got, merged, stats = run(budget)
        except UsageError as error:
            return {"apart": f"refused: {error}"[:200]}
        equal = same(want[: len(got)], got) and merged in (merges, "refused")
        return {"same": equal, "merges": merged, "bytes_in": stats.bytes_in}

    return row | within_least(SHARES, weight_bytes(first), compared)


def main() -> int:
    """Judge all, or some."""
    parser = script_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    attach.LITTLE_SHARE = 0  # adapters page too; small as these are, all would stay
    todo = [(model, *each) for model in given.models for each in configs(model).items()]
    about = {"library": "peft", "version": version("peft"), "kind": "tuners"}
    record = Record(given.json, card=False, **about, architectures=len(todo))
    for each in todo:
        record.add(judge(*each))
    return ended(record)


if __name__ == "__main__":
    sys.exit(main())
