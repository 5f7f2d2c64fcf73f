# SPDX-License-Identifier: Apache-2.0
"""Fused layers as nn.Modules, and the block of a GPT that is made of them.

Invariants: the parameters are named and shaped as in `models.gpt`, so a state dict fits both; in
evaluation every matrix is used only inside the forward of the module that owns it, so that a pager
brings it in by that module's hooks (the vectors of a LayerNorm are used where its result is, and
are small enough to stay). No weight has a second copy: gamma is applied inside the kernel, and
what is derived from a matrix are two vectors of its rows. A module follows train() and eval() at
every call.

Shape suffixes as in `models.gpt`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.models.configs import GPTConfig
from penstock.models.gpt import Attention, KVCache

from .dropout_layernorm import dropout_add, dropout_add_layer_norm
from .ffn import layer_norm_mlp
from .layernorm_gemm import layer_norm_linear, residual_linear
from .product import Folded
from .variants import Fusion, parse


class Pending(NamedTuple):
    """A residual stream and what is still to be dropped out and added to it.

    Attributes:
        hidden_BTD: Result of the last product, without its bias.
        bias_D: That bias.
        residual_BTD: The stream.
        p: Probability to be dropped.
    """

    hidden_BTD: Tensor
    bias_D: Tensor | None
    residual_BTD: Tensor
    p: float

    def add(self) -> Tensor:
        """The stream with it."""
        return dropout_add(self.hidden_BTD, self.residual_BTD, p=self.p, x_bias=self.bias_D)


Stream = Tensor | Pending


class DropoutAddLayerNorm(nn.LayerNorm):
    """LayerNorm(residual + dropout(x)) in one kernel; returns it and the sum.

    Args:
        size: N.
        p: Probability to be dropped in training.
        eps: Added to the variance.
    """

    def __init__(self, size: int, *, p: float = 0.0, eps: float = 1e-5) -> None:
        super().__init__(size, eps=eps)
        self.p = p

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Both (..., N); see `dropout_layernorm.dropout_add_layer_norm`."""
        p = self.p if self.training else 0.0
        return dropout_add_layer_norm(x, residual, self.weight, self.bias, p=p, eps=self.eps)


class StreamNorm(nn.LayerNorm):
    """A LayerNorm that first adds what is pending, in the same kernel."""

    def forward(self, stream: Stream) -> Tensor:  # type: ignore[override]
        """The LayerNorm of the stream."""
        return self.both(stream)[0]

    def both(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """The LayerNorm of the stream, and the stream with what was pending."""
        if isinstance(stream, Pending):
            return dropout_add_layer_norm(
                stream.hidden_BTD,
                stream.residual_BTD,
                self.weight,
                self.bias,
                p=stream.p,
                x_bias=stream.bias_D,
                eps=self.eps,
            )
        return super().forward(stream), stream


class NormLinear(nn.Linear):
    """A linear layer that may take a LayerNorm before it and an activation behind it."""

    def __init__(self, size_in: int, size_out: int, bias: bool = True) -> None:
        super().__init__(size_in, size_out, bias)
        self._folded = Folded()

    def forward(  # type: ignore[override]
        self, x: Tensor, norm: nn.LayerNorm | None = None, activation: str | None = None
    ) -> Tensor:
        """``act(norm(x) @ W.T + b)``."""
        if norm is None:
            return super().forward(x)
        return layer_norm_linear(
            x,
            norm.weight,
            norm.bias,
            self.weight,
            self.bias,
            eps=norm.eps,
            activation=activation,
            folded=self._folded,
        )


class ResidualLinear(nn.Linear):
    """A linear layer that may add a residual, or leave its bias to who comes next."""

    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor | None = None, *, with_bias: bool = True
    ) -> Tensor:
        """``residual + x @ W.T + b``."""
        if residual is not None:
            return residual_linear(x, self.weight, self.bias, residual)
        return F.linear(x, self.weight, self.bias if with_bias else None)


class FusedAttention(Attention):
    """`models.gpt.Attention` on fused projections; the norm before and the sum behind are its own.

    Args:
        config: Shape of the model.
        layer: Number of the block.
        fusion: Its variants.
    """

    def __init__(self, config: GPTConfig, layer: int, fusion: Fusion) -> None:
        super().__init__(config, layer)
        self.qkv = NormLinear(config.d_model, 3 * config.d_model)
        self.out = ResidualLinear(config.d_model, config.d_model)
        self.fusion = fusion

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, norm: StreamNorm, stream: Tensor, cache: KVCache | None = None
    ) -> Stream:
        """The stream with the attention's part, or the two side by side.

        Args:
            x_BTD: Input of the first projection: `stream` where `norm` is still to be applied.
            norm: Applied to x_BTD by the projection, where `attention_layernorm` is chosen.
            stream: The residual stream, without anything pending.
            cache: Keys and values of earlier tokens.
        """
        fusion, p = self.fusion, self.dropout_p if self.training else 0.0
        qkv_BTE = self.qkv(x_BTD, norm if fusion.attention_layernorm else None)
        y_BTD = self.attend(qkv_BTE, cache)
        del qkv_BTE
        if fusion.attention_projection and p == 0.0:
            return self.out(y_BTD, stream)  # type: ignore[no-any-return]
        if not (fusion.attention_projection or fusion.dropout_layernorm):
            return stream + self.dropout(self.out(y_BTD))  # type: ignore[no-any-return]
        pending = Pending(self.out(y_BTD, with_bias=False), self.out.bias, stream, p)
        # The LayerNorm that comes next takes the sum in, or takes it before it is deferred.
        return pending if fusion.dropout_layernorm else pending.add()


