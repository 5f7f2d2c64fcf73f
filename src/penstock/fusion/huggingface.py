# SPDX-License-Identifier: Apache-2.0
"""One call that gives a Hugging Face GPT-2 or OPT model fused layers: `patch`, undone by `unpatch`.

The parameters stay where they are, under their names: what changes is the forward of each block
and of a few modules in it. Attention itself, masks and key caches remain transformers' own, so
every attention implementation and generate() work as before; of `attention_projection` the
residual in the product is what is left. Training mode, dropout and gradient checkpointing are
followed at every call.

Refused, because the function would be another one: cross-attention, OPT with its LayerNorm behind
(opt-350m), an activation other than tanh-GELU and ReLU, a matrix that something has replaced (an
adapter, a quantised one), be it before or after, and hooks on a module that would not be called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from inspect import signature
from typing import Any

from torch import Tensor, nn

from penstock.errors import EnvironmentProblem, UsageError

from .dropout_layernorm import dropout_add, dropout_add_layer_norm
from .ffn import layer_norm_mlp
from .layernorm_gemm import layer_norm_linear, residual_linear
from .product import Folded
from .variants import Fusion, parse

_MARK = "_penstock_fusion"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@dataclass
class _Parts:
    """The modules of one block, whichever model it is of.

    Attributes:
        attn_norm: LayerNorm before the attention.
        attn: The attention, called by the block as the model calls it.
        projections: Products from the LayerNorm's result.
        out: Product behind the attention.
        mlp_norm: LayerNorm before the feed-forward part.
        up: Its first product.
        down: Its second product.
        activation: Between them.
        attn_dropout: Module that drops the attention's result; None where the block does.
        mlp_dropout: Module that drops the feed-forward part's result; None where the block does.
        mlp: Module that holds the feed-forward part, where there is one.
    """

    attn_norm: nn.LayerNorm
    attn: nn.Module
    projections: tuple[nn.Module, ...]
    out: nn.Module
    mlp_norm: nn.LayerNorm
    up: nn.Module
    down: nn.Module
    activation: str
    attn_dropout: nn.Dropout | None
    mlp_dropout: nn.Dropout | None
    mlp: nn.Module | None


def patch(model: nn.Module, fusion: str | Fusion) -> nn.Module:
    """Give every block of a transformers GPT-2 or OPT model some variants.

    Args:
        model: Any module with such blocks in it, such as GPT2LMHeadModel.
        fusion: The variants; "baseline" is the same as `unpatch`.

    Returns:
        The model itself.

    Raises:
        UsageError: If there is no such block, or one of them cannot be fused.
        EnvironmentProblem: If transformers is older than 5, whose blocks are called otherwise.
    """
    fusion = parse(fusion) if isinstance(fusion, str) else fusion
    unpatch(model)
    if not fusion.variants:
        return model
    _check_transformers()
    found = [
        (module, _READERS[type(module).__name__])
        for module in model.modules()
        if type(module).__name__ in _READERS
    ]
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no block of GPT-2 or OPT", remedy="GPT2LMHeadModel"
        )
    parts = [(block, reader(block)) for block, reader in found]  # all are read before one changes
    for _, read in parts:
        _check_hooks(read, fusion)
    for block, read in parts:
        _Fused(block, read, fusion).install()
    return model


def unpatch(model: nn.Module) -> nn.Module:
    """Undo `patch`; a model without it is left as it is."""
    for module in model.modules():
        for name in module.__dict__.pop(_MARK, ()):
            module.__dict__.pop(name, None)
    return model


def _check_transformers() -> None:
    version = metadata.version("transformers")
    if int(version.split(".")[0]) < 5:
        raise EnvironmentProblem(
            f"transformers {version} calls its blocks in another way",
            remedy="pip install 'transformers>=5'",
        )


# ---- Reading blocks ----------------------------------------------------------------------------


def _matrix(module: nn.Module) -> Tensor:
    """The weight of a linear layer as (out, in); GPT-2 keeps the transpose."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.T if type(module).__name__ == "Conv1D" else weight


def _check_matrices(*modules: nn.Module) -> None:
    for module in modules:
        if type(module) is not nn.Linear and type(module).__name__ != "Conv1D":
            raise UsageError(
                f"a {type(module).__name__} where a linear layer is expected",
                remedy="merge adapters before, or leave it unfused",
            )


