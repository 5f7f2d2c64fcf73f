# SPDX-License-Identifier: Apache-2.0
"""The version: this line is the only place where it is written; the build reads it from here."""

__version__ = "0.2.0"
