# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts in tensors [experts, ...], for the tests of attach()."""

from __future__ import annotations

import torch
from attach_models import WIDTH, rows
from torch import nn
from torch.nn import functional as F

EXPERTS, CHOSEN, LAYERS = 32, 2, 6
ROW = 2 * WIDTH * WIDTH * 4  # bytes of one expert


class Experts(nn.Module):
    """Weights of all experts in two tensors, gathered or applied one by one."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 8)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 8)
        self.write = False
        self.within = lambda experts, indices: None

    def forward(self, x, indices, weights):
        self.within(self, indices)
        if self.write:
            with torch.no_grad():
                self.up.mul_(1.01)
        if len(x) == 1:
            y = torch.bmm(self.up[indices[0]], x[0].expand(CHOSEN, -1)[..., None])
            y = torch.bmm(self.down[indices[0]], F.silu(y))[..., 0]
            return (y * weights[0, :, None]).sum(0, keepdim=True)
        y = torch.zeros_like(x)
        for expert in indices.unique().tolist():
            row, place = torch.where(indices == expert)
            hidden = F.silu(F.linear(x[row], self.up[expert]))
            y[row] += F.linear(hidden, self.down[expert]) * weights[row, place, None]
        return y


class Mixture(nn.Module):
    """Layers of a dense part, a router, and experts."""

    def __init__(self):
        super().__init__()
        self.dense = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.router = nn.ModuleList(nn.Linear(WIDTH, EXPERTS) for _ in range(LAYERS))
        self.experts = nn.ModuleList(Experts() for _ in range(LAYERS))
        self.after = 0

    def forward(self, x):
        for dense, router, experts in zip(self.dense, self.router, self.experts, strict=True):
            x = x + torch.tanh(dense(x))
            weights, indices = torch.topk(router(x).softmax(-1), CHOSEN)
            x = x + experts(x, indices, weights)
        if self.after:  # one layer's experts beside their module
            x = x + F.linear(x, self.experts[self.after].up[0])
        return x


def same(model, reference, tokens=1, seeds=6):
    return all(
        torch.equal(model(rows(tokens, seed)), reference(rows(tokens, seed)))
        for seed in range(seeds)
    )


COMMON = {
    "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
LATENT = {"kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}
ARCHITECTURES = {
    "Mixtral": {"intermediate_size": 96, "num_local_experts": 8},
    "Olmoe": {"intermediate_size": 96, "num_experts": 16, "num_experts_per_tok": 2},
    "GptOss": {"intermediate_size": 96, "num_local_experts": 16, "num_experts_per_tok": 2,
               "head_dim": 32},
    "DeepseekV2": {"moe_intermediate_size": 96, "n_routed_experts": 16, "num_experts_per_tok": 2,
                   "n_shared_experts": 1, "v_head_dim": 32, **LATENT},
}  # fmt: skip


def of_transformers(name):
    """A small one of these architectures."""
    import transformers

    config = getattr(transformers, f"{name}Config")(
        **COMMON, **ARCHITECTURES[name], eos_token_id=None
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()
