# SPDX-License-Identifier: Apache-2.0
"""docs/fusion-benchmarks.md, made by table.py from the results of fusion_suite.py.

A run has time for some of the tables: of each, the page takes the last run that has it whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pages.figures import MIB, Rows, columns, made, results

HEAD = """# Fused layers, measured

Written by `python benchmarks/table.py` from the files in `benchmarks/results/fusion/`, which
`benchmarks/fusion_suite.py` makes.
"""
SHORT = {"dropout_layernorm,attention_layernorm,attention_projection,ffn_layernorm": "all four"}
OTHERS = "activations and workspace MiB"
Row = dict[str, Any]


def named(row: Row) -> str:
    name = SHORT.get(row["fusion"], row["fusion"].replace(",", ", "))
    if row.get("recompute", 1) != 1:
        name += f", recompute {row['recompute']}"
    return name + (" (again: A/A)" if row.get("again") else "")


def share(row: Row, base: Row, key: str) -> str:
    """What is gained or lost of the baseline's, where both were measured."""
    if row.get(key) is None or base.get(key) is None:
        return ""
    return f"{row[key] / base[key] - 1:+.0%}"


def _whole(rows: list[Row]) -> bool:
    """Whether a table that ends with the baseline again does: time may have run out within it."""
    work = rows[0]["work"].partition(",")[0]
    return work not in ("prefill", "training", "budget") or any(row.get("again") for row in rows)


def _unfit(document: dict[str, Any], row: Row) -> list[str]:
    """Columns of a row that say nothing, or "*"; of all such work, or of some of it only."""
    found = document.get("unfit", {}).get(row["work"], {"columns": []})
    only = found.get("only", {})
    columns: list[str] = found["columns"]
    return columns if all(row.get(key) == value for key, value in only.items()) else []


def _where(rows: list[Row], **what: Any) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in what.items())]


def _works(choice: Row) -> list[Row]:
    """What the rows are of that a choice of auto is judged by, the best first."""
    what = {"model": choice["model"], "batch": choice["batch"]}
    if choice["training"]:
        what["dropout"] = choice["dropout"]
    work = "training" if choice["training"] else "prefill"
    return [{"work": f"{work}, for auto", **what}, {"work": work, **what}]


class Figures:
    """The rows of all results, each table from the last run that has it."""

    TABLE = ("work", "model", "batch", "dropout", "divisor", "d", "rows")

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self.documents = documents
        self._all: list[Row] = []  # of every run
        tables: dict[tuple[Any, ...], list[Row]] = {}
        for number, document in enumerate(documents):
            found: dict[tuple[Any, ...], list[Row]] = {}
            for row in document["rows"]:
                unfit = _unfit(document, row)
                kept = {key: value for key, value in row.items() if key not in unfit}
                kept["run"] = number
                if "*" in unfit:
                    continue
                self._all.append(kept)
                found.setdefault(tuple(row.get(key) for key in self.TABLE), []).append(kept)
            tables |= {key: t for key, t in found.items() if _whole(t) or key not in tables}
        self.rows: list[Row] = [row for table in tables.values() for row in table]
        self.auto: list[Row] = self._choices()

    def _choices(self) -> list[Row]:
        """Of each shape those of the last commit: there may be several, as there are runs.

        A run that had no time for a shape's table says nothing of the choice for it, if another
        had: on another host the same variant is 2 % off.
        """
        found: dict[tuple[Any, ...], list[Row]] = {}
        for number, document in enumerate(self.documents):
            for row in document.get("auto", []):
                choice = {**row, "run": number, "commit": document["where"]["commit"]}
                shape = tuple(row[key] for key in ("model", "batch", "training", "dropout"))
                found.setdefault(shape, []).append(choice)
        last: list[Row] = []
        for choices in found.values():
            judged = [choice for choice in choices if self._own(choice)] or choices
            last += [choice for choice in judged if choice["commit"] == judged[-1]["commit"]]
        return last

    def _own(self, choice: Row) -> list[Row]:
        """The table for a choice of auto in its own run."""
        for work in _works(choice):
            if found := _where(self._all, run=choice["run"], **work):
                return found
        return []

    def of(self, work: str, **what: Any) -> list[Row]:
        return _where(self.rows, work=work, **what)

    def groups(self, work: str, *keys: str) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        seen: list[dict[str, Any]] = []
        for row in self.of(work):
            what = {key: row.get(key) for key in keys}
            if what not in seen:
                seen.append(what)
                yield what, self.of(work, **what)

    def judging(self, choice: Row) -> list[Row]:
        """The table that a choice of auto is judged by: of its own run, if that has one."""
        rows = self._own(choice)
        for work in _works(choice):
            rows = rows or self.of(**work)
        return [row for row in rows if row.get("recompute", 1) == 1]

    def beside(self, row: Row) -> Row | None:
        """The same work and variant under torch.compile."""
        keys = ("model", "batch", "fusion", "dropout", "recompute")
        what = {key: row[key] for key in keys if key in row}
        found = self.of(f"{row['work']}, compiled", **what)
        return found[0] if found and not row.get("again") else None


