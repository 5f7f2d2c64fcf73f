# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels compiled for a GPU that is not here, in the types they are called with.

Triton gives a kernel its float arguments in single precision; torch.compile, which calls it by
itself, in double. Both have to compile, and neither may compute in double, at 1/64 of the speed.
"""

from __future__ import annotations

import os
import re

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET", "") != "", reason="the interpreter compiles nothing"
)

ROW = {
    **dict.fromkeys(("x_ptr", "x_bias_ptr", "residual_ptr", "weight_ptr", "bias_ptr"), "*bf16"),
    **dict.fromkeys(("z_ptr", "y_ptr", "dy_ptr", "dz_ptr", "dresidual_ptr", "dx_ptr"), "*bf16"),
    **dict.fromkeys(("mean_ptr", "rstd_ptr", "partials_ptr"), "*fp32"),
    "seed_ptr": "*i64",
}
GEMM = {
    **dict.fromkeys(("x_ptr", "w_ptr", "gamma_ptr", "residual_ptr", "out_ptr"), "*bf16"),
    **dict.fromkeys(("bias_ptr", "w_gamma_ptr"), "*fp32"),
}


def ptx_of(kernel, pointers, floats, **constants):
    """PTX for an H200; what is no pointer, no float and no constant is an integer."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def kind(name):
        if name in constants:
            return "constexpr"
        return pointers.get(name) or (floats if name in ("scale", "eps") else "i32")

    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: kind(name) for name in names},
        {(names.index(name),): value for name, value in constants.items()},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


def check_single(ptx):
    """No arithmetic in double precision."""
    assert ".entry" in ptx
    assert not re.findall(r"\b(?:add|sub|mul|div|fma|sqrt|rsqrt|rcp)\S*\.f64\b", ptx)


@pytest.mark.parametrize("floats", ["fp32", "fp64"])
@pytest.mark.parametrize("norm", [False, True])
def test_row_kernels_compute_in_single_precision(floats, norm):
    from penstock.fusion.kernels import row

    flags = {"HAS_DROPOUT": True, "HAS_NORM": norm, "HAS_X_BIAS": True, "BLOCK": 256}
    check_single(ptx_of(row.backward, ROW, floats, HAS_DZ=True, **flags))
    more = {"HAS_X": True, "HAS_RESIDUAL": True, "HAS_NORM_BIAS": norm, "STORE_Z": True}
    check_single(ptx_of(row.forward, ROW, floats, **flags, **more))


@pytest.mark.parametrize("floats", ["fp32", "fp64"])
def test_the_product_computes_in_single_precision(floats):
    from penstock.fusion.kernels import gemm

    flags = {"HAS_NORM": True, "HAS_BIAS": True, "HAS_RESIDUAL": True, "ACTIVATION": 1}
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "EVEN_K": True}
    check_single(ptx_of(gemm.forward, GEMM, floats, PRECISION="ieee", **flags, **tile))
