# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison: whole, without anything from elsewhere, and right about failures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from penstock.finetune.compare import Row, document
from penstock.finetune.page import page


def result(reserved, loss):
    return {
        **{"model": "tiny", "strategy": "N", "allocator": "x", "loss": loss, "engine": "single"},
        **{"step_ms": [9.0, 5.0, 4.0], "timed_from": 1, "median_step_ms": 4.5, "steps": 3},
        **{"peak_requested_bytes": 90 << 20, "peak_active_bytes": 91 << 20, "gpus": 1},
        **{"peak_reserved_bytes": reserved, "utilisation": (90 << 20) / reserved},
        **{"tokens_per_second": 1000.0, "batch": 2, "seq_len": 16, "dtype": "mixed"},
        **{"device_name": "a GPU", "torch": "2", "version": "0", "memory_figures": "allocator"},
        "memory_over_time": {"ms": [0, 9], "requested": [1, 90 << 20], "reserved": [2, reserved]},
    }


def rows(*, failed=False):
    made = [
        Row("native", "native", None, 0, None, 1.0, result(120 << 20, [3.0, 2.0, 1.0])),
        Row("stitch", "stitch", None, 0, None, 1.0, result(91 << 20, [3.0, 2.0, 1.25])),
    ]
    if failed:
        made.append(Row("<b>", None, "1MiB", 4, "needs <more> & more", 1.0, None))
    return made


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
    made = document(["--model", "tiny"], rows(failed=True))
    text = page(made)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert text.count("<svg") == 4
    assert {"Memory over time", "Utilisation", "Step time", "Loss"} <= set(tags.words)
    assert "needs <more> & more" in tags.words
    assert "<b>" in tags.words
    assert {"75.0%", "98.9%", "120 MiB"} <= set(tags.words)
    data = re.search(r'id="data">(.*)</script>', text).group(1)
    assert json.loads(data) == made


def test_losses_are_compared_with_the_first_that_succeeded():
    made = document([], rows(failed=True))
    assert [row["loss_difference"] for row in made["rows"]] == [0.0, 0.25, None]


def test_a_page_of_failures_alone_is_a_table():
    text = page(document([], rows(failed=True)[2:]))
    assert "<svg" not in text
    assert "needs &lt;more&gt; &amp; more" in text
