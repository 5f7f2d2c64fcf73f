# SPDX-License-Identifier: Apache-2.0
"""Models that nobody here wrote, and what else runs them."""
