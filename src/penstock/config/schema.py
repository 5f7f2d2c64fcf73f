# SPDX-License-Identifier: Apache-2.0
"""The table of options: `Settings` is the table, one field an option.

Invariant: everything there is to say about an option is said once, here. Its default, its type,
its flag (``--gpu-memory``), its variable (``PENSTOCK_GPU_MEMORY``), its key in a file
(``gpu_memory``, or ``capacity`` in the table ``emulated``) and its row in the documentation all
follow from its field. An option is listed only when something obeys it. Nothing here changes
after import.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import UsageError

from . import kinds
from .kinds import Kind

PREFIX = "PENSTOCK_"

# The prefixes of ancestors whose variables somebody may misspell.
ANCESTORS = ("ULMS_",)

# The tables of a file, beside its top.
TABLES = ("allocator", "emulated")

# When the allocator stitches, in the order of GMLake's defragLevel.
STITCH_WHEN = ("first", "when-full", "after-release", "never")

# What `penstock.fusion` can fuse, in its own order.
FUSIONS = (
    "baseline",
    "dropout_layernorm",
    "attention_layernorm",
    "attention_projection",
    "ffn_layernorm",
    "auto",
)

# Variables that are read, but are not options: they must be known before options are.
OTHER_VARIABLES: dict[str, str] = {
    "PENSTOCK_LIBRARY": "another libpenstock.so than the one that came with the package",
}


@dataclass(frozen=True)
class Alias:
    """A variable of one of Penstock's ancestors that sets an option.

    Attributes:
        variable: Its name.
        convert: Turns its text into text for the option.
    """

    variable: str
    convert: Callable[[str], str]


@dataclass(frozen=True)
class Option:
    """One row of the table.

    Attributes:
        field: Its name in `Settings` and as an API argument.
        kind: How its values are read.
        default: Its value where nobody says anything.
        summary: One line for help texts.
        details: What a user may want to know beyond that.
        aliases: Variables of the ancestors that set it.
    """

    field: str
    kind: Kind
    default: Any
    summary: str
    details: str
    aliases: tuple[Alias, ...]

    @property
    def key(self) -> str:
        """The key in a file, with its table: ``emulated.capacity``."""
        table, _, leaf = self.field.partition("_")
        return f"{table}.{leaf}" if table in TABLES else self.field

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.field.upper()

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.field.replace("_", "-")


def _option(
    default: Any,
    kind: Kind,
    summary: str,
    *,
    details: str = "",
    aliases: tuple[Alias, ...] = (),
) -> Any:
    """A field of `Settings` that carries its row of the table."""
    row = {"kind": kind, "summary": summary, "details": details, "aliases": aliases}
    return dataclasses.field(default=default, metadata=row)


def _factor(text: str) -> str:
    """ULMS_GPU_MEMORY_FACTOR is a bare number of percent."""
    return text.strip().removesuffix("%") + "%"


def _level(text: str) -> str:
    """ULMS_LOG_LEVEL is ERROR, WARN, INFO or DEBUG."""
    return "warning" if text.strip().lower() == "warn" else text


def _gmlake_level(text: str) -> str:
    """GMLAKE_INFO says INFO, or nothing that its owner knows."""
    return "info" if text.strip().upper() == "INFO" else "warning"


def _gmlake_bytes(text: str) -> str:
    """A bare number of bytes, of which 0 stands for no limit."""
    return "1" if text.strip() == "0" else text


def _gmlake_gib(text: str) -> str:
    """A bare number of GiB."""
    return f"{text.strip()}GiB"


def _gmlake_when(text: str) -> str:
    """GMLake knows levels 0 to 2; from 3 on it stitches nothing."""
    number = text.strip()
    if not (number.isascii() and number.isdigit()):
        return text
    return STITCH_WHEN[min(int(number), len(STITCH_WHEN) - 1)]


@dataclass(frozen=True)
class Settings:
    """What every part of Penstock obeys; sizes stay as text until a total is known."""

    device: str = _option(
        "auto",
        kinds.device(),
        "Where to run: a GPU, or the emulated one.",
        details="auto takes the first NVIDIA GPU, and the emulated GPU where there is none. The "
        "emulated GPU lives in host memory: it shows that a run is correct, not how fast it is.",
    )
    gpu_memory: str = _option(
        "auto",
        kinds.size(percent_of="the GPU's memory"),
        "The budget: device memory that may be used.",
        details="Weights, activations and workspace share it. auto takes 90 % of what is free "
        "on the device; run takes what is free less a 16th, 1 GiB at most. A budget that cannot "
        "hold the largest layer is refused, with the smallest that works.",
        aliases=(Alias("ULMS_GPU_MEMORY_FACTOR", _factor),),
    )
    host_memory: str = _option(
        "auto",
        kinds.size(percent_of="the host's memory"),
        "The most host memory that evicted data may take.",
        details="auto allows what the machine, or its control group, has available. The memory "
        "is page-locked, so the limit of `ulimit -l` may apply as well.",
    )
    chunk_size: str = _option(
        "auto",
        kinds.size(),
        "The unit of paging.",
        details="Rounded up to the device's granularity, 2 MiB as a rule. Larger chunks cost "
        "fewer mapping calls and waste more at the edges. auto goes by the model's size.",
    )
    look_ahead: str = _option(
        "auto",
        kinds.size(),
        "Bytes to keep on their way ahead of the running layer.",
        details="More hides longer stalls, and takes room from what stays resident. auto is a few "
        "chunks.",
    )
    safety: str = _option(
        "normal",
        kinds.choice("normal", "strict", "fast"),
        "What becomes of an evicted page's address.",
        details="normal unmaps it before its memory holds anything else, so that a kernel that "
        "reaches a block unseen finds the block's own data, or faults. fast leaves it mapped, "
        "which makes a steady iteration free of mapping calls: such a kernel may read and write "
        "other data. strict is normal with every operator of every pass checked; under penstock "
        "run it maps the page's copy on the host there: what reaches it unseen is slow, and right.",
    )
    compress: str = _option(
        "off",
        kinds.choice("off", "auto", "bf16"),
        "Whether bf16 weights cross the link encoded, lossless.",
        details="bf16: weights of that dtype take some 0.7 of their size in host memory and on the "
        "link, and the device decodes them. auto does so where the model does not fit.",
    )
    record: str = _option(
        "",
        kinds.file(),
        "The file in which penstock run records what the program does.",
        details="Every allocation and every piece of work with what it touches, for penstock "
        "simulate. The first process and GPU get this file, others one with their numbers behind "
        "the name. Empty records nothing.",
    )
    summary: bool = _option(
        False,
        kinds.boolean(),
        "Say at the end of penstock run what was seen, even if nothing was paged.",
        details="One line on stderr. Where something was paged it is there anyway.",
    )
    fusion: str = _option(
        "baseline",
        kinds.choices(*FUSIONS),
        "What is fused in each layer: a list of variants.",
        details="Every variant computes the same function of the same weights. baseline is torch's "
        "own layers, auto what was measured fastest for this GPU, dtype and shape; both stand "
        "alone. docs/fusion.md says what each does and when it pays.",
    )
    compile: bool = _option(
        False,
        kinds.boolean(),
        "Compile the layers with torch.compile.",
        details="For --memory resident: where weights are paged, the hooks between modules leave "
        "a compiler nothing to fuse.",
    )
    cuda_graph: bool = _option(
        False,
        kinds.boolean(),
        "Run a step as one CUDA graph.",
        details="For --memory resident on a GPU: a graph holds addresses, so nothing may be paged. "
        "The host then starts one thing a step, or a token, instead of hundreds.",
    )
    log_level: str = _option(
        "warning",
        kinds.choice("error", "warning", "info", "debug"),
        "Lowest level to log, on stderr.",
        aliases=(Alias("ULMS_LOG_LEVEL", _level), Alias("GMLAKE_INFO", _gmlake_level)),
    )
    verbose: bool = _option(
        False,
        kinds.boolean(),
        "Log at least at level info; show tracebacks.",
    )
    allocator_stitch: bool = _option(
        True,
        kinds.boolean(),
        "Whether Penstock allocates for PyTorch.",
        details="false leaves PyTorch's own caching allocator in place. In GMLake as well it is "
        "on by default.",
        aliases=(Alias("vmmDefragment", str),),
    )
    allocator_stitch_limit: str = _option(
        "auto",
        kinds.size(),
        "The smallest request that may be stitched.",
        details="Smaller ones get an unbroken piece. auto packs recorded work best at little "
        "cost. GMLake's default is 512 MiB (32 MiB for PyTorch 1.13): it makes 2 MiB accessible "
        "at a time, Penstock a whole range.",
        aliases=(Alias("fragLimit", _gmlake_bytes), Alias("fragment_limit", _gmlake_bytes)),
    )
    allocator_stitch_when: str = _option(
        "first",
        kinds.choice(*STITCH_WHEN),
        "When to stitch.",
        details="first does so before the device is asked for more memory, when-full once it has "
        "no more to give, after-release once cached memory was given back as well. GMLake's "
        "default is 0, first (1 for PyTorch 1.13).",
        aliases=(Alias("defragLevel", _gmlake_when), Alias("defragment_level", _gmlake_when)),
    )
    allocator_reuse_limit: str = _option(
        "auto",
        kinds.factor(),
        "Maximum size of a stitched range, as a multiple of the request it serves.",
        details="What it has beyond the request stays free for others. GMLake's default is 10.",
        aliases=(Alias("reuseLimit", str),),
    )
    allocator_range_limit: str = _option(
        "auto",
        kinds.size(),
        "Addresses that stitched ranges may span before unused ones are given up.",
        details="The least recently used go first, and only as many as it takes. GMLake's default "
        "is 1000 GiB (80 GiB for PyTorch 1.13), at which it drops all that are unused.",
        aliases=(Alias("autoGC", _gmlake_gib), Alias("auto_gc_limits", _gmlake_gib)),
    )
    allocator_grow_exactly: bool = _option(
        True,
        kinds.boolean(),
        "Whether a request that free memory serves in part takes only the rest from the device.",
        details="Old chunks and new ones are then stitched. GMLake's default is no.",
        aliases=(Alias("reAlloc", str),),
    )
    allocator_chunk: str = _option(
        "auto",
        kinds.size(),
        "The allocator's unit of device memory.",
        details="A power of two, and a multiple of the device's granularity (2 MiB as a rule). "
        "Larger chunks cost fewer mapping calls and leave more at the edges; auto is a few MiB. "
        "GMLake's is 2 MiB and fixed.",
    )
    allocator_growth: str = _option(
        "auto",
        kinds.size(),
        "The least to map at once while memory in use is growing fast.",
        details="More costs fewer mapping calls at the start, and may be left over at the end. "
        "auto is a few chunks. GMLake maps what the request at hand needs.",
    )
    emulated_capacity: str = _option(
        "auto",
        kinds.size(),
        "Memory of the emulated GPU.",
        details="auto takes a size that fits the host.",
    )
    emulated_granularity: str = _option(
        "auto",
        kinds.size(),
        "Granularity of the emulated GPU's memory.",
        details="A power of two from 4 KiB on. auto is 2 MiB, as GPUs have; less lets a small "
        "model run in less than its weights.",
    )
    emulated_delay_us: int = _option(
        0,
        kinds.integer(0, 1_000_000),
        "Longest random delay of its work, in microseconds.",
        details="Delays show whether any work forgot to wait for other work. 0 is no delay.",
    )
    emulated_seed: int = _option(
        0,
        kinds.integer(0, 2**63 - 1),
        "Seed of its random delays.",
    )


OPTIONS: tuple[Option, ...] = tuple(
    Option(field=field.name, default=field.default, **field.metadata)
    for field in dataclasses.fields(Settings)
)
BY_KEY = {option.key: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}


def nearest(name: str, known: list[str]) -> str | None:
    """The known name that `name` was most likely meant to be."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def find_option(name: str) -> Option:
    """The option that goes by `name`: a key, a field, a flag, a variable or an alias.

    Raises:
        UsageError: If there is none; the remedy names the nearest.
    """
    wanted = name.strip()
    for option in OPTIONS:
        names = {option.key, option.field, option.flag, option.variable}
        names.update(alias.variable for alias in option.aliases)
        if wanted in names or wanted.replace("-", "_") == option.field:
            return option
    suggestion = nearest(wanted.lower(), list(BY_KEY)) or nearest(wanted, list(BY_VARIABLE))
    remedy = suggestion or "penstock config show lists them"
    raise UsageError(f"there is no option '{name}'", remedy=remedy)
