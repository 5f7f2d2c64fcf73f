# SPDX-License-Identifier: Apache-2.0
"""``python -m penstock.cli.child VERB ...``: a verb that ends with the process that started it."""

from penstock.cli.main import run
from penstock.finetune.parent import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    run()
