"""Requests go where their prefix is, within bounds of the load."""

from dataclasses import replace
from itertools import count

import numpy as np

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.server.prefix_affinity import (
    BLOCK_TOKENS,
    CACHE_FULL,
    MAX_BLOCKS,
    MAX_LEAD,
    REQUEST_TOKENS,
    PrefixAffinity,
    ServerState,
)

SEEDS = count()
IDLE = (0, 0)


def text(tokens: int = 20 * BLOCK_TOKENS) -> Int32Array:
    """Returns a text that begins like no other."""
    return np.random.default_rng(next(SEEDS)).integers(0, 1000, tokens, dtype=np.int32)


def servers(*in_flight: int, cache_used: float = 0.0) -> list[ServerState]:
    """Returns the states of servers with these requests; cache_used: of the first one."""
    return [
        ServerState(number=number, in_flight=requests, cache_used=0.0 if number else cache_used)
        for number, requests in enumerate(in_flight)
    ]


def test_texts_without_a_known_prefix_go_to_the_server_with_the_fewest_requests() -> None:
    affinity = PrefixAffinity()

    assert affinity.choose(text(), servers(2, 1, 3)) == 1
    assert affinity.choose(text(BLOCK_TOKENS - 1), servers(0, 1)) == 0


def test_the_next_turn_of_an_episode_goes_where_the_turns_before_it_went() -> None:
    affinity, first = PrefixAffinity(), text()
    assert affinity.choose(first, servers(1, 0)) == 1
    affinity.add(1, np.concatenate([first, text()]))

    turn = np.concatenate([first, text(3)])
    assert affinity.choose(turn, servers(0, len(first) // REQUEST_TOKENS)) == 1
    assert affinity.choose(turn, servers(0, len(first) // REQUEST_TOKENS + 1)) == 0


def test_of_servers_that_know_as_much_the_one_with_the_fewest_requests_is_chosen() -> None:
    affinity, shared = PrefixAffinity(), text()
    affinity.add(0, shared)
    affinity.add(1, shared)

    assert affinity.choose(np.append(shared, text()), servers(1, 0)) == 1
    assert affinity.choose(np.append(shared, text()), servers(0, 1)) == 0


def test_a_group_with_a_long_prompt_is_shared_out_when_its_server_leads_too_far() -> None:
    affinity, prompt = PrefixAffinity(), text(6 * REQUEST_TOKENS)
    loads = [0, 0]
    for _ in range(16):
        loads[affinity.choose(prompt, servers(*loads))] += 1

    assert loads == [8, 8]
    assert (affinity.moves, affinity.lost_tokens) == (1, len(prompt)), "after it both servers know the prompt"


def test_a_prefix_of_any_length_does_not_let_a_server_lead_too_far() -> None:
    affinity, prompt = PrefixAffinity(), text(2 * MAX_LEAD * REQUEST_TOKENS)
    affinity.add(0, prompt)

    assert affinity.choose(prompt, servers(MAX_LEAD, 0)) == 0
    affinity.forget(1)
    assert affinity.choose(prompt, servers(MAX_LEAD + 1, 0)) == 1
    assert PrefixAffinity().choose(prompt, servers(2 * MAX_LEAD + 5, MAX_LEAD)) == 1


def test_a_small_gain_does_not_unbalance_the_servers() -> None:
    affinity, first = PrefixAffinity(), text(BLOCK_TOKENS)
    affinity.choose(first, servers(0, 1))

    assert affinity.choose(np.append(first, text()), servers(1, 0)) == 1
    assert (affinity.moves, affinity.lost_tokens) == (0, BLOCK_TOKENS)


def test_a_request_moves_from_a_full_cache_and_from_a_server_that_is_gone() -> None:
    affinity, first = PrefixAffinity(), text()
    affinity.choose(first, servers(0, 1))

    assert affinity.choose(np.append(first, text()), servers(*IDLE, cache_used=CACHE_FULL + 0.01)) == 1
    other = PrefixAffinity()
    other.choose(first, servers(0, 1))
    assert other.choose(first, servers(*IDLE)[1:]) == 1
    assert (other.moves, other.lost_tokens) == (1, len(first))


def test_idle_servers_share_the_texts_so_that_all_caches_are_used() -> None:
    affinity = PrefixAffinity()
    numbers = [affinity.choose(text(), servers(0, 0, 0)) for _ in range(9)]

    assert sorted(numbers) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_when_all_caches_are_full_the_load_decides() -> None:
    affinity, first = PrefixAffinity(), text()
    affinity.add(0, first)

    full = [ServerState(number=number, in_flight=number ^ 1, cache_used=1.0) for number in range(2)]
    assert affinity.choose(first, full) == 1


def test_an_emptied_cache_attracts_nothing() -> None:
    affinity, first = PrefixAffinity(), text()
    affinity.choose(first, servers(0, 1))
    affinity.forget(0)

    assert affinity.choose(first, servers(1, 0)) == 1
    assert affinity.moves == 0
    affinity.forget(7)


def test_the_blocks_that_were_used_longest_ago_are_forgotten() -> None:
    affinity, first = PrefixAffinity(), text()
    affinity.add(0, first)
    affinity.add(0, text(MAX_BLOCKS * BLOCK_TOKENS))

    assert affinity.choose(first, servers(1, 0)) == 1


def test_no_more_is_believed_than_the_cache_of_a_server_holds() -> None:
    affinity, first, second = PrefixAffinity(), text(), text()
    small = [replace(server, cache_tokens=len(first) + BLOCK_TOKENS) for server in servers(0, 1)]
    affinity.choose(first, small)
    affinity.choose(second, small)

    assert affinity.choose(first, servers(1, 0)) == 1, "its cache had dropped all but a block at the beginning"
    assert affinity.choose(second, servers(2, 1)) == 0
