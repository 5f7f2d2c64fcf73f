# SPDX-License-Identifier: Apache-2.0
"""``penstock finetune``: a fine-tune, its memory and its speed, as flags and as a result.

The work is in `penstock.finetune`; this file turns flags into its request and its result into text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from penstock.config import Settings
from penstock.finetune.request import SYNTHETIC, Request, checked
from penstock.finetune.show import print_result
from penstock.report.progress import Progress

from .common import Output, count, hide, need_extra, verb, warn_of

MORE = (
    "Also: --memory auto|paged|resident, --lengths fixed|varied, --data-field NAME, "
    "--eval-every N, --eval-data FILE, --lr X, --lora-rank N, --dtype mixed|float32|bfloat16, "
    "--seed N, --force (docs/finetune.md)."
)


def _word(
    flag: str, metavar: str, about: str, default: str | None = None, **more: Any
) -> Callable[..., Any]:
    shown = default is not None
    return click.option(
        flag, metavar=metavar, default=default, show_default=shown, help=about, **more
    )


@click.command(epilog=MORE)
@_word("--model", "NAME", "A folder, opt-1.3b, gpt2_xl, ...", "tiny")
@_word("--strategy", "S", "N, or of LoRA, Recompute, Offload.", "N")
@count("--batch", "Sequences per step on each GPU.", 8)
@count("--seq-len", "Most tokens per sequence.  [default: 512]")
@count("--steps", "Steps in all.", 10)
@count("--gpus", "Processes, one per GPU.", 1)
@count("--zero", "Shard by DeepSpeed's ZeRO, stage 0 to 3.")
@click.option("--fsdp", is_flag=True, help="Shard by PyTorch's FSDP2.")
@_word("--allocator", "NAME", "stitch, native or expandable.", "stitch")
@_word("--data", "FILE", "Text or JSON lines, or synthetic.", "synthetic")
@_word("--checkpoint", "FOLDER", "Save there; --resume goes on from it.")
@count("--save-every", "Steps between checkpoints.  [default: at the end]")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint, if any.")
@click.option("--find-batch", is_flag=True, help="Find the largest batch, train with it.")
@click.option("--lr", type=float, metavar="X", hidden=True, help="AdamW's learning rate.")
@count("--seed", "Seed of weights and batches.", 0, hidden=True)
@count("--eval-every", "Steps between evaluations.", hidden=True)
@_word("--memory", "HOW", "auto, paged or resident.", "auto", hidden=True)
@_word("--lengths", "HOW", "Lengths of synthetic texts: fixed or varied.", "fixed", hidden=True)
@_word("--data-field", "NAME", "The field of JSON lines that holds the text.", "text", hidden=True)
@_word("--eval-data", "FILE", "The text to evaluate on.", hidden=True)
@count("--lora-rank", "Rank of the adapters.", 64, hidden=True)
@_word("--dtype", "D", "mixed, float32 or bfloat16.", "mixed", hidden=True)
@verb("device", "gpu_memory")
def command(settings: Settings, output: Output, **flags: Any) -> None:
    """Fine-tune a causal LM; report its memory and speed.

    \b
    Example:
      penstock finetune --model opt-1.3b --strategy LR --gpu-memory 8GiB
    """  # noqa: D301
    request = checked(Request(settings=settings, **flags))
    warn_of(
        ({} if request.ways.lora else {"lora_rank": "--strategy L"})
        | ({"data_field": "--data FILE"} if request.data == SYNTHETIC else {})
    )
    need_extra("torch", "torch")
    need_extra("transformers", "finetune")
    if request.ways.lora:
        need_extra("peft", "finetune")
    if request.zero is not None:
        need_extra("deepspeed", "deepspeed")
    from penstock.finetune import allocators

    allocators.apply(request)
    if request.engine == "single":
        from penstock.finetune.session import train

        result = train(request, progress=Progress(sys.stderr))
    else:
        from penstock.finetune.launch import launch

        result = launch(request, stream=sys.stderr, verbose=settings.verbose)
    output.emit(result, lambda: print_result(result))


hide(command, "force")
