# SPDX-License-Identifier: Apache-2.0
"""penstock.attach: page the parameters and buffers of any nn.Module.

They move into blocks: ranges of device addresses that never change, backed by device memory only
while the model is about to use them. Module hooks declare the uses; the first pass records their
order, later passes follow the plan made from it, and a pass that goes another way is noticed and
stays correct, slower. Results are those of the resident model, bit for bit: the same kernels run
on the same bytes.

Thread rule: one thread at a time runs the model, as with any nn.Module in inference.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from penstock import config
from penstock.errors import OutOfMemory, UsageError
from penstock.host import check_host_memory, memory_sizes
from penstock.native import CUDA, EMULATED, Device, Pager
from penstock.units import MIB, format_bytes, parse_size

from .layout import Block, collect_blocks, leave_tables_on_host
from .room import Room
from .store import BlockStore, Loader
from .summary import explain, summarize
from .uses import UseHooks

_live: weakref.WeakSet[Attachment] = weakref.WeakSet()

MIN_CHUNK, MAX_CHUNK = 2 * MIB, 32 * MIB
PAGES_WANTED = 512
SETTLING_PASSES = 4  # the first passes may still load kernels and grow workspaces
LOOK_AHEAD_CHUNKS = 4
FITS_SHARE = 0.9  # of the budget: a model up to this is taken to fit beside its activations
COPY_CHUNKS = 2  # most neighbouring pages in one copy


def attach(
    model: nn.Module,
    *,
    gpu_memory: int | str | None = None,
    device: str | torch.device | None = None,
    load: Loader | None = None,
    chunk_size: int | str | None = None,
    look_ahead: int | str | None = None,
    safety: str | None = None,
    host_memory: int | str | None = None,
    emulated: dict[str, int] | None = None,
) -> Attachment:
    """Page a model's parameters and buffers, so that it runs in less device memory than it weighs.

    Inference only: run the model under torch.no_grad() or torch.inference_mode(). What is left out
    is decided by PENSTOCK_* variables, then by penstock.toml, then by the default named here.

    Args:
        model: Any module; on the CPU, on the device, or on "meta" (then `load` fills it).
        gpu_memory: The budget: bytes, "8GiB" or "80%" of the device; default 90 % of what is free.
        device: "auto" (CUDA where there is one), "cuda", "cuda:N" or "emulated".
        load: Called as load(name, destination) once for each tensor of a model on "meta", with a
            CPU tensor of its shape and dtype to fill.
        chunk_size: The unit of paging; default from the model's size, 2 to 32 MiB.
        look_ahead: Bytes wanted in flight beyond the running module's own.
        safety: "normal", or "strict": every operator is checked, and evicted blocks are unmapped
            at once.
        host_memory: Most host memory to use; default what is available.
        emulated: Options of the emulated GPU: capacity, granularity, seed, max_delay_us, ...

    Returns:
        The attachment; its detach() gives an ordinary model back.

    Raises:
        OutOfMemory: If the budget or the host cannot hold what must be held.
        UsageError: If an argument makes no sense, or the model is attached already.
        EnvironmentProblem: If the device is not there.
    """
    if any(attachment.model is model for attachment in _live):
        raise UsageError("the model is attached already", remedy="detach it first")
    arguments = {
        "gpu_memory": gpu_memory,
        "device": device,
        "chunk_size": chunk_size,
        "look_ahead": look_ahead,
        "safety": safety,
        "host_memory": host_memory,
    }
    settings = config.load(arguments=arguments)
    options = config.emulated_options(settings) if emulated is None else emulated
    opened, torch_device = open_device(settings.device, options)
    try:
        return Attachment(
            model,
            opened,
            torch_device,
            gpu_memory=_unless_auto(settings.gpu_memory),
            load=load,
            chunk_size=_unless_auto(settings.chunk_size),
            look_ahead=_unless_auto(settings.look_ahead),
            safety=settings.safety,
            host_memory=_unless_auto(settings.host_memory),
        )
    except BaseException:
        opened.close()
        raise


def _unless_auto(text: str) -> str | None:
    return None if text == "auto" else text


def attachments() -> list[Attachment]:
    """The models attached now."""
    return list(_live)


def open_device(
    device: str | torch.device, emulated: dict[str, int]
) -> tuple[Device, torch.device]:
    """The Penstock device and the torch device that `device` means."""
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "emulated"
    if name == "emulated":
        return Device(EMULATED, **emulated), torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdigit() or not index):
        raise UsageError(f"device '{name}' is unknown", remedy="auto, cuda, cuda:N or emulated")
    opened = Device(CUDA, int(index or 0))
    torch_device = torch.device("cuda", int(index or 0))
    torch.zeros(1, device=torch_device)  # the context, before memory is counted
    return opened, torch_device


class Attachment:
    """A model whose blocks Penstock pages. Made by attach().

    Attributes:
        model: The attached module.
        budget: Bytes of device memory it may take.
        weight_bytes: Bytes of its parameters and buffers.
        passes: Forward passes so far.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        torch_device: torch.device,
        *,
        gpu_memory: int | str | None,
        load: Loader | None,
        chunk_size: int | str | None,
        look_ahead: int | str | None,
        safety: str,
        host_memory: int | str | None,
    ) -> None:
        self.model = model
        self.device = device
        self.torch_device = torch_device
        self.passes = 0
        blocks = collect_blocks(model)
        if not blocks:
            raise UsageError("the model has no parameters or buffers to page")
        self.weight_bytes = sum(block.nbytes for block in blocks)
        free, total = device.memory()
        self.budget = int(free * 0.9) if gpu_memory is None else parse_size(gpu_memory, total=total)
        if self.weight_bytes > FITS_SHARE * self.budget:
            leave_tables_on_host(blocks)
        self._check_sizes(blocks, free, host_memory)
        granularity = device.info()["granularity"]
        chunk = parse_size(chunk_size) if chunk_size is not None else self._chunk_size()
        self._chunk = -(-chunk // granularity) * granularity
        ahead = LOOK_AHEAD_CHUNKS * self._chunk
        self._look_ahead = ahead if look_ahead is None else parse_size(look_ahead)
        self._room = Room(device, torch_device, self.budget)
        self._handles: list[Any] = []
        self._largest_input = 0
        self._settled = False
        self._passing = False
        self._reserved = 0
        self._link: tuple[float, float] | None = None
        self._pager: Pager | None = Pager(
            device,
            budget=self.budget,
            chunk_bytes=self._chunk,
            look_ahead_bytes=self._look_ahead,
            max_copy_bytes=COPY_CHUNKS * self._chunk,
            safety=safety,
        )
        self.store = BlockStore(blocks, self._pager, torch_device)
        try:
            self.store.move_in(load)
            self.hooks = UseHooks(
                model, blocks, self._pager, self._stream, always_watch=safety == "strict"
            )
            self._start_small()
        except BaseException:
            self.store.move_out()
            self._close()
            raise
        self._hook()
        _live.add(self)

    @property
    def pager(self) -> Pager:
        """The pager; refuses after detach()."""
        if self._pager is None:
            raise UsageError("the model has been detached")
        return self._pager

    # ---- Sizes -----------------------------------------------------------------------------

    def _chunk_size(self) -> int:
        size = MIN_CHUNK
        while size < MAX_CHUNK and size * 2 * PAGES_WANTED <= self.weight_bytes:
            size *= 2
        return size if self.weight_bytes >= 8 * MIN_CHUNK else 1

    def _check_sizes(self, blocks: list[Block], free: int, host: int | str | None) -> None:
        if self.budget > free:
            raise OutOfMemory(
                f"a budget of {format_bytes(self.budget)} exceeds the {format_bytes(free)} that "
                "are free on the device",
                remedy=f"--gpu-memory {free // MIB}MiB or less",
                budget_bytes=self.budget,
            )
        on_host = sum(b.nbytes for b in blocks if b.slots[0].tensor.device.type == "cpu")
        sizes = memory_sizes()
        limit = None if host is None else parse_size(host, total=sizes[0] if sizes else None)
        check_host_memory(self.weight_bytes, movable=on_host, limit=limit)

    def _start_small(self) -> None:
        """Before the first pass nobody knows what activations take: give them the most."""
        smallest = self.pager.smallest()
        if smallest > self.budget:
            raise OutOfMemory(
                f"a budget of {format_bytes(self.budget)} is below the smallest that works, "
                f"{format_bytes(smallest)} for the largest layer",
                remedy=f"--gpu-memory {-(-smallest // MIB)}MiB",
                needed_bytes=smallest,
                budget_bytes=self.budget,
            )
        self._make_room()

    def _make_room(self) -> None:
        """The blocks stand back to the least they can run in."""
        if self._room.cuda:
            held, smallest = self._room.reserved(), self.pager.smallest()
            if held + smallest > self.budget:
                raise OutOfMemory(
                    f"PyTorch holds {format_bytes(held)} already and the largest layer needs "
                    f"{format_bytes(smallest)}, more than the budget of "
                    f"{format_bytes(self.budget)}",
                    remedy="free what is not needed (del, gc.collect()), or --gpu-memory "
                    f"{-(-(held + smallest) // MIB)}MiB",
                    needed_bytes=held + smallest,
                    budget_bytes=self.budget,
                )
            torch.cuda.synchronize(self.torch_device)
            self.hooks.arm()
            blocks = min(self.budget, self.pager.smallest() + self._look_ahead)
            self.pager.resize(blocks)
            self._room.limit_torch(blocks)

    def _settle(self) -> None:
        """After a pass: give the blocks what everything else left of the budget."""
        if not self._room.cuda:
            self._settled = True
            return
        torch.cuda.synchronize(self.torch_device)
        stats = self.pager.stats()
        room = self._room.for_blocks(stats["device_bytes"])
        wanted = min(room, stats["pinned_bytes"] + stats["pages"] * self._chunk)
        smallest = self.pager.smallest()
        if wanted < smallest:
            others = self.budget - room
            raise OutOfMemory(
                f"activations and workspace take {format_bytes(others)} of the budget of "
                f"{format_bytes(self.budget)}; the largest layer needs {format_bytes(smallest)}",
                remedy=f"--gpu-memory {-(-(others + smallest) // MIB)}MiB, or a smaller batch",
                needed_bytes=others + smallest,
                budget_bytes=self.budget,
            )
        self.hooks.arm()
        if abs(wanted - stats["budget"]) >= self._chunk or wanted < stats["budget"]:
            self.pager.resize(wanted)
            self._room.limit_torch(wanted)
        self._settled = True
        self._reserved = self._room.reserved()

    def _stand_down(self) -> None:
        """Where everything stays, no use need be declared: the model runs as an ordinary one."""
        stats = self.pager.stats()
        if stats["kept_pages"] == stats["pages"] and self._settled and not self.hooks.watching:
            self.store.fetch()
            self.hooks.disarm()

    # ---- A pass ----------------------------------------------------------------------------

    def _stream(self) -> int:
        if self.torch_device.type != "cuda":
            return 0
        return torch._C._cuda_getCurrentRawStream(self.torch_device.index)

    def _hook(self) -> None:
        model = self.model
        self._handles.append(model.register_forward_pre_hook(self._begins, with_kwargs=True))
        self.hooks.arm()
        self.hooks.start_watch()
        self._handles += [
            model.register_forward_hook(self._ends, always_call=True),
            # The registry sets an attribute on the hook, which a bound method refuses.
            model.register_state_dict_post_hook(lambda *state: self._state_dict(*state)),
            model.register_load_state_dict_pre_hook(self._refuse_load),
        ]

    def _begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if torch.is_grad_enabled():
            self._refuse_grad(tensors)
        size = sum(tensor.numel() for tensor in tensors)
        if size > self._largest_input:
            self._largest_input = size
            if self._settled:
                # Larger than ever: activations may grow.
                self._settled = False
                self._make_room()
        self.pager.iteration()
        self.hooks.pass_begins()
        self._passing = True

    def _ends(self, model: nn.Module, args: Any, output: Any) -> None:
        if not self._passing:  # it was refused before it began
            return
        self._passing = False
        self.hooks.pass_ends()
        self.passes += 1
        settling = not self._settled or self.passes <= SETTLING_PASSES
        if settling or self._room.reserved() != self._reserved:
            self.pager.iteration()
            self._settle()
            self._stand_down()

    def _refuse_grad(self, tensors: list[torch.Tensor]) -> None:
        if any(p.requires_grad for p in self.model.parameters()) or any(
            tensor.requires_grad for tensor in tensors
        ):
            raise UsageError(
                "an attached model does inference only: backward would read blocks that have "
                "left the device",
                remedy="run it under torch.no_grad() or torch.inference_mode()",
            )

    # ---- The rest of an ordinary module's life ---------------------------------------------

    def _state_dict(self, module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        """state_dict() of an attached model: tensors on the host, with the current content."""
        self.store.flush()
        for name, tensor in self.store.host_tensors().items():
            if prefix + name in state:
                state[prefix + name] = tensor.clone()

    def _refuse_load(self, *_: Any) -> None:
        raise UsageError(
            "an attached model cannot load a state_dict", remedy="detach(), load, attach() again"
        )

    def stats(self) -> dict[str, Any]:
        """Counters and sizes of the pager, and what they amount to; see summary.summarize."""
        return summarize(self)

    def explain(self) -> str:
        """One line: why the last passes were as fast or slow as they were."""
        return explain(summarize(self))

    def link(self) -> tuple[float, float]:
        """Page-locked copy speed in and out, decimal GB/s, measured once in this process."""
        if self._link is None:
            size = min(64 * MIB, max(self.device.memory()[0] // 2, 2 * MIB))
            self._link = self.device.measure_link(size, 5)
        return self._link

    def detach(self) -> nn.Module:
        """Give an ordinary model back, on the CPU, with the current content; free all the rest."""
        if self._pager is not None:
            for handle in self._handles:
                handle.remove()
            self.hooks.remove()
            self.store.flush()
            self.store.move_out()
            self._close()
        return self.model

    def _close(self) -> None:
        if self._pager is not None:
            self._pager.close()
            self._pager = None
        self._room.free_torch()
        self.device.close()
        _live.discard(self)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()
