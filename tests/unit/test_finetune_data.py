# SPDX-License-Identifier: Apache-2.0
"""Sequences and batches: decided by the seed, the step and the rank, and by nothing else."""

from __future__ import annotations

import torch

from penstock.finetune.data import HELD_OUT, IGNORED, Synthetic, Texts, collate


def synthetic(*, varied=False, seed=0, longest=64):
    return Synthetic(500, longest, varied=varied, seed=seed)


def rows(batch):
    return [tuple(row[mask].tolist()) for row, mask in zip(batch.tokens, real(batch), strict=True)]


def real(batch):
    return batch.labels != IGNORED


def test_a_batch_follows_from_seed_and_step():
    one, again = synthetic().batch(3, 4), synthetic().batch(3, 4)
    assert torch.equal(one.tokens, again.tokens)
    assert not torch.equal(one.tokens, synthetic().batch(4, 4).tokens)
    assert not torch.equal(one.tokens, synthetic(seed=1).batch(3, 4).tokens)
    assert one.tokens.shape == (4, 64)
    assert one.count == 256
    assert int(one.tokens.min()) >= 0
    assert int(one.tokens.max()) < 500


def test_ranks_share_the_sequences_that_one_process_would_have():
    alone = synthetic().batch(2, 4)
    shares = [synthetic().batch(2, 2, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([share.tokens for share in shares]), alone.tokens)


def test_varied_lengths_end_at_the_longest_of_the_batch():
    batches = [synthetic(varied=True, longest=256).batch(step, 8) for step in range(20)]
    lengths = [batch.tokens.shape[1] for batch in batches]
    assert len(set(lengths)) > 10
    assert max(lengths) <= 256
    for batch in batches:
        assert batch.count == int(real(batch).sum())
        assert int(real(batch).sum(1).max()) == batch.tokens.shape[1]


def test_what_is_filled_up_is_left_out_of_the_loss():
    batch = collate([torch.tensor([5, 6, 7]), torch.tensor([8])])
    assert batch.tokens.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch.labels.tolist() == [[5, 6, 7], [8, IGNORED, IGNORED]]
    assert batch.count == 4


def test_held_out_sequences_are_in_no_step():
    source = synthetic(longest=16)
    held = [row for batch in source.held_out(5) for row in rows(batch)]
    assert len(held) == HELD_OUT
    seen = {row for step in range(30) for row in rows(source.batch(step, 8))}
    assert not seen & set(held)


def test_an_epoch_has_every_sequence_once_in_an_order_of_its_own():
    sequences = [torch.arange(1, 3 + number) for number in range(10)]
    source = Texts(sequences, [], seed=3)
    epochs = [
        [row for step in range(5 * epoch, 5 * epoch + 5) for row in rows(source.batch(step, 2))]
        for epoch in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [tuple(each.tolist()) for each in sequences]
    assert epochs[0] != epochs[1]


def test_the_longest_batch_is_the_longest():
    assert synthetic(varied=True).longest(3).count == 3 * 64
    texts = Texts([torch.arange(n) for n in (3, 9, 5)], [], seed=0)
    assert [len(row) for row in rows(texts.longest(2))] == [9, 5]
    assert texts.longest(7).tokens.shape == (7, 9)
