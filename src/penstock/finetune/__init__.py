# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of a causal language model: GMLake's benchmark as one command.

`request`, `strategy`, `shapes`, `launch` and `show` are pure Python; `session` and what it uses
import torch and transformers. The engines are others' (PyTorch, FSDP2, DeepSpeed, peft, torchrun);
what is ours is the memory under them: the allocator and the pager. The command line
(`penstock finetune`, `penstock compare`) turns flags into a `Request` and shows the result.
"""
