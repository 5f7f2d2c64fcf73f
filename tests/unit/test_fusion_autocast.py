# SPDX-License-Identifier: Apache-2.0
"""The fused functions under autocast: float32 weights and stream, products in bfloat16.

The rule is that of test_fusion_ops: the error against float64 is at most twice that of torch's own
layers, under autocast as well.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from penstock import fusion
from penstock.errors import UsageError
from penstock.fusion import (
    attention_projection,
    dropout_add,
    dropout_add_layer_norm,
    layer_norm_linear,
    layer_norm_mlp,
    residual_linear,
)

TINY = 1e-4
D = 32
SHAPES = {
    **{"x": (2, 9, D), "hidden": (2, 9, D), "w": (D,), "b": (D,), "up": (4 * D, D)},
    **{"up_b": (4 * D,), "down": (D, 4 * D), "qkv": (2, 9, 3 * D), "out": (D, D)},
}


def autocast(enabled=True):
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def product_of(t):
    """A result in bfloat16 where autocast is on, as what a model's products give."""
    return F.linear(t["hidden"], t["out"])


def attended(t):
    parts = t["qkv"].unflatten(2, (3, 4, D // 4)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)


def normed(t, of="x"):
    return F.layer_norm(t[of], (D,), t["w"], t["b"])


def inner(t):
    return F.gelu(F.linear(normed(t), t["up"], t["up_b"]), approximate="tanh")


# Each function, and the same in torch's layers.
OPS = {
    "dropout_add_layer_norm": (
        lambda t: sum(dropout_add_layer_norm(product_of(t), t["x"], t["w"], t["b"], x_bias=t["b"])),
        lambda t: (z := t["x"] + (product_of(t) + t["b"])) + F.layer_norm(z, (D,), t["w"], t["b"]),
    ),
    "dropout_add": (
        lambda t: dropout_add(product_of(t), t["x"], p=0.0),
        lambda t: product_of(t) + t["x"],
    ),
    "layer_norm_linear": (
        lambda t: layer_norm_linear(t["x"], t["w"], t["b"], t["up"], t["up_b"]),
        lambda t: F.linear(normed(t), t["up"], t["up_b"]),
    ),
    "residual_linear": (
        lambda t: residual_linear(product_of(t), t["out"], t["b"], t["x"]),
        lambda t: t["x"] + F.linear(product_of(t), t["out"], t["b"]),
    ),
    **{
        f"layer_norm_mlp, recompute {level}": (
            lambda t, level=level: layer_norm_mlp(
                *(t["x"], t["w"], t["b"], t["up"], t["up_b"], t["down"], t["b"]), recompute=level
            ),
            lambda t: t["x"] + F.linear(inner(t), t["down"], t["b"]),
        )
        for level in (0, 1, 2)
    },
    "attention_projection": (
        lambda t: attention_projection(t["qkv"], t["out"], t["b"], t["x"], n_heads=4),
        lambda t: t["x"] + F.linear(attended(t), t["out"], t["b"]),
    ),
}


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    made = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    for matrix in ("up", "down", "out"):
        made[matrix] *= 0.2
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in made.items()}


def gradients(out, t):
    """Of a weighted sum; zeros for what took no part."""
    weights = torch.cos(torch.arange(out.numel())).view_as(out)
    found = torch.autograd.grad((out * weights).sum(), list(t.values()), allow_unused=True)
    return dict(zip(t, found, strict=True))


def results(op, t):
    with autocast(next(iter(t.values())).dtype == torch.float32):
        out = op(t)
    return {"result": out, **gradients(out.to(t["x"].dtype), t)}


def off(value, exact):
    value, exact = value.detach().double(), exact.detach()
    return float((value - exact).square().mean().sqrt() / (exact.square().mean().sqrt() + 1e-30))


def hold(mine, plain, exact):
    for name, truth in exact.items():
        if truth is None:
            assert mine[name] is None
            continue
        assert mine[name].dtype == plain[name].dtype, name
        assert off(mine[name], truth) <= 2 * off(plain[name], truth) + TINY, name


@pytest.mark.parametrize("name", OPS)
def test_functions(name):
    fused, plain = OPS[name]
    exact = results(plain, tensors(torch.float64))
    hold(results(fused, tensors()), results(plain, tensors()), exact)
    with torch.no_grad(), autocast():  # another way to the same numbers
        mine, theirs = fused(tensors()), plain(tensors())
    assert mine.dtype == theirs.dtype
    assert off(mine, exact["result"]) <= 2 * off(theirs, exact["result"]) + TINY


# Without a product of torch's, whose backward is in the precision that holds where it is called.
ALONE = {name: fused for name, (fused, _) in OPS.items() if name.startswith(("layer", "attention"))}
ALONE["residual_linear"] = lambda t: residual_linear(t["hidden"], t["out"], t["b"], t["x"])


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("forward", [True, False])
def test_backward_is_in_the_precision_of_forward_wherever_it_is_called(name, forward):
    t = tensors()
    with autocast(forward):
        out = ALONE[name](t)
    outside = gradients(out, t)
    with autocast(forward):
        out = ALONE[name](t)
    with autocast(not forward):
        within = gradients(out, t)
    for part, grad in outside.items():
        assert (grad is None) == (within[part] is None)
        assert grad is None or torch.equal(grad, within[part]), part


def test_dropout_under_autocast_drops_what_it_drops_without():
    t, seed = tensors(), torch.tensor([5])
    parts = [t[name] for name in ("x", "w", "b", "up", "up_b", "down", "b")]
    plain = layer_norm_mlp(*parts, p=0.5, seed=seed)
    with autocast():
        out = layer_norm_mlp(*parts, p=0.5, seed=seed)
    assert out.dtype == torch.float32
    assert torch.equal(out == t["x"], plain == t["x"])
    assert off(out, plain.double()) < 0.02
    out.sum().backward()
    assert all(part.grad is not None for part in parts)


def test_compiled_with_dropout_it_is_the_same():
    t, seed = tensors(), torch.tensor([5])
    parts = [t[name] for name in ("x", "w", "b", "up", "up_b", "down")]
    parts.append(torch.randn(D, requires_grad=True))  # a compiler takes no tensor twice

    def run():
        return layer_norm_mlp(*parts, p=0.5, seed=seed)

    found = []
    for way in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        with autocast():
            out = way()
        found.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("on", [False, True])
def test_tensors_without_data_have_no_autocast(on):
    t = {name: torch.empty(shape, device="meta") for name, shape in SHAPES.items()}
    for tensor in t.values():
        tensor.requires_grad_()
    parts = [t[name] for name in ("x", "w", "b", "up", "up_b", "down", "b")]
    with autocast(on):
        out = layer_norm_mlp(*parts)
        y, z = dropout_add_layer_norm(t["hidden"], t["x"], t["w"], t["b"], p=0.1)
    (out + y + z).sum().backward()
    assert out.shape == t["x"].shape == t["x"].grad.shape


def test_without_autocast_dtypes_that_differ_are_refused_as_before():
    t = tensors()
    hidden = t["hidden"].detach().bfloat16()

    def run():
        return dropout_add_layer_norm(hidden, t["x"], t["w"], t["b"])

    def product():
        return residual_linear(hidden, t["out"], None, t["x"])

    for call in (run, product):
        with autocast():
            assert call() is not None
        with pytest.raises(UsageError, match=r"torch\.float32"):
            call()


def language_model(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            **{"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 32},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        )
        return transformers.GPT2LMHeadModel(config)
    config = transformers.OPTConfig(
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128},
        **{"vocab_size": 128, "max_position_embeddings": 32, "word_embed_proj_dim": 64},
        **{"dropout": 0.0, "attention_dropout": 0.0},
    )
    return transformers.OPTForCausalLM(config)


@pytest.mark.parametrize("variant", [*fusion.VARIANTS, ",".join(fusion.VARIANTS)])
@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_patched_models_train_under_autocast(kind, variant):
    ids = torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(1))

    def step(patched, exact=False):
        model = language_model(kind).train()
        if patched:
            fusion.patch(model, variant)
        model = model.double() if exact else model
        with autocast(not exact):
            loss = model(ids, labels=ids).loss
        loss.backward()
        with torch.no_grad(), autocast(not exact):
            model.eval()
            logits = model(ids).logits
        return {"loss": loss, "logits": logits} | {n: p.grad for n, p in model.named_parameters()}

    hold(step(True), step(False), step(False, exact=True))
