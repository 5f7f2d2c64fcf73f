# SPDX-License-Identifier: Apache-2.0
"""Programs over a fake driver: what the proxy sees, whichever way they came by the driver."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

WAYS = ("dlopen", "name", "absolute", "v1", "v2", "default", "per-thread", "linked")
SCENARIOS = (
    "parameters",
    "code",
    "copies",
    "fills",
    "memory",
    "pointers",
    "pins",
    "graphs",
    "life",
    "threads",
    "fork",
    "unknown",
)


def check(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("way", WAYS)
def test_a_scenario(stack, way, scenario):
    program = "linked" if way == "linked" else "program"
    assert "well" in check(stack.run(program, way, scenario))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_among_ranges_that_lie_apart(stack, scenario):
    """Others' memory, the host's too, lies between the engine's."""
    assert "well" in check(stack.run("program", "v2", scenario, DOUBLE_WIDE="1"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [*SCENARIOS, "early-fork"])
def test_a_scenario_under_sanitizers(stacks, scenario):
    check(stacks("asan").run("program", "v2", scenario))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["threads", "graphs"])
def test_a_scenario_under_the_thread_sanitizer(stacks, scenario):
    check(stacks("tsan").run("program", "v2", scenario))


@pytest.mark.parametrize("way", ["dlopen", "v1", "v2", "linked"])
def test_every_row_of_the_table_is_hit_once(stack, way):
    """With no engine at all, so that every call ends in the driver."""
    program = "sweep_linked" if way == "linked" else "sweep"
    said = check(stack.run(program, way, DOUBLE_REFUSES="1"))
    assert said.endswith("0 wrong\n")
    assert int(said.split()[0]) > 150


@pytest.mark.slow
def test_every_row_under_sanitizers(stacks):
    check(stacks("asan").run("sweep", "v2", DOUBLE_REFUSES="1"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_driver_that_calls_itself_by_name(stacks, scenario):
    """Its own calls, and what its resolver hands out, are the program's first choice: the proxy."""
    check(stacks("unbound").run("program", "v2", scenario))


@pytest.mark.slow
def test_every_row_over_such_a_driver(stacks):
    check(stacks("unbound").run("sweep", "v2", DOUBLE_REFUSES="1"))


def test_a_fork_before_the_first_context(stack):
    check(stack.run("program", "v2", "early-fork"))


def test_through_the_search_path_alone(stack):
    """Without a preload the folder may come first on the search path."""
    path = f"{stack.folder}:{stack.driver.parent}"
    check(stack.run("program", "v2", "parameters", preload=False, LD_LIBRARY_PATH=path))
    check(stack.run("linked", "linked", "parameters", preload=False, LD_LIBRARY_PATH=path))


def test_an_engine_that_refuses(stack):
    done = stack.run("program", "v2", "forwarded", DOUBLE_REFUSES="1")
    check(done)
    assert done.stderr.count("penstock: ") == 1
    assert "the double was told to refuse; nothing will be paged" in done.stderr


def test_an_engine_that_is_not_there(stack):
    done = stack.run("program", "v2", "forwarded", PENSTOCK_LIBRARY="/nowhere/libpenstock.so")
    check(done)
    assert "/nowhere/libpenstock.so" in done.stderr


def test_the_library_of_an_installed_package(stack, tmp_path):
    """It lies beside the folder that the proxy really is in, not the one of links."""
    for folder in ("package/preload", "package/lib", "links"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(stack.proxy, tmp_path / "package" / "preload" / "libcuda.so.1")
    engine = tmp_path / "package" / "lib" / "libpenstock.so"
    shutil.copy(stack.folder / "libengine_double.so", engine)
    proxy = tmp_path / "links" / "libcuda.so.1"
    proxy.symlink_to(tmp_path / "package" / "preload" / "libcuda.so.1")
    (tmp_path / "links" / "libcuda_real.so.1").symlink_to(stack.driver)
    code = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p()\n"
        "before = open('/proc/self/maps').read()\n"
        "print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))\n"
        "print([path in open('/proc/self/maps').read() for path in "
        f"({str(engine)!r},)], {str(engine)!r} in before)"
    )
    done = stack.run(sys.executable, "-c", code, LD_PRELOAD=str(proxy), PENSTOCK_LIBRARY="")
    assert check(done) == "0\n[True] False\n", done.stderr


def test_a_driver_that_came_first(stack):
    done = stack.run("program", "-", "late", preload=False)
    check(done)
    assert "was loaded before the proxy" in done.stderr


def test_a_spawned_child_has_its_own(stack):
    code = (
        "import os, subprocess, sys\n"
        f"sys.exit(subprocess.call([{str(stack.folder / 'program')!r}, 'v2', 'parameters']))"
    )
    check(stack.run(sys.executable, "-c", code))


def test_the_line_at_the_end(stack):
    quiet = stack.run("program", "v2", "parameters")
    assert quiet.stderr == ""
    asked = stack.run("program", "v2", "parameters", PENSTOCK_SUMMARY="1")
    assert asked.stderr.startswith("penstock: nothing was paged; 23 launches")
    paged = stack.run("program", "v2", "parameters", DOUBLE_PAGED="1")
    assert paged.stderr.startswith("penstock: 1 byte came in; 23 launches")
    assert paged.stderr.count("\n") == 1
    assert asked.stdout == paged.stdout == quiet.stdout


def test_a_program_without_cuda_is_as_it_was(stack):
    code = "import sys; print(open('/proc/self/maps').read()); sys.exit(7)"
    done = stack.run(sys.executable, "-c", code, PENSTOCK_SUMMARY="1")
    assert done.returncode == 7
    assert done.stderr == ""
    assert "engine_double" not in done.stdout
    assert "libcuda.so.1" in done.stdout


def test_another_library_of_that_name_is_left_alone(stack, tmp_path):
    """Only the file behind the proxy is replaced by it; and RUNPATH of the caller still counts."""
    inner = tmp_path / "inner"
    inner.mkdir()
    sources = {
        "dep.c": "int dep(void) { return 5; }",
        "user.c": "#include <dlfcn.h>\n"
        "int use(void) {\n"
        '  void* d = dlopen("libdep_of_user.so", RTLD_NOW);\n'
        '  return d ? ((int (*)(void))dlsym(d, "dep"))() : -1;\n'
        "}",
        "main.c": "#include <dlfcn.h>\n#include <stdio.h>\n"
        "int main(int n, char** v) {\n"
        "  (void)n;\n"
        "  void* u = dlopen(v[1], RTLD_NOW);\n"
        "  void* o = dlopen(v[2], RTLD_NOW);\n"
        '  printf("%d %d\\n", ((int (*)(void))dlsym(u, "use"))(),'
        ' ((int (*)(void))dlsym(o, "dep"))());\n'
        "  return 0;\n"
        "}",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)

    def cc(*arguments: str) -> None:
        subprocess.run(["cc", *arguments], cwd=tmp_path, check=True)

    cc("-shared", "-fPIC", "dep.c", "-o", "inner/libdep_of_user.so")
    cc("-shared", "-fPIC", "dep.c", "-o", "inner/libcuda.so.99")
    cc("-shared", "-fPIC", "user.c", "-o", "libuser.so", "-Wl,-rpath,$ORIGIN/inner", "-ldl")
    cc("main.c", "-o", "main", "-ldl")
    done = stack.run(
        str(tmp_path / "main"), str(tmp_path / "libuser.so"), str(inner / "libcuda.so.99")
    )
    assert check(done) == "5 5\n"
