# SPDX-License-Identifier: Apache-2.0
"""GPT-2 / GPT-3 as one readable network: pre-LN blocks, fused attention, an optional KV cache.

Invariants: every parameter is used only inside the forward of the module that owns it, so that a
pager which brings a module's parameters in before its forward has brought in all that is needed;
no buffer is registered (causality is an argument of the attention, not a mask); a model can be
built under ``torch.device("meta")`` without memory. One thread at a time; a KVCache belongs to
one sequence of calls.

`Parts` says what a GPT is put together from, so that another way to compute the same block can be
handed in; this file knows only the plain one.

Shape suffixes: B batch, T tokens of this call, S tokens seen so far, D hidden size, V words,
H heads, K size of a head.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.errors import UsageError
from penstock.models.configs import GPTConfig, dtype_name


def torch_dtype(dtype: object) -> torch.dtype:
    """The torch dtype of a name that `configs.dtype_name` takes.

    Raises:
        UsageError: If there is no such dtype.
    """
    found: torch.dtype = getattr(torch, dtype_name(dtype))
    return found


class KVCache:
    """Keys and values of the tokens seen so far, allocated once for the longest sequence.

    Args:
        config: Shape of the model.
        batch: Sequences side by side.
        max_tokens: Positions to hold; at most `config.n_positions`, which is the default.
        dtype: Dtype of the model.
        device: Where the model computes.

    Attributes:
        length: Tokens held; the position of the next one.
        max_tokens: Tokens that fit.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        batch: int = 1,
        max_tokens: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.max_tokens = config.n_positions if max_tokens is None else max_tokens
        if not 1 <= self.max_tokens <= config.n_positions:
            raise UsageError(
                f"a cache of {self.max_tokens} tokens, but {config.name} has "
                f"{config.n_positions} positions",
                remedy=f"1 to {config.n_positions}",
            )
        self.length = 0
        shape = (2, config.n_layers, batch, config.n_heads, self.max_tokens, config.head_dim)
        self._kv = torch.zeros(shape, dtype=dtype, device=device)

    def extend(self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new tokens of one layer behind the old ones.

        Every layer of a forward writes at `length`; `advance` moves it once, at the end.

        Returns:
            Keys and values of all tokens so far, (B, H, S, K) each, as views.
        """
        end = self.length + k_BHTK.shape[2]
        if end > self.max_tokens:
            raise UsageError(
                f"{end} tokens do not fit in a cache of {self.max_tokens}",
                remedy=f"KVCache(max_tokens={end})",
            )
        self._kv[0, layer, :, :, self.length : end] = k_BHTK
        self._kv[1, layer, :, :, self.length : end] = v_BHTK
        return self._kv[0, layer, :, :, :end], self._kv[1, layer, :, :, :end]

    def positions(self, tokens: int) -> Tensor:
        """Positions of the next `tokens`, (T,) int64 on the device."""
        return torch.arange(self.length, self.length + tokens, device=self._kv.device)

    def mask(self, tokens: int) -> Tensor | None:
        """Which of the tokens so far each of the next may see, (T, S); None for is_causal.

        Several tokens behind a filled cache: is_causal would align the triangle to the first
        position, so the mask is spelled out, its corner at the last.
        """
        if tokens == 1 or self.length == 0:
            return None
        seen = self.length + tokens
        allowed = torch.ones(tokens, seen, dtype=torch.bool, device=self._kv.device)
        return allowed.tril(self.length)

    def advance(self, tokens: int) -> None:
        """Count the tokens of a finished forward as seen."""
        self.length += tokens

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        self.length = 0


class Attention(nn.Module):
    """Causal self-attention over one projection to queries, keys and values."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.n_heads = config.n_heads
        self.dropout_p = config.dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, cache: KVCache | None = None) -> Tensor:
        """Attend to all earlier positions, those in `cache` included; (B, T, D) to (B, T, D)."""
        y_BTD: Tensor = self.dropout(self.out(self.attend(self.qkv(x_BTD), cache)))
        return y_BTD

    def attend(self, qkv_BTE: Tensor, cache: KVCache | None = None) -> Tensor:
        """The attention between the two projections; (B, T, 3 D) to (B, T, D)."""
        B, T, E = qkv_BTE.shape
        D = E // 3
        heads = (B, T, self.n_heads, D // self.n_heads)
        q_BHTK, k_BHSK, v_BHSK = (
            part_BTD.view(heads).transpose(1, 2) for part_BTD in qkv_BTE.split(D, dim=2)
        )
        mask_TS = None
        if cache is not None:
            mask_TS = cache.mask(T)
            k_BHSK, v_BHSK = cache.extend(self.layer, k_BHSK, v_BHSK)
        y_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BHSK,
            v_BHSK,
            attn_mask=mask_TS,
            dropout_p=self.dropout_p if self.training else 0.0,
            is_causal=mask_TS is None and T > 1,
        )
        return y_BHTK.transpose(1, 2).reshape(B, T, D)


