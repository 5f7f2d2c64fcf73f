# SPDX-License-Identifier: Apache-2.0
"""The parts of one_budget.py, and the run that they share with others."""
