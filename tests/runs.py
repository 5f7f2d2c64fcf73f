# SPDX-License-Identifier: Apache-2.0
"""Result files of long tests: a list of runs, to which each adds its own."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def commit() -> str:
    """Of the code that is tested: of a copy without its history the file COMMIT tells it."""
    noted = ROOT / "COMMIT"
    if noted.exists():
        return noted.read_text().strip()[:10]
    words = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def add_run(path: Path | None, run: dict[str, Any]) -> None:
    """Print the run, and add it to the file if there is to be one."""
    begun = {"date": datetime.date.today().isoformat(), "commit": commit(), "cores": os.cpu_count()}
    run = {**begun, **run}
    print(json.dumps(run))
    if path is None:
        return
    document = json.loads(path.read_text()) if path.exists() else {"runs": []}
    document["runs"].append(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
