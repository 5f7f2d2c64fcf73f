# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/models.md, for table.py: models beside peers, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from figures import gib, lines, results

# Errors of a peer, by what they begin with, and what has to be in them.
ERRORS = (
    ("OutOfMemoryError", "", "out of memory"),
    ("OutOfTime", "", "not run"),
    ("ValueError", "layer_execution_tracker", "refused by diffusers"),
)


def figure(row: dict[str, Any], key: str, form: str = ",.1f", per: float = 1) -> str:
    """A figure as a cell, which is empty where there is none."""
    return f"{row[key] / per:{form}}" if row.get(key) is not None else ""


def budget(row: dict[str, Any], key: str = "budget_bytes") -> str:
    """Bytes as a cell."""
    return gib(row[key]) if key in row else ""


def exact(row: dict[str, Any]) -> str:
    """Whether bits are the resident model's, or else how far they are from them at the most."""
    if row.get("exact") is False and "difference" in row:
        return f"no, {row['difference']:.1e}"
    return {True: "yes", False: "no"}.get(row.get("exact"), "")


def why(error: str) -> str:
    """An error in few words."""
    kind = error.split(":")[0]
    told = (text for name, part, text in ERRORS if kind == name and part in error)
    return next(told, kind)


# ---- Beside peers --------------------------------------------------------------------------


def peers() -> str:
    """Penstock and its peers within the same budget, run by run."""
    found = []
    for _, document in results("peers"):
        rows = [row for row in document["rows"] if not row["how"].startswith("resident")]
        works = list(dict.fromkeys(row["name"] for row in rows))
        rows.sort(key=lambda row: (works.index(row["name"]), row.get("budget_bytes", 0)))
        ours = {
            (row["name"], row["budget_bytes"]): row["median_ms"]
            for row in rows
            if row["how"] == "penstock" and "median_ms" in row
        }
        found += [beside(row, ours) for row in rows]
    head = "work | budget, GiB | by | exact | peak, GiB | resident | ideal | ms | p90 | x ideal"
    return lines(f"{head} | x Penstock", found)


def beside(row: dict[str, Any], ours: dict[tuple[str, int], float]) -> list[str]:
    """A line of peers()."""
    how = {"penstock": "**Penstock**"}.get(row["how"], row["how"])
    cells = [row["name"], budget(row), how]
    if "error" in row:
        return [*cells, "", "", "", "", why(row["error"]), "", "", ""]
    least = ours.get((row["name"], row["budget_bytes"]))
    return [
        *cells,
        exact(row),
        budget(row, "peak_bytes"),
        figure(row, "resident_median_ms"),
        figure(row, "ideal_ms"),
        figure(row, "median_ms"),
        figure(row, "p90_ms"),
        figure(row, "ratio_to_ideal", ".2f"),
        figure(row, "median_ms", ".2f", least) if least else "",
    ]


# ---- Mixtures of experts -------------------------------------------------------------------


def mixtures() -> Iterator[tuple[str, dict[str, Any]]]:
    """Model and router, and the row, of all attached ones."""
    for _, document in results("one_budget"):
        for row in document["rows"]:
            if row["part"] == "moe" and "ratio_to_ideal" in row:
                yield ", ".join(row["name"].split(", ")[:2]), row


def experts() -> str:
    """Texts token by token, beside what the tokens' experts cost others."""
    found = [
        [
            name,
            budget(row),
            exact(row),
            figure(row, "resident_median_ms"),
            figure(row, "ideal_ms"),
            figure(row, "median_ms"),
            figure(row, "p99_ms"),
            figure(row, "ratio_to_ideal", ".2f"),
            *(
                figure(row, f"{key}_bytes", ",.0f", 1e6)
                for key in ("in_place", "min", "lru", "even")
            ),
            figure(row, "first_token_ms"),
        ]
        for name, row in mixtures()
        if "min_bytes" in row
    ]
    head = "model and router | budget, GiB | exact | resident token | ideal | token | p99 | x ideal"
    moved = "read in place, MB | MIN, MB | LRU, MB | even, MB"
    return lines(f"{head} | {moved} | first token, ms", found)


def experts_prompts() -> str:
    """A long prompt's pass of the same attachments."""
    keys = ("resident_median_ms", "ideal_ms", "median_ms")
    found = [
        [name, *(figure(row, key) for key in keys), figure(row, "ratio_to_ideal", ".2f")]
        for name, row in mixtures()
        if "missing_bytes" in row and row["how"] == "attached, half of it"
    ]
    return lines("model and router | resident | ideal | attached | x ideal", found)


# ---- Quantised weights ---------------------------------------------------------------------


def quantised() -> str:
    """A Llama of 8 billion weights in four formats."""
    found = []
    for _, document in results("quantised"):
        resident = {r["name"]: r for r in document["rows"] if r["how"] == "resident"}
        for row in document["rows"]:
            if row["how"].startswith("attached"):
                base = resident[row["name"]]
                cells = [row["name"], gib(base["weight_bytes"]), budget(row), exact(row)]
                cells += [budget(row, "peak_bytes"), figure(base, "median_ms")]
                if "error" in row:
                    found.append([*cells, "", why(row["error"]), "", ""])
                    continue
                keys = (("ideal_ms", ",.1f"), ("median_ms", ",.1f"), ("p99_ms", ",.1f"))
                cells += [figure(row, key, form) for key, form in keys]
                found.append([*cells, figure(row, "ratio_to_ideal", ".2f")])
    head = "weights | GiB | budget, GiB | tokens exact | peak, GiB | resident | ideal | attached"
    return lines(f"{head} | p99 | x ideal", found)


# ---- Architectures that nobody chose -------------------------------------------------------


def architectures() -> str:
    """Each run over a library, by its verdicts and the smallest budget that did."""
    found = []
    for _, document in sorted(results("architectures"), key=lambda each: each[0]):
        rows = document["rows"]
        least = min(row["share"] for row in rows if "share" in row)
        counts = document["counts"]
        more = sum(row.get("share", least) > least for row in rows)
        found.append(
            [
                f"{document['library']} {document['version']}",
                document["kind"],
                f"{len(rows)} of {document['architectures']}",
                *(str(counts.get(word, 0)) for word in ("same", "other bits", "failed")),
                *(str(counts.get(word, 0)) for word in ("out of memory", "apart")),
                f"{least} x",
                str(more),
            ]
        )
    head = "library | work | run | same bits | other bits | failed | out of memory | not judged"
    return lines(f"{head} | least budget | that took more", found)


TABLES = (peers, experts, experts_prompts, quantised, architectures)
