# SPDX-License-Identifier: Apache-2.0
"""What training_budget.py and training_peers.py train."""
