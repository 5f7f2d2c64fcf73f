# SPDX-License-Identifier: Apache-2.0
"""Write all tables of the README and of docs/ that are made from the result files.

python benchmarks/table.py [--check]

Four pages are written whole; in others a table stands between ``<!-- figures: NAME -->`` and
``<!-- end of figures -->``, with NAME one of `TABLES`.
"""

from __future__ import annotations

import re
import statistics
import sys
from functools import partial
from typing import Any

from kit.measure import script_parser
from pages import allocator, fusion, models, reliability, replay, training
from pages.figures import (
    GIB,
    MIB,
    ROOT,
    Rows,
    columns,
    commit,
    made,
    percent,
    result,
    results,
    shown,
    sourced,
)

MARKS = re.compile(r"(<!-- figures: (\w+) -->\n)(?:.*?\n)??(<!-- end of figures -->)", re.DOTALL)
ALLOCATORS = ("native", "expandable", "stitch")
# In README: what ran, and by what means.
FORWARD = {
    "llama forward": "a pass of 512 tokens, and x the ideal",
    "llama generate 8": "8 tokens behind them",
}
PEERS = {
    "penstock": "**Penstock**",
    "accelerate-dispatch": "accelerate, `device_map` with `max_memory`",
    "diffusers-group-leaf": "diffusers, group offload by leaves, on a stream",
    "deepspeed-zero-inference": "DeepSpeed ZeRO-Inference, page-locked",
}
# Of docs/run-benchmarks.md: what is shown of each file of results/run.
PROGRAMS = {"GPT-2 XL": "h200-xl-17", "6.7B": "h200-6.7b-9"}
# Of docs/run-benchmarks.md: what a program is, and the row of results/run that is shown of it.
FRAMEWORKS = (
    ("Triton kernel over 40 tensors of 64 MiB, which it writes", "frameworks-8", "triton"),
    ("CuPy, 40 products", "frameworks-8", "cupy"),
    ("JAX, 40 layers jitted as one", "frameworks-8", "jax"),
    ("GPT-2 of 1B, torch.compile", "frameworks-7", "compile"),
    ("Llama of 8B, pass of 1 x 1,024", "frameworks-6", "llama"),
    ("Llama of 8B, 16 tokens behind 1,024", "frameworks-7", "llama tokens"),
    ("Whisper-large, 32 tokens", "frameworks-6", "whisper tokens"),
    ("FLUX of 12B, one pass", "frameworks-6", "flux"),
    ("Llama of 8B, LoRA step, recomputation", "frameworks-6", "lora"),
    ("Llama of 3B, AdamW step, recomputation", "frameworks-6", "adamw"),
    ("GPT-2 XL, AdamW step, autocast, recomputation", "frameworks-7", "training"),
    ("kernels that follow a table built on the device, `strict`", "unseen", "unseen"),
    ("one process, two GPUs", "two-gpus", "two gpus"),
    ("GPT-2 of 1B, FSDP2 on two GPUs, torchrun", "fsdp-5", "fsdp"),
)
# Of docs/attach-benchmarks.md: files of results/safety, what tells a budget, and what ran.
SAFETY = (
    ("h200-6.7b", "gpu_memory_bytes", "GPT-3 6.7B, attach()"),
    ("h200-run-6.7b", "budget_bytes", "GPT-3 6.7B, penstock run"),
    ("h200-gpt2-xl", "gpu_memory_bytes", "GPT-2 XL, attach()"),
    ("h200-run-gpt2-xl-2", "budget_bytes", "GPT-2 XL, penstock run"),
    ("h200-run-gpt2-xl", "budget_bytes", "GPT-2 XL, penstock run"),
)


HEAD = """# Benchmarks

Written by `python benchmarks/table.py` from the files in `benchmarks/results/`; each table names
the command that made it. Times are medians; every step is waited for before the next is given. The
*ideal* is max(T, (M - S) / B): T the resident step, M the bytes of the weights without embedding
tables, which stay on the host and of which a pass reads only rows, S what the budget leaves beside
activations and workspace, B the page-locked copy speed measured in the same process. A ratio below
1 means that the resident step it is held against was a slow one. *Used* is the fall of the driver's
own free-memory figure while passes run, without the CUDA context. *Exact*: the logits equal the
resident model's bit for bit, compared on the GPU; the reference logits (0.1 GB) are beyond the
budget. The last table predates the unmapping of evicted addresses: its `vmm` is `safety="fast"`
today.
"""