class MLP(nn.Module):
    """The feed-forward part: up, tanh-GELU, down."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        y_BTD: Tensor = self.down(F.gelu(self.up(x_BTD), approximate="tanh"))
        y_BTD = self.dropout(y_BTD)
        return y_BTD


class Block(nn.Module):
    """One pre-LN transformer block."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config, layer)
        self.mlp_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        x_BTD = x_BTD + self.attn(self.attn_norm(x_BTD), cache)
        x_BTD = x_BTD + self.mlp(self.mlp_norm(x_BTD))
        return x_BTD


class Parts(Protocol):
    """What a GPT is put together from.

    What a block returns is given to the next block, and in the end to the norm, as it is: parts
    may pass more than one tensor between themselves. Their parameters must be those of `Block`.
    """

    def block(self, config: GPTConfig, layer: int) -> nn.Module:
        """A block, called as ``block(x, cache)``."""

    def norm(self, config: GPTConfig) -> nn.Module:
        """The norm behind the last block."""


class PlainParts:
    """Blocks of torch's own layers."""

    def block(self, config: GPTConfig, layer: int) -> nn.Module:
        """A `Block`."""
        return Block(config, layer)

    def norm(self, config: GPTConfig) -> nn.Module:
        """A LayerNorm."""
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)


class GPT(nn.Module):
    """A GPT of the given shape, with the parameters of `GPTConfig.parameter_shapes`.

    Build it under ``torch.device("meta")`` and fill it with `weights.load_model` or a pager;
    built on a real device it gets torch's default initialisation, which takes minutes for the
    larger shapes. In training mode, as any new module; `weights.load_model` returns it in eval.

    Args:
        config: The shape.
        parts: What it is put together from; None for `PlainParts`.

    Attributes:
        config: The shape.
    """

    def __init__(self, config: GPTConfig, parts: Parts | None = None) -> None:
        super().__init__()
        self.config = config
        parts = parts or PlainParts()
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.n_positions, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(parts.block(config, layer) for layer in range(config.n_layers))
        self.final_norm = parts.norm(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.token_embedding.weight

    def forward(
        self, idx_BT: Tensor, cache: KVCache | None = None, *, last: bool = False
    ) -> Tensor:
        """Logits of the next token at every position of this call.

        Args:
            idx_BT: Token ids, int64, each below `config.vocab_size`.
            cache: Keys and values of the tokens before these; the new ones are added.
            last: Only of the last position, as generation needs: for 8 x 1,024 tokens the logits
                of all are 0.8 GB in two bytes, more than anything else of a forward pass.

        Returns:
            Logits (B, T, V), or (B, 1, V), in the dtype of the weights.

        Raises:
            UsageError: If `idx_BT` is not 2-D, is empty, or runs past the last position.
        """
        if idx_BT.ndim != 2 or idx_BT.numel() == 0:
            raise UsageError(f"token ids of shape {tuple(idx_BT.shape)}", remedy="(batch, tokens)")
        start = 0 if cache is None else cache.length
        end = start + idx_BT.shape[1]
        if end > self.config.n_positions:
            raise UsageError(
                f"{end} tokens, but {self.config.name} has {self.config.n_positions} positions",
                remedy=f"at most {self.config.n_positions} tokens in all",
            )
        if cache is None:
            positions_T = torch.arange(end, device=idx_BT.device)
        else:
            positions_T = cache.positions(idx_BT.shape[1])
        x_BTD = self.token_embedding(idx_BT) + self.position_embedding(positions_T)
        x_BTD = self.dropout(x_BTD)
        for block in self.blocks:
            x_BTD = block(x_BTD, cache)
        if cache is not None:
            cache.advance(idx_BT.shape[1])
        x_BTD = self.final_norm(x_BTD)
        logits_BTV: Tensor = self.lm_head(x_BTD[:, -1:] if last else x_BTD)
        return logits_BTV


def build_on_meta(
    config: GPTConfig, *, dtype: object = "float32", parts: Parts | None = None
) -> GPT:
    """A GPT in eval mode whose parameters have shapes and a dtype but no memory."""
    with torch.device("meta"):
        model = GPT(config, parts)
    return model.to(torch_dtype(dtype)).eval()
