# SPDX-License-Identifier: Apache-2.0
"""What becomes of the words of processes: errors, progress, and lines that nobody asked for."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from penstock.config import Settings
from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory
from penstock.finetune import launch, worker
from penstock.finetune.request import Request
from penstock.report.progress import Progress


def test_the_error_of_a_process_is_raised_again(tmp_path):
    words = {"kind": "OutOfMemory", "what": "no room", "remedy": "--batch 2"}
    (tmp_path / "error-1.json").write_text(json.dumps(words))
    failure = launch.failure_of(tmp_path, ["Traceback", "RuntimeError: something else"])
    assert isinstance(failure, OutOfMemory)
    assert (failure.what, failure.remedy) == ("no room", "--batch 2")


def test_a_process_that_could_not_say_why_is_quoted(tmp_path):
    failure = launch.failure_of(tmp_path, ["at work", "ValueError: of no use", "torchrun failed"])
    assert isinstance(failure, FailedError)
    assert failure.what == "a process of the run died: ValueError: of no use"
    assert "-v" in failure.remedy


def test_torchruns_own_error_does_not_hide_the_process(tmp_path):
    kept = [
        "Traceback (most recent call last):",
        "[rank0]: ModuleNotFoundError: No module named 'msgpack'",
        "Traceback (most recent call last):",
        "    raise ChildFailedError(",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============",
    ]
    failure = launch.failure_of(tmp_path, kept)
    assert failure.what.endswith("died: ModuleNotFoundError: No module named 'msgpack'")


@pytest.mark.parametrize("verbose", [False, True])
def test_progress_goes_on_and_the_rest_is_kept(verbose):
    code = (
        "import sys; from penstock.finetune.worker import Marked\n"
        "from penstock.report.progress import Progress\n"
        "print('a library talks')\n"
        "with Progress(Marked(sys.stderr)).stage('training', 1) as advance: advance(1, 'loss 2')\n"
    )
    stream = io.StringIO()
    kept = launch.follow([sys.executable, "-c", code], dict(os.environ), stream, verbose)
    assert kept == ["a library talks"]
    lines = stream.getvalue().splitlines()
    assert "training: 100%, loss 2" in lines
    assert ("a library talks" in lines) == verbose


def test_marked_lines_are_whole_lines():
    stream = io.StringIO()
    with Progress(worker.Marked(stream)).stage("x", 1) as advance:
        advance(1)
    assert stream.getvalue() == f"{worker.MARK}x: 100%\n"


@pytest.mark.parametrize(("gpus", "there"), [(0, "at most 3 processes"), (4, "torch sees 4")])
def test_more_processes_than_places_are_not_started(gpus, there, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(launch, "follow", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(EnvironmentProblem) as failure:
        launch.launch(
            Request("tiny", settings=Settings(), gpus=99), stream=io.StringIO(), verbose=False
        )
    assert failure.value.what.startswith("--gpus 99, but ")
    assert there in failure.value.what
    assert failure.value.remedy == f"--gpus {gpus or 3} or less"
