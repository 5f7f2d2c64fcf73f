# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/models.md, for table.py: models beside peers, and mixtures of experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pages.figures import GIB, Rows, columns, results

# What the rows of a table of pages' sizes have in common.
PAGES_RULE = {"price": 2, "look": 16, "forget": 0.25}
# Errors of a peer, by what they begin with, and what has to be in them.
ERRORS = (
    ("OutOfMemoryError", "", "out of memory"),
    ("OutOfTime", "", "not run"),
    ("ValueError", "layer_execution_tracker", "refused by diffusers"),
)


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


@columns(
    "work | budget, GiB | by | exact | peak, GiB | resident | ideal | ms | p90 | x ideal "
    "| x Penstock | results/peers",
    "{name} | {budget_bytes:GiB} | {how} | {bits} | {peak_bytes:GiB} | {resident_median_ms:ms} "
    "| {ideal_ms:ms} | {why}{median_ms:ms} | {p90_ms:ms} | {ratio_to_ideal:.2f} | {x:.2f} "
    "| {file}",
)
def peers() -> Rows:
    """Penstock and its peers within the same budget, of each the newest run that got to it."""
    found: dict[tuple[str, float, str], dict[str, Any]] = {}
    newest_first = sorted(results("peers"), key=lambda each: each[1]["where"]["date"], reverse=True)
    for name, document in newest_first:
        rows = [row for row in document["rows"] if not row["how"].startswith("resident")]
        ours = {
            (row["name"], row["budget_bytes"]): row["median_ms"]
            for row in rows
            if row["how"] == "penstock" and "median_ms" in row
        }
        rows.sort(key=lambda row: "error" in row)  # it may have run when it was tried again
        for row in rows:
            if not row.get("error", "").startswith("OutOfTime"):
                place = row["name"], round(row.get("budget_bytes", 0) / GIB, 1), row["how"]
                found.setdefault(place, {**beside(row, ours), "file": name})
    order = sorted(found, key=lambda place: (*place[:2], place[2] != "penstock", place[2]))
    return [found[place] for place in order]


def beside(row: dict[str, Any], ours: dict[tuple[str, int], float]) -> dict[str, Any]:
    """A line of peers()."""
    how = {"penstock": "**Penstock**"}.get(row["how"], row["how"])
    if "error" in row:
        place: dict[str, Any] = {key: row[key] for key in ("name", "budget_bytes") if key in row}
        return {**place, "how": how, "why": why(row["error"])}
    least, took = ours.get((row["name"], row["budget_bytes"])), row.get("median_ms")
    return {**row, "how": how, "bits": exact(row), "x": took / least if least and took else None}


# ---- Mixtures of experts -------------------------------------------------------------------


def mixtures() -> Iterator[dict[str, Any]]:
    """The rows of all attached ones, by model and router."""
    for _, document in results("one_budget"):
        for row in document["rows"]:
            if row["part"] == "moe" and "ratio_to_ideal" in row:
                yield {**row, "name": ", ".join(row["name"].split(", ")[:2]), "bits": exact(row)}


@columns(
    "model and router | budget, GiB | exact | resident token | ideal | token | p99 | x ideal "
    "| read in place, MB | moved, MB | MIN, MB | LRU, MB | even, MB | first token, ms",
    "{name} | {budget_bytes:GiB} | {bits} | {resident_median_ms:ms} | {ideal_ms:ms} | "
    "{median_ms:ms} | {p99_ms:ms} | {ratio_to_ideal:.2f} | {mb[in_place]:,.0f} | "
    "{mb[moved]:,.1f} | {mb[min]:,.0f} | {mb[lru]:,.0f} | {mb[even]:,.0f} | "
    "{first_token_ms:ms}",
)
def experts() -> Rows:
    """Texts token by token, beside what the tokens' experts cost others."""
    for row in mixtures():
        if "min_bytes" in row:
            keys = [key for key in row if key.endswith("_bytes") and isinstance(row[key], int)]
            yield {**row, "mb": {key.removesuffix("_bytes"): row[key] / 1e6 for key in keys}}


