# SPDX-License-Identifier: Apache-2.0
"""The GPT models of the runner: shapes, the network, weights, tokens and generation.

`configs` is pure Python; the other modules import torch and are meant to be imported one by one.
"""
