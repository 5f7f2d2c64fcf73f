# SPDX-License-Identifier: Apache-2.0
"""The parts of fusion_suite.py and fusion_conformance.py."""
