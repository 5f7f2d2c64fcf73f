# SPDX-License-Identifier: Apache-2.0
"""attach_training() in one process of several, under DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from training_tower import adamw, batches, page, pair, same_weights, train

from penstock.errors import UsageError


@pytest.fixture
def processes(tmp_path):
    at = f"file://{tmp_path}/at"
    torch.distributed.init_process_group("gloo", init_method=at, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_replicas(processes):
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=30):
        replicas = [DistributedDataParallel(model) for model in (plain, paged)]
        assert train(replicas[0], first, batches()) == train(replicas[1], second, batches())
    assert same_weights(plain, paged)


def test_gradients_in_the_buckets_are_refused(processes):
    model, _ = pair()
    optimizer = adamw(model)
    with page(model, optimizer, chunks=30):
        replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
        with pytest.raises(UsageError, match="gradient_as_bucket_view=False"):
            train(replica, optimizer, batches())
