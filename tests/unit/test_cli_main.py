# SPDX-License-Identifier: Apache-2.0
"""The frame of the command line: exit codes, help, errors, JSON files, start-up time."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import types

import click
import pytest
import torch

from penstock import __version__
from penstock.cli import main as entry
from penstock.cli.common import need_extra, verb
from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory, UsageError


def verbs():
    """Every verb and subcommand, by what one types."""
    group = entry.VerbGroup()
    for name in entry.VERBS:
        command = group.get_command(click.Context(group), name)
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", sub) for inner, sub in command.commands.items())


VERB_NAMES = [name for name, _ in verbs()]


@pytest.fixture
def add_verb(monkeypatch):
    """Register a function as the verb "probe"."""

    def add(function):
        command = click.command("probe")(verb()(function))
        monkeypatch.setitem(sys.modules, "penstock_probe", types.SimpleNamespace(command=command))
        monkeypatch.setitem(entry.VERBS, "probe", ("penstock_probe", "A verb of the tests."))

    return add


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_without_arguments_it_prints_help(capsys):
    assert entry.main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in entry.VERBS)


def test_version(capsys):
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


@pytest.mark.parametrize("name", VERB_NAMES)
def test_help_fits_a_screen_and_has_an_example(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert entry.main([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 32
    assert any("Example" in line for line in lines)
    assert any(f"penstock {name}" in line for line in lines[2:])


@pytest.mark.parametrize("name", VERB_NAMES)
def test_every_verb_gives_json_and_takes_verbose(name):
    command = dict(verbs())[name]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    if not isinstance(command, click.Group):
        # What `run` prints is the program's.
        own = set() if name == "run" else {"--json"}
        assert {*own, "-v", "--verbose"} <= flags


def test_the_list_of_verbs_says_what_each_verb_says():
    for name, command in verbs():
        if name in entry.VERBS:
            assert command.get_short_help_str(limit=100) == entry.VERBS[name][1]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["estimat"], "try: penstock estimate"),
        (["Doctor"], "try: penstock doctor"),
        (["zzz"], "try: penstock --help"),
        (["--nonsense"], "try: penstock --help"),
        (["estimate", "gpt2_xl", "--nonsense"], "try: penstock estimate --help"),
        (["estimate"], "try: penstock estimate gpt2_xl"),
        (["estimate", "gpt2_x"], "try: gpt2_xl"),
        (["config", "shwo"], "try: penstock config"),
        (["config", "explain", "gpu_memroy"], "try: gpu_memory"),
    ],
)
def test_wrong_usage_is_two_lines_and_exit_2(arguments, remedy, capsys):
    assert entry.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    error, hint = captured.err.splitlines()
    assert error.startswith("error: ")
    assert remedy in hint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FailedError("it failed", remedy="again"), 1),
        (UsageError("no", remedy="yes"), 2),
        (EnvironmentProblem("no GPU"), 3),
        (OutOfMemory("too small", remedy="larger"), 4),
        (MemoryError(), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error, code, add_verb, capsys):
    def probe(settings, output):
        raise error

    add_verb(probe)
    assert entry.main(["probe"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.strip().startswith("error: ")


def test_a_verb_that_returns_a_number_ends_with_it(add_verb):
    add_verb(lambda settings, output: 3)
    assert entry.main(["probe"]) == 3


def test_torch_running_out_of_memory_is_exit_4(add_verb, monkeypatch, capsys):
    class OutOfMemoryError(RuntimeError):
        pass

    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    )

    def probe(settings, output):
        raise OutOfMemoryError("CUDA out of memory")

    add_verb(probe)
    assert entry.main(["probe"]) == 4
    assert "CUDA out of memory" in capsys.readouterr().err


def test_host_memory_that_torch_does_not_get_is_exit_4(add_verb, capsys):
    def probe(settings, output):
        torch.empty(1 << 60, dtype=torch.uint8)

    add_verb(probe)
    assert entry.main(["probe"]) == 4
    assert "error: can't allocate memory: you tried to allocate 1152921504606846976 bytes" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("how", [[], ["-v"], "variable"])
def test_a_bug_asks_for_a_report_and_shows_its_traceback_only_when_asked(
    how, add_verb, capsys, monkeypatch
):
    def probe(settings, output):
        raise RuntimeError("a bug")

    add_verb(probe)
    if how == "variable":
        monkeypatch.setenv("PENSTOCK_VERBOSE", "1")
        how = []
        shown = True
    else:
        shown = bool(how)
    assert entry.main(["probe", *how]) == 1
    err = capsys.readouterr().err
    assert "error: RuntimeError: a bug" in err
    assert "please report" in err
    assert ("Traceback" in err) == shown


def test_unknown_variables_warn_on_stderr(capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DEVISE", "cuda")
    assert entry.main(["config", "show"]) == 0
    assert "did you mean PENSTOCK_DEVICE?" in capsys.readouterr().err


def test_json_goes_to_stdout_alone(add_verb, capsys):
    def probe(settings, output):
        output.emit({"figure": 1.5, "none": float("nan")}, lambda: print("for people"))

    add_verb(probe)
    assert entry.main(["probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"figure": 1.5, "none": None}


def test_json_in_a_file_leaves_stdout_to_people(add_verb, capsys, tmp_path):
    add_verb(lambda settings, output: output.emit({"a": 1}, lambda: print("for people")))
    path = tmp_path / "out.json"
    path.write_text('{"schema_version": 1}')
    assert entry.main(["probe", "--json", str(path)]) == 0
    assert capsys.readouterr().out == "for people\n"
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["out.json"]


@pytest.mark.parametrize(
    "content", ["precious", "{}", "[1]", '{"a": {"schema_version": 1}}', "\x00", "[" * 100_000]
)
def test_a_file_that_is_no_result_is_not_written_over(content, add_verb, capsys, tmp_path):
    worked = []

    def work(settings, output):
        worked.append(1)
        output.emit({"a": 1}, lambda: None)

    add_verb(work)
    path = tmp_path / "mine"
    path.write_text(content)
    assert entry.main(["probe", "--json", str(path)]) == 1
    assert "is there and is no result" in capsys.readouterr().err
    assert (worked, path.read_text()) == ([], content)
    assert entry.main(["probe", "--json", str(path), "--force"]) == 0
    assert json.loads(path.read_text()) == {"a": 1}


def test_an_empty_file_may_be_written_to(add_verb, tmp_path):
    add_verb(lambda settings, output: output.emit({"a": 1}, lambda: None))
    (tmp_path / "made").touch()
    assert entry.main(["probe", "--json", str(tmp_path / "made")]) == 0


@pytest.mark.parametrize("place", ["missing/out.json", "."])
def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(
    place, add_verb, capsys, tmp_path
):
    worked = []
    add_verb(lambda settings, output: worked.append(1))
    assert entry.main(["probe", "--json", str(tmp_path / place)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert worked == []


def test_a_missing_extra_says_how_to_get_it():
    with pytest.raises(EnvironmentProblem) as caught:
        need_extra("a_module_that_is_not_there", "hf")
    assert caught.value.remedy == "pip install 'penstock[hf]'"
    need_extra("json", "hf")


def test_plain_output_has_no_escapes():
    environ = {**os.environ, "NO_COLOR": "1"}
    environ.pop("FORCE_COLOR", None)
    done = run("config", "show", env=environ)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_a_reader_that_goes_away_is_no_bug():
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'penstock', 'config', 'show'],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "child.stdout.close()\n"
        "sys.stdout.write(child.stderr.read().decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Traceback" not in done.stdout
    assert "please report" not in done.stdout


def test_help_imports_nothing_heavy(loaded_by):
    loaded = loaded_by("from penstock.cli.main import main; main(['--help'])")
    assert not loaded & {"torch", "numpy", "rich", "asyncio", "penstock.config", "penstock.native"}


def test_help_costs_little_more_than_its_parser():
    """Processor time beside that of importing click: a yardstick that slows down as we do."""

    def cost(*arguments):
        def once():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return min(once() for _ in range(5))

    assert cost("-m", "penstock", "--help") < 1.5 * cost("-c", "import click")


@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupt_before_the_modules_are_there_is_no_traceback(tmp_path, ignored):
    (tmp_path / "click.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(7)\n"
    )
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}from penstock.cli.start import run\nrun()"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7 if ignored else -signal.SIGINT, "")


def test_an_interrupt_at_pythons_own_end_is_not_complained_about():
    code = (
        "import atexit, os, signal\n"
        "from penstock.cli import main\n"
        "def interrupt(**arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "main.root.main = interrupt\n"
        "atexit.register(interrupt)\n"
        "main.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "error: interrupted\n")
