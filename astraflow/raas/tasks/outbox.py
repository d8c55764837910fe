"""Outbox: finished episodes that dataflow has not acknowledged."""

import asyncio

from astraflow.contract.ids import TaskId
from astraflow.contract.rollouts.token_columns import columns_nbytes
from astraflow.contract.rollouts.trajectories import Episode

PUSH_EPISODES = 512
PUSH_BYTES = 8 * 2**20
"""Limits of one push: small enough for any message size limit, large enough to amortize the round trip."""


class Outbox:
    """First-in first-out queue; episodes stay until `acknowledge`."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[TaskId, int], Episode] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: tuple[TaskId, int]) -> bool:
        return key in self._waiting

    def tasks(self) -> list[TaskId]:
        """Returns the tasks of the queued episodes."""
        return [task for task, _ in self._waiting]

    def put(self, episode: Episode) -> None:
        """Adds a finished episode."""
        self._waiting[episode.task, episode.attempt] = episode
        self._notify()

    def acknowledge(self, episodes: list[Episode]) -> None:
        """Removes episodes that dataflow acknowledged."""
        for episode in episodes:
            del self._waiting[episode.task, episode.attempt]
        self._notify()

    async def next_batch(self) -> list[Episode]:
        """Returns the oldest episodes that fit into one push; waits for the first. For a single caller."""
        while not self._waiting:
            await self._changed.wait()
        batch: list[Episode] = []
        size_bytes = 0
        for episode in self._waiting.values():
            size_bytes += _size_bytes(episode)
            if batch and (len(batch) == PUSH_EPISODES or size_bytes > PUSH_BYTES):
                break
            batch.append(episode)
        return batch

    async def wait_until_empty(self) -> None:
        """Waits until every episode is acknowledged."""
        while self._waiting:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _size_bytes(episode: Episode) -> int:
    return sum(
        trajectory.tokens.nbytes
        + trajectory.logprobs.nbytes
        + columns_nbytes(trajectory.token_columns)
        + 4 * (len(trajectory.prompt_text) + len(trajectory.completion_text))
        + 4 * sum(len(call.request) + len(call.reply) for call in trajectory.calls)
        for trajectory in episode.trajectories
    )
