# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint on disk to an attached model, on the emulated GPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import penstock
from penstock.errors import UsageError
from penstock.units import KIB, MIB

transformers = pytest.importorskip("transformers")

EMULATED = {"granularity": 4 * KIB, "capacity": 64 * MIB}
SHAPE = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def save(folder, architecture="Llama", **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**SHAPE, **more)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("architecture", ["Llama", "Mixtral"])
def test_the_same_model_within_a_budget(tmp_path, architecture, capsys):
    resident = save(tmp_path, architecture)
    weights = sum(p.nbytes for p in resident.parameters())
    ids = torch.randint(0, 256, (1, 8))
    with torch.no_grad():
        attached = penstock.from_pretrained(
            transformers.AutoModelForCausalLM, tmp_path, gpu_memory=weights // 2 + 200 * KIB,
            device="emulated", emulated=EMULATED,
        )  # fmt: skip
        assert not attached.model.training
        assert torch.equal(attached.model(ids).logits, resident(ids).logits)
        assert attached.stats().bytes_in > 0
        model = attached.detach()
        assert torch.equal(model(ids).logits, resident(ids).logits)
    assert "Paging in: 100%" in capsys.readouterr().err


def test_the_dtype_is_passed_on(tmp_path):
    save(tmp_path)
    with penstock.from_pretrained(
        transformers.AutoModelForCausalLM, tmp_path, dtype=torch.bfloat16, gpu_memory="2MiB",
        device="emulated", emulated=EMULATED,
    ) as attached:  # fmt: skip
        assert {p.dtype for p in attached.model.parameters()} == {torch.bfloat16}


class Loads(torch.nn.Linear):
    """A module whose weight is made of other tensors when it is loaded."""

    @classmethod
    def from_pretrained(cls, source):
        made = cls(64, 64)
        weight = TwoTensor(torch.randn(64, 64), torch.randn(64, 64))
        made.weight = torch.nn.Parameter(weight, requires_grad=False)
        return made


def test_weights_that_are_made_of_others():
    with penstock.from_pretrained(Loads, "", device="emulated", gpu_memory="8MiB") as attached:
        assert attached.stats().weight_bytes == 2 * 64 * 64 * 4 + 64 * 4


def test_what_is_refused(tmp_path):
    save(tmp_path)
    cls = transformers.AutoModelForCausalLM
    with pytest.raises(UsageError, match="device_map cannot be given"):
        penstock.from_pretrained(cls, tmp_path, device_map="auto")
    with pytest.raises(UsageError, match="quantization_config cannot be given"):
        penstock.from_pretrained(cls, tmp_path, quantization_config={"load_in_8bit": True})
    with pytest.raises(UsageError, match="output_loading_info cannot be given"):
        penstock.from_pretrained(cls, tmp_path, output_loading_info=True)
    with pytest.raises(UsageError, match="Linear has no from_pretrained"):
        penstock.from_pretrained(torch.nn.Linear, tmp_path)
    with pytest.raises(OSError, match="nowhere"):
        penstock.from_pretrained(cls, tmp_path / "nowhere", local_files_only=True)
    with pytest.raises(UsageError, match="'lots' is not a size"):  # before anything is loaded
        penstock.from_pretrained(cls, tmp_path / "nowhere", gpu_memory="lots")
    assert penstock.attachments() == []


PEAK = """
    import sys, threading, time, torch, transformers, penstock

    def anonymous():
        with open("/proc/self/status") as status:
            return sum(int(line.split()[1]) for line in status if line.startswith("RssAnon")) >> 10

    cls, most, over = transformers.LlamaForCausalLM, 0, False  # imported before it counts
    penstock.attach(torch.nn.Linear(4, 4), device="emulated", gpu_memory="8MiB").detach()
    before = anonymous()

    def watch():
        global most
        while not over:
            most = max(most, anonymous())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    attached = penstock.from_pretrained(cls, sys.argv[1], device="emulated", gpu_memory="64MiB")
    over = True
    thread.join()
    weights = sum(p.nbytes for p in attached.model.parameters())
    print(weights >> 20, most - before)
"""


@pytest.mark.slow
def test_host_memory_holds_the_weights_once(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SHAPE, "hidden_size": 768, "intermediate_size": 3072})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path, max_shard_size="100MB")
    program = [sys.executable, "-c", textwrap.dedent(PEAK), str(tmp_path)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    weights, most = map(int, run.stdout.split()[-2:])
    assert weights > 100
    assert most < 1.1 * weights + 20  # 20 MiB for what libraries load on the way
