# SPDX-License-Identifier: Apache-2.0
"""The main job: run a GPT within a budget of device memory, time it, check it, let it write.

`request`, `figures` and `show` are pure Python; `session` and what it uses import torch. The
command line (`penstock gpt`) turns flags into a `Request` and shows the result.
"""
