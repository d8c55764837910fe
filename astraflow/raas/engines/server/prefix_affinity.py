"""Choice of the server for a prompt: the one that has computed most of it, as far as its load allows."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.prefix_hashes import block_hashes

BLOCK_TOKENS: Final = 32
"""A prefix is known in whole blocks of so many tokens."""
MAX_BLOCKS: Final = 2**15
"""Blocks remembered for each server, a million tokens, or as many as its cache holds; the least recently used are
forgotten first, as servers drop them."""
REQUEST_TOKENS: Final = 256
"""Tokens that a server must know more than the one with the fewest requests, for each request that it has more."""
MAX_LEAD: Final = 16
"""Requests that a preferred server may have more at most, or as many as the one with the fewest has."""
CACHE_FULL: Final = 0.9
"""Used share of a cache above which a server is not preferred: it would have to drop prefixes or requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """A server that can take requests, and its load now."""

    number: int
    """Position among the servers of the engine."""
    in_flight: int
    """Requests sent to it and not answered."""
    cache_used: float
    """Used share of its key-value cache, 0 to 1."""
    cache_tokens: int = 0
    """Tokens that its cache holds; 0 if unknown."""


class PrefixAffinity:
    """Remembers what was sent to each server since its cache was emptied, and chooses servers by it.

    The next turn of an episode begins with the turn before it, and the episodes of a group with the same prompt, so
    both go where their prefix is. Requests that a server has more than the one with the fewest count against it, each
    as much as `REQUEST_TOKENS`, and it is not preferred while it leads too far or its cache is full: the request moves
    to another server, which then knows the prefix too. Of equal servers the one that remembers least is chosen, so that
    episodes with slow tools fill all caches.
    """

    def __init__(self) -> None:
        self.moves = 0
        """Prompts of which another server had computed at least `REQUEST_TOKENS` more than the chosen one. Count."""
        self.lost_tokens = 0
        """Tokens of prompts that another server had computed, and the chosen one had not."""
        self._known: dict[int, OrderedDict[int, None]] = {}
        """Hashes of the blocks of each server, the least recently used first."""
        self._max_blocks: dict[int, int] = {}

    def choose(self, prompt: Int32Array, servers: Sequence[ServerState]) -> int:
        """Returns the number of the server for a prompt, and remembers that it computes it. servers: at least one."""
        marks = block_hashes(prompt, BLOCK_TOKENS)
        known = {number: self._known_tokens(number, marks) for number in self._known}
        least = min(server.in_flight for server in servers)
        most = least + max(MAX_LEAD, least)
        preferred = [server for server in servers if server.in_flight <= most and server.cache_used <= CACHE_FULL]
        chosen = max(
            preferred or servers,
            key=lambda server: (
                known.get(server.number, 0) * bool(preferred) - REQUEST_TOKENS * server.in_flight,
                -len(self._known.get(server.number, ())),
            ),
        )
        if chosen.cache_tokens:
            self._max_blocks[chosen.number] = min(MAX_BLOCKS, chosen.cache_tokens // BLOCK_TOKENS)
        self._add(chosen.number, marks)
        lost_tokens = max(known.values(), default=0) - known.get(chosen.number, 0)
        self.lost_tokens += lost_tokens
        self.moves += lost_tokens >= REQUEST_TOKENS
        return chosen.number

    def add(self, number: int, tokens: Int32Array) -> None:
        """Remembers that a server has computed these tokens."""
        self._add(number, block_hashes(tokens, BLOCK_TOKENS))

    def forget(self, number: int) -> None:
        """Forgets what a server has computed: its cache was emptied, by a load of weights or a restart."""
        self._known.pop(number, None)

    def _known_tokens(self, number: int, marks: Sequence[int]) -> int:
        known = self._known[number]
        count = next((index for index, mark in enumerate(marks) if mark not in known), len(marks))
        return count * BLOCK_TOKENS

    def _add(self, number: int, marks: Sequence[int]) -> None:
        known = self._known.setdefault(number, OrderedDict())
        for mark in reversed(marks):  # the end of a prefix is forgotten before its beginning
            known[mark] = None
            known.move_to_end(mark)
        while len(known) > self._max_blocks.get(number, MAX_BLOCKS):
            known.popitem(last=False)