def _check_hooks(parts: _Parts, fusion: Fusion) -> None:
    """Refuse what somebody else has put on modules whose forward will not run any more."""
    left_out: list[nn.Module] = [] if parts.mlp is None else [parts.mlp]
    if fusion.attention_layernorm:
        left_out.append(parts.attn_norm)
    if fusion.dropout_layernorm or fusion.ffn_layernorm:
        left_out += [parts.mlp_norm, parts.down]
    if fusion.ffn_layernorm:
        left_out.append(parts.up)
    replaced = [*left_out, parts.out, *parts.projections]
    if any(getattr(m, hooks) for m in left_out for hooks in _HOOKS) or any(
        "forward" in module.__dict__ for module in replaced
    ):
        raise UsageError(
            "hooks or a forward of its own on a layer that is to be fused, which would not run",
            remedy="patch first: then attach(), or whatever puts them there",
        )


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise UsageError(
            f"activation '{name}' cannot be fused", remedy=", ".join(sorted(_ACTIVATIONS))
        )
    return _ACTIVATIONS[name]


def _read_gpt2(block: Any) -> _Parts:
    if hasattr(block, "crossattention"):
        raise UsageError("a GPT-2 block with cross-attention", remedy="a model without it")
    _check_matrices(block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
    return _Parts(
        attn_norm=block.ln_1,
        attn=block.attn,
        projections=(block.attn.c_attn,),
        out=block.attn.c_proj,
        mlp_norm=block.ln_2,
        up=block.mlp.c_fc,
        down=block.mlp.c_proj,
        activation=_activation(block.attn.config.activation_function),
        attn_dropout=block.attn.resid_dropout,
        mlp_dropout=block.mlp.dropout,
        mlp=block.mlp,
    )


def _read_opt(block: Any) -> _Parts:
    if not block.do_layer_norm_before:
        raise UsageError("OPT with its LayerNorm behind the attention", remedy="another size")
    attn = block.self_attn
    projections = (attn.q_proj, attn.k_proj, attn.v_proj)
    _check_matrices(*projections, attn.out_proj, block.fc1, block.fc2)
    if block.self_attn_layer_norm.weight is None:
        raise UsageError("a LayerNorm without weights", remedy="a model with them")
    return _Parts(
        attn_norm=block.self_attn_layer_norm,
        attn=attn,
        projections=projections,
        out=attn.out_proj,
        mlp_norm=block.final_layer_norm,
        up=block.fc1,
        down=block.fc2,
        activation=_activation(attn.config.activation_function),
        attn_dropout=None,
        mlp_dropout=None,
        mlp=None,
    )


_READERS: dict[str, Callable[[Any], _Parts]] = {
    "GPT2Block": _read_gpt2,
    "OPTDecoderLayer": _read_opt,
}


# ---- The fused block ---------------------------------------------------------------------------


class _Fused:
    """The forward of one block, and of the modules in it that take part.

    The attention is called through its module; what it is to do with the residual waits here for
    the call of its output projection, which follows in the same forward.
    """

    def __init__(self, block: nn.Module, parts: _Parts, fusion: Fusion) -> None:
        self.block, self.parts, self.fusion = block, parts, fusion
        self._folded = Folded()
        self._residual: Tensor | None = None
        self._bias_apart = False
        # Behind self and the first: their names and order are not the same in all versions.
        self._names = tuple(signature(type(block).forward).parameters)[2:]
        modules = (parts.attn_norm, *parts.projections, parts.out, parts.mlp_norm)
        self._homes = _homes(block, (*modules, parts.up, parts.down))

    def install(self) -> None:
        """Put the forwards in place of the classes' own."""
        parts = self.parts
        _replace(self.block, self.forward)
        _replace(parts.out, self._out_forward)
        if parts.attn_dropout is not None:  # the block drops instead
            _replace(parts.attn_dropout, _as_it_is)
        if self.fusion.attention_layernorm:
            for module in parts.projections:
                _replace(module, _NormedProjection(parts.attn_norm, module))

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The block: arguments beside the first are the attention's."""
        fusion, parts = self.fusion, self.parts
        for children, name, module in self._homes:
            if children.get(name) is not module:  # its weights alone would be another function
                raise UsageError(
                    f"{name} of a fused block is a {type(children.get(name)).__name__} now",
                    remedy="penstock.fusion.unpatch(), or merge adapters and patch again",
                )
        if kwargs.get("encoder_hidden_states") is not None:
            raise UsageError("cross-attention cannot be fused", remedy="penstock.fusion.unpatch()")
        p = self._dropped(parts.attn_dropout)
        stream, hidden = self._attention_half(hidden_states, args, kwargs, p)
        normed = None
        if hidden is not None:
            bias: Any = parts.out.bias
            norm = parts.mlp_norm
            if fusion.ffn_layernorm:
                stream = dropout_add(hidden, stream, p=p, x_bias=bias)
            else:
                normed, stream = dropout_add_layer_norm(
                    hidden, stream, norm.weight, norm.bias, p=p, x_bias=bias, eps=norm.eps
                )
            del hidden
        return self._feed_forward(stream, normed, self._dropped(parts.mlp_dropout))

    def _dropped(self, dropout: nn.Dropout | None) -> float:
        """The probability now: programs change it, and train a part of a model alone."""
        if dropout is None:
            dropped: float = self.block.dropout if self.block.training else 0.0  # type: ignore[assignment]
            return dropped
        return dropout.p if dropout.training else 0.0

    def _attention_half(
        self, stream: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], p: float
    ) -> tuple[Tensor, Tensor | None]:
        """The stream behind attention; or before it, and what is to be added without its bias."""
        fusion, parts = self.fusion, self.parts
        adds = fusion.attention_projection and p == 0.0
        self._residual = stream if adds else None
        self._bias_apart = fusion.dropout_layernorm and not adds
        normed = stream if fusion.attention_layernorm else parts.attn_norm(stream)
        attended = self._attend(normed, args, kwargs)
        if adds:
            return attended, None
        if fusion.dropout_layernorm:
            return stream, attended
        return stream + nn.functional.dropout(attended, p), None

    def _attend(self, normed: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        for name in ("encoder_hidden_states", "encoder_attention_mask"):
            given.pop(name, None)
        try:
            out: Tensor = self.parts.attn(hidden_states=normed, **given)[0]
        finally:
            self._residual = None
        return out

    def _out_forward(self, x: Tensor) -> Tensor:
        weight, bias = _matrix(self.parts.out), self.parts.out.bias
        if self._residual is not None:
            return residual_linear(x, weight, bias, self._residual)  # type: ignore[arg-type]
        return nn.functional.linear(x, weight, None if self._bias_apart else bias)  # type: ignore[arg-type]

    def _feed_forward(self, stream: Tensor, normed: Tensor | None, p: float) -> Tensor:
        """The second half, from a stream and, if it was taken already, its LayerNorm."""
        parts = self.parts
        norm, up, down = parts.mlp_norm, parts.up, parts.down
        up_bias: Any = up.bias
        down_bias: Any = down.bias
        if self.fusion.ffn_layernorm:
            return layer_norm_mlp(
                stream,
                norm.weight,
                norm.bias,
                _matrix(up),
                up_bias,
                _matrix(down),
                down_bias,
                p=p,
                eps=norm.eps,
                activation=parts.activation,
                recompute=self.fusion.recompute,
                folded=self._folded,
            )
        normed = norm(stream) if normed is None else normed
        inner = up(normed)
        if parts.activation == "gelu_tanh":
            inner = nn.functional.gelu(inner, approximate="tanh")
        else:
            inner = nn.functional.relu(inner)
        if self.fusion.dropout_layernorm:
            hidden = nn.functional.linear(inner, _matrix(down))
            return dropout_add(hidden, stream, p=p, x_bias=down_bias)
        return stream + nn.functional.dropout(down(inner), p)


class _NormedProjection:
    """Forward of a product that takes the LayerNorm before it."""

    def __init__(self, norm: nn.LayerNorm, module: nn.Module) -> None:
        self._norm, self._module, self._folded = norm, module, Folded()

    def __call__(self, x: Tensor) -> Tensor:
        norm, bias = self._norm, self._module.bias
        return layer_norm_linear(
            x,
            norm.weight,
            norm.bias,
            _matrix(self._module),
            bias,  # type: ignore[arg-type]
            eps=norm.eps,
            folded=self._folded,
        )


def _homes(
    block: nn.Module, modules: tuple[nn.Module, ...]
) -> list[tuple[dict[str, nn.Module | None], str, nn.Module]]:
    """Where modules of a block are to be found: children, a name among them, and which it is."""
    return [
        (owner._modules, name, child)
        for owner in block.modules()
        for name, child in owner._modules.items()
        if child is not None and any(child is module for module in modules)
    ]


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give one module, not its class, another forward."""
    module.__dict__["forward"] = forward
    module.__dict__.setdefault(_MARK, []).append("forward")
