# SPDX-License-Identifier: Apache-2.0
"""The pages and tables that table.py makes of results."""
