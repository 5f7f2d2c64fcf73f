# SPDX-License-Identifier: Apache-2.0
"""``python -m penstock`` is ``penstock``."""

from penstock.cli.start import run

run()
