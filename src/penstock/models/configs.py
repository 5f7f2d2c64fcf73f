# SPDX-License-Identifier: Apache-2.0
"""The shapes of the GPT models, and what follows from a shape alone: parameters, bytes, FLOPs.

Invariant: ``parameter_shapes()`` names exactly the state dict of ``models.gpt.GPT`` in the order
in which a forward pass uses it; every other figure is derived from it. Pure Python: torch is
never imported, so that an estimate works on a machine without it.

The named ones (`shapes`) have, but for OPT's, what the runner has that Penstock descends from:
50,257 words, 1,024 positions at most and an lm_head untied from the token embedding. A checkpoint
in the Hugging Face layout says itself whether it is tied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from penstock.errors import UsageError

from .shapes import SHAPES, Shape, find_shape, unknown_model

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_DTYPE_ALIASES = {
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
}
_WORDS, _POSITIONS = 50257, 1024


def dtype_name(dtype: object) -> str:
    """The full name ("float16") of a dtype given by name ("fp16", "half") or as a torch.dtype.

    Raises:
        UsageError: If it is none of float32, float16, bfloat16 and their short names.
    """
    name = str(dtype).removeprefix("torch.").lower()
    name = _DTYPE_ALIASES.get(name, name)
    if name not in _DTYPE_BYTES:
        raise UsageError(f"unknown dtype '{dtype}'", remedy="float32, float16 or bfloat16")
    return name


def dtype_bytes(dtype: object) -> int:
    """Bytes of one element of `dtype`, named as in `dtype_name`."""
    return _DTYPE_BYTES[dtype_name(dtype)]


@dataclass(frozen=True)
class GPTConfig:
    """The shape of one GPT: everything that decides its parameters and its function.

    Attributes:
        name: What it is called in messages and results.
        n_layers: Transformer blocks.
        n_heads: Attention heads; divides `d_model`.
        d_model: Hidden size.
        vocab_size: Rows of the token embedding and of the logits.
        n_positions: Longest sequence, in tokens.
        d_ff: Inner size of the feed-forward part; 0 stands for 4 x `d_model`.
        tied: Whether lm_head uses the token embedding's own matrix.
        dropout: Probability, active in training only.
        norm_eps: Epsilon of the layer norms.
    """

    name: str
    n_layers: int
    n_heads: int
    d_model: int
    vocab_size: int = _WORDS
    n_positions: int = _POSITIONS
    d_ff: int = 0
    tied: bool = False
    dropout: float = 0.1
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Fill in `d_ff` and refuse shapes that cannot be built.

        Raises:
            UsageError: If a size is not positive, or the heads do not divide the hidden size.
        """
        if self.d_ff == 0:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        for field in ("n_layers", "n_heads", "d_model", "vocab_size", "n_positions", "d_ff"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{self.name}: {field} is {value!r}", remedy="a whole number >= 1")
        if self.d_model % self.n_heads:
            raise UsageError(
                f"{self.name}: {self.n_heads} heads do not divide a hidden size of {self.d_model}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise UsageError(f"{self.name}: dropout is {self.dropout}", remedy="0 <= dropout < 1")

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.d_model // self.n_heads

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in the order in which a forward pass uses them.

        A tied lm_head is listed too, as the state dict does; see `parameter_count` for the sum
        that counts it once.
        """
        shapes: dict[str, tuple[int, ...]] = {
            "token_embedding.weight": (self.vocab_size, self.d_model),
            "position_embedding.weight": (self.n_positions, self.d_model),
        }
        for layer in range(self.n_layers):
            for name, shape in self._block_shapes().items():
                shapes[f"blocks.{layer}.{name}"] = shape
        shapes["final_norm.weight"] = (self.d_model,)
        shapes["final_norm.bias"] = (self.d_model,)
        shapes["lm_head.weight"] = (self.vocab_size, self.d_model)
        return shapes

    def _block_shapes(self) -> dict[str, tuple[int, ...]]:
        d, d_ff = self.d_model, self.d_ff
        return {
            "attn_norm.weight": (d,),
            "attn_norm.bias": (d,),
            "attn.qkv.weight": (3 * d, d),
            "attn.qkv.bias": (3 * d,),
            "attn.out.weight": (d, d),
            "attn.out.bias": (d,),
            "mlp_norm.weight": (d,),
            "mlp_norm.bias": (d,),
            "mlp.up.weight": (d_ff, d),
            "mlp.up.bias": (d_ff,),
            "mlp.down.weight": (d, d_ff),
            "mlp.down.bias": (d,),
        }

    def parameter_count(self) -> int:
        """All parameters, a tied matrix counted once."""
        total = sum(prod(shape) for shape in self.parameter_shapes().values())
        return total - self.vocab_size * self.d_model if self.tied else total

    def module_parameter_counts(self) -> dict[str, int]:
        """Parameters of every module that owns any, in order of use; the unit of paging.

        A tied lm_head is listed with the matrix it shares.
        """
        counts: dict[str, int] = {}
        for name, shape in self.parameter_shapes().items():
            module = name.rpartition(".")[0]
            counts[module] = counts.get(module, 0) + prod(shape)
        return counts

    def weight_bytes(self, dtype: object) -> int:
        """Bytes of all parameters in `dtype`."""
        return self.parameter_count() * dtype_bytes(dtype)

    def largest_module_bytes(self, dtype: object) -> int:
        """Bytes of the largest module in `dtype`: what has to be resident at one moment."""
        return max(self.module_parameter_counts().values()) * dtype_bytes(dtype)

    def activation_bytes(self, batch: int, seq_len: int, dtype: object) -> int:
        """Estimated peak of the activations of one forward pass without a graph.

        The largest of three places: attention (residual, its normed copy, queries, keys and
        values, the result and its copy in order), the feed-forward part (residual, its normed
        copy, the inner tensor before and after GELU) and the end (residual, its normed copy, the
        logits). Workspace of the matrix products is not counted.
        """
        d = self.d_model
        width = max(7 * d, 2 * d + 2 * self.d_ff, 2 * d + self.vocab_size)
        return batch * seq_len * width * dtype_bytes(dtype)

    def flops_per_token(self, seq_len: int) -> int:
        """Floating-point operations of a forward pass, averaged over the tokens of a sequence.

        Two for every multiply-add of the matrix products, lm_head included, and of causal
        attention over the (seq_len + 1) / 2 positions that a token sees on average.
        """
        weights = self.n_layers * (4 * self.d_model**2 + 2 * self.d_model * self.d_ff)
        weights += self.vocab_size * self.d_model
        attention = 2 * self.n_layers * self.d_model * (seq_len + 1)
        return 2 * weights + attention


def _config(shape: Shape) -> GPTConfig | None:
    """A shape as a GPT; None for architectures that are none."""
    fields = shape.fields
    if shape.model_type == "gpt2":
        return GPTConfig(
            shape.name,
            n_layers=fields["n_layer"],
            n_heads=fields["n_head"],
            d_model=fields["n_embd"],
            vocab_size=fields.get("vocab_size", _WORDS),
            n_positions=min(shape.positions, _POSITIONS),
            d_ff=fields.get("n_inner", 0),
        )
    if shape.model_type == "opt":
        return GPTConfig(
            shape.name,
            n_layers=fields["num_hidden_layers"],
            n_heads=fields["num_attention_heads"],
            d_model=fields["hidden_size"],
            vocab_size=50272,
            n_positions=shape.positions,
            tied=True,
        )
    return None


CONFIGS = {shape.name: config for shape in SHAPES.values() if (config := _config(shape))}


def get_config(name: str, **changes: Any) -> GPTConfig:
    """The shape called `name`, with some fields changed.

    Args:
        name: A key of `CONFIGS` or `ALIASES`; not case-sensitive, "-" reads as "_".
        **changes: Fields of `GPTConfig` to replace, such as ``tied=True``. A new `d_model`
            brings a `d_ff` of four times its size with it, unless that is given too.

    Raises:
        UsageError: If there is no such model, with the nearest name, or it is no GPT.
    """
    shape = find_shape(str(name))
    if shape is None:
        raise unknown_model(name, folder=False)
    if shape.name not in CONFIGS:
        raise UsageError(
            f"{shape.name} is of the architecture {shape.model_type}, and no GPT",
            remedy=f"penstock finetune --model {shape.name}",
        )
    if "d_model" in changes:
        changes.setdefault("d_ff", 0)
    return replace(CONFIGS[shape.name], **changes)
