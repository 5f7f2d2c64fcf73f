# SPDX-License-Identifier: Apache-2.0
"""Other ways to run a model that is larger than its budget: accelerate, diffusers, DeepSpeed.

Each is used as its documentation says, with the settings that suit it best. PyTorch's allocator
keeps them within the budget; what has to be left for activations is told to those who ask.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from kit.card import Card
from kit.measure import alone
from torch import nn

from models.cases import modules_of

# (model, device, bytes that weights may take) -> nothing; the model's steps then run on the device.
Peer = Callable[[Any, torch.device, int], None]
HOST_BYTES = 1 << 50  # as much as there is
# Of the room that a step leaves, for weights: what comes to compute may need some of it.
SHARES_OF_ROOM = (1.0, 0.75, 0.5)
TOLD_THE_ROOM = ("accelerate-dispatch",)


# ---- accelerate ----------------------------------------------------------------------------


def accelerate_dispatch(model: nn.Module, device: torch.device, room: int) -> None:
    """As many whole blocks as fit stay on the device; the others come when they are called.

    Where none fits beside the largest, as in SDXL's UNet, the map has the whole model on the host,
    and dispatch_model() finds none of its weights (1.15: a KeyError): cpu_offload() does that.
    """
    from accelerate import dispatch_model, infer_auto_device_map

    places = infer_auto_device_map(
        model,
        max_memory={0: room, "cpu": HOST_BYTES},
        no_split_module_classes=list(getattr(model, "_no_split_modules", None) or ()),
    )
    if set(places) == {""}:
        accelerate_cpu_offload(model, device, room)
        return
    dispatch_model(
        model,
        places,
        main_device=0 if device.type == "cuda" else device,
        skip_keys=getattr(model, "_skip_keys_device_placement", None),
        force_hooks=True,
    )


def accelerate_cpu_offload(model: nn.Module, device: torch.device, room: int) -> None:
    """Each module comes when it is called."""
    from accelerate import cpu_offload

    cpu_offload(model, device)


# ---- diffusers -----------------------------------------------------------------------------


def group_offload(level: str) -> Peer:
    """Groups of modules come on a stream of their own, the next while one computes.

    By blocks where the model has lists of them itself; with streams diffusers refuses blocks that
    lie deeper (0.42: "layer_execution_tracker already exists"), and such models come by leaves.
    """

    def offload(model: Any, device: torch.device, room: int) -> None:
        from diffusers.hooks import apply_group_offloading

        streams = device.type == "cuda"
        for module in modules_of(model):
            apply_group_offloading(
                module,
                onload_device=device,
                offload_device=torch.device("cpu"),
                offload_type=level if has_blocks(module) else "leaf_level",
                num_blocks_per_group=1,
                use_stream=streams,
                record_stream=streams,
                non_blocking=streams,
            )

    return offload


def has_blocks(module: nn.Module) -> bool:
    """Whether diffusers finds a model's blocks by itself."""
    named = getattr(module, "_group_offload_block_modules", None) is not None
    return named or any(isinstance(child, nn.ModuleList) for child in module.children())


def model_cpu_offload(pipe: Any, device: torch.device, room: int) -> None:
    """One model of the pipeline at a time."""
    pipe.enable_model_cpu_offload(device=device)


def sequential_cpu_offload(pipe: Any, device: torch.device, room: int) -> None:
    """One module at a time."""
    pipe.enable_sequential_cpu_offload(device=device)


# ---- DeepSpeed -----------------------------------------------------------------------------


def zero_inference(model: nn.Module, device: torch.device, room: int) -> None:
    """Stage 3 of ZeRO with the weights on the host; what is live at once may take the room."""
    alone()
    import deepspeed

    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
    dtype = next(model.parameters()).dtype
    largest = max(parameter.numel() for parameter in model.parameters())
    live = max(largest, room // dtype.itemsize // 2)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": dtype is torch.bfloat16},
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu", "pin_memory": True},
            "stage3_prefetch_bucket_size": min(live, 50_000_000),
            "stage3_max_live_parameters": live,
            "stage3_max_reuse_distance": live,
            "stage3_param_persistence_threshold": 100_000,
        },
    }
    # Else it goes to the device whole first.
    deepspeed.zero.Init(module=model, config_dict_or_path=config)
    deepspeed.initialize(model=model, config=config)


# ---- All of them ---------------------------------------------------------------------------

# What each needs, whether it runs models, whether it runs pipelines. DeepSpeed changes parameters
# in ways of its own: it comes last.
PEERS: dict[str, tuple[Peer, str, bool, bool]] = {
    "accelerate-dispatch": (accelerate_dispatch, "accelerate", True, False),
    "accelerate-cpu-offload": (accelerate_cpu_offload, "accelerate", True, False),
    "diffusers-group-leaf": (group_offload("leaf_level"), "diffusers", True, True),
    "diffusers-group-block": (group_offload("block_level"), "diffusers", False, True),
    "diffusers-model-offload": (model_cpu_offload, "diffusers", False, True),
    "diffusers-sequential": (sequential_cpu_offload, "diffusers", False, True),
    "deepspeed-zero-inference": (zero_inference, "deepspeed", True, False),
}


def installed() -> list[str]:
    """Those that can be imported; not DeepSpeed, which may have to compile operators first."""
    packages = {name: package for name, (_, package, _, _) in PEERS.items()}
    del packages["deepspeed-zero-inference"]
    return [name for name, package in packages.items() if find_spec(package) is not None]


def fitting(names: list[str], model: Any) -> dict[str, Peer]:
    """Those of the names that run such a thing."""
    place = 2 if isinstance(model, nn.Module) else 3
    return {name: PEERS[name][0] for name in PEERS if name in names and PEERS[name][place]}


@contextmanager
def put_back(model: Any) -> Iterator[None]:
    """Afterwards the model is as it was: its tensors, hooks and whatever else hangs on it."""
    modules = [module for part in modules_of(model) for module in part.modules()]
    owners = modules if isinstance(model, nn.Module) else [*modules, model]
    for module in modules:  # a registry of no hooks, which plain runs make and peers would fill
        vars(module).pop("_diffusers_hook", None)
    plain = (dict, OrderedDict)
    kept = [
        (one, type(one), {k: v.copy() if type(v) in plain else v for k, v in vars(one).items()})
        for one in owners
    ]
    tensors = [t for part in modules_of(model) for t in (*part.parameters(), *part.buffers())]
    content = [(tensor, tensor.data) for tensor in tensors]
    try:
        yield
    finally:
        for one, kind, attributes in kept:
            if type(one) is not kind:
                one.__class__ = kind
            vars(one).clear()
            vars(one).update(attributes)
        for tensor, data in content:
            tensor.data = data


@contextmanager
def limited(card: Card, nbytes: int) -> Iterator[None]:
    """PyTorch's allocator hands out no more than that."""
    if card.small:
        yield
        return
    total = torch.cuda.mem_get_info(card.device)[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), card.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, card.device)


@contextmanager
def offloaded(peer: Callable[..., None], model: Any, card: Card, budget: int) -> Iterator[None]:
    """A model on the CPU runs by a peer's means for a while, within a budget.

    Args:
        peer: One of PEERS that knows its room.
        model: The model or pipeline.
        card: The device.
        budget: Most bytes that PyTorch may have of it.
    """
    try:
        with put_back(model), limited(card, budget):
            peer(model, card.device)
            yield
    finally:
        card.clear()
        gc.collect()
        free_host = getattr(torch._C, "_host_emptyCache", None)
        if free_host is not None and not card.small:
            free_host()  # page-locked copies
