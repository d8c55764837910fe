"""Runs environments and games for clients elsewhere: the serving side of the adapters `process` and `http`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import cast

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments.adapters.messages import ActRequest, BeginRequest, CloseRequest, encode_step
from astraflow.environments.base import Environment, EnvironmentFactory, Observation
from astraflow.environments.two_player import Game, GameFactory, GameTurn
from astraflow.runtime.logs import get_logger
from astraflow.runtime.plugins import plugin_cause

log = get_logger()


@dataclass(slots=True)
class _Episode:
    environment: Environment | Game
    used_at: float
    turn: int = -1
    """Turn of `last`: 0 for the begin."""
    last: dict[str, object] | None = None
    """Answer to the last request, for a client that did not receive it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: asyncio.Future[Observation | GameTurn] | None = None
    """The request in progress, which closing cancels."""
    is_closing: bool = False


class EnvironmentHost:
    """Episodes by the ids that clients chose. An episode ends when it is closed, fails, or is unused for long."""

    def __init__(
        self,
        factory: EnvironmentFactory | GameFactory,
        *,
        max_episodes: int,
        idle_s: float,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """max_episodes: more are refused. idle_s: seconds after which an unused episode is closed by `close_idle`."""
        self._factory = factory
        self._max_episodes = max_episodes
        self._idle_s = idle_s
        self._now = now
        self._episodes: dict[str, _Episode] = {}

    @property
    def episodes(self) -> int:
        """Number of open episodes."""
        return len(self._episodes)

    async def begin(self, request: BeginRequest) -> dict[str, object]:
        """Begins an episode; returns its first observation. Raises: InvalidInput, RolloutFailed."""
        if request.episode not in self._episodes:
            self._check_room()
            self._episodes[request.episode] = _Episode(self._factory.make(), self._now())
        episode = self._episodes[request.episode]
        prompt = Prompt(id=PromptId(request.prompt_id), fields=request.fields)
        limit_s = self._factory.limits.begin_s
        return await self._answer(
            request.episode, episode, 0, lambda: episode.environment.begin(prompt, request.seed), limit_s
        )

    async def act(self, request: ActRequest) -> dict[str, object]:
        """Performs an action; returns the observation, or the next turn of a game. Raises: RolloutFailed,
        InvalidInput."""
        episode = self._episodes.get(request.episode)
        if episode is None:
            raise _not_open(request.episode)
        limit_s = self._factory.limits.act_s
        return await self._answer(
            request.episode, episode, request.turn, lambda: _act(episode.environment, request), limit_s
        )

    async def close(self, request: CloseRequest) -> dict[str, object]:
        """Closes an episode; an unknown episode is ignored."""
        await self._end(request.episode)
        return {}

    async def close_idle(self) -> None:
        """Closes the episodes that no request used for `idle_s` seconds."""
        limit = self._now() - self._idle_s
        unused = [
            name for name, episode in self._episodes.items() if episode.used_at < limit and not episode.lock.locked()
        ]
        for name in unused:
            await self._end(name)

    async def close_all(self) -> None:
        """Closes all episodes."""
        for name in list(self._episodes):
            await self._end(name)

    def _check_room(self) -> None:
        if len(self._episodes) >= self._max_episodes:
            raise RolloutFailed(
                f"cannot begin an episode: {self._max_episodes} are open, the limit; use fewer at once, or raise it",
                boundary=Boundary.ENVIRONMENT,
                code="environment.too_many_episodes",
            )

    async def _answer(
        self,
        name: str,
        episode: _Episode,
        turn: int,
        run: Callable[[], Awaitable[Observation | GameTurn]],
        limit_s: float,
    ) -> dict[str, object]:
        async with episode.lock:
            if episode.is_closing or self._episodes.get(name) is not episode:
                raise _not_open(name)
            episode.used_at = self._now()
            if turn == episode.turn and episode.last is not None:
                return episode.last
            if turn != episode.turn + 1:
                raise InvalidInput(
                    f"cannot perform turn {turn}: the episode is at turn {episode.turn}; send one request at a time",
                    code="environment.wrong_turn",
                )
            try:
                async with asyncio.timeout(limit_s or None):
                    answer = encode_step(await self._run(name, episode, run))
            except (InvalidInput, RolloutFailed, asyncio.CancelledError):
                await self._close(name)
                raise
            except Exception as problem:  # an environment may raise anything
                await self._close(name)
                raise _as_failure(problem, limit_s) from problem
            episode.turn, episode.last = turn, answer
            episode.used_at = self._now()
            return answer

    async def _run(
        self, name: str, episode: _Episode, run: Callable[[], Awaitable[Observation | GameTurn]]
    ) -> Observation | GameTurn:
        """Runs a request; when closing cancels it, its client sees that the episode is closed."""
        episode.running = asyncio.ensure_future(run())
        try:
            return await episode.running
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if episode.is_closing and not (task and task.cancelling()):
                raise _not_open(name) from None
            raise
        finally:
            episode.running = None

    async def _end(self, name: str) -> None:
        """Closes an episode after its request in progress has ended: a begin that went on afterwards would open what
        nothing closes."""
        episode = self._episodes.get(name)
        if episode is None:
            return
        episode.is_closing = True
        if episode.running is not None:
            episode.running.cancel()
        async with episode.lock:
            if self._episodes.get(name) is episode:
                await self._close(name)

    async def _close(self, name: str) -> None:
        """Closes an episode whose lock is held."""
        episode = self._episodes.pop(name, None)
        if episode is None:
            return
        try:
            await episode.environment.close()
        except Exception:  # the episode is over; its result is known or its failure is reported
            log.exception("environment_not_closed", episode=name)


def _act(environment: Environment | Game, request: ActRequest) -> Awaitable[Observation | GameTurn]:
    if request.player is None:
        return cast("Environment", environment).act(request.action)
    return cast("Game", environment).act(request.player, request.action)


def _not_open(name: str) -> RolloutFailed:
    return RolloutFailed(
        f"cannot continue episode {name!r}: it is not open here; it failed, was closed or was unused for too long",
        boundary=Boundary.ENVIRONMENT,
        code="environment.unknown_episode",
    )


def _as_failure(problem: Exception, limit_s: float) -> RolloutFailed:
    """Returns the failure that the client sees."""
    if isinstance(problem, TimeoutError):
        return RolloutFailed(
            f"cannot continue the episode: the environment did not answer within {limit_s:g} s; check its log",
            boundary=Boundary.ENVIRONMENT,
            code="environment.timeout",
        )
    return RolloutFailed(
        f"cannot continue the episode: {plugin_cause(problem)}; correct the environment"[:1000],
        boundary=Boundary.ENVIRONMENT,
        code=problem.code if isinstance(problem, AstraFlowError) else "environment.crashed",
    )