def works(figures: Figures, work: str, *keys: str) -> Iterator[tuple[dict[str, Any], Row, Row]]:
    """What a table is of, its baseline, and each row with its name and its time beside that's."""
    for what, group in figures.groups(work, *keys):
        for row in group:
            more = {"name": named(row), "x": row["median_ms"] / group[0]["median_ms"]}
            yield what, group[0], {**row, **more, "compiled": figures.beside(row)}


@columns(
    "work | variant | ms | x baseline",
    "{title}, {model}, batch {batch} | {name} | {median_ms:.2f} | {x:.3f}",
)
def captured(figures: Figures) -> Rows:
    for work in ("prefill", "training"):
        for _, _, row in works(figures, f"{work}, captured", "model", "batch"):
            name = row["name"] + (", by the host" if row.get("eager") else "")
            yield {**row, "name": name, "title": "forward" if work == "prefill" else work}


@columns(
    "model | variant | ms | x baseline | ms compiled | kernels per layer | "
    "peak beside weights MiB | the same, logits of the last token",
    "{model}, batch {batch} | {name} | {median_ms:.2f} | {x:.3f} | {compiled[median_ms]:.2f} | "
    "{kernels_a_layer:.1f} | {peak_bytes:MiB} | {peak_last_bytes:MiB}",
)
def prefill(figures: Figures) -> Rows:
    for _, _, row in works(figures, "prefill", "model", "batch"):
        peaks = {key: row[key] - row["weight_bytes"] for key in ("peak_bytes", "peak_last_bytes")}
        yield {**row, **peaks}


@columns(
    "model | variant | ms | x baseline | ms compiled | kernels per layer | kept per layer, MiB | "
    "of baseline | peak GiB | of baseline | peak of forward beside weights",
    "{model}, batch {batch}, dropout {dropout:g} | {name} | {median_ms:.1f} | {x:.3f} | "
    "{compiled[median_ms]:.1f} | {kernels_a_layer:.1f} | {kept:.1f} | {of[kept_a_layer]} | "
    "{peak_bytes:GiB} | {of[peak_bytes]} | {of[activation_peak_bytes]}",
)
def training(figures: Figures) -> Rows:
    for _, base, row in works(figures, "training", "model", "batch", "dropout"):
        kept = None if row.get("kept_a_layer") is None else row["kept_a_layer"] / MIB
        keys = ("kept_a_layer", "peak_bytes", "activation_peak_bytes")
        yield {**row, "kept": kept, "of": {key: share(row, base, key) for key in keys}}


WAYS = "baseline ms | again (A/A) | fused ms | compiled ms"


@columns(
    f"segment | d | rows | what | {WAYS} | graph: {WAYS}",
    "{fusion} | {d} | {rows} | {what} | "
    + " | ".join(
        f"{{{way}{kind}_ms:.3f}}"
        for kind in ("", "_captured")
        for way in ("baseline", "baseline_again", "fused", "compiled")
    ),
)
def segments(figures: Figures) -> Rows:
    for row in figures.of("segment"):
        yield {**row, "what": "forward and backward" if row["training"] else "forward"}


@columns(
    "variant | ms per token, by the host | CUDA graph | x",
    "{name} | {before:.2f} | {median_ms:.2f} | {times:.2f}",
)
def decode(figures: Figures) -> Rows:
    eager = {row["fusion"]: row["median_ms"] for row in figures.of("decode", captured=False)}
    for row in figures.of("decode", captured=True):
        before = eager.get(row["fusion"])
        times = before / row["median_ms"] if before else None
        yield {**row, "name": named(row), "before": before, "times": times}


def budgets(figures: Figures) -> str:
    return _budgets(figures, "budget", "weights")


def training_budgets(figures: Figures) -> str:
    return _budgets(figures, "training, budget", "resident peak")


