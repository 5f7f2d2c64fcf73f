# SPDX-License-Identifier: Apache-2.0
"""What pages gain that travel encoded: without, with and without again, in one process.

    python benchmarks/compressed_pages.py --output benchmarks/results/compression/h100.json

`encoding` is what encodes the weights of `stream`: all of it, with page-locked memory for the
codes, and the time in which the device was busy with it.
`stream` is page-ins and nothing else: one row of numbers through 24 weights of 128 MiB within
1 GiB. `llama` and `flux` are models within several budgets: a forward of 1 x 1,024 tokens, and of
512 text tokens beside a picture's; 8 tokens behind 128. `computing` is a forward of 4 x 2,048,
which sets the pace itself. Bits are compared with the resident model's. `seventy` is a Llama-70B
shape that neither the card nor 118 GiB of host memory hold as it is, whose bits are compared
between budgets. `raw_ms` is what the weights that do not fit take over the link as they are: the
ideal of those who encode nothing.
`--small` runs everything in little on the emulated GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any
from unittest import mock

import torch
from kit.card import Card, same_bits, weight_bytes
from kit.measure import device_events, output_parser, spread
from kit.record import Record
from models.held_out import outputs, subject
from torch import nn

from penstock.native.pager import Pager
from penstock.units import GIB, MIB

SETTINGS = ("off", "bf16", "off")
TOKENS = 8


def decoding(step: Callable[[], Any], raw_bytes: float) -> dict[str, float]:
    """How fast the kernel alone decodes, of a step that brings in so many bytes by codes."""
    kernels = [event for event in device_events(step) if event.name == "penstock_decode"]
    busy_us = sum(event.device_time for event in kernels)
    return {"decode_us": round(busy_us, 1), "decode_gb_per_s": round(raw_bytes / busy_us / 1e3, 1)}


def figures(
    card: Card, held: Any, step: Callable[[], Any], references: Any, steps: int
) -> dict[str, Any]:
    """Times of a step, and what it moved."""
    exact = [same_bits(outputs(step()), references)]
    times = card.time(step, steps=steps, warmups=1 if steps else -1)
    exact.append(same_bits(outputs(step()), references))
    stats = held.stats()
    return {
        "exact": all(exact),
        **spread(times),
        "link_gb_per_s": round(held.link()[0], 2),
        "iteration_bytes_in": stats.iteration_bytes_in,
        "iteration_page_loads": stats.iteration_page_loads,
        "stall_ms": stats.stall_ms,
        "page_locked_bytes": stats.host_bytes,
        "device_bytes": stats.peak_device_bytes,
        "encoded_bytes": stats.encoded_bytes,
        "code_bytes": stats.code_bytes,
    }


@dataclass
class Work:
    """What is timed.

    Attributes:
        step: Runs it on a model.
        passes: Of the whole model, in it.
        touched_bytes: Of weights, in a pass.
        all_encoded: Whether all that comes in is, where anything is.
        others_bytes: That the resident model needs beside them.
        references: The resident model's results.
        times: Its spread.
    """

    name: str
    step: Callable[[Any], Any]
    passes: int
    touched_bytes: int
    all_encoded: bool = False
    others_bytes: int = 0
    steps: int = 0  # that are timed; 0: as many as the card's other works
    references: list[torch.Tensor] = field(default_factory=list)
    times: dict[str, Any] = field(default_factory=dict)

    def runs(self, card: Card, held: Any, watch: Any, budget: int) -> dict[str, Any]:
        """Times and bits within a budget, or what went wrong."""
        try:
            self.step(held.model)
            watch.forget()
            row = figures(card, held, partial(self.step, held.model), self.references, self.steps)
        except (MemoryError, RuntimeError) as error:
            return {"error": str(error).splitlines()[0][:300]}
        stats = held.stats()
        if self.all_encoded and stats.encoded_bytes and not card.small:
            raw_bytes = stats.iteration_bytes_in * stats.code_ratio
            row |= decoding(partial(self.step, held.model), raw_bytes)
        over = max(0, self.touched_bytes - budget + self.others_bytes)
        raw_ms = over / row["link_gb_per_s"] / 1e6 if row["link_gb_per_s"] else 0.0
        row["raw_ms"] = round(self.passes * raw_ms, 1)
        return {**row, "within_budget": watch.peak() <= budget}

    def run_resident(self, card: Card, model: nn.Module) -> None:
        """References and times."""
        before = card.allocated()
        card.forget_peak()
        self.references = [tensor.cpu() for tensor in outputs(self.step(model))]
        self.others_bytes = card.peak() - before
        self.times = spread(card.time(partial(self.step, model)))


def rows(
    card: Card,
    part: str,
    model: Callable[[], nn.Module],
    load: Any,
    works: list[Work],
    budgets: list[int],
    settings: tuple[str, ...] = SETTINGS,
    **more: Any,
) -> Iterator[dict[str, Any]]:
    """One row a setting, budget and work; without a resident model bits are those of the first."""
    for compress in settings:
        options = {"load": load, "compress": compress, **more}
        began = time.perf_counter()
        with card.attached(model(), budgets[0], **options) as (held, watch):
            attach_s = round(time.perf_counter() - began, 2)
            for work in works:
                work.references = work.references or [
                    tensor.cpu() for tensor in outputs(work.step(held.model))
                ]
            for budget in budgets:
                same = {"compress": compress, "budget_bytes": budget, "attach_s": attach_s}
                if budget != budgets[0]:
                    held.resize(budget + watch.kept)
                for work in works:
                    found = work.runs(card, held, watch, budget)
                    yield {"part": part, "work": work.name, **same, **found}


class Wide(nn.Sequential):
    """Weights that are read once for a single row."""

    def __init__(self, width: int) -> None:
        many = [nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(24)]
        super().__init__(*many)

    def load(self, name: str, to: torch.Tensor, device: torch.device) -> None:
        torch.manual_seed(int(name.split(".")[0]))
        to.copy_(torch.randn(to.shape, device=device, dtype=to.dtype) * 0.02)


def wide(card: Card) -> Wide:
    with torch.device("meta"):
        return Wide(256 if card.small else 8192).eval()


class Packing:
    """What Pager.pack() takes, while this is entered.

    Attributes:
        seconds: Of all calls.
        busy_s: While the device copied or computed; 0 without `profiled`.
    """

    def __init__(self, *, profiled: bool) -> None:
        self.seconds = self.busy_s = 0.0
        self._profiled, self._pack = profiled, Pager.pack
        self._patch = mock.patch.object(Pager, "pack", lambda *given: self._timed(*given))

    def __enter__(self) -> Packing:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _timed(self, *given: Any) -> Any:
        if not self._profiled:
            began = time.perf_counter()
            packed = self._pack(*given)
            self.seconds += time.perf_counter() - began
            return packed
        packed: list[Any] = []
        events = device_events(lambda: packed.append(self._pack(*given)))
        self.busy_s += union_us(events) / 1e6
        return packed[0]


def encoding(card: Card) -> Iterator[dict[str, Any]]:
    budget = MIB if card.small else GIB
    for attempt in range(4):  # in the first the driver compiles the kernels
        model = wide(card)
        load = partial(model.load, device=card.device)
        with (
            Packing(profiled=attempt == 3 and not card.small) as packing,
            card.attached(model, budget, load=load, compress="bf16") as (held, _),
        ):
            stats = held.stats()
        seconds = packing.busy_s or packing.seconds
        yield {
            "part": "encoding",
            "work": "busy" if packing.busy_s else "all",
            "seconds": round(seconds, 4),
            "encode_gb_per_s": round(stats.encoded_bytes / seconds / 1e9, 2),
            "encoded_bytes": stats.encoded_bytes,
            "code_bytes": stats.code_bytes,
        }


def union_us(events: Iterable[Any]) -> float:
    """How long at least one of them was under way."""
    total = end = 0.0
    for span in sorted((each.time_range.start, each.time_range.end) for each in events):
        total += max(0.0, span[1] - max(span[0], end))
        end = max(end, span[1])
    return total


def stream(card: Card) -> Iterator[dict[str, Any]]:
    resident = wide(card).to_empty(device=card.device)
    load = partial(resident.load, device=card.device)
    for name, parameter in resident.named_parameters():
        load(name, parameter.data)
    width = resident[0].in_features
    numbers = torch.randn(1, width, device=card.device, dtype=torch.bfloat16)
    weights = weight_bytes(resident)
    work = Work("page-ins alone", lambda model: model(numbers), 1, weights, all_encoded=True)
    work.run_resident(card, resident)
    budget = MIB if card.small else GIB
    del resident
    yield from rows(card, "stream", partial(wide, card), load, [work], [budget])


def _tokens(model: Any, prompt: dict[str, Any]) -> Any:
    return model.generate(**prompt)


def model_rows(
    card: Card, part: str, name: str, batch: int, length: int, budgets: list[int]
) -> Iterator[dict[str, Any]]:
    """A model of transformers or diffusers: forward, and in the part llama tokens."""
    recipe = subject(name, small=card.small)
    model = recipe.resident(card.device)
    weights = weight_bytes(model)
    given = recipe.make_inputs(model, batch, 16 if card.small else length, card.device)
    table = model.get_input_embeddings().weight.nbytes if recipe.generates else 0
    works = [Work(f"{name} {batch} x {length}", lambda model: model(**given), 1, weights - table)]
    if part == "llama":
        prompt = recipe.make_inputs(model, 1, 8 if card.small else 128, card.device)
        tokens = {"do_sample": False, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
        works.append(
            Work(
                f"{name}, {TOKENS} tokens",
                partial(_tokens, prompt={**prompt, **tokens, "disable_compile": True}),
                TOKENS,
                weights - table,
            )
        )
    for work in works:
        work.run_resident(card, model)
        yield {"part": part, "work": work.name, "compress": "resident", **work.times}
    if card.small:
        budgets = [weights * 2 // 3, weights // 2]
    del model
    load = recipe.loader(card.device)
    yield from rows(card, part, partial(recipe.build, "meta"), load, works, budgets)


def seventy(card: Card) -> Iterator[dict[str, Any]]:
    """More than the host holds as it is, built by the loader within what it does hold."""
    recipe = subject("llama-70b", small=card.small)
    recipe.dtype = torch.bfloat16
    model = recipe.build("meta")
    weights = weight_bytes(model)
    host = 3 * weights if card.small else 118 * GIB
    budgets = [weights * 2 // 3, weights // 2] if card.small else [48 * GIB, 24 * GIB]
    touched = weights - model.get_input_embeddings().weight.nbytes
    text = recipe.make_inputs(model, 1, 16 if card.small else 128, card.device)
    tokens = {"do_sample": False, "max_new_tokens": 2, "min_new_tokens": 2}
    prompt = {**text, **tokens, "disable_compile": True}
    works = [
        Work("llama-70b, 2 tokens", partial(_tokens, prompt=prompt), 2, touched, steps=10),
        Work("llama-70b 1 x 128", lambda model: model(**text), 1, touched, steps=3),
    ]
    rotary = type(model.model.rotary_emb)(model.config)
    recipe.buffers = {f"model.rotary_emb.{name}": value for name, value in rotary.named_buffers()}
    recipe.first_names = {name: name for name, _ in model.named_parameters()}
    load = recipe.loader(card.device)
    made = rows(card, "seventy", lambda: model, load, works, budgets, ("bf16",), host_memory=host)
    for row in made:
        yield {**row, "host_memory_bytes": host}


PARTS: dict[str, Callable[[Card], Iterator[dict[str, Any]]]] = {
    "encoding": encoding,
    "stream": stream,
    "llama": lambda card: model_rows(card, "llama", "llama", 1, 1024, [8 * GIB, 4 * GIB, 2 * GIB]),
    "computing": lambda card: model_rows(card, "computing", "llama", 4, 2048, [8 * GIB]),
    "flux": lambda card: model_rows(card, "flux", "flux", 1, 512, [8 * GIB]),
    "seventy": seventy,  # last, since it takes most of a large host
}


@torch.no_grad()
def main(argv: list[str] | None = None) -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="in little, on the emulated GPU")
    args = parser.parse_args(argv)
    card, record = Card(small=args.small), Record(args.output, card=not args.small)
    for row in chain.from_iterable(PARTS[name](card) for name in args.parts):
        record.add(row)
    return int(not all(row.get("exact", True) for row in record.rows))


if __name__ == "__main__":
    raise SystemExit(main())
