# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to an attached model, in one copy.

transformers and diffusers map the files of a checkpoint into memory: the tensors of a model on the
CPU are pages of these files until somebody touches them. attach() copies each once, into
page-locked memory; so the host never holds the weights twice. Tensors that a library makes anew (of
another dtype than the files', or fused from several) are held until then, and released arena by
arena.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from penstock import config
from penstock.errors import UsageError
from penstock.report.progress import on_stderr

from .attach import Attachment, attach
from .attached import refuse_attached
from .blocks import as_module
from .store import MOVED_IN
from .wrappers import plain_parts

_OTHERS = {
    "device_map": "Penstock decides what lies where: leave it out",
    "quantization_config": "load it first, then penstock.attach(model)",
    "output_loading_info": "load it first, then penstock.attach(model)",
}


def from_pretrained(
    cls: Any,
    source: str | os.PathLike[str],
    *,
    gpu_memory: int | str | None = None,
    device: str | torch.device | None = None,
    chunk_size: int | str | None = None,
    look_ahead: int | str | None = None,
    safety: str | None = None,
    host_memory: int | str | None = None,
    compress: str | None = None,
    emulated: dict[str, int] | None = None,
    **loading: Any,
) -> Attachment:
    """Load a model or a pipeline, and attach it: `cls.from_pretrained(source)`, then `attach()`.

    Args:
        cls: A class of transformers or diffusers, such as AutoModelForCausalLM; any with a
            from_pretrained() that makes a module, or an object that holds modules.
        source: A folder, or whatever else `cls` takes.
        gpu_memory: As for attach(), and so are those below.
        device: As for attach().
        chunk_size: As for attach().
        look_ahead: As for attach().
        safety: As for attach().
        host_memory: As for attach().
        compress: As for attach().
        emulated: As for attach().
        **loading: For cls.from_pretrained(), such as `dtype`. The dtype of the files needs no
            second copy of the weights, any other one does while they are loaded.

    Returns:
        The attachment; its `model` is the module, or the modules of what was loaded, and
        detach() gives back what was loaded.

    Raises:
        OutOfMemory: As attach().
        UsageError: As attach(), or if `loading` places the weights itself, or asks for more.
    """
    for name, remedy in _OTHERS.items():
        if loading.get(name) is not None and loading[name] is not False:
            raise UsageError(f"{name} cannot be given to penstock.from_pretrained()", remedy=remedy)
    if not callable(getattr(cls, "from_pretrained", None)):
        raise UsageError(
            f"{getattr(cls, '__name__', cls)!s} has no from_pretrained()",
            remedy="a class of transformers or diffusers, such as AutoModelForCausalLM",
        )
    asked: dict[str, Any] = {
        "gpu_memory": gpu_memory,
        "device": device,
        "chunk_size": chunk_size,
        "look_ahead": look_ahead,
        "safety": safety,
        "host_memory": host_memory,
        "compress": compress,
    }
    config.load(arguments=asked)  # a slip is told at once, not after minutes of loading
    model = as_module(cls.from_pretrained(source, **loading))
    refuse_attached(model)
    model.eval()
    with on_stderr().stage("Paging in", _nbytes(model)) as advance:
        token = MOVED_IN.set(advance)
        try:
            return attach(model, **asked, emulated=emulated)
        finally:
            MOVED_IN.reset(token)


def _nbytes(model: nn.Module) -> int:
    tensors = (*model.parameters(), *model.buffers())
    storages = [part.untyped_storage() for tensor in tensors for part in plain_parts(tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
