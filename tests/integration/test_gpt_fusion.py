# SPDX-License-Identifier: Apache-2.0
"""``penstock gpt --fusion``: fused layers in every memory mode, on the emulated GPU."""

from __future__ import annotations

import pytest
from torch import nn
from verbs import called, result_of

pytestmark = pytest.mark.usefixtures("small_emulated_gpu")

SMALL = ["--device", "emulated", "--model", "tiny", "--seq-len", "8", "--gpu-memory", "400KiB"]
QUICK = [*SMALL, "--steps", "2", "--warmups", "1"]


def gpt(capsys, *arguments):
    return called(capsys, "gpt", *arguments)


def gpt_json(capsys, *arguments):
    return result_of(capsys, "gpt", *arguments)


@pytest.mark.parametrize("memory", ["vmm", "managed", "resident"])
@pytest.mark.parametrize("fusion", ["ffn_layernorm,attention_layernorm", "dropout_layernorm"])
def test_fused_layers_are_compared_with_the_baseline(fusion, memory, capsys):
    result = gpt_json(
        capsys,
        *[*QUICK, "--memory", memory, "--gpu-memory", "500KiB", "--enable-prefetch"],
        *["--allow-oversubscription", "--fusion", fusion, "--check"],
    )
    assert result["fusion"] == ",".join(sorted(fusion.split(",")))
    assert result["fusion_asked"] == result["fusion"]
    assert result["check"]["equal"]
    assert 0 <= result["check"]["max_relative_rms"] < result["check"]["tolerance"] == 1e-4
    if memory != "resident":
        assert min(result["bytes_in"]) > 0


def test_a_fused_layer_that_is_another_function_is_exit_1(capsys, monkeypatch):
    from penstock.fusion import modules

    original = modules.residual_linear
    monkeypatch.setattr(  # the residual at half its size
        modules, "residual_linear", lambda x, w, b, r: original(x, w, b, r * 0.5)
    )
    code, _, err = gpt(capsys, *QUICK, "--fusion", "ffn_layernorm", "--check")
    assert code == 1
    assert "further from the resident baseline than rounding explains" in err


def test_auto_on_the_emulated_gpu_is_the_baseline(capsys):
    result = gpt_json(capsys, *QUICK, "--fusion", "auto", "--check")
    assert (result["fusion"], result["fusion_asked"]) == ("baseline", "auto")
    assert result["check"]["equal"]


def test_variants_come_from_the_table_of_options(capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_FUSION", "attention-layernorm")
    code, _, err = gpt(capsys, *QUICK)
    assert code == 2
    assert "PENSTOCK_FUSION 'attention-layernorm' is unknown" in err
    assert "attention_layernorm" in err.splitlines()[-1]
    monkeypatch.setenv("PENSTOCK_FUSION", "attention_layernorm")
    code, out, _ = gpt(capsys, *QUICK)
    assert code == 0
    assert "layers: attention_layernorm" in out


@pytest.mark.parametrize("fusion", ["attention_projection,ffn_layernorm", "dropout_layernorm"])
def test_text_of_fused_layers(fusion, capsys):
    words = ["--prompt", "The function returns", "--generate", "8", "--temperature", "0", "--check"]
    run = ["--device", "emulated", "--gpu-memory", "7MiB", *words]
    plain = gpt_json(capsys, *run)
    fused = gpt_json(capsys, *run, "--fusion", fusion)
    assert fused["text"]["text"] == plain["text"]["text"]
    assert fused["check"]["outputs"] == 8
    assert min(fused["bytes_in"]) > 0


def test_compiled_layers_are_compared_too(capsys, monkeypatch):
    """On the CPU with the compiler's own graphs, without code generation."""
    original = nn.Module.compile
    blocks = []

    def light(block, **more):
        original(block, backend="aot_eager", **more)
        blocks.append(block)

    monkeypatch.setattr(nn.Module, "compile", light)
    flags = ["--memory", "resident", "--compile", "--fusion", "ffn_layernorm", "--check"]
    result = gpt_json(capsys, *QUICK, *flags)
    assert len(blocks) == 3  # the model's own, and not the baseline's
    assert result["compile"]
    assert result["check"]["equal"]


def test_a_cuda_graph_without_a_gpu_is_exit_3(capsys):
    code, out, err = gpt(capsys, *QUICK, "--memory", "resident", "--cuda-graph")
    assert code == 3
    assert "--cuda-graph on the emulated GPU" in err
    assert out == ""
