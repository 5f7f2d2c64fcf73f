# SPDX-License-Identifier: Apache-2.0
"""Names of variants, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.config import schema
from penstock.errors import EnvironmentProblem, UsageError
from penstock.fusion import NAMES, VARIANTS, Fusion, kernels, parse, split


def test_the_option_table_has_the_same_names():
    assert sorted(schema.FUSIONS) == sorted(NAMES)


@pytest.mark.parametrize("name", ["baseline", *VARIANTS, ",".join(VARIANTS)])
def test_a_name_reads_as_itself(name):
    assert parse(name).name == name
    assert parse(name).variants == (() if name == "baseline" else tuple(name.split(",")))


def test_order_case_and_dashes_do_not_matter():
    fusion = parse(" FFN-LayerNorm , attention_layernorm", recompute=2)
    assert fusion == Fusion(attention_layernorm=True, ffn_layernorm=True, recompute=2)
    assert fusion.name == "attention_layernorm,ffn_layernorm"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("magic", "'magic' is unknown; try: baseline"),
        ("", "'' is unknown"),
        ("ffn_layernorm,", "'' is unknown"),
        ("ffn_layernorm,ffn_layernorm", "named twice"),
        ("baseline,ffn_layernorm", "'baseline' stands alone, but 2 names"),
        ("ffn_layernorm,auto", "'auto' stands alone"),
    ],
)
def test_what_is_no_list_is_refused(names, message):
    with pytest.raises(UsageError, match=message):
        split(names)


@pytest.mark.parametrize("level", [3, -1, True, 1.5])
def test_a_level_that_does_not_exist_is_refused(level):
    with pytest.raises(UsageError, match="recompute level"):
        parse("ffn_layernorm", recompute=level)


def test_auto_has_to_be_measured():
    assert split("auto") == ("auto",)
    with pytest.raises(UsageError, match="measured"):
        parse("auto")


@pytest.mark.parametrize("module", ["penstock", "penstock.cli.main", "penstock.fusion"])
def test_importing_imports_neither_torch_nor_triton(module, loaded_by):
    assert not {"torch", "triton"} & loaded_by(f"import {module}, penstock.cli.gpt")


@pytest.mark.slow
def test_a_run_without_variants_imports_no_compiler(loaded_by):
    more = loaded_by("import torch, penstock.runner.session") - loaded_by("import torch")
    assert not {"torch._dynamo", "torch._inductor", "triton"} & more


def test_functions_work_where_triton_is_not_installed():
    code = (
        "import sys; sys.modules['triton'] = None\nimport torch\nfrom penstock import fusion\n"
        "x = torch.randn(3, 8, requires_grad=True)\n"
        "y, _ = fusion.dropout_add_layer_norm(x, x, torch.ones(8), torch.zeros(8), p=0.5)\n"
        "fusion.layer_norm_linear(y, torch.ones(8), None, torch.randn(4, 8), None).sum().backward()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_triton_only_a_kernel_by_name_is_refused(monkeypatch):
    import torch

    from penstock.fusion import layer_norm_linear, residual_linear

    monkeypatch.setattr(kernels, "installed", lambda: False)
    x, w = torch.randn(3, 8), torch.randn(5, 8)
    ones = torch.ones(8)
    assert layer_norm_linear(x, ones, ones, w, None).shape == (3, 5)
    for call in (
        lambda: layer_norm_linear(x, ones, ones, w, None, implementation="triton"),
        lambda: residual_linear(x, w, None, torch.ones(3, 5), implementation="triton"),
    ):
        with pytest.raises(EnvironmentProblem, match="triton is not installed") as caught:
            call()
        assert "implementation='torch'" in str(caught.value)
