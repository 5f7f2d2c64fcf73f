# SPDX-License-Identifier: Apache-2.0
"""Write docs/fusion.md from benchmarks/fusion_page.md and the figures of fusion_suite.py.

Usage: python benchmarks/fusion_page.py [--check]   (--check writes nothing)

Where there is no result file the page has no figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "fusion" / "h200.json"
PAGE = ROOT / "docs" / "fusion.md"
TEXT = Path(__file__).with_name("fusion_page.md")
NOTE = """<!-- Written by benchmarks/fusion_page.py from benchmarks/results/fusion/h200.json and the
text in benchmarks/fusion_page.md; change those. -->
"""
SHORT = {"dropout_layernorm,attention_layernorm,attention_projection,ffn_layernorm": "all four"}
MIB = 2**20
Row = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def named(row: Row) -> str:
    name = SHORT.get(row["fusion"], row["fusion"].replace(",", ", "))
    if row.get("recompute", 1) != 1:
        name += f", recompute {row['recompute']}"
    return name + (" (again: A/A)" if row.get("again") else "")


class Figures:
    """The rows of a result, by what they are about."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.rows: list[Row] = document["rows"]

    def of(self, work: str, **what: Any) -> list[Row]:
        wanted = {"work": work, **what}
        return [row for row in self.rows if all(row.get(k) == v for k, v in wanted.items())]

    def groups(self, work: str, *keys: str) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        seen: list[dict[str, Any]] = []
        for row in self.of(work):
            what = {key: row[key] for key in keys}
            if what not in seen:
                seen.append(what)
                yield what, self.of(work, **what)

    def beside(self, row: Row) -> Row | None:
        """The same work and variant under torch.compile."""
        keys = ("model", "batch", "fusion", "dropout", "recompute")
        what = {key: row[key] for key in keys if key in row}
        found = self.of(f"{row['work']}, compiled", **what)
        return found[0] if found and not row.get("again") else None


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
                    f"{row['kernels_a_layer']:.1f}",
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
            "kernels a layer",
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
            kept, peak = row["kept_a_layer"], row["peak_bytes"]
            beside = row["activation_peak_bytes"] / base["activation_peak_bytes"] - 1
            rows.append(
                [
                    f"{what['model']}, batch {what['batch']}, dropout {what['dropout']:g}",
                    named(row),
                    f"{row['median_ms']:.1f}",
                    f"{row['median_ms'] / base['median_ms']:.3f}",
                    f"{compiled['median_ms']:.1f}" if compiled else "",
                    f"{row['kernels_a_layer']:.1f}",
                    f"{kept / MIB:.1f}",
                    f"{kept / base['kept_a_layer'] - 1:+.0%}",
                    f"{peak / 2**30:.2f}",
                    f"{peak / base['peak_bytes'] - 1:+.0%}",
                    f"{beside:+.0%}",
                ]
            )
    return table(
        [
            "model",
            "variant",
            "ms",
            "x baseline",
            "ms compiled",
            "kernels a layer",
            "kept a layer MiB",
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
            ]
        )
    return table(
        ["segment", "d", "rows", "what", "baseline ms", "again (A/A)", "fused ms", "compiled ms"],
        rows,
    )


def decode(figures: Figures) -> str:
    eager = {row["fusion"]: row for row in figures.of("decode", captured=False)}
    rows = []
    for row in figures.of("decode", captured=True):
        plain = eager.get(row["fusion"])
        before = f"{plain['median_ms']:.2f}" if plain else ""
        times = f"{plain['median_ms'] / row['median_ms']:.2f}" if plain else ""
        rows.append([named(row), before, f"{row['median_ms']:.2f}", times])
    return table(["variant", "ms a token, by the host", "CUDA graph", "x"], rows)


def budgets(figures: Figures) -> str:
    rows = []
    for what, group in figures.groups("budget", "model", "divisor"):
        base = group[0]
        for row in group:
            others = row["used_by_driver_bytes"] - row["device_bytes"]
            rows.append(
                [
                    f"{what['model']}, weights / {what['divisor']:g}",
                    named(row),
                    f"{row['median_ms']:.1f}",
                    f"{row['bytes_in'] / 1e9:.3f}",
                    f"{(row['bytes_in'] - base['bytes_in']) / MIB:+.0f}",
                    f"{others / MIB:.0f}",
                ]
            )
    return table(
        [
            "model, budget",
            "variant",
            "ms",
            "GB in a pass",
            "MiB of it to baseline",
            "activations and workspace MiB",
        ],
        rows,
    )


def chosen(figures: Figures) -> str:
    rows = []
    for choice in figures.document.get("auto", []):
        work = "training" if choice["training"] else "prefill"
        group = [
            row
            for row in figures.of(work, model=choice["model"], batch=choice["batch"])
            if row.get("recompute", 1) == 1
            and row.get("dropout", choice["dropout"]) == choice["dropout"]
        ]
        mine = [row["median_ms"] for row in group if row["fusion"] == choice["fusion"]]
        single = [row for row in group if "," not in row["fusion"]]
        if mine and single:
            best = min(single, key=lambda row: row["median_ms"])
            rows.append(
                [
                    f"{work}, {choice['model']}, batch {choice['batch']}"
                    + (f", dropout {choice['dropout']:g}" if choice["training"] else ""),
                    SHORT.get(choice["fusion"], choice["fusion"].replace(",", ", ")),
                    f"{min(mine):.2f}",
                    f"{best['fusion']}, {best['median_ms']:.2f}",
                    f"{min(mine) / best['median_ms']:.3f}",
                ]
            )
    return table(["work", "auto chose", "ms", "best single variant, ms", "x"], rows)


def figures_text(document: dict[str, Any]) -> str:
    figures, where = Figures(document), document["where"]
    conformance = document.get("conformance", {})
    parts = [
        "\n## Figures\n",
        f"{where['card']}; torch {where['torch']}; {where['date']}; commit {where['commit'][:10]}; "
        f"{document['dtype'].removeprefix('torch.')}, {document['seq_len']:,} tokens a sequence, "
        f"random weights, all layers. `{document['command']}`\n",
        "Times are medians of steps that are waited for one by one. The baseline stands first and "
        "last in each group: their difference is noise.\n",
        f"Before that the kernels were compared with float64: {conformance.get('checks', 0)} "
        f"checks, {len(conformance.get('failures', []))} failed.\n",
    ]
    titles = {
        "Forward pass": prefill,
        "Training step": training,
        "Each segment by itself": segments,
        "Tokens one by one (1.5B, batch 1)": decode,
        "Under a budget (batch 8, logits of the last token)": budgets,
        "What auto chose": chosen,
    }
    for title, make in titles.items():
        parts += [f"### {title}\n", make(figures) + "\n"]
    left = len(document["left_out"])
    if left:
        parts.append(f"{left} rows were left out for want of time; the result file names them.\n")
    return "\n".join(parts)


def page() -> str:
    text = NOTE + TEXT.read_text(encoding="utf-8")
    if RESULTS.exists():
        text += figures_text(json.loads(RESULTS.read_text(encoding="utf-8")))
    return text


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" in arguments:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
        print("docs/fusion.md is stale" if stale else "docs/fusion.md: ok")
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
