# SPDX-License-Identifier: Apache-2.0
"""``penstock gpt``: the main job, as flags and as a result for people.

The work is in `penstock.runner`; this file turns flags into its request and its result into text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from penstock.config import Settings
from penstock.errors import FailedError
from penstock.report.progress import Progress
from penstock.runner.request import DEFAULT_WARMUPS, Request, checked
from penstock.runner.show import print_run
from penstock.text import printable

from .common import STDOUT, Output, count, hide, need_extra, verb, warn_of

MORE = (
    "Also: --warmups N, --seed N; --enable-prefetch, --num-streams N, --allow-oversubscription "
    "(managed); --compile, --cuda-graph (resident); --host-memory, --chunk-size, --look-ahead, "
    "--safety, --compress; --force, --enable-cudnn-benchmark."
)
# What is of use in some ways of holding weights only.
USED_BY = {
    **dict.fromkeys(("enable_prefetch", "num_streams", "allow_oversubscription"), ("managed",)),
    **dict.fromkeys(("chunk_size", "look_ahead", "safety"), ("vmm",)),
    "gpu_memory": ("vmm", "managed"),
}


def _switch(flag: str, about: str, **more: Any) -> Callable[..., Any]:
    return click.option(flag, is_flag=True, help=about, **more)


@click.command(epilog=MORE)
@click.option("--model", metavar="NAME", help="gpt2_small (default) to gpt2_xl, gpt3_6.7b and up.")
@click.option("--memory", metavar="HOW", default="vmm", help="vmm (default), managed or resident.")
@count("--batch", "Sequences per step.", 1)
@count("--seq-len", "Tokens per sequence.  [default: 1024]")
@click.option(
    "--dtype", default="float32", show_default=True, help="Type of weights and activations."
)
@count("--steps", "Timed steps.  [default: 10, or none with --prompt]")
@count("--warmups", "Steps before the timed ones.", DEFAULT_WARMUPS, hidden=True)
@count("--seed", "Seed of random weights, inputs and sampling.", 0, hidden=True)
@click.option("--weights", type=Path, metavar="DIR", help="A Hugging Face GPT-2 checkpoint.")
@click.option("--prompt", metavar="TEXT", help="Continue TEXT, by default with a model included.")
@count("--generate", "Tokens to continue the prompt by.  [default: 100]")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="0: most likely.")
@_switch("--check", "Compare with the resident baseline.")
@_switch("--enable-prefetch", "With managed: prefetch. vmm always does.", hidden=True)
@count("--num-streams", "With managed: streams for prefetches.", 3, hidden=True)
@_switch("--allow-oversubscription", "With managed: exceed what the card has free.", hidden=True)
@_switch("--enable-cudnn-benchmark", "Let cuDNN try its algorithms; a GPT has none.", hidden=True)
@verb(
    *("device", "gpu_memory", "host_memory", "chunk_size", "look_ahead", "safety", "compress"),
    *("fusion", "compile", "cuda_graph"),
)
def command(settings: Settings, output: Output, **flags: Any) -> None:
    """Run a GPT within a budget of device memory.

    \b
    Examples:
      penstock gpt --model gpt2_xl --dtype float16 --gpu-memory 2GiB --check
      penstock gpt --prompt "The function returns" --generate 80
    """  # noqa: D301
    request = checked(
        Request(
            settings=settings,
            fusion=settings.fusion,
            compile=settings.compile,
            cuda_graph=settings.cuda_graph,
            prefetch=flags.pop("enable_prefetch"),
            cudnn_benchmark=flags.pop("enable_cudnn_benchmark"),
            **flags,
        )
    )
    _warn_unused(request)
    need_extra("torch", "torch")
    from penstock.runner.session import run

    shown = output.json_file != STDOUT
    result = run(request, progress=Progress(sys.stderr), on_text=write_text if shown else _ignore)
    output.emit(result, lambda: print_run(result))
    _hold_check(result["check"])


def _warn_unused(request: Request) -> None:
    """Say which flags do nothing here."""
    unused = {
        name: f"--memory {' or '.join(ways)}; {request.memory} has no use for it"
        for name, ways in USED_BY.items()
        if request.memory not in ways
    }
    if request.prompt is None:
        unused["temperature"] = "--prompt"
    elif request.steps is None:
        unused |= dict.fromkeys(("batch", "seq_len", "warmups"), "steps; add --steps N to --prompt")
    warn_of(unused)


def write_text(piece: str) -> None:
    """Show a piece of what the model says."""
    if sys.stdout.isatty():  # what a model says is not for the terminal to obey
        piece = "\n".join("\t".join(map(printable, line.split("\t"))) for line in piece.split("\n"))
    click.echo(piece, nl=False)
    sys.stdout.flush()


def _ignore(piece: str) -> None:
    """The text is in the result."""


def _hold_check(check: Mapping[str, Any] | None) -> None:
    """Fail if the outputs were compared and differ.

    Raises:
        FailedError: With the numbers.
    """
    if check is not None and not check["equal"]:
        if check["tolerance"]:
            raise FailedError(
                f"--check: {check['different']} of {check['outputs']} outputs are further from the "
                f"resident baseline than rounding explains: {check['max_relative_rms']:.2g} of its "
                f"root mean square, {check['tolerance']:g} allowed",
                remedy="--fusion baseline without --compile, which is compared bit for bit",
            )
        raise FailedError(
            f"--check: {check['different']} of {check['outputs']} outputs differ from the resident "
            f"baseline, by up to {check['max_abs_diff']:g}",
            remedy="--safety strict finds a use that was not declared",
        )


# What tunes or belongs to one way only is named in one line of the help, not in nine.
hide(
    command,
    *("host_memory", "chunk_size", "look_ahead", "safety", "compress", "compile", "cuda_graph"),
    "force",
)