PAGES = ("4 MiB", "8 MiB", "32 MiB")


@columns(
    "router | none preferred | LRU | " + " | ".join(f"pages of {size}" for size in PAGES),
    "{router} | {both[even]:,.0f} | {both[lru]:,.0f} | "
    + " | ".join(f"{{both[{size}]:,.0f}}, {{moved[{size}]:,.0f}}" for size in PAGES),
)
def expert_pages() -> Rows:
    """What made-up routers read over the link, by rule and size of a page."""
    for _, document in results("experts"):
        rules: dict[str, dict[str, Any]] = {}
        for row in document["rows"]:
            by = row["rule"]
            if "page" in row and all(row[k] == v for k, v in PAGES_RULE.items()):
                by = f"{row['page'] >> 20} MiB"
            rules.setdefault(row["router"], {})[by] = row
        for router, rows in rules.items():
            both = {by: row["read_mb"] + row.get("moved_mb", 0) for by, row in rows.items()}
            moved = {by: row["moved_mb"] for by, row in rows.items() if "moved_mb" in row}
            yield {"router": router, "both": both, "moved": moved}


@columns(
    "model and router | budget, GiB | resident | ideal | attached | x ideal",
    "{name} | {budget_bytes:GiB} | {resident_median_ms:ms} | {ideal_ms:ms} | {median_ms:ms} "
    "| {ratio_to_ideal:.2f}",
)
def experts_prompts() -> Rows:
    """A long prompt's pass of the same attachments."""
    for row in mixtures():
        if "missing_bytes" in row and row["how"].startswith("attached"):
            yield row


# ---- Quantised weights ---------------------------------------------------------------------


@columns(
    "weights | GiB | budget, GiB | tokens exact | peak, GiB | resident | ideal | attached "
    "| p99 | x ideal",
    "{name} | {base[weight_bytes]:GiB} | {budget_bytes:GiB} | {bits} | {peak_bytes:GiB} | "
    "{base[median_ms]:ms} | {ideal_ms:ms} | {why}{median_ms:ms} | {p99_ms:ms} | "
    "{ratio_to_ideal:.2f}",
)
def quantised() -> Rows:
    """A Llama of 8 billion weights in four formats."""
    for _, document in results("quantised"):
        resident = {r["name"]: r for r in document["rows"] if r["how"] == "resident"}
        for row in document["rows"]:
            if row["how"].startswith("attached"):
                more = {"why": why(row["error"])} if "error" in row else {}
                yield {**row, **more, "bits": exact(row), "base": resident[row["name"]]}


# ---- Architectures that nobody chose -------------------------------------------------------


def verdict(row: dict[str, Any]) -> str:
    """One word on an architecture's row."""
    if "apart" in row or "failed" in row:
        return "apart" if "apart" in row else "failed"
    return {True: "same", False: "other bits", None: "out of memory"}[row.get("same")]


@columns(
    "library | work | run | same bits | other bits | failed | out of memory | not judged "
    "| least budget | that took more",
    "{library} {version} | {kind} | {run} of {architectures} | {counts[same]} | "
    "{counts[other bits]} | {counts[failed]} | {counts[out of memory]} | {counts[apart]} | "
    "{least} x | {more}",
)
def architectures() -> Rows:
    """Each run over a library, by its verdicts and the smallest budget that did."""
    for _, document in sorted(results("architectures"), key=lambda each: each[0]):
        rows = document["rows"]
        least = min(row["share"] for row in rows if "share" in row)
        more = sum(row.get("share", least) > least for row in rows)
        counts = Counter(map(verdict, rows))
        yield {**document, "run": len(rows), "counts": counts, "least": least, "more": more}


TABLES = (peers, experts, expert_pages, experts_prompts, quantised, architectures)
