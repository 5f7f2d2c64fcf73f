# SPDX-License-Identifier: Apache-2.0
"""The tables that auto is judged by: what is in them, and how the page reads them."""

from __future__ import annotations

import contextlib

import pytest
import torch

from penstock.fusion.contest import Heat, Outcome, Sample
from penstock.models.configs import get_config
from penstock.models.gpt import GPT


@pytest.fixture
def benchmarks(script):
    return script("fusion_suite"), script("pages.fusion")


class Suite:
    """The rows that a table would have, after a step of each."""

    def __init__(self):
        self.document, self.tables = {}, []

    @contextlib.contextmanager
    def trying(self, label):
        yield

    def table(self, seconds, members, *, row_ms):
        for member in members:
            member.step()
        self.tables.append([{**member.label, **member.rest()} for member in members])


def test_a_table_is_single_variants_what_was_chosen_and_the_baseline_twice(benchmarks, monkeypatch):
    fusion_suite, _ = benchmarks
    config = get_config("tiny")
    heat = Heat({"baseline": [Sample(2.0, 1.0)]}, [Sample(2.0, 1.0)])
    outcomes = iter([Outcome("ffn_layernorm", [heat]), Outcome("dropout_layernorm,ffn_layernorm")])
    monkeypatch.setattr(fusion_suite, "SHAPES", {"1.5B": ((2, False), (1, True))})
    monkeypatch.setattr(fusion_suite, "config_of", lambda model: config)
    monkeypatch.setattr(fusion_suite, "random_model", lambda config: GPT(config).bfloat16())
    monkeypatch.setattr(fusion_suite, "tokens_for", lambda c, batch: torch.zeros(batch, 4).long())
    monkeypatch.setattr(fusion_suite.auto, "measure", lambda *_, **__: next(outcomes))
    suite = Suite()
    fusion_suite.for_auto(suite, "1.5B")
    single = ["baseline", *fusion_suite.SINGLE]
    first, second = ([row["fusion"] for row in rows] for rows in suite.tables)
    assert first == [*single, "baseline"]
    assert second == [*single, "dropout_layernorm,ffn_layernorm", "baseline"]
    assert [row.get("again") for row in suite.tables[0]] == [None] * 5 + [True]
    works = [{(row["work"], row.get("dropout")) for row in rows} for rows in suite.tables]
    assert works == [{("prefill, for auto", None)}, {("training, for auto", config.dropout)}]
    one, other = suite.document["auto"]
    assert (one["fusion"], one["training"], one["batch"]) == ("ffn_layernorm", False, 2)
    assert one["heats"][0]["candidates"]["baseline"]["host_ms"] == 1.0
    assert (other["fusion"], other["training"]) == ("dropout_layernorm,ffn_layernorm", True)


def rows_of(work, **times):
    base = {"work": work, "model": "6.7B", "batch": 1}
    rows = [{**base, "fusion": name, "median_ms": ms} for name, ms in times.items()]
    return [*rows, {**rows[0], "again": True}]


def choice_of(name):
    return {"model": "6.7B", "batch": 1, "training": False, "dropout": 0.1, "fusion": name}


def test_the_last_choice_is_judged_by_its_own_table(benchmarks):
    _, page = benchmarks
    others = {"attention_layernorm": 26.0, "attention_projection": 26.0, "ffn_layernorm": 26.0}
    old = {
        "where": {"commit": "a"},
        "auto": [choice_of("baseline")],
        "rows": rows_of("prefill", baseline=26.0, dropout_layernorm=25.0, **others),
    }
    new = {
        "where": {"commit": "b"},
        "auto": [choice_of("dropout_layernorm")],
        "rows": rows_of("prefill, for auto", baseline=27.0, dropout_layernorm=24.0, **others),
    }

    def shown(*documents):
        return page.chosen(page.Figures(list(documents))).splitlines()[2:]

    (line,) = shown(old)
    assert "| baseline | 26.00 | dropout_layernorm, 25.00 | 1.040 |" in line
    (line,) = shown(old, new)
    assert "| dropout_layernorm | 24.00 | dropout_layernorm, 24.00 | 1.000 | 0.0% |" in line
    # Another run of the same commit is another row, not a better one.
    assert len(shown(old, {**old, "where": {"commit": "b"}}, new)) == 2


@pytest.mark.parametrize(("train", "work"), [(False, "prefill"), (True, "training")])
def test_captured_steps_stand_beside_the_baseline_by_the_host(benchmarks, monkeypatch, train, work):
    _, page = benchmarks
    import fusion_suite

    config = get_config("tiny", dropout=0.1 if train else 0.0)
    monkeypatch.setattr(fusion_suite, "config_of", lambda model, **_: config)
    monkeypatch.setattr(fusion_suite, "random_model", lambda c: GPT(c).bfloat16())
    monkeypatch.setattr(fusion_suite, "tokens_for", lambda c, b: torch.zeros(b, 4).long())
    suite = Suite()
    suite.table = lambda seconds, members: Suite.table(suite, seconds, members, row_ms=0)
    fusion_suite.captured(suite, "1.5B", 1, train=train)
    rows = suite.tables[0]
    single = list(fusion_suite.SINGLE)
    assert [row["fusion"] for row in rows[:2]] == ["baseline", "baseline"]
    assert [row.get("eager", False) for row in rows[:3]] == [False, True, False]
    assert [row["fusion"] for row in rows[2:]] == [*single, fusion_suite.EVERYTHING, "baseline"]
    assert rows[-1]["again"]
    ms = dict.fromkeys(single, 9.0) | {"baseline": 10.0, fusion_suite.EVERYTHING: 9.0}
    timed = [row | {"median_ms": 30.0 if row.get("eager") else ms[row["fusion"]]} for row in rows]
    assert "by the host | 30.00 | 3.000" in page.captured(page.Figures([{"rows": timed}]))


