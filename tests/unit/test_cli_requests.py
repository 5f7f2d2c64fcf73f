# SPDX-License-Identifier: Apache-2.0
"""Requests at the ends of what makes sense: each is answered in two lines, before the work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.cli.main import main

pytestmark = pytest.mark.usefixtures("own_folder")

SMALL = ["--model", "tiny", "--device", "emulated", "--seq-len", "16", "--steps", "1"]


def refused(capsys, code, *arguments):
    assert main([*arguments]) == code
    err = capsys.readouterr().err
    what, remedy = err[err.index("error: ") :].splitlines()
    return what, remedy


@pytest.mark.parametrize("verb", ["gpt", "finetune"])
@pytest.mark.parametrize("batch", ["999999999999", "1000000000"])
def test_a_batch_that_no_host_holds_is_out_of_memory_with_numbers(verb, batch, capsys):
    what, remedy = refused(capsys, 4, verb, *SMALL, "--batch", batch)
    assert f"{int(batch):,} x 16 tokens" in what
    assert remedy.startswith("  try: --batch ")


def test_a_share_of_a_device_without_end_is_refused_at_once(capsys):
    what, _ = refused(capsys, 2, "finetune", *SMALL, "--gpu-memory", "50%")
    assert "a share of a total that is not known" in what


@pytest.mark.parametrize("temperature", ["1e-300", "1e-30", "5e-324"])
def test_a_temperature_next_to_nothing_takes_the_most_likely(temperature, capsys):
    words = ["gpt", "--prompt", "def", "--generate", "4", "--device", "emulated"]
    texts = []
    for given in (temperature, "0"):
        assert main([*words, "--temperature", given]) == 0
        texts.append(capsys.readouterr().out.splitlines()[0])
    assert texts[0] == texts[1]


def test_a_prompt_that_is_no_text_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "gpt", "--prompt", b"bad \xff", "--generate", "1"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert b"--prompt is not UTF-8" in done.stderr


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--enable-prefetch"], "--memory managed"),
        (["--num-streams", "2"], "--memory managed"),
        (["--gpu-memory", "8MiB", "--memory", "resident"], "--memory vmm or managed; resident"),
        (["--look-ahead", "8MiB", "--memory", "managed"], "--memory vmm; managed"),
        (["--temperature", "1"], "--prompt"),
    ],
)
def test_flags_of_another_way_are_said_to_do_nothing(flags, told, capsys):
    assert main(["gpt", *SMALL, *flags]) == 0
    assert f"warning: {flags[0]} is for {told}" in capsys.readouterr().err
    text = ["--prompt", "def", "--generate", "1", "--batch", "2"]
    assert main(["gpt", *text, "--device", "emulated"]) == 0
    assert "warning: --batch is for steps; add --steps N" in capsys.readouterr().err
    assert main(["gpt", *SMALL]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [(["--lora-rank", "4"], "--strategy L"), (["--data-field", "body"], "--data FILE")],
)
def test_flags_of_other_fine_tunes_are_said_to_do_nothing(flags, told, capsys):
    assert main(["finetune", *SMALL, "--batch", "1", *flags]) == 0
    assert f"warning: {flags[0]} is for {told}\n" in capsys.readouterr().err


def test_one_step_is_one_step(capsys):
    assert main(["finetune", *SMALL, "--batch", "1"]) == 0
    out = capsys.readouterr().out
    assert "in 1 step\n" in out
    assert "1 steps" not in out


def test_a_percentage_above_all_says_so(capsys):
    what, _ = refused(capsys, 2, "gpt", *SMALL, "--gpu-memory", "200%")
    assert what.endswith("'200%' is more than all there is")
