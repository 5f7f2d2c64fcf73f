# SPDX-License-Identifier: Apache-2.0
"""The page of results: whole, without anything from elsewhere, and right about failures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from report_samples import comparison, finetuned

from penstock.report.page import COLOURS, page
from penstock.report.result import Result
from penstock.report.verbs import results_of


def made(document):
    results = results_of(document, name="a", place="a.json")
    return page(results, title="A & B", command="penstock x", data=document)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attributes):
        assert not {"src", "href"} & {name for name, _ in attributes}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert not {"src", "href"} & {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_else():
    document = comparison(failed=True)
    text = made(document)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert text.count("<svg") == 5
    assert {"Memory over time", "Utilisation", "Step time", "Loss", "A & B"} <= set(tags.words)
    assert "needs <more> & more" in tags.words
    assert "<b>" in tags.words
    assert {"75.0%", "98.9%", "120 MiB", "4.50 ms"} <= set(tags.words)
    data = re.search(r'id="data">(.*)</script>', text).group(1)
    assert json.loads(data) == document


def test_a_page_of_failures_alone_is_a_table():
    document = comparison(failed=True)
    document["rows"] = document["rows"][2:]
    text = made(document)
    assert "<svg" not in text
    assert "needs &lt;more&gt; &amp; more" in text


def test_what_asks_for_the_same_is_one_area():
    (one,) = results_of(finetuned(), name="one", place="")
    other = finetuned(memory_over_time={"ms": [0], "requested": [5 << 20], "reserved": [9 << 20]})
    (less,) = results_of(other, name="less", place="")
    for results, areas in (([one, replace(one, name="two")], 1), ([one, less], 2)):
        text = page(results, title="", command="", data={})
        assert text.count("<polygon") == areas


def test_lines_of_one_colour_are_told_apart():
    results = [Result(str(n), "gpt", step_ms=[1.0, 2.0]) for n in range(COLOURS + 1)]
    text = page(results, title="", command="", data={})
    assert text.count("stroke-dasharray") == 1
    assert text.count('class="key"') - text.count("; background: var(--series") == 1


def test_losses_that_were_not_finite_are_left_out():
    text = made(finetuned(loss=[3.0, None, 1.0]))
    curve = re.search(r"<title>Loss</title>.*?<polyline points=\"([^\"]+)\"", text, re.DOTALL)
    assert len(curve.group(1).split()) == 2
    assert "<h2>Loss" not in made(finetuned(loss=[None, None]))


def test_only_what_the_results_have_is_drawn():
    text = page([Result("a", "gpt", step_ms=[3.0])], title="", command="", data={})
    assert re.findall("<h2>(.*?)</h2>", text) == ["Step time"]
    assert text.count("<svg") == 1  # one step makes no line
