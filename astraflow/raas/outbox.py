"""Finished episodes, kept until dataflow says it has them."""

import asyncio
from dataclasses import dataclass

from astraflow.contract.ids import TaskId
from astraflow.contract.trajectories import Episode

PUSH_EPISODES = 512
PUSH_BYTES = 8 * 2**20
"""A push is cut at either bound: small enough for any message limit, large enough to make up for the round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An episode and which try of its task it was."""

    episode: Episode
    attempt: int


class Outbox:
    """First in, first out; nothing leaves before `acknowledge`."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[TaskId, int], Finished] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: tuple[TaskId, int]) -> bool:
        return key in self._waiting

    def tasks(self) -> list[TaskId]:
        """Tasks whose episodes are here."""
        return [task for task, _ in self._waiting]

    def put(self, episode: Episode, attempt: int) -> None:
        """Keep a finished episode."""
        self._waiting[episode.task, attempt] = Finished(episode=episode, attempt=attempt)
        self._notify()

    def acknowledge(self, finished: list[Finished]) -> None:
        """Dataflow has these."""
        for one in finished:
            del self._waiting[one.episode.task, one.attempt]
        self._notify()

    async def next_push(self) -> list[Finished]:
        """What to send next: the oldest ones, as many as fit into one push. Waits for the first. One caller."""
        while not self._waiting:
            await self._changed.wait()
        batch: list[Finished] = []
        size_bytes = 0
        for finished in self._waiting.values():
            size_bytes += _size_bytes(finished.episode)
            if batch and (len(batch) == PUSH_EPISODES or size_bytes > PUSH_BYTES):
                break
            batch.append(finished)
        return batch

    async def empty(self) -> None:
        """Wait until dataflow has everything."""
        while self._waiting:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _size_bytes(episode: Episode) -> int:
    return sum(
        trajectory.tokens.nbytes
        + trajectory.logprobs.nbytes
        + 4 * (len(trajectory.prompt_text) + len(trajectory.completion_text))
        for trajectory in episode.trajectories
    )
