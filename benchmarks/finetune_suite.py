# SPDX-License-Identifier: Apache-2.0
"""`penstock finetune` measured: GMLake's strategies under three allocators, and budgets.

    python benchmarks/finetune_suite.py --output benchmarks/results/finetune/h200.json --limit 900
    python benchmarks/finetune_suite.py --output ... --parts zero3 fsdp --gpus 4

Every row is the verb itself, in a process of its own; rows come in the order of their worth. The
file is written after every row, so that what was measured stays when time runs out: no row is begun
that its estimate says would end after --limit. With --tiny the same rows run with the tiny model
on the emulated GPU, as the tests do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.measure import output_parser
from kit.record import Record
from kit.under import penstock, run_logged

ALLOCATORS = ("native", "expandable", "stitch")
PARTS = ("budgets", "strategies", "6.7b", "13b", "find")
# What needs several GPUs, and DeepSpeed for the first: GMLake's tutorial case on four, FSDP2.
SEVERAL = ("zero3", "fsdp")
# The offload of others on one GPU, by the engines of the verb: DeepSpeed's is built on first use.
PEERS = {"FSDP2": ("--fsdp",), "ZeRO-2": ("--zero", "2"), "ZeRO-3": ("--zero", "3")}
# The work of the peers' figures: full fine-tune, fp32 masters, bf16 autocast, recomputation.
XL = ("--model", "gpt2_xl", "--strategy", "R", "--batch", "8", "--seq-len", "1024")
OPT = ("--model", "opt-1.3b", "--seq-len", "1024", "--lengths", "varied")
# Batches that take 15 to 60 GiB under each strategy.
BATCHES = {"N": 8, "R": 32, "LR": 32, "RO": 16, "LRO": 16}
# Below what they need resident, so that something has to be offloaded.
BUDGETS = {"RO": "20GiB", "LRO": "12GiB"}
TINY = {"--model": "tiny", "--seq-len": "16", "--batch": "2", "--steps": "3"}
TINY_BUDGET = "4MiB"


@dataclass(frozen=True)
class Plan:
    """One run of the verb: a label, its flags, and how long it may take on an H200."""

    label: str
    flags: tuple[str, ...]
    seconds: float
    compared_with: str = field(default="")  # the label of the row that its losses should equal


def plans(args: argparse.Namespace) -> list[Plan]:
    """The rows of the parts that are asked for, worth first."""
    made: dict[str, list[Plan]] = {name: [] for name in (*PARTS, *SEVERAL, "peers")}
    steps = ("--steps", str(args.steps))
    made["budgets"] = [
        Plan("xl resident", (*XL, *steps, "--memory", "resident"), 40),
        Plan("xl resident again", (*XL, *steps, "--memory", "resident"), 40, "xl resident"),
    ]
    made["budgets"] += [
        Plan(f"xl {budget}", (*XL, *steps, "--gpu-memory", budget), 60, "xl resident")
        for budget in ("16GiB", "9GiB", "12GiB")
    ]
    other = ("--gpu-memory", "9GiB", "--allocator", "expandable")
    made["budgets"].append(Plan("xl 9GiB expandable", (*XL, *steps, *other), 60, "xl resident"))
    offload = tuple("RO" if flag == "R" else flag for flag in XL)
    made["peers"] = [made["budgets"][0], *made["budgets"][2:4]]
    made["peers"] += [
        Plan(f"xl {peer} offload", (*offload, *steps, *engine), 60, "xl resident")
        for peer, engine in PEERS.items()
    ]
    for strategy in ("LR", "N", "R", "LRO", "RO"):
        flags = (*OPT, "--strategy", strategy, "--batch", str(BATCHES[strategy]), *steps)
        if strategy in BUDGETS:
            flags = (*flags, "--gpu-memory", BUDGETS[strategy])
        first = f"opt {strategy} {ALLOCATORS[0]}"
        made["strategies"] += [
            Plan(f"opt {strategy} {name}", (*flags, "--allocator", name), 35, first)
            for name in ALLOCATORS
        ]
        native = made["strategies"][-len(ALLOCATORS)]
        made["strategies"].append(Plan(f"{first} again", native.flags, 35, first))
    large = ("--model", "gpt3_6.7b", "--strategy", "R", "--batch", "8", "--seq-len", "1024")
    made["6.7b"] = [Plan("6.7b 40GiB", (*large, *steps, "--gpu-memory", "40GiB"), 100)]
    large = tuple("RO" if flag == "R" else flag for flag in large)
    made["6.7b"] += [
        Plan(f"6.7b {peer} offload", (*large, *steps, *PEERS[peer]), 200, "6.7b 40GiB")
        for peer in ("FSDP2", "ZeRO-2")
    ]
    vicuna = ("--model", "vicuna-13b", "--strategy", "LR", "--batch", "16", "--seq-len", "1024")
    made["13b"] = [
        Plan(f"13b LR {name}", (*vicuna, *steps, "--lengths", "varied", "--allocator", name), 90)
        for name in ("native", "stitch", "expandable")
    ]
    search = ("--seq-len", "256", "--find-batch", "--gpu-memory", "24GiB", "--steps", "4")
    made["find"] = [
        Plan(
            f"find opt LR {name}",
            ("--model", "opt-1.3b", "--strategy", "LR", *search, "--allocator", name),
            60,
        )
        for name in ("native", "stitch", "expandable")
    ]
    tutorial = ("--model", "opt-1.3b", "--strategy", "LR", "--batch", "160", "--seq-len", "512")
    tutorial = (*tutorial, "--lengths", "varied", "--gpus", str(args.gpus))
    for part, engine in (("zero3", ("--zero", "3")), ("fsdp", ("--fsdp",))):
        made[part] = [
            Plan(f"{part} opt LR {name}", (*tutorial, *engine, *steps, "--allocator", name), 90)
            for name in ("native", "stitch", "expandable")
        ]
        native, stitch, _ = made[part]
        made[part].append(Plan(f"{native.label} again", native.flags, 90, native.label))
        # Where every step has the shapes of the last, no allocator has anything left to do.
        made[part] += [
            Plan(f"{plan.label} fixed", (*plan.flags, "--lengths", "fixed"), 90)
            for plan in (native, stitch)
        ]
    chosen = [plan for part in args.parts for plan in made[part]]
    return [plan for plan in chosen if not args.only or plan.label in args.only]


def tiny(flags: tuple[str, ...]) -> list[str]:
    """The same flags for a model and a device that a CPU runs in seconds."""
    small = list(flags)
    for at, flag in enumerate(small):
        if flag in TINY:
            small[at + 1] = TINY[flag]
        if flag == "--gpu-memory":
            small[at + 1] = TINY_BUDGET
    return [*small, "--device", "emulated"]


class Suite(Record):
    """Runs plans one after another; rows keep what the verb said, without its lists of memory."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        title = "penstock finetune: strategies, allocators, budgets"
        super().__init__(args.output, args.limit, title=title)
        self.args, self.scratch = args, scratch

    def run(self, todo: list[Plan]) -> None:
        for number, plan in enumerate(todo):
            if self.left < plan.seconds and not self.args.tiny:
                row: dict[str, Any] = {"label": plan.label, "skipped": f"{self.left:.0f} s left"}
            else:
                row = self.one(plan, self.scratch / f"{number}.json")
            self.add(row)

    def one(self, plan: Plan, target: Path) -> dict[str, Any]:
        flags = tiny(plan.flags) if self.args.tiny else list(plan.flags)
        command = penstock("finetune", *flags, "--json", str(target))
        row: dict[str, Any] = {"label": plan.label, "command": " ".join(command[2:-2])}
        begin = time.monotonic()
        # Three times the estimate, and never far into the time after the limit.
        limit = max(10.0, min(3 * plan.seconds, self.left + 30))
        log = target.with_suffix(".log")
        more = {"PENSTOCK_EMULATED_GRANULARITY": "16KiB"} if self.args.tiny else None
        row["exit"] = run_logged(command, limit, log, more)
        row["wall_s"] = round(time.monotonic() - begin, 2)
        if row["wall_s"] >= limit:
            row["error"] = f"stopped after {limit:.0f} s"
        if row["exit"] == 0:
            row["result"] = json.loads(target.read_text())
            row["loss_difference"] = self.difference(plan, row["result"])
        else:
            said = log.read_text()
            errors = [line for line in said.splitlines() if "rror: " in line]
            row.setdefault("error", (errors or ["no error was printed"])[-1][:400])
            print(said[-3000:], file=sys.stderr)
        return row

    def difference(self, plan: Plan, result: dict[str, Any]) -> float | None:
        """How far the losses are from those of the row that they should equal."""
        for row in self.rows:
            if row["label"] == plan.compared_with and "result" in row:
                pairs = zip(row["result"]["loss"], result["loss"], strict=False)
                return max(abs(one - other) for one, other in pairs)
        return None


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = output_parser(__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=(*PARTS, *SEVERAL, "peers"), default=list(PARTS)
    )
    parser.add_argument("--only", nargs="+", help="of these parts the rows of these labels")
    parser.add_argument("--gpus", type=int, default=4, help="of the parts zero3 and fsdp")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for everything")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    with tempfile.TemporaryDirectory() as scratch:
        suite = Suite(args, Path(scratch))
        suite.run(plans(args))
        suite.write()
    return 1 if any(row.get("exit") for row in suite.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