def section(name: str, document: dict[str, Any]) -> str:
    rows = [
        {"moved": row.get("stats", {}).get("iteration_bytes_in", row.get("bytes_in")), **row}
        for row in document["rows"]
    ]
    found = shown(
        "how | budget GiB | ms | again (A/A) | x ideal | used GiB | GB in | exact",
        "{how} | {gpu_memory_bytes:GiB} | {median_ms:.1f} | {again[median_ms]:.1f} | "
        "{ratio_to_floor:.3f} | {used_by_driver_bytes:GiB} | {moved:GB} | {exact:yes}",
        rows,
    )
    command = document.get("command", document["work"])
    title = document.get("title", name)
    return f"## {title}\n\n{made(document)}. `{command}`\n\n{found}\n"


@columns(" | ".join(["how", *FORWARD.values()]))
def forward() -> Rows:
    """Passes and tokens of a model beside peers, as README shows them."""
    rows = [row for row in result("peers/h200-llama")["rows"] if "ratio_to_ideal" in row]
    by = {(row["how"], row["name"]): row for row in rows}
    for how in dict.fromkeys(row["how"] for row in rows):
        of = [by[how, work] for work in FORWARD]
        yield [PEERS[how], *(f"{r['median_ms']:,.0f} ms, {r['ratio_to_ideal']:.2f}" for r in of)]
        if how == "penstock":
            yield ["the ideal", *(f"{row['ideal_ms']:,.0f} ms" for row in of)]


@columns("work | PyTorch | expandable_segments | Penstock")
def packing() -> Rows:
    """Reserved memory, and how much of it was asked for, of each workload under each allocator."""
    found: dict[str, dict[str, str]] = {}
    for _, document in results("allocator"):
        for run in allocator.usable(document["runs"], "timed_ms"):
            variant, memory = allocator.variant(run), run["memory"]
            if variant in ALLOCATORS and memory:
                size, share = memory["peak_reserved_bytes"] / GIB, percent(memory["utilisation"])
                found.setdefault(run["title"], {})[variant] = f"{size:.1f}, {share}"
    for title, cells in found.items():
        native, expandable, stitch = map(cells.__getitem__, ALLOCATORS)
        yield [title, native, expandable, f"**{stitch}**"]


@columns("model, needs / budget | forward ms | x ideal | token ms | x ideal | results/run, commit")
def programs() -> Rows:
    """Unmodified programs within budgets of what they need, divided."""
    for model, name in PROGRAMS.items():
        document = result(f"run/{name}")
        plain, again, *within = document["rows"]
        within.sort(key=lambda row: -row["ratio"])
        rate = document["link_gb_per_s"] * 1e6
        times = [[statistics.median(each["step_ms"][-6:]) for each in (plain, again)]]
        rounds = min(6, len(plain["token_ms"]) - 1)
        times += [[statistics.median(each["token_ms"][-rounds:]) for each in (plain, again)]]
        aa = f": plain {times[0][0]:.1f}, again {times[0][1]:.1f}"
        for row in sourced(name, document, within):
            copies = (plain["peak_allocated_bytes"] - row["budget_bytes"]) / rate
            ratio, source = row["ratio"], row["source"]
            cells = [f"{model}, {ratio:g}{' (fits)' if ratio < 1 else ''}"]
            for key, alone in zip(("step", "token"), times, strict=True):
                took = row[f"median_{key}_ms"]
                cells += [f"{took:.1f}", f"{took / max(min(alone), copies):.2f}"]
            yield [*cells, source and source + aa]


@columns(
    "needs / budget | GiB paged in, measured | simulated | ms per forward, measured | simulated "
    "| off by | result",
    "{ratio:g} | {measured_gib_in:.2f} | {simulated_gib_in:.2f} | {measured_ms:.1f} | "
    "{simulated_ms:.1f} | {off} | {source}",
)
def simulated() -> Rows:
    """Simulations of one recording beside runs at each budget."""
    for name, document in results("simulate"):
        for row in sourced(name, document, document.get("rows", [])):
            yield {**row, "off": f"{row['ms_off_by']:+.0%}".replace("%", " %")}


