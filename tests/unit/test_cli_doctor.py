# SPDX-License-Identifier: Apache-2.0
"""``penstock doctor``: every check on machines that differ from this one, and the verb itself."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from typing import ClassVar

import pytest

from penstock import __version__, native
from penstock.cli import doctor
from penstock.cli.checks import Check, framework, gpu, host, library, preload, selftest
from penstock.cli.main import main
from penstock.errors import EnvironmentProblem, OutOfMemory
from penstock.units import MIB

IDS = [
    *("python", "library", "emulated", "driver", "gpu", "vmm", "managed", "link", "run"),
    *("host-memory", "cgroup", "memlock", "max-map-count", "torch", "torch-cuda", "allocator"),
]


class Cuda:
    """A libcuda.so.1 whose cuInit ends as told."""

    def __init__(self, status: int = 0, version: int = 13010) -> None:
        self.status = status
        self.version = version

    def cuInit(self, flags):
        return self.status

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self.version
        return 0

    def cuGetErrorName(self, status, pointer):
        pointer._obj.value = b"CUDA_ERROR_SYSTEM_NOT_READY"
        return 0


class Card(native.Device):
    """A GPU as Penstock sees it: the answers of the emulated one, and the changes of a test."""

    changes: ClassVar[dict] = {}
    speeds: ClassVar[tuple] = (55.2, 55.3)

    def __init__(self, kind=native.CUDA, ordinal=0, **options):
        super().__init__(native.EMULATED, capacity=64 * MIB)

    def info(self):
        found = super().info()
        return {**found, "managed": True, "concurrent_managed": True, **self.changes}

    def measure_link(self, size=0, repeats=0):
        if isinstance(self.speeds, Exception):
            raise self.speeds
        return self.speeds


@pytest.fixture
def cuda(monkeypatch):
    """Replace libcuda.so.1; every other library loads as ever."""
    real = ctypes.CDLL

    def install(fake):
        def load(name, *rest, **more):
            if name != "libcuda.so.1":
                return real(name, *rest, **more)
            if fake is None:
                raise OSError("libcuda.so.1: cannot open shared object file")
            return fake

        monkeypatch.setattr(ctypes, "CDLL", load)

    return install


@pytest.fixture
def card(monkeypatch, cuda):
    """A machine with a GPU, whose facts and speeds are as given."""

    def install(speeds=(55.2, 55.3), **changes):
        cuda(Cuda())
        kind = type("Probe", (Card,), {"changes": changes, "speeds": speeds})
        monkeypatch.setattr(native, "Device", kind)
        # It takes a driver to launch on; tests/preload has one.
        seen = Check("run", "ok", "2 of 2 launches seen", preload.WHY)
        monkeypatch.setattr(preload, "coverage", lambda: seen)

    return install


def statuses(checks) -> dict[str, str]:
    return {check.id: check.status for check in checks}


def test_a_machine_without_a_gpu_is_ready_for_the_emulated_one(cuda, capsys):
    cuda(None)
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {check["id"]: check for check in document["checks"]}
    assert list(found) == IDS
    assert (document["verb"], document["schema_version"]) == ("doctor", 1)
    assert document["ok"] is True
    assert document["version"] == __version__
    assert found["library"]["status"] == found["emulated"]["status"] == "ok"
    assert {found[name]["status"] for name in ("driver", "gpu", "vmm", "link")} == {"skip"}
    assert all(check["why"] for check in document["checks"])


def test_asking_for_a_gpu_that_is_not_there_is_exit_3(cuda, capsys):
    cuda(None)
    assert main(["doctor", "--device", "cuda"]) == 3
    out = capsys.readouterr().out
    assert "not ready: driver, gpu failed" in out.splitlines()[-1]


def test_the_emulated_gpu_needs_no_driver(cuda, capsys):
    cuda(None)
    assert main(["doctor", "--device", "emulated"]) == 0
    assert "ready, on the emulated GPU" in capsys.readouterr().out.splitlines()[-1]


def test_an_unknown_device_is_exit_2(capsys):
    assert main(["doctor", "--device", "tpu"]) == 2
    assert "not a device" in capsys.readouterr().err


def test_a_good_card_is_ok(card):
    card()
    found = statuses(doctor.examine("cuda:0"))
    assert {found[name] for name in ("driver", "gpu", "vmm", "managed", "link")} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "status"),
    [
        ({"virtual_memory": False}, "vmm", "fail"),
        ({"concurrent_managed": False}, "managed", "warn"),
        ({"managed": False}, "managed", "warn"),
        ({"speeds": (55.0, 1.1)}, "link", "warn"),
        ({"speeds": OutOfMemory("cannot page-lock 256 MiB")}, "link", "fail"),
    ],
)
def test_a_card_with_a_defect(changes, name, status, card):
    card(**changes)
    checks = {check.id: check for check in doctor.examine("auto")}
    assert checks[name].status == status
    assert checks[name].remedy
    others = {key: check.status for key, check in checks.items() if key in ("gpu", "vmm", "link")}
    others.pop(name, None)
    assert set(others.values()) == {"ok"}


def test_a_device_that_cannot_be_opened_says_so(card, monkeypatch):
    card()

    def refuse(*_):
        raise EnvironmentProblem("there is no device 7, only 1", remedy="cuda:0")

    monkeypatch.setattr(native, "Device", refuse)
    checks = {check.id: check for check in doctor.examine("cuda:7")}
    assert (checks["gpu"].status, checks["gpu"].remedy) == ("fail", "cuda:0")
    assert checks["gpu"].observed == "there is no device 7, only 1"


@pytest.mark.parametrize(("status", "expected"), [(0, "ok"), (100, "skip"), (802, "fail")])
def test_the_driver(status, expected, cuda):
    cuda(Cuda(status))
    check = gpu.driver()
    assert check.status == expected
    assert ("13.1" in check.observed) == (expected == "ok")
    assert ("SYSTEM_NOT_READY" in check.observed) == (expected == "fail")


def test_hidden_gpus_are_named_as_the_cause(cuda, monkeypatch):
    cuda(Cuda(100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.driver().remedy == "unset CUDA_VISIBLE_DEVICES"


def test_the_library_must_belong_to_the_package(monkeypatch):
    monkeypatch.setattr(library, "__version__", "9.9.9")
    check = library.library()
    assert check.status == "fail"
    assert "9.9.9" in check.observed


@pytest.mark.parametrize("other", [None, "libc.so.6"])
def test_a_library_that_does_not_load_fails_and_skips_what_needs_it(other, tmp_path):
    broken = tmp_path / "libpenstock.so"
    broken.write_bytes(b"not a library")
    environ = {**os.environ, "PENSTOCK_LIBRARY": other or str(broken)}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )
    assert done.returncode == 3
    checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    found = {name: check["status"] for name, check in checks.items()}
    assert (found["library"], found["emulated"]) == ("fail", "skip")
    assert checks["library"]["remedy"] == "unset PENSTOCK_LIBRARY"


def test_the_self_test_moves_data_and_compares_it():
    ok, observed = selftest.run()
    assert ok, observed
    assert "all bytes right" in observed


def test_the_self_test_notices_wrong_bytes(monkeypatch):
    real = native.Pager.begin
    monkeypatch.setattr(native.Pager, "begin", lambda self, use, stream=0: spoil(self, use))
    ranges = []
    create = native.Pager.create_range

    def remember(self, size):
        ranges.append(create(self, size))
        return ranges[-1]

    def spoil(pager, use):
        real(pager, use)
        ctypes.memset(ranges[use].address + 4096, 0, 64)

    monkeypatch.setattr(native.Pager, "create_range", remember)
    ok, observed = selftest.run()
    assert not ok
    assert "block 0" in observed


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("print('no result')", "exit 0"),
        ("import sys; sys.exit('it broke')", "it broke"),
    ],
)
def test_a_self_test_that_crashes_is_a_failed_check(end, expected, monkeypatch):
    real = subprocess.run

    def crash(command, **options):
        return real([command[0], "-c", end], **options)

    monkeypatch.setattr(subprocess, "run", crash)
    check = library.emulated()
    assert check.status == "fail"
    assert expected in check.observed


def test_host_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\n")
    check = host.host_memory(meminfo)
    assert (check.status, check.observed) == ("ok", "32.0 GiB available of 64.0 GiB")
    meminfo.write_text("MemTotal: 67108864 kB\nMemAvailable: 1048576 kB\n")
    assert host.host_memory(meminfo).status == "warn"
    assert host.host_memory(tmp_path / "missing").status == "skip"


def test_a_control_group_that_is_nearly_full_warns(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/\n")
    (tmp_path / "memory.max").write_text(f"{64 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{16 * MIB}\n")
    check = host.control_group(membership, tmp_path)
    assert (check.status, check.observed) == ("warn", "48.0 MiB left of a limit of 64.0 MiB")
    (tmp_path / "memory.max").write_text("max\n")
    assert host.control_group(membership, tmp_path).status == "ok"


def test_the_lock_limit_is_blamed_only_when_locking_failed(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 8 * MIB))
    assert host.memlock(page_locking_failed=False).status == "ok"
    check = host.memlock(page_locking_failed=True)
    assert check.status == "warn"
    assert "ulimit -l unlimited" in check.remedy
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert host.memlock(page_locking_failed=True).status == "ok"


def test_the_map_count(tmp_path):
    path = tmp_path / "max_map_count"
    path.write_text("65530\n")
    assert host.map_count(path).status == "ok"
    path.write_text("1000\n")
    assert host.map_count(path).status == "warn"
    assert host.map_count(tmp_path / "missing").status == "skip"


@pytest.mark.parametrize(
    ("version", "expected"),
    [(None, "skip"), ("2.10.1", "warn"), ("2.11.0+cu130", "ok"), ("3.0", "ok"), ("odd", "warn")],
)
def test_torch_version(version, expected, monkeypatch):
    monkeypatch.setattr(framework, "torch_version", lambda: version)
    check = framework.torch()
    assert check.status == expected
    assert bool(check.remedy) == (expected != "ok")


@pytest.mark.parametrize(
    ("built_for", "driver", "expected"),
    [
        (None, None, "ok"),
        ("13.0", None, "ok"),
        (None, (13, 0), "warn"),
        ("13.0", (12, 8), "fail"),
        ("13.2", (13, 0), "ok"),
        ("12.6", (13, 0), "ok"),
    ],
)
def test_torch_and_the_driver(built_for, driver, expected, monkeypatch):
    monkeypatch.setattr(framework, "torch_version", lambda: "2.13.0")
    monkeypatch.setattr(framework, "torch_built_for", lambda: built_for)
    assert framework.torch_cuda(driver=driver).status == expected


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (None, None, "ok"),
        ("expandable_segments:True", None, "ok"),
        (None, "backend:cudaMallocAsync", "warn"),
        ("backend: cudaMallocAsync", None, "warn"),
        ("expandable_segments:True", "expandable_segments:False", "warn"),
    ],
)
def test_torch_allocator(new, old, expected, monkeypatch):
    for name, value in zip(framework.VARIABLES, (new, old), strict=True):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert framework.allocator().status == expected


def test_torch_is_not_imported(loaded_by):
    program = "from penstock.cli.main import main; main(['doctor', '--device', 'emulated'])"
    assert "torch" not in loaded_by(program)


def test_skipping_is_no_answer_to_what_was_asked_for():
    check = Check("gpu", "skip", "none", "it matters")
    assert check.must_hold().status == "fail"
    assert Check("gpu", "ok", "one", "it matters").must_hold().status == "ok"
