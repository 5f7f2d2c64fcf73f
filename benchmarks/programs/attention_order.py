# SPDX-License-Identifier: Apache-2.0
"""Training steps of a GPT-2 that compute each attention's gradients three times. Plain PyTorch.

    python benchmarks/programs/attention_order.py --backend efficient --steps 8

The three have the same inputs: where they differ, the kernel adds up in an order that depends on
what else the device is doing. Knows nothing of Penstock. Prints one JSON object: the time of every
step, its loss as a digest, what torch had allocated at most, and of how many attentions the
gradients differed, in how many elements at the most, and by how much of the largest one.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.nn.functional as F
from steps import SHAPES, script_parser, train, trained_gpt2
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
TIMES = 3
attention = F.scaled_dot_product_attention
differences: list[torch.Tensor] = []


class Repeated(torch.autograd.Function):
    """Attention; the first of its gradients counts, and the others are compared with it."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.options = options
        ctx.save_for_backward(*inputs)
        return attention(*inputs, **options)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[Any, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        found = []
        for _ in range(TIMES):
            with torch.enable_grad():
                result = attention(*inputs, **ctx.options)
            found.append(torch.autograd.grad(result, inputs, given))
        for again in found[1:]:
            for one, other in zip(found[0], again, strict=True):
                apart = (one.float() - other.float()).abs()
                share = apart.max() / one.abs().max()
                differences.append(torch.stack([(apart > 0).sum().float(), share]))
        return None, *found[0]


def repeated(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> torch.Tensor:
    if torch.is_grad_enabled() and query.requires_grad:
        return Repeated.apply(options, query, key, value)
    return attention(query, key, value, **options)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="efficient")
    parser.add_argument("--model", choices=SHAPES, default="short")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = trained_gpt2(args.model)
    F.scaled_dot_product_attention = repeated
    with sdpa_kernel(BACKENDS[args.backend]):
        result = {"backend": args.backend, **train(model, args.steps, (1, 512))}
    # Of each attention: what two repetitions made of three gradients.
    elements, shares = torch.stack(differences).cpu().unflatten(0, (-1, 3 * (TIMES - 1))).unbind(-1)
    result["attentions"] = len(elements)
    result["that_differ"] = int((elements > 0).any(1).sum())
    result["most_elements"] = int(elements.max())
    result["largest_share"] = float(shares.max())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
