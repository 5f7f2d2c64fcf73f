# SPDX-License-Identifier: Apache-2.0
"""patch(): transformers' GPT-2 and OPT with fused layers compute what they did."""

from __future__ import annotations

import copy

import pytest
import torch

from penstock.errors import UsageError
from penstock.fusion import VARIANTS, patch, unpatch
from penstock.fusion.contest import sets_of

transformers = pytest.importorskip("transformers", minversion="5")


def gpt2(**changes):
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=4,
        n_embd=32,
        vocab_size=90,
        n_positions=40,
        bos_token_id=0,
        eos_token_id=0,
        **changes,
    )
    return transformers.GPT2LMHeadModel(config)


def opt(**changes):
    given = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 32,
        "ffn_dim": 80,
        "vocab_size": 90,
        "max_position_embeddings": 40,
        "word_embed_proj_dim": 32,
        **changes,
    }
    return transformers.OPTForCausalLM(transformers.OPTConfig(**given))


MAKERS = {"gpt2": gpt2, "opt": opt}


@pytest.fixture(scope="module", params=MAKERS)
def original(request):
    torch.manual_seed(0)
    model = MAKERS[request.param]().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


@pytest.fixture
def model(original):
    return copy.deepcopy(original)


def inputs():
    ids = torch.randint(90, (2, 11), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def results(model):
    logits = model(**inputs()).logits
    return [logits, *torch.autograd.grad(logits.sin().sum(), list(model.parameters()))]


def generated(model):
    run = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    return model.generate(**inputs(), **run)


@pytest.mark.parametrize("name", sets_of(VARIANTS))
def test_logits_gradients_and_text_stay(name, model):
    wanted, state = results(model), list(model.state_dict())
    assert patch(model, name) is model
    for got, theirs in zip(results(model), wanted, strict=True):
        torch.testing.assert_close(got, theirs, rtol=1e-4, atol=1e-4)
    assert list(model.state_dict()) == state
    unpatch(model)
    assert torch.equal(results(model)[0], wanted[0])


def test_generated_text_stays(model):
    text = generated(model)
    for name in ("attention_layernorm,ffn_layernorm", "dropout_layernorm,attention_projection"):
        assert torch.equal(generated(patch(model, name)), text)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_patched_model_runs_fused_ops(name, model, monkeypatch):
    from penstock.fusion import huggingface

    ops = {
        "dropout_layernorm": "dropout_add_layer_norm",
        "attention_layernorm": "layer_norm_linear",
        "attention_projection": "residual_linear",
        "ffn_layernorm": "layer_norm_mlp",
    }
    calls = []
    original = getattr(huggingface, ops[name])
    monkeypatch.setattr(
        huggingface, ops[name], lambda *a, **k: calls.append(1) or original(*a, **k)
    )
    patch(model, name)
    model(**inputs())
    assert len(calls) >= 2


@pytest.mark.parametrize("name", [*VARIANTS, ",".join(VARIANTS)])
def test_training_drops_out_and_checkpointing_draws_it_again(name, model):
    patch(model, name).train()
    with torch.no_grad():
        assert not torch.equal(model(**inputs()).logits, model(**inputs()).logits)

    def gradients():
        torch.manual_seed(4)
        model.zero_grad()
        model(**inputs(), use_cache=False).logits.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for got, wanted in zip(gradients(), plain, strict=True):
        assert torch.equal(got, wanted)


def test_patching_again_replaces_and_baseline_undoes(model):
    wanted = results(model)[0]
    patch(patch(model, "ffn_layernorm"), "attention_layernorm")
    patch(model, "baseline")
    assert torch.equal(results(model)[0], wanted)
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.nn.Linear(3, 3), "Linear has no block of GPT-2 or OPT"),
        (lambda: gpt2(activation_function="silu"), "activation 'silu' cannot be fused"),
        (lambda: gpt2(add_cross_attention=True), "cross-attention"),
        (lambda: opt(do_layer_norm_before=False), "LayerNorm behind"),
    ],
)
def test_what_cannot_be_fused_is_refused_and_left_alone(make, message):
    model = make()
    with pytest.raises(UsageError, match=message):
        patch(model, "ffn_layernorm")
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_an_adapter_in_the_place_of_a_matrix_is_refused(model):
    class Adapter(torch.nn.Module):
        pass

    block = model.transformer.h[1].mlp if hasattr(model, "transformer") else None
    if block is None:
        model.model.decoder.layers[1].fc1 = Adapter()
    else:
        block.c_fc = Adapter()
    with pytest.raises(UsageError, match="a Adapter where a linear layer is expected"):
        patch(model, "ffn_layernorm")
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("name", VARIANTS)
def test_an_adapter_that_comes_after_is_not_left_out_silently(name, model):
    peft = pytest.importorskip("peft")
    gpt = hasattr(model, "transformer")
    targets = ["c_attn", "c_proj", "c_fc"] if gpt else ["q_proj", "out_proj", "fc1", "fc2"]
    adapters = peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out=gpt)
    adapted = peft.get_peft_model(patch(model, name), adapters)
    with pytest.raises(UsageError, match="of a fused block is a Linear now"):
        adapted(**inputs())
    unpatch(adapted)
    merged = adapted.merge_and_unload()
    wanted = merged(**inputs()).logits
    torch.testing.assert_close(patch(merged, name)(**inputs()).logits, wanted)


