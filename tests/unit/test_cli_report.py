# SPDX-License-Identifier: Apache-2.0
"""``penstock report``: what it makes of the JSON of other verbs, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from report_samples import comparison, finetuned
from test_cli_replay import EVENTS, write
from test_cli_simulate import recording

from penstock.cli.main import main
from penstock.results import PROMISED, with_head

pytestmark = pytest.mark.usefixtures("own_folder")

MIB = 1 << 20
GENERATED = {
    **{"verb": "gpt", "schema_version": 1},
    **{"model": "gpt2_xl", "device": "cuda:0", "memory": "vmm", "gpu_memory_bytes": 2 << 30},
    **{"weight_bytes": 3 << 30, "step_ms": [40.0, 44.0, 42.0], "tokens_per_second": 24000.0},
    **{"bytes_in": [MIB] * 3, "bytes_out": [0] * 3, "peak_device_bytes": 2 << 30},
    **{"hit_ratio": 0.5, "link_gb_per_s": 55.0, "ideal_ms": 40.0, "ratio_to_ideal": 1.05},
    **{"output_sha256": "0" * 64, "bytes_counted": True, "batch": 1},
    **{"seq_len": 1024, "dtype": "float16", "device_name": "NVIDIA H200", "fusion": "auto"},
}


@pytest.fixture
def put(tmp_path):
    """Write a document; the name of its file."""

    def put(name, document):
        (tmp_path / name).write_text(json.dumps(document))
        return name

    return put


def report(capsys, *arguments):
    assert main(["report", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verb"], document["schema_version"]) == ("report", 1)
    return document["results"]


def refused(capsys, code, *arguments):
    assert main(["report", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    what, remedy = captured.err.splitlines()
    assert what.startswith("error: ")
    assert remedy.startswith("  try: ")
    return what


def test_a_table_has_what_the_results_have_in_common(put, capsys):
    put("one.json", finetuned())
    put("two.json", finetuned(91 * MIB, allocator="stitch", step_ms=[9.0, 6.0, 8.0]))
    assert main(["report", "one.json", "two.json"]) == 0
    shared, empty, *lines = capsys.readouterr().out.splitlines()
    assert shared == "tiny, strategy N, 2 x 16 tokens a step, mixed, 1 x a GPU, torch 2, penstock 0"
    assert empty == ""
    titles = "result requested active reserved utilisation step ms tokens/s last loss setting"
    assert lines[0].split() == titles.split()
    sizes = "90.0 MiB 91.0 MiB"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        f"one {sizes} 120 MiB 75.0% 4.50 1,000 1.0000 x",
        f"two {sizes} 91.0 MiB 98.9% 7.00 1,000 1.0000 stitch",
    ]


def test_results_of_every_verb_stand_side_by_side(put, capsys):
    put("tune.json", finetuned())
    put("gpt.json", GENERATED)
    put("both.json", comparison(failed=True))
    write(Path("a.npz"), EVENTS)
    recording(Path("run.trace"))
    assert main(["replay", "a.npz", "--json", "replay.json"]) == 0
    assert main(["simulate", "run.trace", "--gpu-memory", "120MiB", "--json", "lru.json"]) == 0
    capsys.readouterr()
    for name in ("both", "replay", "lru"):
        written = json.loads(Path(f"{name}.json").read_text())
        for row in written if name == "replay" else [written]:
            assert row["verb"] == {"both": "compare", "lru": "simulate"}.get(name, name)
            assert list(row)[: len(PROMISED[row["verb"]])] == PROMISED[row["verb"]]
    files = [f"{name}.json" for name in ("tune", "gpt", "both", "replay", "lru")]
    found = {row["name"]: row for row in report(capsys, *files)}
    assert [(name, row["verb"]) for name, row in found.items()] == [
        ("tune", "finetune"),
        ("gpt", "gpt"),
        ("both: native", "compare"),
        ("both: stitch", "compare"),
        ("both: <b>", "compare"),
        ("replay: a.npz, stitch", "replay"),
        ("replay: a.npz, native", "replay"),
        ("replay: a.npz, expandable", "replay"),
        ("lru", "simulate"),
    ]
    assert found["tune"]["step_ms"] == [5.0, 4.0]
    assert found["tune"]["first_step"] == 2
    assert found["gpt"]["median_step_ms"] == 42.0
    assert (found["gpt"]["gpu_memory_bytes"], found["gpt"]["bytes_in"]) == (2 << 30, MIB)
    assert found["both: stitch"]["loss_difference"] == 0.25
    assert found["both: <b>"]["error"] == "needs <more> & more"
    assert found["replay: a.npz, native"]["peak_reserved_bytes"] == 46 * MIB
    simulated = json.loads(Path("lru.json").read_text())
    assert found["lru"]["gpu_memory_bytes"] == 120 * MIB
    assert len(found["lru"]["step_ms"]) == simulated["steady_steps"]
    steps = len(simulated["step_ms"])
    assert found["lru"]["first_step"] == steps - simulated["steady_steps"] + 1
    for key in ("ratio_to_ideal", "hit_ratio"):
        assert found["lru"][key] == simulated[key]
    assert main(["report", *files]) == 0
    assert "both: <b>: needs <more> & more" in capsys.readouterr().out


def test_a_failure_is_a_row_without_figures(capsys):
    trace = write(Path("a.npz"), EVENTS)
    assert main(["replay", str(trace), "--gpu-memory", "48MiB", "--json", "r.json"]) == 4
    capsys.readouterr()
    assert main(["report", "r.json"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("a.npz, native 45.0 MiB 46.0 MiB 97.8% ") for line in lines)
    assert "a.npz, expandable out of memory" in lines
    assert "a.npz, expandable: out of memory at event 1" in lines


def test_the_page_of_a_report_has_its_json(put, capsys, tmp_path):
    put("a.json", comparison())
    assert main(["report", "a.json", "--html", "a.html", "--json", "r.json"]) == 0
    assert capsys.readouterr().out.endswith("\npage: a.html\n")
    page = (tmp_path / "a.html").read_text()
    _, _, data = page.partition('id="data">')
    assert json.loads(data.partition("</script>")[0]) == json.loads(
        (tmp_path / "r.json").read_text()
    )
    assert main(["report", "a.json", "--html", "a.html"]) == 0  # a page may be written anew


@pytest.mark.parametrize("content", ["<!doctype html><p>my thesis", "<!DOCTYPE html>", "text"])
def test_a_page_of_somebody_else_is_not_written_over(content, put, capsys):
    put("a.json", finetuned())
    Path("mine.html").write_text(content)
    said = refused(capsys, 1, "a.json", "--html", "mine.html")
    assert said == "error: --html: mine.html is there and is no page of penstock"
    assert Path("mine.html").read_text() == content
    assert main(["report", "a.json", "--html", "mine.html", "--force"]) == 0
    assert "tiny" in Path("mine.html").read_text()


def test_a_page_and_json_are_two_files(put, capsys):
    put("a.json", finetuned())
    Path("link").symlink_to("x")
    said = refused(capsys, 2, "a.json", "--html", "x", "--json", "link")
    assert said == "error: --html and --json are both x"
    assert main(["compare", "finetune", "--report", "x", "--json", "link"]) == 2
    assert "--report and --json are both x" in capsys.readouterr().err


def test_a_result_that_is_read_is_not_written_over(put, capsys):
    put("a.json", finetuned())
    before = Path("a.json").read_bytes()
    for flags in (["-o", "a.json"], ["--html", "./a.json", "--force"]):
        said = refused(capsys, 2, "a.json", *flags)
        assert said == f"error: FILE and {flags[0]} are both a.json"
        assert Path("a.json").read_bytes() == before


def test_a_result_goes_to_the_file_that_is_named(put, capsys):
    put("a.json", finetuned())
    assert main(["report", "a.json", "-o", "r.json"]) == 0
    assert "reserved" in capsys.readouterr().out
    assert json.loads(Path("r.json").read_text())["results"][0]["name"] == "a"
    assert main(["report", "a.json", "-o", "r.json"]) == 0  # a result, and not read for that
    assert "reserved" in capsys.readouterr().out
    assert main(["report", "a.json", "--json", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["name"] == "a"
    said = refused(capsys, 2, "a.json", "--json", "x.json", "-o", "y.json")
    assert said == "error: --json x.json and -o y.json"
    Path("mine").write_text("a thesis")
    assert refused(capsys, 1, "a.json", "-o", "mine").startswith("error: -o: mine is there")


def test_the_same_results_give_the_same_page(put):
    put("a.json", comparison())
    for name in ("a.html", "b.html"):
        assert main(["report", "a.json", "--html", name]) == 0
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()


def test_a_page_needs_its_extra(put, capsys, monkeypatch):
    put("a.json", finetuned())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["report", "a.json", "--html", "a.html"]) == 3
    said = "error: bokeh is not installed\n  try: pip install 'penstock[report]'\n"
    assert capsys.readouterr().err == said
    assert main(["report", "a.json"]) == 0


def test_files_of_one_name_go_by_their_folders(put, capsys, tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        put(f"{folder}/a.json", finetuned())
    found = report(capsys, "x/a.json", "y/a.json")
    assert [row["name"] for row in found] == ["x/a.json", "y/a.json"]


def test_a_result_behind_json_is_read_and_not_written_over(put, capsys, tmp_path):
    for name in ("a.json", "b.json"):
        put(name, finetuned())
    assert main(["report", "--json", "a.json", "b.json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["results"]] == ["a", "b"]
    assert json.loads((tmp_path / "a.json").read_text()) == finetuned()


def test_a_page_is_not_written_over_something_else(put, capsys, tmp_path):
    for name in ("a.json", "b.json"):
        put(name, finetuned())
    assert "is no page" in refused(capsys, 1, "--html", "a.json", "b.json")
    assert json.loads((tmp_path / "a.json").read_text()) == finetuned()
    assert "--html: no/a.html cannot be written" in refused(
        capsys, 1, "b.json", "--html", "no/a.html"
    )


def test_without_a_file_it_is_a_mistake(capsys):
    assert "no file was given" in refused(capsys, 2)


def test_a_file_that_is_not_there(capsys):
    assert "there is no file nowhere.json" in refused(capsys, 1, "nowhere.json")
    assert "cannot be read" in refused(capsys, 1, ".")


@pytest.mark.skipif(os.geteuid() != 0, reason="being somebody else takes root")
def test_a_folder_that_may_not_be_looked_into_is_no_absence(put, capsys, tmp_path):
    put("a.json", finetuned())
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        read = refused(capsys, 1, "a.json")
        written = refused(capsys, 1, "a.json", "--json", "b.json")
    finally:
        os.seteuid(0)
    assert "a.json cannot be read: Permission denied" in read
    assert "--json: b.json cannot be written" in written


@pytest.mark.parametrize("text", ["", "{", "\xff\xfe", "[" * 100_000, "1" * 5000], ids=range(5))
def test_a_file_that_is_not_json(text, capsys, tmp_path):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    assert "a.json is not JSON" in refused(capsys, 1, "a.json")


@pytest.mark.parametrize(
    "document",
    [
        *(None, 3, [], {}, [3], {"rows": []}, {"model": "tiny"}, [finetuned(), 3]),
        {"title": "a", "rows": [{"result": finetuned()}]},  # of a benchmark
    ],
    ids=range(9),
)
def test_json_of_no_verb(document, put, capsys):
    what = refused(capsys, 1, put("a.json", document))
    assert "no result of finetune, compare, gpt, replay or simulate" in what


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "model is null, not a text"),
        ({"step_ms": 3.0}, "step_ms is 3.0, not a list"),
        ({"step_ms": [1.0, -1.0]}, "step_ms is [1.0, -1.0], not a list of numbers"),
        ({"utilisation": "most"}, 'utilisation is "most", not a number'),
        ({"utilisation": True}, "utilisation is true"),
        ({"peak_reserved_bytes": 10**400}, "peak_reserved_bytes is 1000000"),
        ({"peak_reserved_bytes": 1e300}, "peak_reserved_bytes is 1e+300"),
        ({"loss": ["a"]}, 'loss is ["a"]'),
        ({"memory_over_time": [1]}, "memory_over_time is [1], not an object"),
        ({"memory_over_time": {"ms": ["now"]}}, 'ms is ["now"]'),
    ],
)
def test_a_value_that_cannot_be(changes, said, put, capsys):
    assert f"a.json: {said}" in refused(capsys, 1, put("a.json", finetuned(**changes)))


def test_a_newer_result_is_refused(put, capsys):
    what = refused(capsys, 1, put("a.json", finetuned(schema_version=2)))
    assert what == "error: a.json has schema_version 2; this Penstock reads 1"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (finetuned(verb="gpt"), "device is missing"),
        ({**GENERATED, "verb": "finetune"}, "strategy is missing"),
        ({**GENERATED, "verb": "simulate"}, "trace is missing"),
        ({**GENERATED, "verb": "compare"}, "work is missing"),
        ([{**GENERATED, "verb": "replay"}], "trace is missing"),
        ([finetuned()], 'verb is "finetune", not replay'),
        (finetuned(verb="replay"), 'verb is "replay", not finetune, compare, gpt or simulate'),
        (with_head("estimate", {}), 'verb is "estimate", not finetune, '),
        (finetuned(verb=["finetune"]), 'verb is ["finetune"], not a text'),
        (
            with_head("compare", {"work": [], "rows": [{"name": "a", "result": GENERATED}]}),
            'verb is "gpt", not finetune',
        ),
    ],
    ids=range(10),
)
def test_a_result_is_what_its_verb_says(document, said, put, capsys):
    assert f"a.json: {said}" in refused(capsys, 1, put("a.json", document))


def test_a_result_of_an_earlier_penstock_is_refused_and_kept(put, capsys):
    old = {key: value for key, value in finetuned().items() if key != "verb"}
    put("new.json", finetuned())
    put("old.json", old)
    for arguments in (["old.json"], ["--json", "old.json", "new.json"]):
        what = refused(capsys, 1, *arguments)
        assert what == "error: old.json names no verb: an earlier Penstock wrote it"
        assert json.loads(Path("old.json").read_text()) == old


def test_one_bad_file_leaves_no_page(put, capsys, tmp_path):
    put("a.json", finetuned())
    refused(capsys, 1, "a.json", put("b.json", []), "--html", "a.html")
    assert not (tmp_path / "a.html").exists()


def test_it_needs_no_torch(put, loaded_by):
    put("a.json", finetuned())
    program = (
        "from penstock.cli.main import main;"
        "assert main(['report', 'a.json', '--html', 'a.html']) == 0"
    )
    assert not {"torch", "penstock.native"} & loaded_by(program)
