# SPDX-License-Identifier: Apache-2.0
"""A JAX network, jitted as a whole, called again and again. Plain JAX.

python benchmarks/programs/jax_layers.py
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
from steps import script_parser, timed


@jax.jit
def forward(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    side = args.side
    keys = jax.random.split(jax.random.key(0), args.layers + 1)
    make = jax.jit(lambda key: jax.random.normal(key, (side, side)) * side**-0.5)
    weights = [make(key) for key in keys[1:]]
    start = jax.random.normal(keys[0], (256, side))
    result = {"need_bytes": args.layers * side * side * 4, "step_ms": [], "digests": []}
    for _ in range(args.steps):
        with timed(result["step_ms"]):
            x = forward(weights, start).block_until_ready()
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        result["digests"].append(int(bits.sum(dtype=jnp.uint32)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