@columns(
    "needs / budget | ms per forward, measured | simulated | off by",
    "{ratio:g} | {own[measured_ms]:.1f} | {own[simulated_ms]:.1f} | {own[ms_off_by]:%}",
)
def simulated_itself() -> Rows:
    """Simulations of each run's own recording."""
    rows = [row for _, document in results("simulate") for row in document.get("rows", [])]
    return [row for row in rows if row.get("own")]


@columns(
    "recording, peak / budget | x ideal | in all | x least | in all | GB a step | MIN | LRU "
    "| Belady on demand",
    "{name}, {peak_over_budget:g} | {median_ratio:.2f} | {total_ratio:.2f} | "
    "{median_ratio_to_least:.2f} | {total_ratio_to_least:.2f} | {moved[bytes_in]:.1f} | "
    "{moved[least_bytes_in]:.1f} | {lru:.2f} | {belady:.2f}",
)
def simulated_ratios() -> Rows:
    """Recordings within several budgets, over the least that any policy takes."""
    documents = [result(f"simulate/{name}") for name in ("ratios", "ratios-training")]
    for name, found in (one for each in documents for one in each["recordings"].items()):
        for part in sorted({row["peak_over_budget"] for row in found}):
            by = {row["policy"]: row for row in found if row["peak_over_budget"] == part}
            ours = by.pop("penstock")
            moved = {key: ours[key] / 1e9 for key in ("bytes_in", "least_bytes_in")}
            medians = {policy: row["median_ratio"] for policy, row in by.items()}
            yield {**ours, "name": name, "moved": moved, **medians}


STEP = " | resident | ideal | attached | x ideal"


@columns(
    f"model | budget, GiB | peak beside it | exact{STEP}"
    + STEP.replace("resident", "tokens: resident"),
    "{name} | {budget_bytes:GiB} | {beside:+,.0f} MiB | {bits}"
    + "".join(
        f" | {{{n}[resident_median_ms]:ms}} | {{{n}[ideal_ms]:ms}} | {{{n}[median_ms]:ms}} "
        f"| {{{n}[ratio_to_ideal]:.2f}}"
        for n in ("forward", "tokens")
    ),
)
def shapes() -> Rows:
    """Held-out models within half of what they need, of each the newest run that got to it."""
    found: dict[str, dict[str, Any]] = {}
    for rows in (document["rows"] for name, document in results("one_budget") if "-shapes" in name):
        attached = [row for row in rows if "resident_median_ms" in row]
        for name in dict.fromkeys(row["name"].split()[0] for row in attached):
            of = [row for row in rows if "exact" in row and row["name"].split()[0] == name]
            steps = [row for row in of if row in attached]
            bits = "yes" if all(row["exact"] for row in steps) else "no"
            if not all(row["exact"] for row in of if row not in steps):
                bits += "; resident neither"
            beside = max(row["peak_bytes"] - row["budget_bytes"] for row in steps) / MIB
            more = dict(zip(("forward", "tokens"), steps, strict=False))
            row = {**steps[0], "name": name, "beside": beside, "bits": bits, **more}
            found.setdefault(name, row)
    return found.values()


@columns(
    "work | budget, GiB | how | exact | peak beside it | resident | ideal | attached | p99 "
    "| x ideal",
    "{name} | {budget_bytes:GiB} | {how} | {exact:yes} | {beside:+,.0f} MiB | "
    "{resident_median_ms:ms} | {ideal_ms:ms} | {median_ms:ms} | {p99_ms:ms} | "
    "{ratio_to_ideal:.2f}",
)
def one_budget(part: str) -> Rows:
    """The attached rows of a part, of the newest run of it; ratios of the file."""
    runs = [document["rows"] for _, document in results("one_budget")]
    rows = next(found for rows in runs if (found := [r for r in rows if r["part"] == part]))
    resident = {row["name"]: row["median_ms"] for row in rows if row["how"] == "resident"}
    for row in rows:
        if "ratio_to_ideal" in row:
            beside = (row["peak_bytes"] - row["budget_bytes"]) / MIB
            how = row["how"].removeprefix("attached, ")
            base = {"resident_median_ms": resident[row["name"]]}
            yield {**base, **row, "how": how, "beside": beside}


@columns(
    "file | work | budget, GiB | compress | exact | ms | p10 | p90 | raw bytes over the link",
    "{file} | {work} | {budget_bytes:GiB} | {compress} | {exact:yes} | {error}{median_ms:ms} | "
    "{p10_ms:ms} | {p90_ms:ms} | {raw_ms:ms}",
)
def compressed() -> Rows:
    """Without, with and without again, run by run."""
    for name, document in sorted(results("compression")):
        yield from ({**row, "file": name} for row in document["rows"] if "compress" in row)


