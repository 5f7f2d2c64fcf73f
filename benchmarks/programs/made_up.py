# SPDX-License-Identifier: Apache-2.0
"""Recordings of programs made up, of kinds that people run, for simulate_ratios.py.

A program is what its layers touch, launch by launch, with blocks made and freed as PyTorch's
allocator is asked to. Kernels take the time that their bytes and a share of arithmetic take on an
H200; nothing here was measured. What is random is so by a fixed seed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from penstock.trace.work import (
    HEADER,
    MAGIC,
    OP_ALLOCATE,
    OP_FREE,
    OP_TOUCH,
    OP_WORK,
    RECORD,
    VERSION,
    WRITTEN,
)

MIB = 1 << 20
MEMORY_BYTES_PER_NS = 3000.0
DEVICE_BYTES = 141 << 30
KERNEL, COPY = 0, 1


class Recording:
    """Records of a program on one stream."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, int, int, int]] = []
        self.sizes: dict[int, int] = {}
        self.now = 1000
        self.blocks = 0

    def make(self, size: float) -> int:
        self.blocks += 1
        self.sizes[self.blocks] = max(int(size), 512)
        self.records.append((OP_ALLOCATE, 0, 0, self.blocks, self.now, self.sizes[self.blocks]))
        return self.blocks

    def free(self, *blocks: int) -> None:
        self.records += [(OP_FREE, 0, 0, block, self.now, 0) for block in blocks]

    def work(self, *blocks: int, function: int = 1, times: float = 1.0, kind: int = KERNEL) -> None:
        """times: what the arithmetic takes, in the time that memory does."""
        self.records.append((OP_WORK, 0, kind, len(blocks), self.now, function))
        self.records += [(OP_TOUCH, WRITTEN, 0, block, 0, self.sizes[block]) for block in blocks]
        touched = sum(self.sizes[block] for block in blocks)
        self.now += int(3000 + times * touched / MEMORY_BYTES_PER_NS)

    def weights(self, sizes: Iterable[float]) -> list[int]:
        made = []
        for size in sizes:
            made.append(self.make(size))
            self.work(made[-1], kind=COPY)
        return made

    def write(self, path: Path) -> None:
        header = np.zeros((), HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        header["header_bytes"], header["record_bytes"] = HEADER.itemsize, RECORD.itemsize
        header["budget"] = header["device_bytes"] = DEVICE_BYTES
        with path.open("wb") as stream:
            stream.write(header.tobytes())
            stream.write(b"".join(struct.pack("<BBHIQQ", *record) for record in self.records))


LAYER = (50.0, 12.0, 50.0, 118.0, 118.0, 118.0)  # MiB: q, kv, o, gate, up, down


def layers(program: Recording, count: int, scale: float = 1.0) -> list[list[int]]:
    return [
        [
            *program.weights(scale * MIB * size for size in LAYER),
            *program.weights([16384.0, 16384.0]),
        ]
        for _ in range(count)
    ]


def through(program: Recording, layer: list[int], x: int, times: float) -> int:
    """One layer's launches; what comes out is as large as what went in."""
    size = program.sizes[x]
    *matrices, norm, other = layer
    for matrix in matrices:
        y = program.make(size)
        program.work(x, norm, y, function=2)
        z = program.make(size)
        program.work(y, matrix, z, function=3, times=times)
        program.work(z, other, function=4)
        program.free(y, x)
        x = z
    return x


def passed(program: Recording, model: list[list[int]], size: float, times: float) -> None:
    """A forward pass of so many bytes."""
    x = program.make(size)
    for layer in model:
        x = through(program, layer, x, times)
    program.free(x)


def forward(program: Recording) -> None:
    """Forwards of batches of random length."""
    rng = random.Random(1)
    model = layers(program, 32)
    for _ in range(10):
        passed(program, model, MIB * rng.randint(4, 24), 8)


def decode(program: Recording, model: list[list[int]], tokens: int, prompt: float) -> None:
    caches: list[int] = []
    for token in range(tokens):
        x = program.make(prompt if token == 0 else 8192)
        for index, layer in enumerate(model):
            x = through(program, layer, x, 4 if token == 0 else 1)
            longer = program.make(prompt + 8192 * token)
            if token > 0:
                program.work(caches[index], longer, function=5)
                program.free(caches[index])
                caches[index] = longer
            else:
                program.work(x, longer, function=6)
                caches.append(longer)
        program.free(x)
    program.free(*caches)


def encoder_decoder(program: Recording) -> None:
    """An encoder, and a decoder for a random number of tokens, again and again."""
    rng = random.Random(2)
    encoder, decoder = layers(program, 24, 0.5), layers(program, 24, 0.5)
    for _ in range(8):
        x = program.make(8 * MIB)
        for layer in encoder:
            x = through(program, layer, x, 6)
        decode(program, decoder, rng.randint(6, 14), 2.0 * MIB)
        program.free(x)


def unet(program: Recording) -> None:
    """Pictures: a text encoder, twelve steps of a U-Net with skips, a decoder."""
    text, vae = layers(program, 12, 0.6), layers(program, 4, 0.4)
    down, up = layers(program, 10, 0.8), layers(program, 10, 1.0)
    for _ in range(5):
        x = program.make(MIB)
        for layer in text:
            x = through(program, layer, x, 2)
        for _ in range(12):
            skips = []
            y = program.make(16 * MIB)
            for layer in down:
                y = through(program, layer, y, 10)
                skip = program.make(16 * MIB)
                program.work(y, skip, function=7)
                skips.append(skip)
            for layer in up:
                skip = skips.pop()
                program.work(y, skip, function=8)
                program.free(skip)
                y = through(program, layer, y, 10)
            program.free(y)
        program.free(x)
        passed(program, vae, 64.0 * MIB, 4)


def train(program: Recording, model: list[list[int]], states: dict[int, list[int]], x_bytes: float,
          trained: Callable[[int], bool]) -> None:  # fmt: skip
    """A step with recomputation: a checkpoint a layer, gradients that are new in each step."""
    checkpoints = []
    x = program.make(x_bytes)
    for layer in model:
        kept = program.make(x_bytes)
        program.work(x, kept, function=9)
        checkpoints.append(kept)
        x = through(program, layer, x, 10)
    gradients: dict[int, int] = {}
    for layer in reversed(model):
        kept = checkpoints.pop()
        y = program.make(x_bytes)
        program.work(kept, y, function=9)
        y = through(program, layer, y, 10)
        for weight in reversed(layer):
            program.work(x, weight, y, function=10, times=10)
            if trained(weight):
                gradients[weight] = program.make(program.sizes[weight])
                program.work(x, y, gradients[weight], function=11, times=10)
        program.free(y, kept)
    program.free(x)
    group: list[int] = []
    tensors = 0
    for weight in (w for layer in model for w in layer if trained(w)):
        if weight not in states:
            states[weight] = [program.make(program.sizes[weight]) for _ in range(2)]
        group += [weight, gradients[weight], *states[weight]]
        tensors += 1
        if tensors == 16:
            program.work(*group, function=12)
            group, tensors = [], 0
    if group:
        program.work(*group, function=12)
    program.free(*gradients.values())


def adamw(program: Recording) -> None:
    """All weights trained, by an optimizer that takes sixteen tensors at a launch."""
    model = layers(program, 16, 0.5)
    states: dict[int, list[int]] = {}
    for _ in range(9):
        train(program, model, states, 24.0 * MIB, lambda _: True)


def lora(program: Recording) -> None:
    """Small matrices trained beside large ones that are not."""
    model = layers(program, 24)
    for layer in model:
        layer[-2:-2] = program.weights([0.25 * MIB] * 4)
    small = {w for layer in model for w in layer if program.sizes[w] < MIB}
    states: dict[int, list[int]] = {}
    for _ in range(7):
        train(program, model, states, 24.0 * MIB, small.__contains__)


def phases(program: Recording) -> None:
    """Two models' forwards, in turns of random length."""
    rng = random.Random(3)
    first, second = layers(program, 16), layers(program, 16)
    for _ in range(24):
        model = first if rng.random() < 0.5 else second
        for _ in range(rng.randint(1, 3)):
            passed(program, model, MIB * rng.randint(4, 16), 8)


def at_random(program: Recording, weights: list[float]) -> None:
    rng = random.Random(4)
    blocks = program.weights([32.0 * MIB] * len(weights))
    for _ in range(12000):
        x = program.make(MIB)
        (block,) = rng.choices(blocks, weights)
        program.work(x, block, function=3, times=16)
        for _ in range(3):
            program.work(x, function=4)
        program.free(x)


def chance(program: Recording) -> None:
    """Any block is as likely as any other."""
    at_random(program, [1.0] * 400)


def hot_and_cold(program: Recording) -> None:
    """A tenth of the blocks gets half of the work."""
    at_random(program, [9.0 if i % 10 == 0 else 1.0 for i in range(400)])


def mixture(program: Recording, spread: float, stay: float) -> None:
    """Tokens of 12 layers with 24 experts each, of which 4 are chosen.

    spread: of the logarithms of how likely experts are; stay: how often one is chosen again.
    """
    rng = random.Random(7)
    model = [program.weights([24.0 * MIB] * 26) for _ in range(12)]
    likely = [[rng.lognormvariate(0, spread) for _ in range(24)] for _ in model]
    chosen: list[list[int]] = [[] for _ in model]
    for _ in range(150):
        x = program.make(MIB)
        for i, (queries, out, *experts) in enumerate(model):
            program.work(x, queries, function=3)
            program.work(x, out, function=3)
            chosen[i] = [expert for expert in chosen[i] if rng.random() < stay]
            rest = [expert for expert in range(24) if expert not in chosen[i]]
            while len(chosen[i]) < 4:
                (expert,) = rng.choices(rest, [likely[i][other] for other in rest])
                rest.remove(expert)
                chosen[i].append(expert)
            for expert in chosen[i]:
                program.work(x, experts[expert], function=5)
            program.work(x, function=4)
        program.free(x)


def experts_even(program: Recording) -> None:
    """Any expert is as likely as any other."""
    mixture(program, spread=0.0, stay=0.0)


def experts_skewed(program: Recording) -> None:
    """Some are chosen far more often than others."""
    mixture(program, spread=1.0, stay=0.0)


def experts_that_stay(program: Recording) -> None:
    """Half of a token's are the next one's as well."""
    mixture(program, spread=0.5, stay=0.5)


PROGRAMS = {
    each.__name__: each
    for each in (
        *(adamw, lora, forward, encoder_decoder, unet, phases, chance, hot_and_cold),
        *(experts_even, experts_skewed, experts_that_stay),
    )
}


def write_program(name: str, folder: Path) -> Path:
    """The recording's path."""
    program = Recording()
    PROGRAMS[name](program)
    path = folder / f"{name}.rec"
    program.write(path)
    return path
