# SPDX-License-Identifier: Apache-2.0
"""``penstock report`` of what the verbs that run models really write, on the emulated GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.results import PROMISED

pytestmark = pytest.mark.usefixtures("small_emulated_gpu")

WORK = ["--device", "emulated", "--model", "tiny", "--seq-len", "8"]


def test_a_run_and_a_fine_tune_side_by_side(capsys):
    budget = ["--gpu-memory", "400KiB"]
    assert main(["gpt", *WORK, *budget, "--steps", "3", "--json", "gpt.json"]) == 0
    tune = [*WORK, "--batch", "2", "--steps", "8", "--gpu-memory", "1600KiB"]
    assert main(["finetune", *tune, "--json", "tune.json"]) == 0
    capsys.readouterr()
    assert main(["report", "gpt.json", "tune.json", "--html", "a.html", "--json"]) == 0
    gpt, tune = json.loads(capsys.readouterr().out)["results"]
    written = {name: json.loads(Path(f"{name}.json").read_text()) for name in ("gpt", "tune")}
    for name, verb in (("gpt", "gpt"), ("tune", "finetune")):
        assert written[name]["verb"] == verb
        assert list(written[name])[: len(PROMISED[verb])] == PROMISED[verb]
    assert (gpt["verb"], gpt["gpu_memory_bytes"]) == ("gpt", 400 << 10)
    assert gpt["step_ms"] == written["gpt"]["step_ms"]
    assert gpt["bytes_in"] > 0
    assert (tune["verb"], tune["gpu_memory_bytes"]) == ("finetune", written["tune"]["budget_bytes"])
    assert tune["median_step_ms"] == written["tune"]["median_step_ms"]
    assert tune["bytes_in"] > 0
    assert tune["memory_over_time"] == written["tune"]["memory_over_time"]
    assert gpt["emulated"]
    assert tune["emulated"]
    # Memory of both, their steps, and the loss of one.
    assert Path("a.html").read_text().count('<div class="chart">') == 4
