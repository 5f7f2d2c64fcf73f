# SPDX-License-Identifier: Apache-2.0
"""What the runner can be asked for, and what it refuses before torch is imported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import FailedError, UsageError
from penstock.models.configs import get_config
from penstock.runner.request import Request, check_shape, checked


def test_defaults():
    request = checked(Request())
    assert (request.memory, request.fusion, request.dtype) == ("vmm", "baseline", "float32")
    assert (request.timed_steps, request.warmups, request.num_streams) == (10, 2, 3)
    assert request.tokens_in_a_sequence(get_config("gpt2_small")) == 1024
    assert request.tokens_in_a_sequence(get_config("tiny")) == 128


def test_a_prompt_has_no_timed_steps_unless_they_are_asked_for():
    assert checked(Request(prompt="a")).timed_steps == 0
    assert checked(Request(prompt="a", steps=3)).timed_steps == 3
    assert checked(Request(prompt="a")).new_tokens == 100
    assert checked(Request(prompt="a", generate=7)).new_tokens == 7


def test_captured_steps_are_compared_bit_for_bit_and_captured_text_is_not():
    assert checked(Request(cuda_graph=True, memory="resident")).bitwise
    assert not checked(Request(cuda_graph=True, memory="resident", prompt="a")).bitwise


@pytest.mark.parametrize("short", ["fp16", "half", "float16"])
def test_dtypes_are_spelled_out(short):
    assert checked(Request(dtype=short)).dtype == "float16"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": "uvm"}, "--memory 'uvm'.*vmm, managed, resident"),
        ({"fusion": "ffn_ln"}, "--fusion 'ffn_ln'.*baseline"),
        ({"model": "gpt2_smal"}, "unknown model 'gpt2_smal'.*gpt2_small"),
        ({"dtype": "int8"}, "unknown dtype 'int8'.*float32"),
        ({"batch": 0}, "--batch 0.*1 or more"),
        ({"steps": 0}, "--steps 0"),
        ({"steps": -3}, "--steps -3"),
        ({"warmups": -1}, "--warmups -1.*0 or more"),
        ({"seq_len": 0}, "--seq-len 0"),
        ({"seq_len": 1025}, "--seq-len 1025.*1024 positions of gpt2_small.*--seq-len 1024"),
        ({"model": "tiny", "seq_len": 129}, "128 positions of tiny"),
        ({"num_streams": -1}, "--num-streams -1"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 2**63}, "--seed 9223372036854775808"),
        ({"generate": 5}, "--generate needs.*--prompt"),
        ({"prompt": "a", "generate": 0}, "--generate 0"),
        ({"prompt": ""}, "--prompt is empty"),
        ({"prompt": "a", "model": "gpt2_xl"}, "gpt2_xl has made-up weights.*--weights DIR"),
        ({"cuda_graph": True}, "--cuda-graph with --memory vmm.*--memory resident"),
        ({"cuda_graph": True, "memory": "managed"}, "--cuda-graph with --memory managed"),
        ({"prompt": "a", "temperature": -0.1}, "--temperature -0.1"),
        ({"prompt": "a", "temperature": float("nan")}, "--temperature nan"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        checked(replace(Request(), **wrong))


def test_a_checkpoint_must_be_of_the_model_named_with_it():
    tiny = get_config("tiny")
    check_shape(None, tiny)
    check_shape("tiny", replace(tiny, name="other", tied=True))
    with pytest.raises(FailedError, match="n_layers 3, gpt2_small has 12"):
        check_shape("gpt2_small", tiny)


def test_asking_needs_no_torch(loaded_by):
    program = (
        "from penstock.runner.request import Request, checked; checked(Request());"
        "import penstock.runner.figures, penstock.runner.show"
    )
    assert "torch" not in loaded_by(program)