def budget_row(fusion, moved, beside, **more):
    """Bytes in, and bytes of device memory beside the weights; both in MiB."""
    label = {"work": "training, budget", "model": "6.7B", "batch": 4, "divisor": 1.5}
    sizes = {"bytes_in": moved << 20, "bytes_out": 0, "device_bytes": 4 << 30}
    used = {"used_by_driver_bytes": (4 << 30) + (beside << 20)}
    return {**label, "fusion": fusion, "median_ms": 10.0, **sizes, **used, **more}


def test_what_moves_under_a_budget_stands_beside_the_baseline(benchmarks):
    _, page = benchmarks
    rows = [budget_row("baseline", 1400, 900), budget_row("ffn_layernorm", 1030, 500)]
    text = page.training_budgets(page.Figures([{"rows": rows}]))
    assert f"| 10.0 | {1030 / 1e9 * 2**20:.3f} | 0.000 | -370 | 500 |" in text


def test_a_variant_beyond_its_budget_is_not_begun(benchmarks, monkeypatch):
    _, page = benchmarks
    from fusion import budget as training

    names = list(dict.fromkeys(training.PAGED))
    activations = dict.fromkeys(names, 60) | {"ffn_layernorm": 40}
    asked = []

    def measured(config, name, batch, budget):
        asked.append((name, budget))
        row = budget_row(name, 10, 500)
        return {key: row[key] for key in row if "bytes" in key or "ms" in key}

    monkeypatch.setattr(training, "config_of", lambda model: get_config("tiny"))
    monkeypatch.setattr(training, "resident", lambda config, batch: (100, activations))
    monkeypatch.setattr(training, "training_row", measured)
    suite = Suite()
    suite.document["left_out"] = rows = []
    suite.add, suite.left = rows.append, 100.0
    training.training_budgets(suite, "6.7B", 4)
    assert asked == [("ffn_layernorm", 50), *((name, 66) for name in training.PAGED)]
    assert [row["fits"] for row in rows[:2]] == [False, False]
    assert rows[-1]["again"]
    text = page.training_budgets(page.Figures([{"rows": rows}]))
    assert "| 6.7B, batch 4, resident peak / 2 | baseline | does not fit |" in text


def test_parts_are_chosen_by_name_model_and_batch(benchmarks):
    import fusion_suite

    def labels(*words):
        steps = fusion_suite.chosen(list(words))
        return [
            (name, step.keywords.get("model"), step.keywords.get("batch")) for name, step in steps
        ]

    assert labels("training-budgets:6.7B:4", "budgets:13B", "training-budgets:6.7B") == [
        ("training-budgets", "6.7B", 4),
        ("budgets", "13B", None),
        ("training-budgets", "6.7B", 1),
    ]
    plan = [(name, step) for name, step in fusion_suite.PLAN if name in ("prefill", "budgets")]
    assert fusion_suite.chosen(["prefill", "budgets"]) == plan
    for word in ("speed", "budgets:2B", "budgets:13B:7", "training:13B:1:0"):
        with pytest.raises(ValueError, match=f"no such part: {word}"):
            fusion_suite.chosen([word])


def test_rows_that_say_nothing_are_left_out_and_no_others(benchmarks):
    _, page = benchmarks

    def table(dropout, ms):
        rows = rows_of("training", baseline=ms, ffn_layernorm=ms)
        return [{**row, "dropout": dropout, "peak_bytes": 1} for row in rows]

    old = {"where": {"commit": "a"}, "rows": [*table(0.0, 10.0), *table(0.1, 11.0)]}
    new = {"where": {"commit": "b"}, "rows": [*table(0.0, 20.0), *table(0.1, 21.0)]}

    def found(unfit, dropout):
        document = {**new, "unfit": {"training": {"why": "disturbed", **unfit}}}
        rows = page.Figures([old, document]).of("training", dropout=dropout)
        return {row["median_ms"] for row in rows}, {row.get("peak_bytes") for row in rows}

    only = {"columns": ["*"], "only": {"dropout": 0.0}}
    assert found(only, 0.0) == ({10.0}, {1})
    assert found(only, 0.1) == ({21.0}, {1})
    assert found({"columns": ["*"]}, 0.1) == ({11.0}, {1})
    assert found({"columns": ["peak_bytes"]}, 0.1) == ({21.0}, {None})
    document = {**new, "choices": {}, "unfit": {"training": {"why": "disturbed", **only}}}
    disturbed = {**choice_of("baseline"), "batch": 1, "training": True, "dropout": 0.0}
    figures = page.Figures([old, {**document, "auto": [disturbed]}])
    assert {row["median_ms"] for row in figures.judging(disturbed | {"run": 1})} == {10.0}
