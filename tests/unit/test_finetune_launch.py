# SPDX-License-Identifier: Apache-2.0
"""What becomes of the words of processes: errors, progress, and lines that nobody asked for."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from penstock.errors import FailedError, OutOfMemory
from penstock.finetune import launch, worker
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
