# SPDX-License-Identifier: Apache-2.0
"""Training beyond the budget: losses, times and memory of what people train, in several budgets.

    python benchmarks/training_budget.py --output benchmarks/results/training/activations.json
    python benchmarks/training_budget.py --models llama_7b_8x1024 --hows resident,auto,FSDP2,ZeRO-3

Random weights and batches of the models in training/jobs.py: the Llamas are bf16, the others have
fp32 weights and bf16 autocast; those and GPT-2's shapes recompute their layers, the rest keeps all
activations. One process: the link's speed in both directions at once, then for each model plain
PyTorch, the same again, and the budgets, all from the same seeds; losses are compared step by step,
and "again" says how far the kernels repeat themselves. Each step is waited for. Memory is the
driver's own figure by NVML, every 5 ms; that of the host is what is no longer to be had of it.
`--hows` chooses rows; those of training_peers.py run in processes of their own. `update` is where
weights are updated.

The ideal is max(T, over / B_in, over / B_out): T the resident step, B the page-locked copy speed
with both directions at work, and over what is alive in the resident run between forward and
backward, less the budget. All of that backward or the update needs, so what is beyond the budget
then has gone out before and comes in after, in each step. It is a lower bound: what operators need
beside it is not taken off the budget. Where layers are recomputed, over is in each direction what a
step must move of weights and state that do not stay, in the room that tensors leave at their peak.

The ideal in turn is a tighter bound: backward begins when forward is over. What is over then comes
in behind that moment, beside backward's own time; what of it is neither weights nor state has gone
out before, beside forward's, and weights that the budget does not hold have come in.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from kit.card import Card
from kit.measure import both_ways, output_parser
from kit.record import OutOfTime, Record
from training.bench import Bench
from training.jobs import JOBS
from training_peers import PEERS, apart

from penstock import attach_training
from penstock.bound import shortest_ms
from penstock.paging.training.stats import least_traffic

# Of stats(), after each step: what settles, and what a slow step did.
MOVED = (
    "iteration_bytes_in", "iteration_bytes_out", "activation_bytes_in", "activation_bytes_out",
    "activation_host_bytes", "plans",
)  # fmt: skip
PLAIN = ("resident", "again")


def resident_row(bench: Bench, how: str) -> dict[str, Any]:
    """Plain PyTorch."""
    with bench.watched() as watch:
        model, optimizer = bench.make()
        row = {"model": bench.name, "how": how, "update": "device", **bench.run(model, optimizer)}
        row["forward_ms"] = bench.forward_ms(model)
        if bench.cuda:
            row["used_bytes"] = watch.peak() + watch.kept
        del model, optimizer
    return row


def paged_row(bench: Bench, how: str, text: str, budget: int) -> dict[str, Any]:
    """Within the budget, which is told in words too."""
    row: dict[str, Any] = {"model": bench.name, "how": how, "budget": text, "budget_bytes": budget}
    row["update"] = "device"
    moved: list[dict[str, int]] = []

    def after() -> None:
        stats = asdict(attached.stats())
        moved.append({name: stats[name] for name in MOVED})

    with bench.watched() as watch:
        model, optimizer = bench.make()
        attached = attach_training(
            model,
            optimizer,
            gpu_memory=budget,
            device=str(bench.device) if bench.cuda else "emulated",
            chunk_size=bench.args.chunk_size,
            look_ahead=bench.args.look_ahead,
            emulated=None if bench.cuda else {"granularity": 65536},
            step_in_backward=True,
        )
        watch.forget()  # the model lay on the card before
        try:
            row.update(bench.run(model, optimizer, after))
            row["stats"], row["moved"] = asdict(attached.stats()), moved
            if bench.cuda:
                row["used_bytes"] = watch.peak() + watch.kept
                row["within_budget"] = row["used_bytes"] <= budget
        finally:
            attached.detach(keep=False)
            del model, optimizer
    return row


def least(bench: Bench, row: dict[str, Any], resident: dict[str, Any]) -> tuple[int, int]:
    """Bytes that a step must move, in and out."""
    if not bench.job.recomputes:
        over = max(0, resident["alive_bytes"] - row["budget_bytes"])
        return over, over
    return least_traffic(
        weights=row["stats"]["weight_bytes"],
        trained=row["stats"]["trained_bytes"],
        state=row["stats"]["state_bytes"],
        room=row["budget_bytes"] - row["torch_peak_bytes"],
    )


def judge(
    bench: Bench, row: dict[str, Any], resident: dict[str, Any], link: tuple[float, float]
) -> None:
    """The ratio to the resident step and to the ideal, and how far losses are apart."""
    pairs = zip(row["losses"], resident["losses"], strict=True)
    row["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    row["ratio_to_resident"] = round(row["median_ms"] / resident["median_ms"], 4)
    row["p99_to_median"] = round(row["p99_ms"] / row["median_ms"], 3)
    if "alive_bytes" not in resident or "stats" not in row:
        return
    row["least_bytes"] = into, out = least(bench, row, resident)
    copies = (into, link[0]), (out, link[1])
    row["ideal_ms"] = round(shortest_ms(resident["median_ms"], *copies), 3)
    row["ratio_to_ideal"] = round(row["median_ms"] / row["ideal_ms"], 4)
    over = max(0, resident["alive_bytes"] - row["budget_bytes"])
    kept = row["stats"]["state_bytes"] + row["stats"]["weight_bytes"]
    beyond = max(0, row["stats"]["weight_bytes"] - row["budget_bytes"])
    forward = shortest_ms(resident["forward_ms"], (beyond, link[0]), (max(0, over - kept), link[1]))
    backward = shortest_ms(resident["median_ms"] - resident["forward_ms"], (over, link[0]))
    row["ideal_in_turn_ms"] = round(max(row["ideal_ms"], forward + backward), 3)
    row["ratio_to_ideal_in_turn"] = round(row["median_ms"] / row["ideal_in_turn_ms"], 4)


def arguments() -> argparse.Namespace:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--models", default=",".join(JOBS))
    words = partial(str.split, sep=",")
    parser.add_argument("--budgets", type=words, help="comma-separated; default by model")
    parser.add_argument("--device", default="cuda", help="cuda; emulated: small models, no speed")
    parser.add_argument("--warmups", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limit", type=float, default=540, help="seconds; rows that are left over")
    parser.add_argument("--chunk-size", default=None)
    parser.add_argument("--look-ahead", default=None)
    known = [*PLAIN, "auto", *PEERS]
    parser.add_argument("--hows", type=words, default=known[:3], help=f"of {', '.join(known)}")
    args = parser.parse_args()
    if unknown := set(args.hows) - set(known):
        parser.error(f"--hows: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    return args


def rows_of(bench: Bench, link: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """One model's, each as soon as it is there; one that fails has an error."""
    resident: dict[str, Any] | None = None

    def within(way: Callable[..., dict[str, Any]], how: str, text: str) -> dict[str, Any]:
        return way(bench, how, text, bench.budget(text, resident))

    hows = bench.args.hows
    rows = [(how, partial(resident_row, bench, how)) for how in PLAIN if how in hows]
    for text in bench.args.budgets or bench.budgets:
        ways = {"auto": paged_row, **dict.fromkeys(PEERS, apart)}
        rows += [(how, partial(within, ways[how], how, text)) for how in ways if how in hows]
    for how, measure in rows:
        row: dict[str, Any] = {"model": bench.name, "how": how}
        try:
            row |= measure()
            if how in PLAIN:
                resident = resident or row
            if resident is not None and row is not resident and "error" not in row:
                judge(bench, row, resident, link)
        except OutOfTime as error:
            row["error"] = str(error)
        except Exception as error:  # the other rows are still worth having
            traceback.print_exc()
            row["error"] = repr(error)[:300]
        yield row


def main() -> int:
    args = arguments()
    link = (0.0, 0.0)
    card = Card(small=args.device != "cuda")
    record = Record(args.output, args.limit, card=not card.small, benchmark="training_budget")
    if not card.small:
        link = both_ways()
        record.document["link_both_ways_gb_per_s"] = link
        print(f"link, both ways at once: {link[0]:.1f} GB/s in, {link[1]:.1f} out", flush=True)
    for name in args.models.split(","):
        for row in rows_of(Bench(name, args, card, record), link):
            record.add(row)
    return int(record.left < 0)


if __name__ == "__main__":
    sys.exit(main())
