# SPDX-License-Identifier: Apache-2.0
"""What the fused layers were to show, and whether the figures show it; for fusion_page.py.

A goal is met, missed or not measured, by the figures alone. Beyond noise is more than 1 %, or than
the two baselines of a table differ by.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
LEAST_NOISE = 0.01
# A variant may be slower where it saves so much memory.
LOWER_PEAK = 0.05
PAGE_MIB = 32
NO_SLOWER = "no variant slower, or its peak 5 % lower"


def goals(figures: Any) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table: the goal, the figures, the verdict."""
    rows = [
        *_no_slower(figures, "prefill", "Forward"),
        *_no_slower(figures, "training", "Training"),
        *_no_slower(figures, "prefill, captured", "Forward as a CUDA graph"),
        *_no_slower(figures, "training, captured", "Training as a CUDA graph"),
        _peak(figures, "activation_peak_bytes", "peak of activations"),
        _peak(figures, "peak_bytes", "peak with weights and gradients"),
        _compiled(figures, ""),
        _compiled(figures, "_captured"),
        _decode(figures),
        _auto(figures),
        _links(figures, "budget", "Forward"),
        _links(figures, "training, budget", "Training"),
    ]
    return ["goal", "figures", "verdict"], rows


def _verdict(holds: bool) -> str:
    return "met" if holds else "missed"


def apart(group: list[Row]) -> float:
    """By how much the baseline's second row is off its first."""
    again = [row for row in group if row.get("again")]
    return abs(again[0]["median_ms"] / group[0]["median_ms"] - 1) if again else 0.0


def _noise(group: list[Row]) -> float:
    return max(LEAST_NOISE, apart(group))


def _no_slower(figures: Any, work: str, title: str) -> list[list[str]]:
    rows = []
    for what, group in figures.groups(work, "model", "batch", "dropout"):
        base = group[0]["median_ms"]
        fused = {
            row["fusion"]: row["median_ms"] / base
            for row in group[1:]
            if not row.get("again")
            and row.get("recompute", 1) == 1
            # not sets, and not the baseline without a graph beside captured ones
            and "," not in row["fusion"]
            and not row.get("eager")
        }
        if len(fused) < 4:
            continue
        worst, best = max(fused, key=fused.__getitem__), min(fused, key=fused.__getitem__)
        slower = [name for name, ratio in fused.items() if ratio > 1 + _noise(group)]
        peaks = group
        if work.endswith(", captured"):  # a graph keeps its memory; the same step without one
            plain = what | {"work": work.partition(",")[0]}
            peaks = figures.of(**{key: value for key, value in plain.items() if value is not None})
        lower = {name: _lower_peak(peaks, name) for name in slower}
        text = f"{best} {fused[best]:.2f} x to {worst} {fused[worst]:.2f} x; A/A {apart(group):.1%}"
        for variant in slower:
            text += f"; slower: {variant}, its peak {-lower[variant]:+.0%}"
        name = f"{title}, {what['model']}, batch {what['batch']}"
        if what["dropout"] is not None:
            name += f", dropout {what['dropout']:g}"
        holds = all(share >= LOWER_PEAK for share in lower.values())
        rows.append([f"{name}: {NO_SLOWER}", text, _verdict(holds)])
    return rows or [[f"{title}: {NO_SLOWER}", "", "not measured"]]


def _lower_peak(group: list[Row], fusion: str) -> float:
    """By which share the peak of a variant, weights and all, is below the baseline's."""
    rows = [r for r in group if r["fusion"] == fusion and r.get("recompute", 1) == 1]
    if not rows or not rows[0].get("peak_bytes") or not group[0].get("peak_bytes"):
        return 0.0
    row = rows[0]
    return float(1 - row["peak_bytes"] / group[0]["peak_bytes"])


