# SPDX-License-Identifier: Apache-2.0
"""penstock.attach: page the parameters and buffers of any nn.Module.

They move into blocks: ranges of device addresses that never change, backed by device memory only
while the model is about to use them. Module hooks declare the uses; the first pass records their
order, later passes follow the plan made from it, and a pass that goes another way is noticed and
stays correct, slower. A parameter that is read beside the uses, from whatever code, is seen in the
dict that it is looked up in (tables.py): within a pass the read is a use of its own (uses.py),
outside it is served from the host copy (on_host.py). Results are those of the resident model, bit
for bit: the same kernels run on the same bytes.

Thread rule: passes of several threads take turns (turns.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from penstock.host import check_host_memory
from penstock.native import Device, Pager
from penstock.units import MIB, parse_size

from .attached import refuse_attached
from .attachment import FITS_SHARE, BaseAttachment
from .blocks import Block, as_module, may_encode
from .device import settle
from .hooks import UseHooks
from .outside import Outside
from .stats import Stats, summarize
from .store import BlockStore, Loader

MIN_CHUNK, MAX_CHUNK = 2 * MIB, 32 * MIB
PAGES_WANTED = 512
# Mapping a page and unmapping another takes 0.1 to 0.2 ms beside kernels, and holds up those that
# are launched meanwhile: up to here a page crosses the link (16 MiB in 0.3 ms) before its turn is
# over, so that so few will do (results/one_budget/h200-pages.txt).
CHEAP_CHUNK, PAGES_AT_LEAST = 16 * MIB, 128
# What is in flight beyond the running module's own: at least so many pages, and 1.2 ms of the link
# of an H200, which hides the host's pauses, where that is little of the budget (the same sweep).
# So large may modules be that are one use (results/one_budget/h200-joint.txt).
LOOK_AHEAD_CHUNKS, LOOK_AHEAD, LOOK_AHEAD_SHARE = 4, 64 * MIB, 1 / 32
SMALLEST_SHARE = 8  # of a page: what is smaller is not encoded
CAST_SHARE = 1 / 2  # of fp32 weights, that autocast's copies of them take
CODE_SHARE = 11 / 16  # of a block, that its code takes at the least
COPY_CHUNKS = 2  # most neighbouring pages in one copy


def attach(
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | Any,
    *,
    gpu_memory: int | str | None = None,
    device: str | torch.device | None = None,
    load: Loader | None = None,
    chunk_size: int | str | None = None,
    look_ahead: int | str | None = None,
    safety: str | None = None,
    host_memory: int | str | None = None,
    compress: str | None = None,
    emulated: dict[str, int] | None = None,
) -> Attachment:
    """Page a model's parameters and buffers, so that it runs in less device memory than it weighs.

    Inference only: run the model under torch.no_grad() or torch.inference_mode(). What is left out
    is decided by PENSTOCK_* variables, then by penstock.toml, then by the default named here.

    While attached, parameters may be read, changed in place, replaced, saved and loaded as those of
    a resident model, of the whole or of a part. Outside forward they lie in page-locked host
    memory, which the device reads over the link. A change made in forward through ``.data``,
    after the first passes, is not noticed; one made between passes through a parameter that was
    kept from before attach() is an error of the next pass. What moves, casts or copies the model
    (half(), to(), share_memory(), deepcopy, pickle) is refused.

    Threads may call the model; their passes take turns. While one runs, another thread is refused
    to call a part of the model or to read a weight. A child process (fork) is refused every call.

    Args:
        model: Any module; on the CPU, on the device, or on "meta" (then `load` fills it). Not one
            compiled by TorchScript, nor with sparse, lazy, nested or distributed tensors.
            Weights that are made of others, as torchao's quantised ones are, are paged.
            Or several that share the budget: a list, a dict, or any object that holds modules, such
            as a diffusers pipeline. Names of tensors then begin with the model's own.
        gpu_memory: The budget: bytes, "8GiB" or "80%" of the device; default 90 % of what is free.
        device: "auto" (CUDA where there is one), "cuda", "cuda:N" or "emulated".
        load: Called as load(name, destination) once for each tensor of a model on "meta", with a
            CPU tensor of its shape and dtype to fill.
        chunk_size: The unit of paging; default from the model's size, 2 to 32 MiB.
        look_ahead: Bytes wanted in flight beyond the running module's own; by default 64 MiB, or
            1/32 of the budget where that is less, and four pages at least.
        safety: "normal", or "strict": every operator is checked, and evicted blocks are unmapped
            at once.
        host_memory: Most host memory to use; default what is available.
        compress: "bf16": weights of this dtype lie encoded in host memory, lossless, in three
            quarters of their size; so they cross the link, and the device decodes them. "auto":
            where the model does not fit its budget. "off": nothing is; the default.
        emulated: Options of the emulated GPU: capacity, granularity, seed, max_delay_us, ...

    Returns:
        The attachment; its detach() gives an ordinary model back.

    Raises:
        OutOfMemory: If the budget or the host cannot hold what must be held.
        UsageError: If an argument makes no sense, the model cannot be paged, or it, a part of it or
            a weight of it is attached already. The model is as it was.
        EnvironmentProblem: If the device is not there.
    """
    model = as_module(model)
    refuse_attached(model)
    opened, torch_device, settings = settle(
        emulated,
        gpu_memory=gpu_memory,
        device=device,
        chunk_size=chunk_size,
        look_ahead=look_ahead,
        safety=safety,
        host_memory=host_memory,
        compress=compress,
    )
    outside = Outside(model)
    return Attachment(model, opened, torch_device, load=load, outside=outside, **settings)


class PagerAttachment(BaseAttachment[Pager]):
    """A model whose blocks a pager remaps."""

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        torch_device: torch.device,
        *,
        chunk_size: int | str | None,
        look_ahead: int | str | None,
        safety: str,
        compress: str | None = "off",
        **more: Any,
    ) -> None:
        self._asked = (chunk_size, look_ahead)
        self._compress = compress
        self._safety = safety
        super().__init__(model, device, torch_device, **more)

    def _place(self, blocks: list[Block]) -> tuple[Pager, BlockStore]:
        chunk_size, look_ahead = self._asked
        granularity = self.device.info()["granularity"]
        chunk = parse_size(chunk_size) if chunk_size is not None else self._chunk_size(blocks)
        self._grain = -(-chunk // granularity) * granularity
        self._look_ahead = (
            self._default_look_ahead() if look_ahead is None else parse_size(look_ahead)
        )
        # Who says how far to look ahead gets just that. Times on the emulated GPU say nothing.
        measure = look_ahead is None and self.torch_device.type == "cuda"
        pager = Pager(
            self.device,
            # Below one chunk there is no pager to ask for the smallest budget, which is then named.
            budget=max(self.budget, self._grain),
            chunk_bytes=self._grain,
            look_ahead_bytes=self._look_ahead,
            max_copy_bytes=COPY_CHUNKS * self._grain,
            safety=self._safety,
            link_gb_per_s=self.manager.link(self.device)[0] if measure else 0,
        )
        store = BlockStore(
            blocks,
            pager,
            self.torch_device,
            chunk=self._grain,
            encode=self._may_encode,
            check_host=partial(self._check_more_on_host, pager),
        )
        return pager, store

    def _encodes(self) -> bool:
        return self._compress == "bf16" or (self._compress is None and not self._fits())

    def _may_encode(self, block: Block) -> bool:
        # Of many small blocks in a page each would take a kernel.
        small = block.nbytes < self._grain // SMALLEST_SHARE
        return self._encodes() and not small and may_encode(block)

    def _least_on_host(self, blocks: list[Block]) -> int:
        encoded = sum(b.nbytes for b in blocks if may_encode(b)) if self._encodes() else 0
        return super()._least_on_host(blocks) - int(encoded * (1 - CODE_SHARE))

    def _check_more_on_host(self, pager: Pager, nbytes: int) -> None:
        """What encoding gains is known only when it is done."""
        held = pager.stats()["host_bytes"]
        limit = None if self._host_limit is None else max(0, self._host_limit - held)
        check_host_memory(nbytes, limit=limit)

    def _default_look_ahead(self) -> int:
        ahead = min(LOOK_AHEAD, int(self.budget * LOOK_AHEAD_SHARE))
        return max(LOOK_AHEAD_CHUNKS * self._grain, ahead)

    def _whole(self, stats: dict[str, Any]) -> int:
        return int(stats["pinned_bytes"] + stats["pages"] * self._grain)

    def _chunk_size(self, blocks: list[Block]) -> int:
        return chunk_size_for(self.weight_bytes, typical_block(blocks, needed_alone))

    def verify(self) -> int:
        """Check all weights that are encoded, between passes.

        What lies on the host is decoded and held against digests of what was encoded, and what is
        on the device against what that stands for.

        Returns:
            Their bytes; 0 where nothing is encoded.

        Raises:
            FailedError: If some have been damaged.
        """
        return self.pager.verify()


class Attachment(PagerAttachment):
    """A model whose blocks Penstock pages by remapping. Made by attach().

    Attributes:
        frees_casts: Whether the copies that autocast keeps of weights, until its context ends, are
            to go with each module: there is no room for those of all.
    """

    hooks: UseHooks
    _parts_widen = True
    frees_casts = True

    def __init__(self, *model_and_devices: Any, outside: Outside, **more: Any) -> None:
        self._outside = outside
        self._read_before: set[Block] = set()
        super().__init__(*model_and_devices, **more)

    def _make_hooks(self, blocks: list[Block]) -> UseHooks:
        self._readers = hooks = UseHooks(
            self.model,
            self.store,
            self.pager,
            self._stream,
            turn=self._turn,
            passes=self,
            outside=self._outside.references,
            most_jointly=self._look_ahead,
            always_watch=self._safety == "strict",
        )
        return hooks

    # ---- Reads and writes beside the uses --------------------------------------------------

    def _hook(self) -> None:
        super()._hook()
        self._outside.tell(self.hooks)

    def _close(self) -> None:
        self._outside.release()
        super()._close()

    def _ends(self, model: nn.Module, args: Any, output: Any) -> None:
        super()._ends(model, args, output)
        self.hooks.returned(output)

    def _inputs(self, signature: Hashable) -> None:
        self.hooks.signature = signature
        # Where there is room for the copies that autocast keeps they need not be made anew.
        self.frees_casts = self.weight_bytes * (1 + CAST_SHARE) > FITS_SHARE * self.budget

    def _read_few(self) -> bool:
        return self.hooks.gathers.few

    def must_cross(self, nbytes: int, room: int) -> int:
        """As of BaseAttachment; of experts no more than the rows that are read."""
        return self.hooks.gathers.must_cross(nbytes, room)

    def _before_state_dict(self) -> None:
        self._read_before = set(self.hooks.on_host.given)

    def _state_dict(self, module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        super()._state_dict(module, state, prefix, metadata)
        self.hooks.on_host.unread(self._read_before)

    def _before_load(self, *_: Any) -> None:
        """Nothing: what it writes is brought in, or lies at the host copy."""

    def _in_child(self) -> None:
        super()._in_child()
        self.hooks.after_fork()

    def stats(self) -> Stats:
        """Counters and sizes of the pager, and what they amount to."""
        return summarize(self, Stats, in_place_bytes=self.hooks.gathers.in_place)


def typical_block(blocks: list[Block], size_of: Callable[[Block], int]) -> int:
    """Bytes of the block in which the middle byte of a model lies, by the blocks' sizes."""
    sizes = sorted((size_of(block), block.nbytes) for block in blocks)
    left = sum(nbytes for _, nbytes in sizes) // 2
    for size, nbytes in sizes:
        left -= nbytes
        if left < 0:
            return size
    return 0


def needed_alone(block: Block) -> int:
    """Bytes of it that come and go without the rest: two of its experts, where it has any."""
    tensors = [slot.tensor for slot in block.slots]
    if min(tensor.dim() for tensor in tensors) < 3 or len({len(tensor) for tensor in tensors}) > 1:
        return block.nbytes
    row = block.nbytes // max(1, len(tensors[0]))
    return 2 * row if row >= MIN_CHUNK else block.nbytes


def chunk_size_for(paged: int, block: int) -> int:
    """The unit of paging: some hundreds of pages, where that is reasonable.

    Args:
        paged: Bytes of all blocks.
        block: Of a typical one: what comes alone, as an expert does, is to bring little else along.
    """
    size = MIN_CHUNK
    while size < min(MAX_CHUNK, block // 2 + 1):
        wanted = PAGES_AT_LEAST if size < CHEAP_CHUNK else PAGES_WANTED
        if size * 2 * wanted > paged:
            break
        size *= 2
    return size if paged >= 8 * MIN_CHUNK else 1