@columns(
    "weights and state | cores | host | host again | link | host, beside the link's copies "
    "| link, beside the host's update",
    " | ".join(["{dtype} | {cores}", *(f"{{ns[{column}]:.3f}}" for column in range(5))]),
)
def update_place() -> Rows:
    """An update on the host, and what it would spare the link."""
    for row in result("update_place")["rows"]:
        beside = row["beside_copies"]
        each = (row["host"], row["host_again"], row["link"], beside["host"], beside["link"])
        yield {**row, "ns": [t["median_ms"] * 1e6 / row["parameters"] for t in each]}


@columns(
    "work | budget, GiB | fast, ms | normal | fast again | normal / fast",
    "{way} | {gib:g} | {ms[0]:.1f} | {ms[1]:.1f} | {ms[2]:.1f} | {ratio:.2f}",
)
def safety() -> Rows:
    """Normal between two runs of fast, by attach() and under penstock run."""
    for name, key, way in SAFETY:
        rows = [row for row in result(f"safety/{name}")["rows"] if "safety" in row]
        for size in dict.fromkeys(row.get(key) for row in rows):
            of = [row for row in rows if row.get(key) == size]
            if [row["safety"] for row in of] != ["fast", "normal", "fast"]:
                continue  # time ran out within it
            ms = [row.get("median_step_ms") or row["median_ms"] for row in of]
            yield {"way": way, "gib": size / GIB, "ms": ms, "ratio": 2 * ms[1] / (ms[0] + ms[2])}


@columns("program | plain, and again, ms | half, ms | x ideal | results | results/run, commit")
def frameworks() -> Rows:
    """Programs of several frameworks under penstock run."""
    for title, name, program in FRAMEWORKS:
        document = result(f"run/{name}")
        row = next(row for row in document["rows"] if row["program"] == program)
        times = [row[key] for key in ("plain_ms", "again_ms") if key in row]
        plain, ideal = ", ".join(f"{each:.1f}" for each in times), ""
        took = row["run_ms"]
        if "link_gb_per_s" in document:
            # The half that does not fit comes in once a pass; the file's ideal has the first
            # plain step in it, which may have met a slow spell.
            crossing = row["budget_bytes"] * row.get("plain", {}).get("passes", 1)
            least = min(row["ideal_ms"], crossing / document["link_gb_per_s"] / 1e6)
            ideal = f"{took / max(min(times), least):.2f}"
        same = {True: "bit for bit", False: "differ", None: ""}[row.get("same")]
        if row.get("repeats_itself") is False:
            same = "plain runs differ"
        if row.get("run_loss_differs_by") is not None:
            same = f"{row['run_loss_differs_by']:.1e} ({row['again_loss_differs_by']:.1e})"
        yield [title, plain, f"{took:.1f}", ideal, same, f"{name}, {commit(document)}"]


TABLES = {
    each.__name__: each
    for each in (
        *(forward, packing, programs, frameworks, simulated, simulated_itself, simulated_ratios),
        *(shapes, safety, compressed, update_place),
        *training.TABLES,
        *reliability.TABLES,
        *models.TABLES,
    )
} | {part: partial(one_budget, part) for part in ("llama", "two", "fits")}


def benchmarks_page() -> str:
    # Results of other shapes lie beside them; those have pages of their own.
    found = (section(*each) for each in reversed(results("")) if "work" in each[1])
    return "\n".join([HEAD, *found])


def filled(text: str) -> str:
    """A page with its tables as the results have them."""
    return MARKS.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page is not current")
    args = parser.parse_args()
    docs = ROOT / "docs"
    pages = {
        docs / "benchmarks.md": benchmarks_page(),
        docs / "allocator-benchmarks.md": allocator.page(),
        docs / "fusion-benchmarks.md": fusion.page(),
        docs / "replay.md": replay.page(),
    }
    for path in (ROOT / "README.md", *sorted(docs.rglob("*.md"))):
        if path not in pages and MARKS.search(text := path.read_text(encoding="utf-8")):
            pages[path] = filled(text)
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale")
        if not args.check:
            path.write_text(pages[path], encoding="utf-8")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
