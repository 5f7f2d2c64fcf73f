# SPDX-License-Identifier: Apache-2.0
"""Errors: one line with the remedy, an exit code each, kept by pickling."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory, PenstockError, UsageError


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [(PenstockError, 1), (FailedError, 1), (UsageError, 2), (EnvironmentProblem, 3),
     (OutOfMemory, 4)],
)  # fmt: skip
def test_one_line_with_the_remedy_and_an_exit_code(kind, exit_code):
    error = kind("it broke\n  in two", remedy="glue")
    assert str(error) == "it broke in two; try: glue"
    assert error.exit_code == exit_code
    assert isinstance(error, PenstockError)
    assert str(kind("it broke")) == "it broke"


def test_out_of_memory_carries_numbers_and_is_a_memory_error():
    error = OutOfMemory("too much", remedy="--gpu-memory 2GiB", needed_bytes=2**31, budget_bytes=5)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.needed_bytes, copy.budget_bytes) == (2**31, 5)
    assert str(copy) == str(error) == "too much; try: --gpu-memory 2GiB"
    assert isinstance(copy, MemoryError)
    # By which accelerate's find_executable_batch_size() and Lightning know it.
    assert copy.args == error.args == ("CUDA out of memory. too much",)


def test_a_usage_error_is_a_value_error():
    assert isinstance(UsageError("no"), ValueError)
