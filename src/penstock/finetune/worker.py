# SPDX-License-Identifier: Apache-2.0
"""One process of several, as torchrun starts it: ``python -m penstock.finetune.worker FOLDER``.

FOLDER has the request; the result of the first process, and an error of any, are written there.
What is meant for people is marked at the beginning of its line, so that `launch` can tell it from
what torchrun and libraries print.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import OutOfMemory, PenstockError
from penstock.files import write_whole
from penstock.report.progress import Progress

from .parent import end_with_parent
from .request import Request

REQUEST, RESULT, ERROR = "request.json", "result.json", "error-{rank}.json"
MARK = "\x1e"  # a record separator


class Marked:
    """A stream whose lines begin with the mark."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines."""
        lines = text.splitlines(keepends=True)
        self._stream.write("".join(line if line == "\n" else MARK + line for line in lines))
        return len(text)

    def flush(self) -> None:
        """Pass it on."""
        self._stream.flush()

    def isatty(self) -> bool:
        """A pipe is none."""
        return False


def main(folder: Path) -> int:
    """Do this process's part; the exit code."""
    # A run whose parent was killed must not go on writing checkpoints behind the next one.
    end_with_parent(lambda: shutil.rmtree(folder, ignore_errors=True))
    rank = int(os.environ["RANK"])
    try:
        result = _train(Request.from_json(json.loads((folder / REQUEST).read_text())))
        if rank == 0:
            write_whole("the result", str(folder / RESULT), json.dumps(result))
        return 0
    except PenstockError as error:
        failure = error
    except Exception as error:
        import torch

        if not isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            raise
        failure = OutOfMemory(
            str(error).split(". ")[0], remedy="a smaller --batch, --seq-len, or R, L or O"
        )
    document = {"kind": type(failure).__name__, "what": failure.what, "remedy": failure.remedy}
    write_whole("the error", str(folder / ERROR.format(rank=rank)), json.dumps(document))
    return failure.exit_code


def _train(request: Request) -> dict[str, Any]:
    from . import allocators

    allocators.apply(request)
    import torch

    from .group import joined
    from .session import train

    cuda = request.settings.device != "emulated" and torch.cuda.is_available()
    if cuda:
        own = replace(request.settings, device=f"cuda:{os.environ['LOCAL_RANK']}")
        request = replace(request, settings=own)
        allocators.install(request)  # before the group touches CUDA
    with joined(cuda=cuda) as group:
        stream: Any = Marked(sys.stderr) if group.leads else None
        return train(request, progress=Progress(stream), group=group)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
