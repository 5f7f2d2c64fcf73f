# SPDX-License-Identifier: Apache-2.0
"""What Penstock shows people: tables for a terminal."""
