# SPDX-License-Identifier: Apache-2.0
"""Where weights come from: made up from a seed, or read from a checkpoint.

A loader is a function ``load(name, destination)`` that fills one parameter, named as in
`GPTConfig.parameter_shapes`, wherever the caller wants it to lie; so a model reaches host memory
with no second copy of it. Invariant: what a loader writes depends on its source and the name
alone, not on the order of calls. A loader is used by one thread at a time.

`checkpoint.open_checkpoint` gives the loader of a Hugging Face directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from penstock.errors import FailedError
from penstock.models.configs import GPTConfig
from penstock.models.gpt import GPT, Parts, build_on_meta

Loader = Callable[[str, Tensor], None]

_STD = 0.02
# A prime, so that the rows of no matrix repeat: 2**22 - 3 normals, 16 MiB in fp32. A model with
# fewer parameters needs no more normals than it has parameters.
_POOL = 4_194_301


def synthetic_loader(config: GPTConfig, seed: int = 0) -> Loader:
    """A loader of random weights as GPT-2 starts from: normal(0, 0.02), norms 1, biases 0.

    Drawing billions of normals on a CPU takes minutes, so one pool of four million is drawn from
    the seed and every parameter repeats it from a place that the seed and its name decide. It
    runs at the speed of a memory copy, gives the same weights on every device and takes no GPU
    memory. The values are made to be timed and compared, not to be trained from.

    Args:
        config: Says which parameters there are, and their shapes.
        seed: Decides all values.

    Returns:
        ``load(name, destination)`` for a contiguous destination of any floating dtype.
    """
    shapes = config.parameter_shapes()
    pool_size = min(_POOL, sum(prod(shape) for shape in shapes.values()))
    pools: dict[torch.dtype, Tensor] = {}

    def pool(dtype: torch.dtype) -> Tensor:
        if dtype not in pools:
            generator = torch.Generator().manual_seed(seed)
            pools[dtype] = (torch.randn(pool_size, generator=generator) * _STD).to(dtype)
        return pools[dtype]

    @torch.no_grad()
    def load(name: str, destination: Tensor) -> None:
        _check_destination(config, shapes, name, destination)
        if name.endswith("bias"):
            destination.zero_()
        elif "norm" in name:
            destination.fill_(1.0)
        else:
            _tile(destination, pool(destination.dtype), _hash(name, seed) % pool_size)

    return load


def _check_destination(
    config: GPTConfig, shapes: dict[str, tuple[int, ...]], name: str, destination: Tensor
) -> None:
    if name not in shapes:
        raise FailedError(f"{config.name} has no parameter '{name}'")
    if tuple(destination.shape) != shapes[name]:
        raise FailedError(
            f"{config.name}: parameter '{name}' has shape {shapes[name]}, "
            f"the destination {tuple(destination.shape)}"
        )


def _hash(name: str, seed: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _tile(destination: Tensor, pool: Tensor, start: int) -> None:
    """Fill `destination` with `pool`, repeated, from its element `start` on."""
    flat = destination.view(-1)
    done = 0
    while done < flat.numel():
        count = min(len(pool) - start, flat.numel() - done)
        flat[done : done + count].copy_(pool[start : start + count])
        done, start = done + count, 0


@torch.no_grad()
def load_model(
    config: GPTConfig,
    load: Loader,
    *,
    dtype: object = "float32",
    device: torch.device | str = "cpu",
    parts: Parts | None = None,
) -> GPT:
    """An ordinary model in eval mode, all of it on `device`, filled by `load`.

    On a device other than the CPU, one parameter at a time passes through host memory.

    Args:
        config: The shape.
        load: A loader of this module or of a checkpoint.
        dtype: Dtype of all parameters, named as in `configs.dtype_name`.
        device: Where they end up.
        parts: What the model is put together from; None for torch's own layers.

    Raises:
        PenstockError: Whatever `load` raises.
    """
    model = build_on_meta(config, dtype=dtype, parts=parts)
    filled: dict[int, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in filled:
                host = torch.empty(parameter.shape, dtype=parameter.dtype)
                load(f"{module_name}.{leaf}", host)
                filled[id(parameter)] = nn.Parameter(host.to(device))
            setattr(module, leaf, filled[id(parameter)])
    return model
