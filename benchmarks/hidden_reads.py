# SPDX-License-Identifier: Apache-2.0
"""Reads that nobody announced, under `penstock run` and each safety: right, a fault, or wrong.

    python benchmarks/hidden_reads.py --output benchmarks/results/run/hidden-h200.json

programs/hidden_reads.py sweeps 1.5 GiB of tensors and reads single words of them at random moments
through addresses in device memory. The contract is that under normal and strict none is wrong. That
some are under fast shows that the reads would tell. Exits 1 where either does not hold.

A fault under normal ends a group of tries, and the next takes a second or two to begin: the more of
what is needed fits, the fewer there are. Several programs at once, each under its own budget and
with its own seeds, wait for their contexts side by side.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kit.measure import output_parser
from kit.record import Record
from kit.under import PROGRAMS, run, under

from penstock.units import MIB

BESIDE = 64 * MIB  # what the framework takes
MODES = ("normal", "strict", "fast")


def complaint(row: dict[str, Any]) -> str | None:
    """What a row shows that it must not, or None."""
    if "error" in row:
        return str(row["error"])
    safety, wrong = row["safety"], row["wrong"]
    if safety == "fast":
        return None if wrong else "no read under fast was wrong: these programs cannot tell"
    if wrong:
        return f"{wrong} of {row['tries']} reads under {safety} were of other data"
    if safety == "strict" and row["fault"]:
        return f"{row['fault']} reads under strict faulted"
    return None


def sum_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several programs; the error of one is that of all."""
    errors = [each["error"] for each in found if "error" in each]
    counts = ("tries", "right", "wrong", "fault", "groups")
    total: dict[str, Any] = {key: sum(each.get(key, 0) for each in found) for key in counts}
    total |= {"need_bytes": found[0].get("need_bytes"), "programs": len(found)}
    total["seconds"] = max(each.get("seconds", 0) for each in found)
    return total | ({"error": errors[0]} if errors else {})


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--tries", type=int, default=10000, help="under normal and strict")
    parser.add_argument("--share", type=float, default=0.9, help="of what is needed that fits")
    parser.add_argument("--tensors", type=int, default=48)
    parser.add_argument("--mib", type=int, default=32, help="of each tensor")
    parser.add_argument("--safety", action="append", choices=MODES)
    parser.add_argument("--programs", type=int, default=1, help="at once; they share the tries")
    parser.add_argument("--seconds", type=float, default=1800, help="at most, for each safety")
    args = parser.parse_args()
    program = [sys.executable, str(PROGRAMS / "hidden_reads.py")]
    program += ["--tensors", str(args.tensors), "--mib", str(args.mib)]
    budget = int(args.share * (args.tensors + 1) * args.mib * MIB) + BESIDE
    record = Record(args.output)
    for safety in args.safety or MODES:
        tries = args.tries if safety != "fast" else min(args.tries, 1000)
        command = [*under(budget, "--safety", safety), *program, "--seconds", str(args.seconds)]
        command += ["--tries", str(-(-tries // args.programs)), "--seed"]
        commands = [[*command, str(i << 32)] for i in range(args.programs)]
        with ThreadPoolExecutor(args.programs) as pool:
            found = list(pool.map(lambda command: run(command, args.seconds + 60), commands))
        row = {"safety": safety, "budget_bytes": budget, **sum_of(found)}
        row["complaint"] = complaint(row)
        record.add(row)
    return 1 if any(row["complaint"] for row in record.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
