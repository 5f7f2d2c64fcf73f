# SPDX-License-Identifier: Apache-2.0
"""The page of results: whole, without anything from elsewhere, and right about failures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_samples import MIB, comparison, finetuned

from penstock.report.page import page
from penstock.report.result import Curve, Heat, Result
from penstock.report.verbs import results_of
from penstock.report.why import why

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
LANES = {"compute": [(0.0, 30.0)], "in": [(0.0, 38.0)], "out": []}
RUN = Result(
    "run",
    "simulate",
    step_ms=[40.0, 41.0],
    gpu_memory_bytes=4 << 30,
    compute_ms=30.0,
    link_gb_per_s=55.0,
    bytes_in=2 << 30,
    memory_over_time=Curve([0, 40], [2 << 30, 3 << 30], [2 << 30, 3 << 30], [1 << 30, 1 << 30]),
    lanes=LANES,
    heat=Heat(40.0, 1 << 30, [[0, 1, 2], [2, 1, 0]]),
)


def made(*results, data=None):
    return page(results, title="A & B", command="penstock x", data=data)


class Tags(HTMLParser):
    """What is open, what is said, and the text of scripts."""

    def __init__(self):
        super().__init__()
        self.open, self.words, self.scripts = [], [], []

    def handle_starttag(self, tag, attributes):
        assert not {"src", "href"} & {name for name, _ in attributes}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert not {"src", "href"} & {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if "script" in self.open else self.words).append(data.strip())


def read(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_the_page_is_whole_and_needs_nothing_else():
    document = comparison(failed=True)
    document["rows"][0]["name"] = "</script><b>"
    results = results_of(document, name="a", place="a.json")
    tags = read(made(*results, data=document))
    assert {"Memory over time", "Step time", "Loss", "A & B"} <= set(tags.words)
    assert {"needs <more> & more", "<b>", "</script><b>", "75.0%", "120 MiB"} <= set(tags.words)
    assert "30.0 MiB of 120 MiB reserved are in pieces that nothing fits" in " ".join(tags.words)
    assert document in [json.loads(each) for each in tags.scripts if each.startswith('{"work')]


def test_a_page_of_failures_alone_is_a_table():
    (result,) = [
        each for each in results_of(comparison(failed=True), name="", place="") if each.error
    ]
    text = made(result)
    assert "<h2>" not in text
    assert len(text) < 10_000
    assert "needs &lt;more&gt; &amp; more" in text


def test_every_chart_is_there_that_the_result_has_something_for():
    text = made(RUN)
    titles = ["Why it takes as long as it does", "Memory over time"]
    assert re.findall("<h2>(.*?)</h2>", text) == [*titles, "One step, and page heat", "Step time"]
    drawn = text.partition("const docs_json = ")[2].partition("\n")[0]
    for word in ("weights", "activations", "free", "copies in", "compute", "LinearColorMapper"):
        assert word in drawn
    assert "Step time" not in made(replace(RUN, step_ms=[40.0]))  # one step makes no line


def test_kinds_of_memory_add_up_to_the_budget():
    gib = 1 << 30
    assert RUN.memory_over_time.parts(4 * gib) == {
        "weights": [gib, gib],
        "activations": [gib, 2 * gib],
        "free": [2 * gib, gib],
    }
    held = Curve([0], [90 * MIB], [120 * MIB])
    assert held.parts(None) == {"tensors": [90 * MIB], "cache": [30 * MIB]}


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({}, "the link sets the pace", "--gpu-memory 6.00GiB, where nothing moves"),
        ({"bytes_in": 1 << 30, "compute_ms": 39.0}, "the GPU sets the pace", "more memory"),
        ({"bytes_in": 1 << 30}, "the other 10.5 ms", "a larger batch"),
    ],
)
def test_why_a_step_takes_as_long_as_it_does(changes, what, remedy):
    found = why(replace(RUN, **changes))
    assert what in found.what
    assert remedy in found.remedy
    assert why(replace(RUN, emulated=True)) is None


def test_a_name_between_dollar_signs_is_no_formula():
    """MathJax, which would set it, is not in the page."""
    drawn = made(replace(RUN, name="$$a_b$$"), RUN).partition("const docs_json = ")[2]
    titles = [
        word for word in re.findall('"name":"(\\w+)"', drawn) if word in ("Title", "PlainText")
    ]
    assert titles.count("PlainText") == titles.count("Title") - 1  # "Step time" has none


def test_losses_that_were_not_finite_are_left_out():
    def lost(*values):
        return made(*results_of(finetuned(loss=values), name="a", place=""))

    assert "<h2>Loss" in lost(3.0, None, 1.0)
    assert "<h2>Loss" not in lost(None, None)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("size", ["1440,900", "420,900"])
def test_a_browser_draws_every_chart_without_the_network(tmp_path, size):
    (tmp_path / "a.html").write_text(made(RUN, replace(RUN, name="b")), "utf-8")
    flags = "--headless --no-sandbox --disable-gpu --virtual-time-budget=10000 --dump-dom".split()
    away = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}"]
    command = [CHROMIUM, *flags, *away, f"--window-size={size}", f"file://{tmp_path}/a.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.count('class="bk-Figure"') == 7  # one for both results in "Step time"
    assert "ERROR:CONSOLE" not in done.stderr
