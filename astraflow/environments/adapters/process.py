"""Adapter that runs another environment or game in worker processes: for code that is unsafe for threads, blocks,
crashes, or needs another Python interpreter."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments import environments, games
from astraflow.environments.adapters.messages import decode_observation, decode_turn, too_long
from astraflow.environments.adapters.worker_pool import PooledFactory, StepOptions, WorkerPool
from astraflow.environments.adapters.worker_process import WorkerProcess, start_worker
from astraflow.environments.base import Observation
from astraflow.environments.two_player import GameTurn
from astraflow.runtime.config.setting_permissions import SettableBy


class ProcessOptions(StepOptions):
    """Environment or game to run, and its worker processes."""

    of: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Specification of the environment or game."""
    python: Annotated[str, SettableBy.RECIPE] = ""
    """Interpreter of the workers, in whose environment `pip install astraflow` and the environment's packages are
    installed; empty: the interpreter of the node. Workers import the plugins that `ASTRAFLOW_PLUGINS` names."""
    variables: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Names of environment variables of the node that workers get, such as that of a key. Others with secrets do not
    reach them."""


class _ProcessFactory(PooledFactory):
    _is_game: ClassVar[bool]

    def __init__(self, options: ProcessOptions) -> None:
        if not options.python:
            (games if self._is_game else environments).check(options.of)
        start = partial(
            start_worker,
            options.of,
            is_game=self._is_game,
            python=options.python,
            variables=options.variables,
            episodes=options.episodes_per_worker,
            limit_s=options.start_s,
        )
        super().__init__(WorkerPool(start, options), options)


@environments.register("process", options=ProcessOptions)
class ProcessFactory(_ProcessFactory):
    """Runs the environment `of` in worker processes. A worker that dies or hangs fails its episodes and is replaced."""

    _is_game = False

    def make(self) -> "ProcessEnvironment":
        """Returns a new environment."""
        return ProcessEnvironment(self._pool, self._options)


@games.register("process", options=ProcessOptions)
class ProcessGameFactory(_ProcessFactory):
    """Runs the game `of` in worker processes. A worker that dies or hangs fails its episodes and is replaced."""

    _is_game = True

    def make(self) -> "ProcessGame":
        """Returns a new game."""
        return ProcessGame(self._pool, self._options)


class _WorkerEpisode:
    """Episode in a worker process."""

    def __init__(self, pool: WorkerPool, options: StepOptions) -> None:
        self._pool = pool
        self._options = options
        self._episode = uuid4().hex
        self._worker: WorkerProcess | None = None
        self._turn = 0

    async def _begin(self, prompt: Prompt, seed: int) -> object:
        """Begins the episode in a free worker; waits for one."""
        self._worker = await self._pool.acquire()
        values = {"episode": self._episode, "prompt_id": prompt.id, "fields": dict(prompt.fields), "seed": seed}
        return await self._worker.request("begin", values, limit_s=self._options.begin_s)

    async def _act(self, values: Mapping[str, object]) -> object:
        if self._worker is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        self._turn += 1
        values = {"episode": self._episode, "turn": self._turn, **values}
        return await self._worker.request("act", values, limit_s=self._options.act_s)

    async def close(self) -> None:
        """Closes the episode and frees its place in the worker."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if worker.is_usable:
                await worker.request("close", {"episode": self._episode}, limit_s=self._options.act_s)
        except RolloutFailed:
            pass  # the worker is gone, and the episode with it
        finally:
            self._pool.release(worker)


class ProcessEnvironment(_WorkerEpisode):
    """Environment in a worker process."""

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Begins the episode in a free worker; waits for one."""
        return decode_observation(await self._begin(prompt, seed))

    async def act(self, action: str) -> Observation:
        """Performs an action."""
        return too_long(action) or decode_observation(await self._act({"action": action}))


class ProcessGame(_WorkerEpisode):
    """Game in a worker process."""

    async def begin(self, prompt: Prompt, seed: int) -> GameTurn:
        """Begins the game in a free worker; waits for one."""
        return decode_turn(await self._begin(prompt, seed))

    async def act(self, player: int, action: str) -> GameTurn:
        """Performs an action of a player."""
        if (answer := too_long(action)) is not None:
            return GameTurn(player=player, observation=answer)
        return decode_turn(await self._act({"player": player, "action": action}))
