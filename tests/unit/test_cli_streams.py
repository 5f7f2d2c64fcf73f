# SPDX-License-Identifier: Apache-2.0
"""The command line where standard streams are closed or full, and where the ground is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHOW = "config show"


def shell(command, folder, **environ):
    """What a shell makes of ``penstock``, with words of its own around it."""
    line = f'penstock() {{ "{sys.executable}" -m penstock "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        cwd=folder,
        env={**os.environ, **environ},
        check=False,
    )


def failed(done, code, *said):
    """One line on stderr with what was said, maybe a remedy, and nothing of the interpreter's."""
    lines = [line for line in done.stderr.splitlines() if "warning: " not in line]
    assert done.returncode == code, done.stderr
    assert lines[0].startswith("error: ")
    assert all(each in lines[0] for each in said), lines[0]
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("  try: ")), done.stderr
    assert "bug of Penstock" not in done.stderr


@pytest.mark.parametrize("command", [SHOW, f"{SHOW} --json", "estimate tiny", "--help"])
@pytest.mark.parametrize(
    ("stdout", "said"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_stdout_that_takes_nothing_is_one_error(command, stdout, said, tmp_path):
    failed(shell(f"penstock {command} {stdout}", tmp_path), 1, "stdout", said)


def test_a_result_is_in_its_file_before_it_is_printed(tmp_path):
    failed(shell("penstock estimate tiny --json a.json >/dev/full", tmp_path), 1, "stdout")
    assert (tmp_path / "a.json").stat().st_size > 100


def test_a_result_is_printed_where_its_file_cannot_be_written(tmp_path):
    done = shell("penstock estimate tiny -o /dev/full", tmp_path)
    assert done.returncode == 1
    assert "error: -o: /dev/full cannot be written: No space left on device" in done.stderr
    assert "223,808 parameters" in done.stdout


def test_with_closed_streams_no_file_becomes_one(tmp_path):
    done = shell("penstock estimate tiny --json a.json <&- >&- 2>&-", tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "a.json").read_text().startswith('{\n  "schema_version"')


@pytest.mark.parametrize("stderr", [">/dev/full", "> >(exit)"])
def test_stderr_that_takes_nothing_changes_neither_work_nor_exit_code(stderr, tmp_path):
    """Progress, a warning and an error are lost; all else is as it was."""
    done = shell(f"PENSTOCK_DEVISE=1 penstock estimate nope 2{stderr}", tmp_path)
    assert done.returncode == 2
    trace = Path(__file__).parent.parent / "data" / "gpt2xl_generate_shapes.npz"
    done = shell(f"penstock replay {trace} --allocator native 2{stderr}", tmp_path)
    assert done.returncode == 0
    assert "utilisation" in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_starts_with_the_streams_that_are_there(closed, tmp_path):
    """What is closed stays closed; beside it the program has what it would have without us."""
    look = "sh -c 'for n in 0 1 2 3; do test -e /proc/self/fd/$n && echo $n; done > seen'"
    plain = shell(f"{look} {closed}", tmp_path)
    expected = (tmp_path / "seen").read_text()
    (tmp_path / "seen").unlink()
    done = shell(f"penstock run -- {look} {closed}", tmp_path)
    assert done.returncode == plain.returncode
    assert (tmp_path / "seen").read_text() == expected


def test_a_working_folder_that_was_removed(tmp_path):
    for command in ("estimate tiny", SHOW, "run -- true"):
        done = shell(f"mkdir g; cd g; rmdir ../g; penstock {command}", tmp_path)
        failed(done, 1, "working folder")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 300, "y" * 300 + ".json"])
@pytest.mark.parametrize(
    "command",
    [
        "estimate tiny --json {}",
        "report {}",
        "report a --html {}",
        "replay {}",
        "simulate {}",
        "run --record {} -- true",
        "finetune --model {}",
        "finetune --checkpoint {}",
        "finetune --data {}",
        "gpt --weights {}",
        "compare --report {} finetune",
        "estimate {}",
        "config explain {}",
        "run -- {}",
    ],
)
def test_names_that_are_too_long(command, name, tmp_path):
    done = shell(f"penstock {command.format(name)}", tmp_path)
    assert done.returncode in (1, 2)
    failed(done, done.returncode)


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
@pytest.mark.parametrize("encoding", ["", "ascii"])
def test_other_locales(locale, encoding, tmp_path):
    environ = {"LC_ALL": locale, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    environ["PYTHONCOERCECLOCALE"] = "0"
    done = shell("penstock report $'na\\xc3\\xafve\\xff.json'", tmp_path, **environ)
    failed(done, 1, "there is no file na")
    done = shell("penstock estimate tiny --json $'\\xc3\\xaf\\xff'; ls", tmp_path, **environ)
    assert done.returncode == 0, done.stderr


def test_sigterm_ends_a_verb_as_a_signal_does(tmp_path):
    code = (
        "import sys, time, types, click\n"
        "from penstock.cli import main as entry\n"
        "from penstock.cli.common import verb\n"
        "@click.command('probe')\n"
        "@verb()\n"
        "def command(settings, output):\n"
        "    try:\n"
        "        print('working', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned up', flush=True)\n"
        "sys.modules['probe'] = types.SimpleNamespace(command=command)\n"
        "entry.VERBS['probe'] = ('probe', 'A verb of the tests.')\n"
        "sys.argv[1:] = ['probe']\n"
        "entry.run()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "working\n"
    begin = time.monotonic()
    child.terminate()
    out, err = child.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert (out, err) == ("cleaned up\n", "error: terminated\n")
    assert child.returncode == -signal.SIGTERM
