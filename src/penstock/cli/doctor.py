# SPDX-License-Identifier: Apache-2.0
"""``penstock doctor``: look at everything that a run depends on, and say what to change.

Works without torch and without a GPU, and changes nothing.  Exit code 3 if a check fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from penstock.config import Settings
from penstock.errors import EnvironmentProblem
from penstock.report.table import Column, print_table
from penstock.results import with_head

from .checks import Check, framework, gpu, host, library, preload
from .common import Output, verb


@click.command()
@verb("device")
def command(settings: Settings, output: Output) -> int:
    """Check this machine, and say what to change.

    Looks at Python, the native library, the NVIDIA driver, the GPU, the speed of
    the link in both directions, host memory and its limits, and torch. Each check
    says what was seen; those that are not ok say why it matters and what to do.

    \b
    Examples:
      penstock doctor
      penstock doctor --device cuda:1 --json report.json
    """  # noqa: D301
    checks = examine(settings.device)
    failed = [check.id for check in checks if check.status == "fail"]
    verdict = _verdict(checks, failed)
    values = {
        "device": settings.device,
        "ok": not failed,
        "verdict": verdict,
        "checks": [asdict(check) for check in checks],
    }
    output.emit(with_head("doctor", values), lambda: _print(checks, verdict))
    return EnvironmentProblem.exit_code if failed else 0


def examine(device: str) -> list[Check]:
    """Run every check.

    Args:
        device: "auto", "emulated", "cuda" or "cuda:N"; for the last two, a GPU must be there.
    """
    wanted, _, ordinal = device.partition(":")
    own = library.library()
    found_driver = gpu.driver()
    if wanted == "emulated":
        cards = list(gpu.no_card("the emulated GPU was asked for"))
    elif found_driver.status != "ok":
        cards = list(gpu.no_card(found_driver.observed))
    elif own.status != "ok":
        cards = list(gpu.no_card("the native library does not load"))
    else:
        cards = list(gpu.card(int(ordinal or 0)))
    if wanted == "cuda":
        found_driver = found_driver.must_hold()
        cards = [check.must_hold() if check.id == "gpu" else check for check in cards]
    usable = any(check.id == "gpu" and check.status == "ok" for check in cards)
    not_locked = any(check.id == "link" and check.status == "fail" for check in cards)
    return [
        host.python(),
        own,
        library.emulated() if own.status == "ok" else _no_self_test(),
        found_driver,
        *cards,
        preload.coverage() if usable else Check("run", "skip", "no GPU to launch on", preload.WHY),
        host.host_memory(),
        host.control_group(),
        host.memlock(page_locking_failed=not_locked),
        host.map_count(),
        framework.torch(),
        framework.torch_cuda(driver=gpu.driver_version() if usable else None),
        framework.allocator(),
    ]


def _no_self_test() -> Check:
    return Check("emulated", "skip", "the native library does not load", library.WHY_EMULATED)


def _verdict(checks: Sequence[Check], failed: Sequence[str]) -> str:
    if failed:
        return f"not ready: {', '.join(failed)} failed"
    card = next((check for check in checks if check.id == "gpu" and check.status == "ok"), None)
    if card is None:
        return "ready, on the emulated GPU: correct, not fast"
    return f"ready: {card.observed}"


def _print(checks: Sequence[Check], verdict: str) -> None:
    columns = [Column("check"), Column("status", status=True), Column("observed")]
    print_table(columns, [(check.id, check.status, check.observed) for check in checks])
    for check in checks:
        if check.status != "ok" and check.remedy:
            click.echo(f"\n{check.id} ({check.status}): {check.observed}\n  why: {check.why}")
            click.echo(f"  try: {check.remedy}")
    click.echo(f"\n{verdict}")
