# SPDX-License-Identifier: Apache-2.0
"""What is asked of a fine-tune: letters, names, counts; pure, without torch."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from penstock.config import Settings
from penstock.errors import FailedError, UsageError
from penstock.finetune import allocators
from penstock.finetune.compare import settings_of
from penstock.finetune.history import History
from penstock.finetune.request import Request, checked
from penstock.finetune.strategy import parse_strategy
from penstock.models.shapes import SHAPES, find_shape

BUDGET = Settings(gpu_memory="1GiB")


@pytest.mark.parametrize(
    ("text", "name"),
    [("N", "N"), ("n", "N"), ("RL", "LR"), ("orl", "LRO"), ("RO", "RO"), ("L", "L"), ("O", "O")],
)
def test_letters_in_any_order_and_case(text, name):
    assert parse_strategy(text).name == name


@pytest.mark.parametrize("text", ["", "X", "LL", "NR", "LRX"])
def test_other_letters_are_refused(text):
    with pytest.raises(UsageError, match="is unknown; try: N, R, L"):
        parse_strategy(text)


def test_names_are_found_however_they_are_spelled():
    assert find_shape("GPT2-XL") is find_shape("gpt2_xl") is SHAPES["gpt2_xl"]
    assert find_shape("gpt3-6.7b") is SHAPES["gpt3_6.7b"]
    assert find_shape("opt-1.3b").positions == 2048


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(UsageError) as caught:
        checked(Request("opt-1.3"))
    assert caught.value.remedy == "opt-1.3b"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 0}, "--batch 0"),
        ({"seq_len": 1}, "--seq-len 1"),
        ({"seq_len": 129}, "more than the 128 positions"),
        ({"steps": 0}, "--steps 0"),
        ({"gpus": 0}, "--gpus 0"),
        ({"zero": 4}, "--zero 4"),
        ({"lr": 0.0}, "--lr 0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"seed": 2**32}, "less than 2"),
        ({"allocator": "best"}, "stitch, native, expandable"),
        ({"dtype": "float16"}, "mixed, float32, bfloat16"),
        ({"zero": 3, "fsdp": True}, "two engines"),
        ({"memory": "paged", "gpus": 2}, "is for one GPU"),
        ({"memory": "resident", "strategy": "RO"}, "with O"),
        ({"strategy": "O", "gpus": 2}, "cannot offload"),
        ({"strategy": "O", "zero": 0}, "cannot offload"),
        ({"find_batch": True, "fsdp": True}, "looks on one GPU"),
        ({"fsdp": True, "settings": Settings(device="cuda:1")}, "CUDA_VISIBLE_DEVICES"),
        ({"resume": True}, "--resume needs a folder"),
        ({"save_every": 5}, "--save-every needs a folder"),
        ({"eval_data": __file__}, "without --eval-every"),
        ({"data": __file__}, "no tokenizer"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        checked(Request("tiny", **changes))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FailedError, match="there is no file"):
        checked(Request("tiny", data=str(tmp_path / "none.txt")))
    with pytest.raises(FailedError, match="is a file"):
        checked(Request("tiny", checkpoint=__file__))


def test_a_request_survives_json():
    request = checked(Request("GPT2-XL", strategy="orl", zero=3, settings=BUDGET))
    assert Request.from_json(json.loads(json.dumps(asdict(request)))) == request
    assert (request.model, request.strategy, request.engine) == ("gpt2_xl", "LRO", "zero3")


def test_when_the_pager_serves():
    assert not Request("tiny").paged
    assert Request("tiny", strategy="O").paged
    assert Request("tiny", settings=BUDGET).paged
    assert not Request("tiny", settings=BUDGET, memory="resident").paged
    assert not Request("tiny", settings=BUDGET, gpus=2).paged
    assert not Request("tiny", settings=BUDGET, strategy="O", fsdp=True).paged
    assert not Request("tiny", settings=BUDGET, find_batch=True).paged
    assert Request("tiny", settings=BUDGET, find_batch=True, strategy="O").paged


def test_torch_is_told_of_its_allocator_by_what_it_reads():
    def told(allocator, before, device="auto"):
        request = Request("tiny", allocator=allocator, settings=Settings(device=device))
        return allocators.variables(request, {"PYTORCH_ALLOC_CONF": before} if before else {})

    both = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    assert told("native", "") == {}
    assert told("expandable", "") == dict.fromkeys(both, "expandable_segments:True")
    assert told("native", "expandable_segments:True")[both[0]] == ""
    kept = told("expandable", "max_split_size_mb:64,expandable_segments:False")[both[0]]
    assert kept == "max_split_size_mb:64,expandable_segments:True"
    assert told("stitch", "max_split_size_mb:64")[both[0]] == ""
    assert told("expandable", "", device="emulated") == {}
    paged = Request("tiny", allocator="native", settings=BUDGET)
    assert allocators.variables(paged, {})[both[0]] == "expandable_segments:False"
    paged = Request("tiny", allocator="stitch", settings=BUDGET)
    assert allocators.variables(paged, {}) == {}


def test_a_history_goes_on_where_it_was():
    before = History(loss=[3.0, 2.0], step_ms=[9.0, 1.0], tokens=[8, 8], shape=[(1, 8), (1, 8)])
    before.evaluations.append((2, 2.5))
    after = History.from_json(json.loads(json.dumps(asdict(before))))
    assert (after.resumed_at, after.done, after.evaluations) == (2, 2, [(2, 2.5)])
    assert after.median_ms is None
    assert after.tokens_per_second is None
    for loss, ms in ((1.9, 50.0), (1.8, 40.0), (1.7, 2.0), (1.6, 4.0)):
        after.loss.append(loss)
        after.step_ms.append(ms)
        after.tokens.append(8)
    assert (after.timed_from, after.median_ms) == (4, 3.0)
    assert after.tokens_per_second == pytest.approx(16 / 6 * 1e3)


def test_settings_are_every_allocator_with_every_budget():
    assert [each.name for each in settings_of(["native", "stitch"], [])] == ["native", "stitch"]
    assert [each.name for each in settings_of([], ["16GiB", "9GiB"])] == ["16GiB", "9GiB"]
    both = settings_of(["native", "stitch"], ["9GiB"])
    assert [each.flags for each in both][1] == ["--allocator", "stitch", "--gpu-memory", "9GiB"]


def test_none_of_it_imports_torch(loaded_by):
    modules = "penstock.cli.finetune, penstock.cli.compare, penstock.finetune.launch"
    assert not {"torch", "transformers", "numpy"} & loaded_by(f"import {modules}")