@columns(
    f"model, budget | variant | ms | GB in | GB out | MiB in to baseline | {OTHERS}",
    "{model}, batch {batch}, {of} / {divisor:g} | {name} | {fit}{ms:.1f} | {moved[in]:.3f} | "
    "{moved[out]:.3f} | {more:+.0f} | {beside}",
)
def _budgets(figures: Figures, work: str, of: str) -> Rows:
    for _, group in sorted(figures.groups(work, "model", "batch", "divisor"), key=_by_size):
        base = group[0] if group[0]["fusion"] == "baseline" and fits(group[0]) else None
        for row in group:
            if not fits(row):
                found: Row = {"fit": "does not fit", "beside": _needed(row)}
            else:
                moved = {key: row[f"bytes_{key}"] / 1e9 for key in ("in", "out")}
                more = (row["bytes_in"] - base["bytes_in"]) / MIB if base else None
                # Beside the weights: activations, workspace.
                beside = f"{(row['used_by_driver_bytes'] - row['device_bytes']) / MIB:.0f}"
                found = {"ms": row["median_ms"], "moved": moved, "more": more, "beside": beside}
            yield {**row, "name": named(row), "of": of, **found}


def _by_size(table: tuple[dict[str, Any], list[Row]]) -> tuple[float, int, float]:
    what = table[0]
    return float(what["model"].rstrip("B")), what["batch"], -what["divisor"]


def _needed(row: Row) -> str:
    """What a variant that does not fit takes beside the weights."""
    beyond = row["activation_peak_bytes"] > row["gpu_memory_bytes"]
    return f"{row['activation_peak_bytes'] / MIB:.0f}{' alone' if beyond else ''}"


def apart(group: list[Row]) -> float:
    """By how much the baseline's second row is off its first."""
    again = [row for row in group if row.get("again")]
    return abs(again[0]["median_ms"] / group[0]["median_ms"] - 1) if again else 0.0


def fits(row: Row) -> bool:
    """Whether a variant could run in its budget."""
    return bool(row.get("fits", True))


@columns(
    "work | auto chose | ms | best single variant, ms | x | A/A | measured in s",
    "{work}, {model}, batch {batch}{more} | {name} | {ms:.2f} | "
    "{best[fusion]}, {best[median_ms]:.2f} | {x:.3f} | {aa:.1%} | {seconds:.1f}",
)
def chosen(figures: Figures) -> Rows:
    for choice in figures.auto:
        group = figures.judging(choice)
        mine = [row["median_ms"] for row in group if row["fusion"] == choice["fusion"]]
        single = [row for row in group if "," not in row["fusion"]]
        if mine and single:
            best = min(single, key=lambda row: row["median_ms"])
            figures_of = {"ms": min(mine), "best": best, "x": min(mine) / best["median_ms"]}
            work = "training" if choice["training"] else "prefill"
            dropout = f", dropout {choice['dropout']:g}" if choice["training"] else ""
            words = {"work": work, "more": dropout, "name": named(choice), "aa": apart(group)}
            yield {**choice, **figures_of, **words}


def run_text(number: int, document: dict[str, Any]) -> str:
    checked = document.get("conformance", {})
    failures = checked.get("failures", [])
    # Where the run wrote it is of no use here, and the cap on its seconds of little.
    command = document["command"].partition(" --output")[0].partition(" --limit")[0]
    text = f"{number}. {document['file']}: {made(document)}; `{command}`."
    if checked:
        text += f" Kernels against float64: {checked['checks']:,} checks, {len(failures)} failed."
    if failures:
        text += " " + "; ".join(" ".join(failure.split())[:120] for failure in failures[:3]) + "."
    left, unfit = len(document["left_out"]), document.get("unfit", {})
    if left:
        text += f" {left} rows or tables were left out for want of time; the result names them."
    for work, what in unfit.items():
        columns = "all rows" if "*" in what["columns"] else ", ".join(what["columns"])
        some = "".join(f" ({key} {value})" for key, value in what.get("only", {}).items())
        text += f" Of {work}{some}, {columns} are left out here: {what['why']}."
    return text


def page() -> str:
    """All of it."""
    found = sorted(results("fusion"))  # x before x-2
    documents = [{**document, "file": f"{name}.json"} for name, document in found]
    figures, first = Figures(documents), documents[0]
    parts = [
        HEAD,
        f"{first['dtype'].removeprefix('torch.')}, {first['seq_len']:,} tokens a sequence, random "
        "weights, all layers. Times are medians of steps that are waited for one by one. The "
        "baseline stands first and last in each group: their difference is noise.\n",
        "\n".join(run_text(number, d) for number, d in enumerate(documents, 1)) + "\n",
    ]
    titles = {
        "Forward pass": prefill,
        "Training step": training,
        "A step as one CUDA graph": captured,
        "Each segment by itself": segments,
        "Tokens one by one (1.5B, batch 1)": decode,
        "Under a budget (logits of the last token)": budgets,
        "Training under a budget (SGD, dropout 0.1)": training_budgets,
        "What auto chose": chosen,
    }
    parts += [f"## {title}\n\n{make(figures)}\n" for title, make in titles.items()]
    return "\n".join(parts)
