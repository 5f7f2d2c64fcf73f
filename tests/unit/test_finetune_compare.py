# SPDX-License-Identifier: Apache-2.0
"""Comparisons: how far losses are apart."""

from __future__ import annotations

from report_samples import compared, comparison, finetuned

from penstock.finetune.compare import Row, loss_difference


def test_losses_are_compared_with_the_first_that_succeeded():
    rows = comparison(failed=True)["rows"]
    assert [row["loss_difference"] for row in rows] == [0.0, 0.25, None]


def test_a_loss_that_was_not_finite_differs_by_nothing_that_can_be_said():
    first = compared()[0]
    diverged = Row("native", None, 0, None, 1.0, finetuned(loss=[3.0, None, 1.0]))
    assert loss_difference(diverged, first) is None
    assert loss_difference(first, diverged) is None
