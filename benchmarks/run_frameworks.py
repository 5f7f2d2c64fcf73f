# SPDX-License-Identifier: Apache-2.0
"""Programs of several frameworks under `penstock run`, at half of what they need.

    python benchmarks/run_frameworks.py --output benchmarks/results/run/frameworks.json

Each runs plainly, plainly again, and under half of the bytes that it says it needs; what it prints
as digests has to be the same, if it is so in the plain runs; losses that are not are
compared as numbers. PyTorch's own samples of its operators, and numba-cuda's own tests, run under a
budget that is always full.

The ideal is max(T, (N - S) / B): T the plain step of the faster run, N what the program needs, S
its budget, B the page-locked copy speed measured in this run: what does not fit comes in once a
step, or once for each of its tokens.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kit.measure import link_speed, output_parser
from kit.record import Record
from kit.under import PROGRAMS, median_of_last, run, under

from penstock.bound import shortest_ms
from penstock.units import MIB

# name: (file, its options, bytes to add to half of its need: what the framework takes besides)
CASES: dict[str, tuple[str, list[str], int]] = {
    # These are learned, and their kernels tried, within 14 steps.
    "triton": ("triton_scale.py", ["--steps", "24"], 0),
    "cupy": ("cupy_sweep.py", ["--steps", "24"], 64 * MIB),
    "jax": ("jax_layers.py", ["--steps", "24"], 64 * MIB),
    "compile": ("hf_lm.py", ["--model", "short", "--compile", "--steps", "14"], 0),
    "training": ("hf_train.py", ["--model", "gpt2-xl", "--steps", "10"], 0),
    "unseen": ("unseen_tables.py", [], 64 * MIB),
}
HELD_OUT: dict[str, tuple[str, list[str], int]] = {
    "llama": ("held_out.py", ["--model", "llama"], 0),
    "llama tokens": ("held_out.py", ["--model", "llama", "--tokens", "16"], 0),
    "flux": ("held_out.py", ["--model", "flux"], 0),
    "whisper tokens": ("held_out.py", ["--model", "whisper", "--tokens", "32"], 0),
    "adamw": ("train_job.py", ["--job", "llama_3b_adamw"], 0),
    "expert modules": ("expert_modules.py", [], 0),
    "lora": ("train_job.py", ["--job", "llama_8b_lora"], 0),
}
# What needs more than the safety that is asked for.
SAFETY = {"unseen": "strict"}
SHORT = ["--model", "short", "--seq-len", "512"]
# Left out unless they are named: what needs two GPUs, and training that can be compared bit by bit.
SEVERAL: dict[str, tuple[str, list[str], int]] = {
    "two gpus": ("two_gpus.py", [], 256 * MIB),
    "fsdp": ("hf_train.py", [*SHORT, "--fsdp", "--steps", "24"], 512 * MIB),
    "fsdp, one process": ("hf_train.py", [*SHORT, "--fsdp", "--repeatable"], 512 * MIB),
    "training, repeatable": ("hf_train.py", [*SHORT, "--repeatable"], 512 * MIB),
    "training, fused attention": ("hf_train.py", SHORT, 512 * MIB),
    "attention, efficient": ("attention_order.py", ["--backend", "efficient"], 512 * MIB),
    "attention, cudnn": ("attention_order.py", ["--backend", "cudnn"], 512 * MIB),
}
PROCESSES = {"fsdp": 2, "fsdp, one process": 1}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
# XLA and Inductor pick among their kernels by timing them, which two runs need not do alike; what
# Inductor keeps on disk would make the second plain run the first one's, and not the paged one,
# since it is kept by the size of the device's memory too.
ENVIRONMENT = {
    "jax": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"},
    "compile": {
        "TORCHINDUCTOR_DETERMINISTIC": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    },
}
# What a framework tests itself by: file, its options, whether it can be told when to end.
SAMPLES: dict[str, tuple[str, list[str], bool]] = {
    "operators": ("torch_ops.py", [], True),
    "numba": ("numba_suite.py", [], False),
}
BALLAST = 768 * MIB  # swept beside them, of each process


def apart(one: list[Any], other: list[Any]) -> float | None:
    """The largest relative difference of two lists of losses; None for other digests."""
    if not str(one[0]).startswith("0x"):
        return None
    pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(one, other, strict=True)]
    return max(abs(a - b) / abs(a) for a, b in pairs)


def median_of_some(found: dict[str, Any]) -> float | None:
    """In ms, of the last third of its steps, four at least."""
    steps = found.get("step_ms", [])
    return median_of_last(steps, max(4, len(steps) // 3))


def case(name: str, safety: str, speed: float, share: float = 2.0) -> dict[str, Any]:
    """One program, plain and with its need over `share`; `speed` of the link in GB/s."""
    file, options, extra = (CASES | SEVERAL | HELD_OUT)[name]
    launcher = [*TORCHRUN, str(PROCESSES[name])] if name in PROCESSES else []
    program = [sys.executable, *launcher, str(PROGRAMS / file), *options]
    more = ENVIRONMENT.get(name)
    plain, again = run(program, 120, more), run(program, 120, more)
    row: dict[str, Any] = {"program": name, "plain": plain, "again": again}
    if "error" in plain or "error" in again:
        return row
    need = plain.get("need_bytes") or plain["peak_allocated_bytes"]
    row["budget_bytes"] = int(need / share) + extra
    row["safety"] = SAFETY.get(name, safety)
    before = under(row["budget_bytes"], "--safety", row["safety"])
    row["run"] = found = run([*before, *program], 150, more)
    if "error" in found:
        return row
    row["repeats_itself"] = again["digests"] == plain["digests"]
    row["same"] = found["digests"] == plain["digests"]
    if not row["same"] and not row["repeats_itself"]:
        row["same"] = None
        for key in ("again", "run"):
            row[f"{key}_loss_differs_by"] = apart(plain["digests"], row[key]["digests"])
        row["digests_shared_with_again"] = found["digests"] == again["digests"]
    for key in ("plain", "again", "run"):
        row[f"{key}_ms"] = median_of_some(row[key])
    crossing = (need - row["budget_bytes"]) * plain.get("passes", 1), speed
    # Of the plain runs the faster one: a host that is slow for a while makes no ideal.
    row["ideal_ms"] = round(shortest_ms(min(row["plain_ms"], row["again_ms"]), crossing), 3)
    row["to_ideal"] = round(row["run_ms"] / row["ideal_ms"], 3)
    return row


def samples(name: str, safety: str, seconds: float) -> dict[str, Any]:
    """A framework's own tests or samples, plain twice and under a tight budget.

    A whole suite takes minutes: its three runs are beside each other, as nothing of it is timed.
    """
    file, options, limited = SAMPLES[name]
    program = [sys.executable, str(PROGRAMS / file), *options, "--ballast-mib", str(BALLAST // MIB)]
    row: dict[str, Any] = {"program": name, "budget_bytes": BALLAST // 3 * 2}
    before = under(row["budget_bytes"], "--safety", safety)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(
            run, [*program, *(["--seconds", str(seconds)] if limited else [])], 4 * seconds
        )
        if limited:  # as many of them as there was time for
            program += ["--samples", str(first.result().get("samples", 0))]
        rest = pool.map(lambda words: run(words, 4 * seconds), (program, [*before, *program]))
        plain, again, paged = first.result(), *rest
    for key, found in (("plain", plain), ("again", again), ("run", paged)):
        if "error" in found:
            return row | {key: found}
    return row | compared(plain, again, paged)


def compared(plain: dict[str, Any], again: dict[str, Any], paged: dict[str, Any]) -> dict[str, Any]:
    """What a suite's outcomes under a budget are beside those of plain runs."""
    row: dict[str, Any] = {}
    repeats = {k for k, v in plain["outcomes"].items() if again["outcomes"].get(k) == v}
    others = {k: v for k, v in paged["outcomes"].items() if k in repeats}
    row["samples"] = plain["samples"]
    row["that_repeat_themselves"] = len(repeats)
    # Of what fails plainly nothing is shown.
    row["plain_failures"] = sum(": " in how for each in plain["outcomes"].values() for how in each)
    row["different"] = {
        k: [plain["outcomes"][k], v] for k, v in others.items() if plain["outcomes"][k] != v
    }
    # Those that do not repeat themselves must at least fail in the run no more than plainly.
    row["new_failures"] = sorted(
        k
        for k, v in paged["outcomes"].items()
        if any(": " in each for each in v)
        and not any(": " in each for each in plain["outcomes"].get(k, []))
    )
    row["wrong_ballast"] = paged["wrong_ballast"]
    row["said"] = paged["said"]
    row["same"] = not row["different"] and not row["new_failures"] and not row["wrong_ballast"]
    return row


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--cases", nargs="+", default=[*CASES, *SAMPLES])
    parser.add_argument("--safety", default="normal")
    parser.add_argument("--seconds", type=float, default=40.0, help="for a framework's own tests")
    parser.add_argument("--share", type=float, default=2.0, help="of the need: it, divided")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds; no case begins after")
    args = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "8")
    if args.share <= 0:
        parser.error(f"--share {args.share:g}: a need is divided by more than 0")
    speed = link_speed()
    record = Record(
        args.output,
        args.limit,
        title=f"Frameworks under penstock run, at 1/{args.share:g} of what their programs need",
        safety=args.safety,
        share=args.share,
        link_gb_per_s=round(speed, 2),
    )
    for name in args.cases:
        if record.left < 0:
            print(f"{name}: left out, time is up", flush=True)
            continue
        if name in SAMPLES:
            row = samples(name, args.safety, args.seconds)
        else:
            row = case(name, args.safety, speed, args.share)
        record.add(row)
    return 0 if all(row.get("same") is not False for row in record.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
