# SPDX-License-Identifier: Apache-2.0
"""Verbs run in the process of the tests, and what they print."""

from __future__ import annotations

import json

from penstock.cli.main import main


def called(capsys, *arguments):
    """Exit code, stdout and stderr."""
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def result_of(capsys, *arguments):
    """What ``--json`` prints of a verb that ends well."""
    code, out, err = called(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)
