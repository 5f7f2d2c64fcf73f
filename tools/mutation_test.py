# SPDX-License-Identifier: Apache-2.0
"""Take each rule of the contract out of the code, one at a time, and see that a test fails.

The rules stand in ``tests/mutation/rules.toml``: an exact piece of a source file and what it says
without the rule. Each is applied to a copy of the tree under ``build/mutation``, which is built
there; then the rule's tests run, by default those of programs at random (``property:*``), until
one fails, crashes or hangs. Prints a line a rule with the failing seed; exits 1 if a rule is not
missed by any test, 2 if the tests fail with all rules in place.

Usage: python tools/mutation_test.py [--rule TEXT]... [--accesses N] [--json FILE] [--check]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
RULES = Path("tests/mutation/rules.toml")
TREE = (
    "native", "tests/native", "tests/fuzz/api", "CMakeLists.txt", "CMakePresets.json",
    "src/penstock/_version.py",
)  # fmt: skip
PROPERTY = "property:*"
SEED = re.compile(r"PENSTOCK_PROPERTY_SEED=(\d+)")
CASE = re.compile(r"^TEST CASE:\s+(.+)$", re.MULTILINE)
# Thrice what the slowest run takes with all rules in place: beyond it the program hangs.
SECONDS_PER_THOUSAND_ACCESSES = 3
LEAST_SECONDS = 120


@dataclass(frozen=True)
class Rule:
    """A rule, where it stands, and what stands there without it."""

    name: str
    file: str
    old: str
    new: str
    tests: str = PROPERTY
    why: str = ""  # other tests than those of programs at random


@dataclass
class Outcome:
    """What the tests said without a rule: `how` they failed, or None."""

    rule: str
    how: str | None
    test: str = ""
    seed: int | None = None
    seconds: float = field(default=0.0)


def read_rules(root: Path = ROOT) -> list[Rule]:
    with (root / RULES).open("rb") as file:
        return [Rule(**entry) for entry in tomllib.load(file)["rule"]]


def misplaced(rule: Rule, root: Path = ROOT) -> str | None:
    """Why a rule cannot be taken out, as where its code has changed; None where it can."""
    path = root / rule.file
    if not path.is_file():
        return f"{rule.name}: there is no {rule.file}"
    found = path.read_text().count(rule.old)
    if found != 1:
        return f"{rule.name}: its text is {found} times in {rule.file}, not once"
    if rule.old == rule.new:
        return f"{rule.name}: nothing changes without it"
    if rule.tests != PROPERTY and not rule.why:
        return f"{rule.name}: no reason is given for tests other than {PROPERTY}"
    return None


def sources(root: Path) -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *TREE],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    yield from (name for name in sorted(set(listed.stdout.split())) if (root / name).is_file())


def write_if_changed(path: Path, content: bytes) -> None:
    # The build looks at times: what is the same keeps its own.
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def copy_tree(root: Path, to: Path) -> None:
    names = set(sources(root))
    for name in names:
        write_if_changed(to / name, (root / name).read_bytes())
    for part in TREE:
        for path in (to / part).rglob("*"):
            if path.is_file() and str(path.relative_to(to)) not in names:
                path.unlink()


def program_of(tests: str) -> str:
    # Programs at random have an executable of their own, which is linked at once.
    return "property_tests" if tests == PROPERTY else "native_tests"


def build(tree: Path, tests: str) -> str | None:
    """The compiler's complaint, or None."""
    for command in (
        ["cmake", "--preset", "dev"],
        ["cmake", "--build", "--preset", "dev", "--target", program_of(tests)],
    ):
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        if done.returncode != 0:
            return (done.stdout + done.stderr)[-2000:]
    return None


def run_tests(tree: Path, rule: str, tests: str, accesses: int) -> Outcome:
    limit = max(LEAST_SECONDS, SECONDS_PER_THOUSAND_ACCESSES * accesses // 1000)
    begun = time.monotonic()
    outcome = Outcome(rule, None)
    try:
        done = subprocess.run(
            [f"build/dev/{program_of(tests)}", f"--test-case={tests}", "--abort-after=1"],
            cwd=tree, capture_output=True, text=True, errors="replace", timeout=limit,
            env={**os.environ, "PENSTOCK_PROPERTY_ACCESSES": str(accesses)},
        )  # fmt: skip
        output = done.stdout + done.stderr
        if done.returncode != 0:
            outcome.how = "failed" if done.returncode > 0 else f"signal {-done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        outcome.how = f"hung for {limit} s"
    outcome.seconds = round(time.monotonic() - begun, 1)
    if outcome.how:
        seeds, cases = SEED.findall(output), CASE.findall(output)
        outcome.seed = int(seeds[-1]) if seeds else None
        outcome.test = cases[-1] if cases else tests
    return outcome


def take_out(rule: Rule, tree: Path, accesses: int) -> Outcome:
    path = tree / rule.file
    whole = path.read_bytes()
    try:
        path.write_bytes(whole.replace(rule.old.encode(), rule.new.encode()))
        if complaint := build(tree, rule.tests):
            sys.exit(f"error: without the rule '{rule.name}' nothing builds\n{complaint}")
        return run_tests(tree, rule.name, rule.tests, accesses)
    finally:
        path.write_bytes(whole)


def show(outcome: Outcome) -> str:
    if outcome.how is None:
        return f"SURVIVED  {outcome.rule} ({outcome.seconds} s)"
    seed = f"seed {outcome.seed}" if outcome.seed is not None else "no seed"
    return f"{outcome.how:9} {outcome.rule}: {outcome.test}, {seed} ({outcome.seconds} s)"


def commit_here() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return described.stdout.strip()


def write_json(path: Path, commit: str, accesses: int, outcomes: list[Outcome]) -> None:
    document = {
        "commit": commit,
        "accesses": accesses,
        "outcomes": [asdict(each) for each in outcomes],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rule", action="append", help="only rules with this in their name")
    parser.add_argument("--accesses", type=int, default=60000, help="hidden accesses of each test")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--check", action="store_true", help="only see that the rules are there")
    arguments = parser.parse_args()
    rules = read_rules()
    if problems := [problem for rule in rules if (problem := misplaced(rule))]:
        print("\n".join(problems), file=sys.stderr)
        return 2
    if arguments.check:
        return 0
    wanted = arguments.rule or [""]
    rules = [rule for rule in rules if any(part in rule.name for part in wanted)]
    tree = ROOT / "build" / "mutation"
    commit = commit_here()  # of what is copied now, whatever is committed meanwhile
    copy_tree(ROOT, tree)
    for tests in sorted({rule.tests for rule in rules}):
        if complaint := build(tree, tests):
            print(complaint, file=sys.stderr)
            return 2
        whole = run_tests(tree, "all rules in place", tests, arguments.accesses)
        if whole.how:
            print(show(whole), file=sys.stderr)
            return 2
    outcomes = []
    for rule in rules:
        outcomes.append(take_out(rule, tree, arguments.accesses))
        print(show(outcomes[-1]), flush=True)
    if arguments.json:
        write_json(arguments.json, commit, arguments.accesses, outcomes)
    survived = sum(outcome.how is None for outcome in outcomes)
    print(f"{len(outcomes)} rules, {survived} of which no test misses")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