class FusedMLP(nn.Module):
    """`models.gpt.MLP` on fused projections; the norm before and the sum behind are its own.

    Args:
        config: Shape of the model.
        fusion: Its variants.
    """

    def __init__(self, config: GPTConfig, fusion: Fusion) -> None:
        super().__init__()
        self.up = NormLinear(config.d_model, config.d_ff)
        self.down = ResidualLinear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.fusion = fusion

    def forward(self, x_BTD: Tensor, norm: StreamNorm, stream: Tensor) -> Stream:
        """The stream with this part, or the two side by side.

        Args:
            x_BTD: Input of the first projection: `stream` where `norm` is still to be applied.
            norm: Applied to x_BTD by the projection, where `ffn_layernorm` is chosen.
            stream: The residual stream, without anything pending.
        """
        p = self.dropout.p if self.training else 0.0
        if not self.fusion.ffn_layernorm:
            inner_BTF = F.gelu(self.up(x_BTD), approximate="tanh")
            if self.fusion.dropout_layernorm:
                return Pending(self.down(inner_BTF, with_bias=False), self.down.bias, stream, p)
            return stream + self.dropout(self.down(inner_BTF))  # type: ignore[no-any-return]
        if p == 0.0 and not torch.is_grad_enabled():  # each matrix within its own module's forward
            inner_BTF = self.up(stream, norm, "gelu_tanh")
            return self.down(inner_BTF, stream)  # type: ignore[no-any-return]
        return layer_norm_mlp(
            stream,
            norm.weight,
            norm.bias,
            self.up.weight,
            self.up.bias,
            self.down.weight,
            self.down.bias,
            p=p,
            eps=norm.eps,
            recompute=self.fusion.recompute,
        )


class FusedBlock(nn.Module):
    """One pre-LN transformer block, the same function as `models.gpt.Block`.

    Args:
        config: Shape of the model.
        layer: Number of the block.
        fusion: Its variants.
    """

    def __init__(self, config: GPTConfig, layer: int, fusion: Fusion) -> None:
        super().__init__()
        self.attn_norm = StreamNorm(config.d_model, eps=config.norm_eps)
        self.attn = FusedAttention(config, layer, fusion)
        self.mlp_norm = StreamNorm(config.d_model, eps=config.norm_eps)
        self.mlp = FusedMLP(config, fusion)

    def forward(self, stream: Stream, cache: KVCache | None = None) -> Stream:
        """From what the block before returned to what the next one takes."""
        fusion = self.attn.fusion
        x_BTD, stream_BTD = self._normed(self.attn_norm, stream, apart=fusion.attention_layernorm)
        stream = self.attn(x_BTD, self.attn_norm, stream_BTD, cache)
        x_BTD, stream_BTD = self._normed(self.mlp_norm, stream, apart=fusion.ffn_layernorm)
        del stream  # where something was pending, two tensors that nobody needs any more
        return self.mlp(x_BTD, self.mlp_norm, stream_BTD)  # type: ignore[no-any-return]

    @staticmethod
    def _normed(norm: StreamNorm, stream: Stream, *, apart: bool) -> tuple[Tensor, Tensor]:
        """The LayerNorm of a stream, unless it is applied apart from here, and the stream."""
        if not apart:
            return norm.both(stream)
        whole_BTD = stream.add() if isinstance(stream, Pending) else stream
        return whole_BTD, whole_BTD


class FusedParts:
    """What `models.gpt.GPT` is put together from for some variants.

    Args:
        fusion: The variants, or a list of them as `variants.parse` takes it.
    """

    def __init__(self, fusion: Fusion | str) -> None:
        self.fusion = parse(fusion) if isinstance(fusion, str) else fusion

    def block(self, config: GPTConfig, layer: int) -> nn.Module:
        """A `FusedBlock`."""
        return FusedBlock(config, layer, self.fusion)

    def norm(self, config: GPTConfig) -> nn.Module:
        """A `StreamNorm`."""
        return StreamNorm(config.d_model, eps=config.norm_eps)