def _peak(figures: Any, key: str, words: str) -> list[str]:
    name = f"Training: ffn_layernorm's {words} 25 % lower"
    found = []
    for what, group in figures.groups("training", "model", "batch", "dropout"):
        rows = [r for r in group if r["fusion"] == "ffn_layernorm" and r["recompute"] == 1]
        if rows and key in rows[0]:
            share = rows[0][key] / group[0][key] - 1
            found.append((share, f"{what['model']}, batch {what['batch']}: {share:+.0%}"))
    if not found:
        return [name, "", "not measured"]
    return [name, "; ".join(text for _, text in found), _verdict(max(found)[0] <= -0.25)]


def _compiled(figures: Any, how: str) -> list[str]:
    name = "Each segment at least as fast as torch.compile's" + (", as CUDA graphs" if how else "")
    rows = [row for row in figures.of("segment") if f"fused{how}_ms" in row]
    if not rows:
        return [name, "", "not measured"]
    ratios = [row[f"fused{how}_ms"] / row[f"compiled{how}_ms"] for row in rows]
    slower = [
        f"{row['fusion']}, d {row['d']}, {row['rows']} rows: {ratio:.3f} x"
        for row, ratio in zip(rows, ratios, strict=True)
        if ratio > 1 + LEAST_NOISE
    ]
    text = "; ".join([f"{len(rows) - len(slower)} of {len(rows)}", *slower])
    return [name, text, _verdict(not slower)]


def _decode(figures: Any) -> list[str]:
    name = "Tokens of 1.5B by a CUDA graph: 2 x those by the host"
    eager = {row["fusion"]: row["median_ms"] for row in figures.of("decode", captured=False)}
    ratios = [
        eager[row["fusion"]] / row["median_ms"]
        for row in figures.of("decode", captured=True)
        if row["fusion"] in eager
    ]
    if not ratios:
        return [name, "", "not measured"]
    return [name, f"{min(ratios):.2f} to {max(ratios):.2f} x", _verdict(min(ratios) >= 2)]


def _auto(figures: Any) -> list[str]:
    name = "auto no slower than the best single variant"
    found = []
    for choice in figures.auto:
        group = figures.judging(choice)
        mine = [r["median_ms"] for r in group if r["fusion"] == choice["fusion"]]
        single = [r["median_ms"] for r in group if "," not in r["fusion"]]
        if len(single) >= 6 and mine:
            found.append(min(mine) / min(single) - 1 - _noise(group))
    if not found:
        return [name, "", "not measured"]
    met = sum(beyond <= 0 for beyond in found)
    return [name, f"{met} of {len(found)} tables", _verdict(met == len(found))]


def _links(figures: Any, work: str, title: str) -> list[str]:
    """Whether room that ffn_layernorm does not take holds weights that are not moved again.

    The room is counted in pages, of up to 32 MiB; where all weights fit no more can be saved.
    """
    name = f"{title} under a budget: what ffn_layernorm saves of the peak is saved on the link"
    found = []
    for what, group in figures.groups(work, "model", "batch", "divisor"):
        base, rows = group[0], [row for row in group if row["fusion"] == "ffn_layernorm"]
        if not rows or base["fusion"] != "baseline" or not (fits(base) and fits(rows[0])):
            continue
        moved = (rows[0]["bytes_in"] - base["bytes_in"]) / 2**20
        taken = (others(rows[0]) - others(base)) / 2**20
        met = max(taken, moved - max(taken, -base["bytes_in"] / 2**20)) <= PAGE_MIB
        shape = f"{what['model']}, batch {what['batch']}, / {what['divisor']:g}"
        found.append((met, f"{shape}: {moved:+.0f} of {taken:+.0f} MiB"))
    if not found:
        return [name, "", "not measured"]
    return [name, "; ".join(text for _, text in found), _verdict(all(met for met, _ in found))]


def fits(row: Row) -> bool:
    """Whether a variant could run in its budget."""
    return bool(row.get("fits", True))


def others(row: Row) -> int:
    """Bytes of device memory that a variant takes beside the weights: activations, workspace."""
    return int(row["used_by_driver_bytes"] - row["device_bytes"])
