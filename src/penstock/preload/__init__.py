# SPDX-License-Identifier: Apache-2.0
"""The libcuda.so.1 that `penstock run` puts before the driver: where it lies, how it gets there.

The proxy finds the driver beside itself, as ``libcuda_real.so.1``. No installed folder can hold
that name, since the driver is the machine's; so a small folder of links is made for each pair of
proxy and driver, in the user's cache. Changes nothing but that folder; standard library only.
"""

from .environment import program_environment
from .folder import PRELOAD, Prepared, find_driver, prepare, proxy_path

__all__ = ["PRELOAD", "Prepared", "find_driver", "prepare", "program_environment", "proxy_path"]
