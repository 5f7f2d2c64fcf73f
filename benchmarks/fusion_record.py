# SPDX-License-Identifier: Apache-2.0
"""The run of fusion_suite.py: its rows and tables, each begun only if it would end in time."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fusion_models import DTYPE, ROW_MS, SEQ_LEN, Member, timed_in_turn
from measure import release
from record import Record

from penstock.fusion import tuning

Row = dict[str, Any]


class Suite(Record):
    """The run: rows of several kinds, none begun that would not end in time."""

    def __init__(self, args: argparse.Namespace) -> None:
        what = {"title": "Fused layers", "dtype": str(DTYPE), "seq_len": SEQ_LEN}
        lists = {"left_out": [], "failed": [], "seconds": {}}
        super().__init__(args.output, args.limit, **what, **lists)

    def write(self) -> None:
        self.document["choices"] = {
            key: name for found in tuning._known.values() for key, name in sorted(found.items())
        }
        super().write()

    def row(self, work: str, seconds: float, measure: Callable[[], Row], **what: Any) -> None:
        """One row, unless it would not end in time."""
        label = {"work": work, **what}
        if self.left < seconds:
            self.document["left_out"].append(label)
            return
        with self.trying(label):
            self.add({**label, **measure()})

    def table(self, seconds: float, members: list[Member], *, row_ms: float = ROW_MS) -> None:
        """Rows timed in turns, unless `seconds` for each would be too many."""
        if self.left < seconds * len(members):
            self.document["left_out"] += [member.label for member in members]
            return
        ready: list[Member] = []
        for member in members:
            with self.trying(member.label):
                member.step()
                ready.append(member)
        timed = timed_in_turn([member.step for member in ready], row_ms=row_ms)
        for member, times in zip(ready, timed, strict=True):
            with self.trying(member.label):
                self.add({**member.label, **times, **member.rest()})

    @contextlib.contextmanager
    def trying(self, label: Row) -> Iterator[None]:
        failed = len(self.document["failed"])
        with super().trying(label):
            yield
        if len(self.document["failed"]) > failed:
            release()
