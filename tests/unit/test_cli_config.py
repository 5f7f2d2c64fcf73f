# SPDX-License-Identifier: Apache-2.0
"""``penstock config show`` and ``config explain``."""

from __future__ import annotations

import json

import pytest

from penstock.cli.main import main
from penstock.config import OPTIONS

pytestmark = pytest.mark.usefixtures("own_folder")


def show(capsys) -> dict:
    assert main(["config", "show", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_show_lists_every_option_with_its_source(capsys, monkeypatch, tmp_path):
    (tmp_path / "penstock.toml").write_text('safety = "strict"\n')
    monkeypatch.setenv("PENSTOCK_GPU_MEMORY", "80%")
    document = show(capsys)
    rows = {row["key"]: row for row in document["options"]}
    assert list(rows) == [option.key for option in OPTIONS]
    assert rows["gpu_memory"] == {
        "key": "gpu_memory",
        "value": "80%",
        "source": "PENSTOCK_GPU_MEMORY",
    }
    assert rows["safety"]["source"] == f"{tmp_path / 'penstock.toml'}: safety"
    assert rows["device"]["source"] == "default"
    assert document["file"] == str(tmp_path / "penstock.toml")
    assert (document["verb"], document["schema_version"]) == ("config", 1)


def test_show_for_people_has_one_line_an_option(capsys):
    assert main(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(OPTIONS)
    assert lines[1].split() == ["device", "auto", "default"]


def test_a_flag_is_a_source(capsys):
    assert main(["config", "show", "-v", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["options"]}
    assert rows["verbose"] == {"key": "verbose", "value": True, "source": "flag --verbose"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_explain_names_every_way_to_set_it(option, capsys):
    assert main(["config", "explain", option.key]) == 0
    out = capsys.readouterr().out
    for name in (option.key, option.variable, option.kind.forms):
        assert name in out
    if option.key != "verbose":  # whose flag this verb has as well
        assert main(["config", "explain", option.flag]) == 0
        assert capsys.readouterr().out == out


def test_explain_names_flags_that_verbs_have_and_no_others(capsys):
    for option in OPTIONS:
        assert main(["config", "explain", option.key, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["flag"] is None) == (told["verbs"] == [])
        if told["verbs"]:
            assert main([told["verbs"][0], option.flag]) == 2  # it lacks its value, or a program
            assert "No such option" not in capsys.readouterr().err


def test_a_broken_file_is_one_line_and_exit_1(capsys, tmp_path):
    (tmp_path / "penstock.toml").write_text("safety = \n")
    assert main(["config", "show"]) == 1
    assert "not valid TOML" in capsys.readouterr().err
