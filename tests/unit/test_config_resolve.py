# SPDX-License-Identifier: Apache-2.0
"""Who wins, what is refused, and what is reported as a probable mistake."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import config
from penstock.cli.main import main
from penstock.config import OPTIONS, Option, resolve
from penstock.errors import FailedError, UsageError

# Four different valid values for each kind of option, strongest source first.
VALUES = {
    "device": ["cuda:1", "cuda:2", "cuda:3", "emulated"],
    "size": ["1GiB", "2GiB", "3GiB", "4GiB"],
    "factor": ["1.5", "2", "3", "4"],
    "integer": [1, 2, 3, 4],
    "file": ["a.trace", "b.trace", "c.trace", "d.trace"],
    "boolean": [True, True, True, True],
}
CHOICES = {
    "compress": ["bf16", "auto", "bf16", "auto"],
    "safety": ["strict", "strict", "strict", "strict"],
    "fusion": ["auto", "ffn_layernorm", "baseline", "dropout_layernorm,ffn_layernorm"],
    "log_level": ["error", "info", "debug", "error"],
    "allocator_stitch_when": ["never", "when-full", "after-release", "never"],
}


def values_of(option: Option) -> list:
    return CHOICES.get(option.field) or VALUES[option.kind.name]


def write_toml(folder: Path, option: Option, value: object) -> Path:
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    table, _, leaf = option.key.rpartition(".")
    path = folder / "penstock.toml"
    path.write_text(f"[{table}]\n{leaf} = {text}\n" if table else f"{leaf} = {text}\n")
    return path


def origin(resolved: config.Resolved, option: Option) -> config.Setting:
    return next(setting for setting in resolved.origins if setting.option == option)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
@pytest.mark.parametrize("given_sources", list(itertools.product([False, True], repeat=4)))
def test_the_strongest_source_wins(option, given_sources, tmp_path):
    flag, argument, variable, file = given_sources
    strong = values_of(option)
    path = write_toml(tmp_path, option, strong[3]) if file else None
    resolved = resolve(
        flags={option.field: strong[0] if flag else None},
        arguments={option.field: strong[1]} if argument else {},
        environ={option.variable: str(strong[2])} if variable else {},
        folder=tmp_path,
    )
    found = origin(resolved, option)
    sources = [
        f"flag {option.flag}",
        f"argument {option.field}",
        option.variable,
        f"{path}: {option.key}",
    ]
    first = given_sources.index(True) if any(given_sources) else None
    assert found.source == ("default" if first is None else sources[first])
    assert found.value == (option.default if first is None else strong[first])
    assert getattr(resolved.settings, option.field) == found.value
    assert resolved.warnings == ()


def test_every_option_has_names_of_its_own():
    names = [
        name
        for option in OPTIONS
        for name in (
            option.key,
            option.flag,
            option.variable,
            *(a.variable for a in option.aliases),
        )
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_defaults_are_valid_and_explained(option):
    assert option.kind.read(option.default, option.key) == option.default
    assert option.summary.endswith(".")
    assert option.kind.forms


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_name_of_an_option_finds_it(option):
    for name in (option.key, option.field, option.flag, option.variable):
        assert config.find_option(name) == option
    for alias in option.aliases:
        assert config.find_option(alias.variable) == option


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(UsageError) as caught:
        config.find_option("gpu_memroy")
    assert caught.value.remedy == "gpu_memory"


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("ULMS_GPU_MEMORY_FACTOR", "60", "gpu_memory", "60%"),
        ("ULMS_LOG_LEVEL", "WARN", "log_level", "warning"),
        ("ULMS_LOG_LEVEL", "DEBUG", "log_level", "debug"),
        ("GMLAKE_INFO", "INFO", "log_level", "info"),
        ("GMLAKE_INFO", "1", "log_level", "warning"),
        ("vmmDefragment", "0", "allocator_stitch", False),
        ("vmmDefragment", "1", "allocator_stitch", True),
        ("fragLimit", "268435456", "allocator_stitch_limit", "268435456"),
        ("fragment_limit", "0", "allocator_stitch_limit", "1"),
        ("reuseLimit", "10", "allocator_reuse_limit", "10"),
        ("defragLevel", "0", "allocator_stitch_when", "first"),
        ("defragLevel", "1", "allocator_stitch_when", "when-full"),
        ("defragment_level", "2", "allocator_stitch_when", "after-release"),
        ("defragment_level", "7", "allocator_stitch_when", "never"),
        ("autoGC", "80", "allocator_range_limit", "80GiB"),
        ("auto_gc_limits", "1000", "allocator_range_limit", "1000GiB"),
        ("reAlloc", "0", "allocator_grow_exactly", False),
    ],
)
def test_names_of_the_ancestors(variable, text, field, value, tmp_path):
    resolved = resolve(environ={variable: text}, folder=tmp_path)
    assert getattr(resolved.settings, field) == value
    assert variable in {setting.source for setting in resolved.origins}


def test_the_own_name_beats_the_ancestors(tmp_path):
    environ = {"ULMS_GPU_MEMORY_FACTOR": "60", "PENSTOCK_GPU_MEMORY": "3GiB"}
    assert resolve(environ=environ, folder=tmp_path).settings.gpu_memory == "3GiB"


@pytest.mark.parametrize(
    ("variable", "text"),
    [("defragLevel", "-1"), ("defragLevel", "x"), ("autoGC", "x"), ("vmmDefragment", "maybe")],
)
def test_a_value_of_an_ancestor_that_is_not_valid_names_its_variable(variable, text, tmp_path):
    with pytest.raises(UsageError, match=variable):
        resolve(environ={variable: text}, folder=tmp_path)


def test_the_allocator_gets_what_was_set_and_no_more(tmp_path):
    assert config.allocator_options(resolve(environ={}, folder=tmp_path).settings) == {
        "stitch_when": 0,
        "grow_exactly": 1,
    }
    environ = {"PENSTOCK_ALLOCATOR_CHUNK": "4MiB", "PENSTOCK_ALLOCATOR_GROWTH": "64MiB"}
    environ |= {"fragLimit": "0", "reuseLimit": "1.5", "autoGC": "2", "defragLevel": "2"}
    environ |= {"reAlloc": "0"}
    assert config.allocator_options(resolve(environ=environ, folder=tmp_path).settings) == {
        "stitch_when": 2,
        "grow_exactly": 0,
        "chunk_bytes": 4 << 20,
        "growth_bytes": 64 << 20,
        "stitch_limit": 1,
        "range_limit": 2 << 30,
        "reuse_limit": 1.5,
    }


def test_an_empty_variable_counts_as_not_set(tmp_path):
    resolved = resolve(environ={"PENSTOCK_DEVICE": "", "ULMS_LOG_LEVEL": ""}, folder=tmp_path)
    assert {setting.source for setting in resolved.origins} == {"default"}


def test_unknown_variables_and_keys_are_reported_with_the_nearest_name(tmp_path):
    (tmp_path / "penstock.toml").write_text('gpu_memroy = "1GiB"\n[emulated]\nsede = 1\n')
    environ = {"PENSTOCK_GPU_MEMROY": "1GiB", "PENSTOCK_LIBRARY": "x", "PENSTOCKPILE": "1"}
    warnings = resolve(environ=environ, folder=tmp_path).warnings
    assert len(warnings) == 3
    assert "PENSTOCK_GPU_MEMROY" in warnings[0]
    assert warnings[0].endswith("did you mean PENSTOCK_GPU_MEMORY?")
    assert warnings[1].endswith("emulated.sede; did you mean emulated.seed?")
    assert warnings[2].endswith("gpu_memroy; did you mean gpu_memory?")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "gpu"),
        ("device", "cuda:-1"),
        ("device", "cuda:"),
        ("device", "emulated:0"),
        ("gpu_memory", "0"),
        ("gpu_memory", "120%"),
        ("gpu_memory", "8 gigs"),
        ("chunk_size", "10%"),
        ("safety", "loose"),
        ("log_level", "loud"),
        ("verbose", "perhaps"),
        ("emulated_delay_us", "-1"),
        ("emulated_delay_us", "1.5"),
        ("emulated_seed", "x"),
        ("allocator_stitch", "2"),
        ("allocator_stitch_limit", "0"),
        ("allocator_stitch_when", "later"),
        ("allocator_reuse_limit", "0.5"),
        ("allocator_reuse_limit", "nan"),
        ("allocator_reuse_limit", "inf"),
        ("allocator_chunk", "5%"),
    ],
)
def test_a_value_that_is_not_valid_names_its_source(field, value, tmp_path):
    variable = "PENSTOCK_" + field.upper()
    with pytest.raises(UsageError, match=variable):
        resolve(environ={variable: value}, folder=tmp_path)
    with pytest.raises(UsageError, match=f"argument {field}"):
        resolve(arguments={field: value}, environ={}, folder=tmp_path)


def test_a_hidden_value_that_is_not_valid_is_still_refused(tmp_path):
    with pytest.raises(UsageError, match="PENSTOCK_SAFETY"):
        resolve(flags={"safety": "strict"}, environ={"PENSTOCK_SAFETY": "x"}, folder=tmp_path)


def test_the_nearest_file_counts_alone(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "penstock.toml").write_text('safety = "strict"\nlog_level = "info"\n')
    assert resolve(environ={}, folder=inner).settings.safety == "strict"
    (tmp_path / "a" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert resolve(environ={}, folder=inner).settings.safety == "strict"
    (tmp_path / "a" / "pyproject.toml").write_text('[tool.penstock]\nlog_level = "debug"\n')
    found = resolve(environ={}, folder=inner)
    assert (found.settings.safety, found.settings.log_level) == ("normal", "debug")
    assert found.file == tmp_path / "a" / "pyproject.toml"
    (tmp_path / "a" / "penstock.toml").write_text("")
    found = resolve(environ={}, folder=inner)
    assert (found.settings.log_level, found.file) == ("warning", tmp_path / "a" / "penstock.toml")


@pytest.mark.parametrize("content", [b"safety = ", b"\xff\xfe", b"[tool]\npenstock = 1\n"])
def test_a_file_that_is_not_valid_is_refused(content, tmp_path):
    name = "pyproject.toml" if b"tool" in content else "penstock.toml"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FailedError, match=name):
        resolve(environ={}, folder=tmp_path)


def test_load_warns_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SAFTY_ONCE", "strict")
    with pytest.warns(UserWarning, match="PENSTOCK_SAFTY_ONCE"):
        assert config.load(arguments={"device": "emulated"}).device == "emulated"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.load()


def test_load_does_not_repeat_the_command_line(monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_SAFTY_SAID", "strict")
    assert main(["estimate", "gpt2", "--gpu-memory", "1GiB"]) == 0
    assert "PENSTOCK_SAFTY_SAID" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.load()


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    for option in OPTIONS:
        try:
            value = option.kind.read(text, "x")
        except UsageError:
            continue
        assert option.kind.read(value, "x") == value