def first_block(model):
    return (model.transformer.h if hasattr(model, "transformer") else model.model.decoder.layers)[0]


@pytest.mark.parametrize("name", VARIANTS)
def test_hooks_run_or_are_refused(name, model):
    ran = []
    block = first_block(model)
    leaves = [module for module in block.modules() if not module._modules]
    counted = 0
    for leaf in leaves:
        handle = leaf.register_forward_pre_hook(lambda *_: ran.append(1))
        ran.clear()
        model(**inputs())
        before = len(ran)
        try:
            patch(model, name)
        except UsageError as refused:
            assert "would not run" in str(refused)
        else:
            ran.clear()
            model(**inputs())
            # Dropout and the activation are parts of what is fused, and have nothing to be found.
            if any(True for _ in leaf.parameters()):
                assert len(ran) == before
            counted += 1
        handle.remove()
        unpatch(model)
    assert 0 < counted <= len(leaves)


@pytest.mark.parametrize("kind", ["forward", "full_backward"])
def test_a_hook_on_the_feed_forward_part_runs_or_is_refused(kind):
    model = gpt2()
    getattr(first_block(model).mlp, f"register_{kind}_hook")(lambda *_: None)
    with pytest.raises(UsageError, match="would not run"):
        patch(model, "attention_projection")


@pytest.mark.parametrize("name", VARIANTS)
def test_dropout_that_changes_afterwards_is_followed(name, model):
    wanted = model(**inputs()).logits
    patch(model, name).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # OPT's
    torch.testing.assert_close(model(**inputs()).logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("half", ["attn.resid_dropout", "mlp.dropout"])
def test_each_half_drops_by_its_own_module(half):
    model = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).train()
    patch(model, "dropout_layernorm")
    wanted = model(**inputs()).logits
    first_block(model).get_submodule(half).p = 0.5
    assert not torch.allclose(model(**inputs()).logits, wanted)
    first_block(model).get_submodule(half).eval()
    assert torch.equal(model(**inputs()).logits, wanted)


def test_arguments_have_the_names_of_the_installed_version(model, recwarn):
    patch(model, "ffn_layernorm")
    generated(model)
    assert [w for w in recwarn if "deprecated" in str(w.message)] == []


def test_a_forward_that_somebody_else_put_there_is_refused(model):
    block = first_block(model)
    down = block.mlp.c_proj if hasattr(block, "mlp") else block.fc2
    down.forward = down.forward  # as accelerate's offloading does
    with pytest.raises(UsageError, match="would not run"):
        patch(model, "ffn_layernorm")


def test_a_patched_model_can_be_copied_and_saved(model, tmp_path):
    patch(model, ",".join(VARIANTS))
    wanted = model(**inputs()).logits
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(twin(**inputs()).logits, wanted)
    torch.save(twin, tmp_path / "model.pt")
    back = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(back(**inputs()).logits, wanted)


@pytest.mark.parametrize("name", [*VARIANTS, ",".join(VARIANTS)])
def test_hidden_states_are_recorded_as_before(name, model):
    wanted = model(**inputs(), output_hidden_states=True).hidden_states
    found = patch(model, name)(**inputs(), output_hidden_states=True).hidden_states
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
