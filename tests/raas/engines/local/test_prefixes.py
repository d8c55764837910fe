"""Stored prefixes: what is found, what is replaced, and what leaves first."""

import numpy as np
import pytest
import torch

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.local.prefixes import BLOCK_TOKENS, PrefixStore

BYTES_PER_TOKEN = 2 * 4
"""Keys and values of one layer with one head of one number."""


def text(*blocks: int) -> Int32Array:
    """Returns a text whose blocks consist of these tokens."""
    return np.repeat(np.array(blocks, dtype=np.int32), BLOCK_TOKENS)


def stored(store: PrefixStore, tokens: Int32Array) -> None:
    count = store.missing(tokens)
    if count:
        layer = {0: torch.from_numpy(tokens[:count].astype(np.float32)).reshape(1, count, 1)}
        store.add(tokens[:count], layer, layer, {})


def length(store: PrefixStore, tokens: Int32Array) -> int:
    prefix = store.longest(tokens)
    if prefix is None:
        return 0
    np.testing.assert_array_equal(prefix.stored.keys[0][0, : prefix.length, 0], tokens[: prefix.length])
    return prefix.length


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (text(1, 2, 3, 4), 3),
        (text(1, 2, 3), 2),  # a token must be left to compute
        (text(1, 2, 9, 4), 2),
        (text(1, 2), 1),
        (text(2, 3), 0),
        (text(1)[:-1], 0),
    ],
)
def test_a_prompt_gets_the_blocks_that_it_shares(prompt: Int32Array, expected: int) -> None:
    store = PrefixStore(2**20)
    stored(store, np.append(text(1, 2, 3), np.int32(7)))

    assert length(store, prompt) == expected * BLOCK_TOKENS


def test_a_continued_sequence_takes_the_memory_of_the_longer_one_only() -> None:
    store = PrefixStore(2**20)
    for turns in range(1, 5):
        stored(store, text(*range(turns)))
    stored(store, text(0, 1))

    assert store.nbytes == 4 * BLOCK_TOKENS * BYTES_PER_TOKEN
    assert length(store, text(0, 1, 8)) == 2 * BLOCK_TOKENS


def test_the_least_recently_used_leaves_first() -> None:
    store = PrefixStore(3 * BLOCK_TOKENS * BYTES_PER_TOKEN)
    for token in (1, 2, 3):
        stored(store, text(token))
    assert length(store, text(1, 9)) == BLOCK_TOKENS
    stored(store, text(4))

    assert [length(store, text(token, 9)) for token in (1, 2, 3, 4)] == [BLOCK_TOKENS, 0, BLOCK_TOKENS, BLOCK_TOKENS]
    assert store.nbytes == 3 * BLOCK_TOKENS * BYTES_PER_TOKEN


def test_blocks_that_two_sequences_share_stay_when_the_newer_one_leaves() -> None:
    store = PrefixStore(4 * BLOCK_TOKENS * BYTES_PER_TOKEN)
    stored(store, text(1, 2))
    stored(store, text(1, 3))
    assert length(store, text(1, 2, 9)) == 2 * BLOCK_TOKENS
    stored(store, text(4))

    assert length(store, text(1, 2, 9)) == 2 * BLOCK_TOKENS


def test_a_sequence_larger_than_the_memory_and_a_store_without_memory_keep_nothing() -> None:
    small, none = PrefixStore(BLOCK_TOKENS * BYTES_PER_TOKEN), PrefixStore(0)
    for store in (small, none):
        stored(store, text(1, 2))

    assert small.nbytes == none.nbytes == 0
    assert length(small, text(1, 9)) == length(none, text(1, 9)) == 0


def test_a_cleared_store_knows_nothing() -> None:
    store = PrefixStore(2**20)
    stored(store, text(1, 2))
    store.clear()

    assert store.nbytes == 0
    assert length(store, text(1, 2, 3)) == 0
