# SPDX-License-Identifier: Apache-2.0
"""Host memory as both versions of control groups limit it."""

from __future__ import annotations

from penstock import host
from penstock.units import GIB, MIB


def put(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_tightest_of_nested_groups_counts(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("0::/job.slice/step\n")
    outer, inner = tmp_path / "job.slice", tmp_path / "job.slice" / "step"
    put(inner, memory__max="max", memory__current=MIB)
    assert host.limits(membership, tmp_path) == []
    put(outer, memory__max=8 * GIB, memory__current=2 * GIB)
    assert host.limits(membership, tmp_path) == [host.Limit(8 * GIB, 6 * GIB)]
    put(inner, memory__max=2 * GIB, memory__current=3 * GIB)
    assert host.limits(membership, tmp_path) == [
        host.Limit(2 * GIB, 0),
        host.Limit(8 * GIB, 6 * GIB),
    ]


def test_the_file_cache_can_be_given_back(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    put(tmp_path, memory__max=2 * GIB, memory__current=GIB)
    put(tmp_path, memory__stat=f"anon 1\ninactive_file {512 * MIB}")
    assert host.limits(membership, tmp_path) == [host.Limit(2 * GIB, GIB + 512 * MIB)]


def test_the_first_version_of_control_groups(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("5:cpu,cpuacct:/docker\n4:memory:/docker\n1:name=systemd:/\n")
    group = tmp_path / "memory" / "docker"
    put(group, memory__limit_in_bytes=(1 << 63) - 4096, memory__usage_in_bytes=MIB)
    assert host.limits(membership, tmp_path) == []
    put(group, memory__limit_in_bytes=GIB)
    assert host.limits(membership, tmp_path) == [host.Limit(GIB, GIB - MIB)]


def test_a_container_sees_its_group_as_the_root(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("0::/docker/abc\n")
    put(tmp_path, memory__max=GIB, memory__current=0)
    assert host.limits(membership, tmp_path) == [host.Limit(GIB, GIB)]


def test_files_that_are_missing_or_odd_are_no_limit(tmp_path):
    assert host.limits(tmp_path / "missing", tmp_path) == []
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    put(tmp_path, memory__max="odd", memory__current=0)
    assert host.limits(membership, tmp_path) == []
    assert host.memory_sizes(tmp_path / "missing") is None


def test_this_machine_has_memory():
    total, available = host.memory_sizes()
    assert 0 < available <= total
    assert 0 < host.available() <= total  # a second reading: what is available moves
