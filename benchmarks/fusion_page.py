# SPDX-License-Identifier: Apache-2.0
"""docs/fusion-benchmarks.md, made by table.py from the results of fusion_suite.py.

A run has time for some of the tables: of each, the page takes the last run that has it whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from figures import MIB, RESULTS, table

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


def cell(row: Row, key: str, form: str, per: float = 1.0, less: float = 0.0) -> str:
    """A figure, or nothing where it was not measured."""
    return format((row[key] - less) / per, form) if row.get(key) is not None else ""


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


def captured(figures: Figures) -> str:
    rows = []
    for work in ("prefill", "training"):
        for what, group in figures.groups(f"{work}, captured", "model", "batch"):
            base = group[0]
            for row in group:
                name = named(row) + (", by the host" if row.get("eager") else "")
                rows.append(
                    [
                        f"{'forward' if work == 'prefill' else work}, {what['model']}, "
                        f"batch {what['batch']}",
                        name,
                        f"{row['median_ms']:.2f}",
                        f"{row['median_ms'] / base['median_ms']:.3f}",
                    ]
                )
    return table(["work", "variant", "ms", "x baseline"], rows)


def prefill(figures: Figures) -> str:
    rows = []
    for what, group in figures.groups("prefill", "model", "batch"):
        base = group[0]
        for row in group:
            compiled = figures.beside(row)
            beyond = (row["peak_bytes"] - row["weight_bytes"]) / MIB
            rows.append(
                [
                    f"{what['model']}, batch {what['batch']}",
                    named(row),
                    f"{row['median_ms']:.2f}",
                    f"{row['median_ms'] / base['median_ms']:.3f}",
                    f"{compiled['median_ms']:.2f}" if compiled else "",
                    cell(row, "kernels_a_layer", ".1f"),
                    f"{beyond:.0f}",
                    f"{(row['peak_last_bytes'] - row['weight_bytes']) / MIB:.0f}",
                ]
            )
    return table(
        [
            "model",
            "variant",
            "ms",
            "x baseline",
            "ms compiled",
            "kernels per layer",
            "peak beside weights MiB",
            "the same, logits of the last token",
        ],
        rows,
    )


def training(figures: Figures) -> str:
    rows = []
    for what, group in figures.groups("training", "model", "batch", "dropout"):
        base = group[0]
        for row in group:
            compiled = figures.beside(row)
            rows.append(
                [
                    f"{what['model']}, batch {what['batch']}, dropout {what['dropout']:g}",
                    named(row),
                    f"{row['median_ms']:.1f}",
                    f"{row['median_ms'] / base['median_ms']:.3f}",
                    f"{compiled['median_ms']:.1f}" if compiled else "",
                    cell(row, "kernels_a_layer", ".1f"),
                    cell(row, "kept_a_layer", ".1f", MIB),
                    share(row, base, "kept_a_layer"),
                    cell(row, "peak_bytes", ".2f", 2**30),
                    share(row, base, "peak_bytes"),
                    share(row, base, "activation_peak_bytes"),
                ]
            )
    return table(
        [
            "model",
            "variant",
            "ms",
            "x baseline",
            "ms compiled",
            "kernels per layer",
            "kept per layer, MiB",
            "of baseline",
            "peak GiB",
            "of baseline",
            "peak of forward beside weights",
        ],
        rows,
    )


def segments(figures: Figures) -> str:
    rows = []
    for row in figures.of("segment"):
        base = row["baseline_ms"]
        rows.append(
            [
                row["fusion"],
                str(row["d"]),
                str(row["rows"]),
                "forward and backward" if row["training"] else "forward",
                f"{base:.3f}",
                f"{row['baseline_again_ms']:.3f}",
                f"{row['fused_ms']:.3f}",
                f"{row['compiled_ms']:.3f}",
                *(
                    cell(row, f"{way}_captured_ms", ".3f")
                    for way in ("baseline", "baseline_again", "fused", "compiled")
                ),
            ]
        )
    ways = ["baseline ms", "again (A/A)", "fused ms", "compiled ms"]
    head = ["segment", "d", "rows", "what", *ways, "graph: " + ways[0], *ways[1:]]
    return table(head, rows)


def decode(figures: Figures) -> str:
    eager = {row["fusion"]: row for row in figures.of("decode", captured=False)}
    rows = []
    for row in figures.of("decode", captured=True):
        plain = eager.get(row["fusion"])
        before = f"{plain['median_ms']:.2f}" if plain else ""
        times = f"{plain['median_ms'] / row['median_ms']:.2f}" if plain else ""
        rows.append([named(row), before, f"{row['median_ms']:.2f}", times])
    return table(["variant", "ms per token, by the host", "CUDA graph", "x"], rows)


def budgets(figures: Figures) -> str:
    return _budgets(figures, "budget", "weights")


def training_budgets(figures: Figures) -> str:
    return _budgets(figures, "training, budget", "resident peak")


def _budgets(figures: Figures, work: str, of: str) -> str:
    rows = []
    for what, group in sorted(figures.groups(work, "model", "batch", "divisor"), key=_by_size):
        shape = f"{what['model']}, batch {what['batch']}, {of} / {what['divisor']:g}"
        base = group[0] if group[0]["fusion"] == "baseline" and fits(group[0]) else None
        for row in group:
            if not fits(row):
                rows.append([shape, named(row), "does not fit", "", "", "", _needed(row)])
                continue
            rows.append(
                [
                    shape,
                    named(row),
                    f"{row['median_ms']:.1f}",
                    f"{row['bytes_in'] / 1e9:.3f}",
                    f"{row['bytes_out'] / 1e9:.3f}",
                    f"{(row['bytes_in'] - base['bytes_in']) / MIB:+.0f}" if base else "",
                    f"{others(row) / MIB:.0f}",
                ]
            )
    head = ["model, budget", "variant", "ms", "GB in", "GB out", "MiB in to baseline", OTHERS]
    return table(head, rows)


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


def others(row: Row) -> int:
    """Bytes of device memory that a variant takes beside the weights: activations, workspace."""
    return int(row["used_by_driver_bytes"] - row["device_bytes"])


def chosen(figures: Figures) -> str:
    rows = []
    for choice in figures.auto:
        group = figures.judging(choice)
        mine = [row["median_ms"] for row in group if row["fusion"] == choice["fusion"]]
        single = [row for row in group if "," not in row["fusion"]]
        if mine and single:
            best = min(single, key=lambda row: row["median_ms"])
            work = "training" if choice["training"] else "prefill"
            rows.append(
                [
                    f"{work}, {choice['model']}, batch {choice['batch']}"
                    + (f", dropout {choice['dropout']:g}" if choice["training"] else ""),
                    SHORT.get(choice["fusion"], choice["fusion"].replace(",", ", ")),
                    f"{min(mine):.2f}",
                    f"{best['fusion']}, {best['median_ms']:.2f}",
                    f"{min(mine) / best['median_ms']:.3f}",
                    f"{apart(group):.1%}",
                    f"{choice['seconds']:.1f}" if "seconds" in choice else "",
                ]
            )
    head = ["work", "auto chose", "ms", "best single variant, ms", "x", "A/A", "measured in s"]
    return table(head, rows)


def run_text(number: int, document: dict[str, Any]) -> str:
    where, checked = document["where"], document.get("conformance", {})
    failures = checked.get("failures", [])
    # Where the run wrote it is of no use here, and the cap on its seconds of little.
    command = document["command"].partition(" --output")[0].partition(" --limit")[0]
    text = (
        f"{number}. {document['file']}: {where['card']}; torch {where['torch']}; {where['date']}; "
        f"commit {where['commit'][:10]}; `{command}`."
    )
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
    files = sorted((RESULTS / "fusion").glob("*.json"), key=lambda file: file.stem)  # x before x-2
    documents = [
        {**json.loads(file.read_text(encoding="utf-8")), "file": file.name} for file in files
    ]
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
