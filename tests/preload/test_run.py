# SPDX-License-Identifier: Apache-2.0
"""``penstock run``: the program it becomes, and what that program is told; over a fake driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.checks import preload_selftest

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def run(stack, tmp_path):
    """Run the verb where the driver is the fake one."""

    def start(*arguments: str, driver: bool = True, **more: str) -> subprocess.CompletedProcess:
        environment = stack.environment(
            preload=False,
            PYTHONPATH=str(SOURCE),
            XDG_CACHE_HOME=str(tmp_path / "cache"),
            HOME=str(tmp_path),
            **more,
        )
        if not driver:
            environment["LD_LIBRARY_PATH"] = ""
        return subprocess.run(
            [sys.executable, "-m", "penstock", "run", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
        )

    return start


needs_no_driver = pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="this machine has a driver of its own"
)


def python(code: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", code)


def test_it_becomes_the_program(run):
    done = run(*python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(41)"))
    assert (done.returncode, done.stdout, done.stderr) == (41, "out\n", "err\n")


def test_a_signal_ends_the_program_itself(run):
    done = run(*python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"))
    assert done.returncode == -15


def test_no_signal_stays_ignored(run):
    """Python ignores SIGPIPE, and what is ignored is inherited."""
    done = run("--", "sh", "-c", "grep SigIgn /proc/self/status")
    assert int(done.stdout.split()[1], 16) & (1 << 12) == 0


def test_options_end_where_the_program_begins(run):
    done = run("--gpu-memory", "1GiB", "echo", "--gpu-memory", "x", "--", "-v")
    assert done.stdout == "--gpu-memory x -- -v\n"
    assert run("--", "echo", "--print-preload").stdout == "--print-preload\n"


@pytest.mark.parametrize(
    ("flags", "variables", "expected"),
    [
        ((), {}, "0 0.000 0 1 -"),
        (("--gpu-memory", "1.5GiB"), {}, "1610612736 0.000 0 1 -"),
        (("--gpu-memory", "80%", "--safety", "strict"), {}, "0 0.800 1 1 -"),
        (("--safety", "fast", "--log-level", "debug"), {}, "0 0.000 2 3 -"),
        (("-v",), {}, "0 0.000 0 2 -"),
        (("--record", "a.trace"), {}, "0 0.000 0 1 {folder}/a.trace"),
        ((), {"ULMS_GPU_MEMORY_FACTOR": "60", "ULMS_LOG_LEVEL": "WARN"}, "0 0.600 0 1 -"),
        (("--gpu-memory", "2GB"), {"PENSTOCK_GPU_MEMORY": "1GiB"}, "2000000000 0.000 0 1 -"),
        ((), {"PENSTOCK_SAFETY": "strict", "ULMS_LOG_LEVEL": "ERROR"}, "0 0.000 1 0 -"),
    ],
)
def test_the_engine_is_told(run, stack, tmp_path, flags, variables, expected):
    done = run(*flags, "--", str(stack.folder / "program"), "v2", "options", **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == expected.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PENSTOCK_GPU_MEMORY": "8 GiB"}, "8589934592 0.000 0 1 -"),
        ({"PENSTOCK_GPU_MEMORY": "auto"}, "0 0.000 0 1 -"),
        ({"PENSTOCK_GPU_MEMORY": "100%"}, "0 1.000 0 1 -"),
        ({"PENSTOCK_GPU_MEMORY": "12345"}, "12345 0.000 0 1 -"),
        ({"ULMS_GPU_MEMORY_FACTOR": "80", "ULMS_LOG_LEVEL": "DEBUG"}, "0 0.800 0 3 -"),
        ({"ULMS_GPU_MEMORY_FACTOR": "80", "PENSTOCK_GPU_MEMORY": "1kb"}, "1000 0.000 0 1 -"),
        ({"PENSTOCK_LOG_LEVEL": "info", "ULMS_LOG_LEVEL": "ERROR"}, "0 0.000 0 2 -"),
        ({"PENSTOCK_SAFETY": "FAST", "PENSTOCK_RECORD": "x"}, "0 0.000 2 1 x"),
    ],
)
def test_variables_set_by_hand(stack, variables, expected):
    done = stack.run("program", "v2", "options", **variables)
    assert done.stdout.splitlines()[0] == expected
    assert done.stderr == ""


@pytest.mark.parametrize(
    "variables",
    [
        {"PENSTOCK_GPU_MEMORY": "8G"},
        {"PENSTOCK_GPU_MEMORY": "0"},
        {"PENSTOCK_GPU_MEMORY": "-1GiB"},
        {"PENSTOCK_GPU_MEMORY": "120%"},
        {"PENSTOCK_GPU_MEMORY": "1.2.3GiB"},
        {"PENSTOCK_SAFETY": "none"},
        {"ULMS_GPU_MEMORY_FACTOR": "0"},
        {"ULMS_GPU_MEMORY_FACTOR": "101"},
        {"ULMS_LOG_LEVEL": "LOUD"},
    ],
)
def test_a_value_that_makes_no_sense_is_said(stack, variables):
    done = stack.run("program", "v2", "options", **variables)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "0 0.000 0 1 -"
    assert done.stderr.count("\n") == 1
    assert f"{next(iter(variables))}=" in done.stderr


def test_misspelt_variables_are_reported(run):
    done = run("--", "true", PENSTOCK_GPU_MEMROY="1GiB", ULMS_GPU_MEMROY_FACTOR="60")
    assert "did you mean PENSTOCK_GPU_MEMORY?" in done.stderr
    assert "did you mean ULMS_GPU_MEMORY_FACTOR?" in done.stderr


def test_by_hand(run, stack):
    printed = run("--print-preload")
    assert printed.returncode == 0
    proxy = printed.stdout.strip()
    assert Path(proxy).name == "libcuda.so.1"
    done = stack.run("linked", "linked", "parameters", preload=False, LD_PRELOAD=proxy)
    assert done.returncode == 0, done.stderr


def test_what_is_preloaded_already_stays(run, stack):
    done = run(*python("import os; print(os.environ['LD_PRELOAD'])"), LD_PRELOAD=str(stack.driver))
    first, second = done.stdout.strip().split(":")
    assert first.endswith("/libcuda.so.1")
    assert second == str(stack.driver)


def test_a_run_within_a_run(run, stack):
    inner = (sys.executable, "-m", "penstock", "run", "--gpu-memory", "3GB", "--")
    done = run("--gpu-memory", "2GB", "--", *inner, str(stack.folder / "program"), "v2", "options")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3000000000 ")


@needs_no_driver
def test_without_a_driver(run):
    done = run("--", "sh", "-c", "echo $LD_PRELOAD; exit 3", driver=False)
    assert (done.returncode, done.stdout) == (3, "\n")
    assert done.stderr == "warning: there is no NVIDIA driver here; the program runs as it is\n"
    assert run("--device", "cuda", "--", "true", driver=False).returncode == 3
    assert run("--print-preload", driver=False).returncode == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "which program?"),
        (("--device", "cuda:1", "--", "true"), 2, "CUDA_VISIBLE_DEVICES=1"),
        (("--device", "emulated", "--", "true"), 2, "know nothing of it"),
        (("--", "no-such-program"), 1, "no program 'no-such-program'"),
        (("--record", "no/such/folder", "--", "true"), 1, "cannot be written"),
        (("--safety", "none", "--", "true"), 2, "normal, strict, fast"),
    ],
)
def test_what_is_refused(run, arguments, code, said):
    done = run(*arguments)
    assert done.returncode == code
    assert said in done.stderr


def test_a_folder_that_others_can_write_is_not_used(run, tmp_path):
    cache = tmp_path / "cache" / "penstock"
    cache.mkdir(parents=True)
    os.chmod(cache, 0o777)
    printed = run("--print-preload").stdout
    assert printed.startswith(str(tmp_path / ".cache" / "penstock"))


# ---- Recording --------------------------------------------------------------------------------


def test_an_older_recording_gives_way(run, tmp_path):
    (tmp_path / "a.trace").write_bytes(b"PNSTWORK and more")
    assert run("--record", "a.trace", "--", "true").returncode == 0
    assert not (tmp_path / "a.trace").exists()


def test_nothing_else_is_written_over(run, tmp_path):
    (tmp_path / "a.trace").write_text("PNST, a thesis")
    done = run("--record", "a.trace", "--", "true")
    assert done.returncode == 1
    assert "is no recording" in done.stderr
    assert (tmp_path / "a.trace").read_text() == "PNST, a thesis"


# ---- What Python does at its start ------------------------------------------------------------

CUPY = "class cuda:\n  @staticmethod\n  def set_allocator(a): print('allocator', a)\n"


def test_frameworks_are_told_at_import(run, tmp_path):
    (tmp_path / "cupy.py").write_text(CUPY)
    code = (
        "import os, sys, cupy\n"
        "print(os.environ['XLA_PYTHON_CLIENT_ALLOCATOR'], cupy.__loader__.name)\n"
        "print(any('preload/site' in each for each in sys.path))\n"
        "import inspect; print(len(inspect.getsource(cupy)))"
    )
    done = run(*python(code))
    assert done.stdout == f"allocator None\ncuda_async cupy\nFalse\n{len(CUPY)}\n", done.stderr


def test_a_failure_is_said_and_the_program_goes_on(run, tmp_path):
    (tmp_path / "cupy.py").write_text("name = 'another cupy'\n")
    done = run(*python("import cupy; print(cupy.name)"))
    assert done.stdout == "another cupy\n"
    assert done.stderr.startswith("penstock: cupy keeps its own allocator: ")


def test_another_sitecustomize_still_runs(run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text("print('the other one')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import sitecustomize; print(sitecustomize.__file__)"],
        env={**os.environ, "PYTHONPATH": f"{SOURCE / 'penstock/preload/site'}:{tmp_path}/other"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"the other one\n{tmp_path}/other/sitecustomize.py\n"


def test_without_the_proxy_nothing_is_changed(tmp_path):
    (tmp_path / "cupy.py").write_text(CUPY)
    done = subprocess.run(
        [sys.executable, "-c", "import cupy, sys; print(len(sys.meta_path))"],
        env={
            **{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            "PYTHONPATH": str(SOURCE / "penstock" / "preload" / "site"),
        },
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "allocator" not in done.stdout


@pytest.mark.slow
def test_torch_without_cuda_is_left_alone(run):
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    code = (
        "import torch, sys; "
        "print('penstock.allocator.run_hook' in sys.modules, torch.ones(2).sum())"
    )
    done = run(*python(code))
    assert done.stdout == "True tensor(2.)\n", done.stderr
    assert done.stderr == ""


# ---- The self-test ----------------------------------------------------------------------------


@pytest.fixture
def selftest(stack):
    def start(**more: str) -> dict:
        environment = stack.environment(PYTHONPATH=str(SOURCE), **more)
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.checks.preload_selftest"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return {**json.loads(done.stdout), "code": done.returncode}

    return start


def test_the_self_test_sees_both_launches(selftest):
    assert selftest() == {"ok": True, "observed": "2 of 2 launches seen", "code": 0}


def test_the_self_test_reads_the_counters_as_they_are():
    """It and the benchmark know the struct by the order of its words."""
    header = SOURCE.parent / "native" / "api" / "include" / "penstock" / "interpose.h"
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    struct = re.search(r"typedef struct \{([^}]*)\} penstock_proxy_counters;", text)[1]
    names = re.findall(r"\w+(?=[,;])", struct)
    assert len(names) == preload_selftest.WORDS
    assert names[-1] == "late"
    benchmark = (SOURCE.parent / "benchmarks" / "interpose.py").read_text()
    listed = re.search(r"COUNTERS = \((.*?)\)", benchmark, re.DOTALL)[1]
    assert re.findall(r"[a-z_]+", listed) == names[1:]


def test_the_self_test_without_the_proxy_says_so(selftest):
    found = selftest(LD_PRELOAD="")
    assert found["ok"] is False
    assert "penstock_proxy_entry_calls" in found["observed"]


def test_the_self_test_finds_a_driver_that_came_first(selftest, stack):
    found = selftest(LD_PRELOAD=f"{stack.driver}:{stack.proxy}")
    assert found["ok"] is False


def test_the_doctors_check(stack, tmp_path):
    """All of it, in a process where the driver is the fake one."""
    code = (
        "from penstock.cli.checks import preload\n"
        "check = preload.coverage(); print(check.status, '|', check.observed)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=stack.environment(preload=False, PYTHONPATH=str(SOURCE), XDG_CACHE_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"ok | 2 of 2 launches seen, before {stack.driver}\n"
