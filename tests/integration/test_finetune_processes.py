# SPDX-License-Identifier: Apache-2.0
"""``penstock finetune`` in processes of its own: killed and run again, two at once, compared."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from verbs import result_of

from penstock.cli.main import main
from penstock.models.checkpoint import shipped_checkpoint

pytestmark = pytest.mark.usefixtures("own_folder")

TINY = ["--model", "tiny", "--device", "emulated", "--seq-len", "16", "--lr", "1e-3"]
WAIT_S = 90.0


def refused(capsys, code, *arguments):
    assert main([*map(str, arguments)]) == code
    err = capsys.readouterr().err
    return err[err.index("error: ") :]


@pytest.mark.slow
def test_killed_in_the_middle_a_rerun_goes_on(capsys, tmp_path):
    work = ["finetune", *TINY, "--batch", "2", "--steps", "400", "--checkpoint", "here"]
    work += ["--save-every", "2", "--resume"]
    process = subprocess.Popen([sys.executable, "-m", "penstock", *work], stderr=subprocess.DEVNULL)
    begin = time.monotonic()
    while not list((tmp_path / "here").glob("step-*")):
        assert process.poll() is None
        assert time.monotonic() - begin < WAIT_S
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = int(max((tmp_path / "here").glob("step-*")).name.removeprefix("step-"))
    assert done < 400
    steps = str(done + 3)
    work[work.index("400")] = steps
    resumed = result_of(capsys, *work)
    whole = result_of(capsys, "finetune", *TINY, "--batch", "2", "--steps", steps)
    assert resumed["resumed_at"] == done
    assert resumed["loss"] == whole["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_gives_the_losses_of_one_process_alone(capsys, stage):
    # Gradients whose norm is far above 1: nothing may scale them down.
    work = ["finetune", *TINY, "--dtype", "float32", "--batch", "2", "--steps", "6"]
    plain = result_of(capsys, *work)
    zero = result_of(capsys, *work, "--zero", stage)
    assert zero["loss"] == pytest.approx(plain["loss"], rel=2e-6)


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one_and_go_on_from_a_checkpoint(capsys, tmp_path):
    work = [*TINY, "--dtype", "float32", "--allocator", "native", "--strategy", "R"]
    # GPT-2 has dropout, which every process would draw for itself: without it two halves of a
    # batch are the batch.
    folder = tmp_path / "bare"
    folder.mkdir()
    config = json.loads((shipped_checkpoint() / "config.json").read_text())
    config |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(shipped_checkpoint() / "model.safetensors", folder)
    work[work.index("tiny")] = str(folder)
    alone = result_of(capsys, "finetune", *work, "--batch", "4", "--steps", "3")
    two = [*work, "--batch", "2", "--gpus", "2", "--fsdp", "--checkpoint", "here", "--resume"]
    shared = result_of(capsys, "finetune", *two, "--steps", "2")
    resumed = result_of(capsys, "finetune", *two, "--steps", "3")
    assert (resumed["resumed_at"], resumed["engine"], len(resumed["ranks"])) == (2, "fsdp", 2)
    assert resumed["loss"][:2] == shared["loss"]
    assert resumed["loss"] == pytest.approx(alone["loss"], abs=1e-4)
    assert resumed["step_tokens"] == alone["step_tokens"] == [64, 64, 64]
    # Each process holds half of what is trained, and of the optimizer's state.
    assert resumed["peak_requested_bytes"] < 0.75 * alone["peak_requested_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    "verb", [["finetune", "--gpus", "2"], ["compare", "--allocators", "native", "finetune"]]
)
def test_processes_end_with_the_one_that_started_them(verb, number, tmp_path):
    work = [*TINY, "--batch", "2", "--steps", "4000", "--save-every", "1", "--checkpoint", "here"]
    (tmp_path / "temporary").mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-m", "penstock", *verb, *work],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    begin = time.monotonic()
    while not list((tmp_path / "here").glob("step-*")):
        assert parent.poll() is None
        assert time.monotonic() - begin < WAIT_S
        time.sleep(0.05)
    # Beside the parent torchrun and its two, or the one that is compared.
    assert len(processes_in(tmp_path)) >= (4 if verb[0] == "finetune" else 2)
    parent.send_signal(number)
    parent.wait(WAIT_S)
    assert parent.returncode == -number
    while processes_in(tmp_path):
        assert time.monotonic() - begin < 2 * WAIT_S
        time.sleep(0.05)
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert [name for name in left if "penstock" in name] == []


def processes_in(folder):
    """Processes whose working folder it is, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.readlink(entry / "cwd") == str(folder) and (entry / "exe").exists():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.slow
def test_a_comparison_is_a_table_json_and_a_page(capsys, tmp_path):
    work = ["finetune", *TINY, "--batch", "4", "--steps", "3", "--memory", "resident"]
    files = ["--report", "a.html", "--json", "a.json"]
    assert main(["compare", *work, "--budgets", "1MiB,64MiB", *files]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^1MiB +exit 4$", out, re.MULTILINE)
    assert re.search(r"^64MiB .*  nothing$", out, re.MULTILINE)
    assert "\n1MiB: a step of 4 x 16 tokens does not fit" in out
    document = json.loads((tmp_path / "a.json").read_text())
    small, large = document["rows"]
    assert (small["exit_code"], small["result"]) == (4, None)
    assert (large["exit_code"], large["error"]) == (0, None)
    assert large["result"]["peak_reserved_bytes"] <= 64 << 20
    page = (tmp_path / "a.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*)</script>', page).group(1)
    assert json.loads(data) == document
    assert small["error"] in html.unescape(page)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing cannot be compared"),
        (["gpt"], "'gpt' cannot be compared"),
        (["finetune", "--allocators", "best"], "'best' is unknown"),
        (["finetune", "--budgets", "lots"], "--budgets"),
        (["finetune", "--allocator", "native"], "is what is compared"),
        (["finetune", "--bach", "3"], "No such option"),
    ],
)
def test_comparisons_that_make_no_sense(arguments, said, capsys):
    assert said in refused(capsys, 2, "compare", *arguments)


def test_a_page_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path):
    error = refused(capsys, 1, "compare", "finetune", "--report", tmp_path / "no" / "a.html")
    assert "--report" in error
