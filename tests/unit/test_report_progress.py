# SPDX-License-Identifier: Apache-2.0
"""Progress: lines at a bearable pace off a terminal, a bar that cleans up on one."""

from __future__ import annotations

import io

import pytest

from penstock.report.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def plain(clock):
    stream = io.StringIO()
    return stream, Progress(stream, clock=clock)


def test_a_quick_stage_is_one_line(clock):
    stream, progress = plain(clock)
    with progress.stage("loading", 50) as advance:
        for _ in range(50):
            clock.now += 0.001
            advance(1)
    assert stream.getvalue() == "loading: 100%\n"


def test_a_line_for_every_tenth(clock):
    stream, progress = plain(clock)
    with progress.stage("steps", 100) as advance:
        for number in range(100):
            clock.now += 1.0
            advance(1, f"{number} ms")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "steps: 10%, 9 ms"
    assert lines[-1] == "steps: 100%, 99 ms"


def test_a_slow_stage_shows_that_it_lives(clock):
    stream, progress = plain(clock)
    with progress.stage("steps", 1000) as advance:
        for _ in range(10):
            clock.now += 31
            advance(1)
    assert len(stream.getvalue().splitlines()) == 10


def test_more_work_than_was_announced_is_not_more_than_all(clock):
    stream, progress = plain(clock)
    with progress.stage("loading", 1) as advance:
        advance(3)
        advance(3)
    assert stream.getvalue() == "loading: 100%\n"


def test_nothing_to_show_it_on():
    with Progress(None).stage("steps", 3) as advance:
        advance(1, "note")


def test_a_bar_is_gone_and_the_cursor_back_after_an_interrupt(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()

    def interrupted():
        with Progress(stream, terminal=True).stage("timed steps", 4) as advance:
            advance(1, "[12] ms")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    drawn = stream.getvalue()
    assert "timed steps" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    assert capsys.readouterr().out == ""
