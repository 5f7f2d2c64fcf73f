# SPDX-License-Identifier: Apache-2.0
"""The checks of ``penstock doctor``: each looks at one thing, changes nothing and never raises.

`host` looks at the machine, `library` at Penstock itself, `gpu` at the driver and the card,
`framework` at torch.  None of them imports torch.
"""

from .result import Check

__all__ = ["Check"]
