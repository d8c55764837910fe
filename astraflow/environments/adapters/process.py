"""Adapter that runs another environment or game in worker processes: for code that is unsafe for threads, blocks,
crashes, or needs another Python interpreter."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments import environments, games
from astraflow.environments.adapters.messages import decode_observation, decode_turn, too_long
from astraflow.environments.adapters.worker_pool import WorkerPool
from astraflow.environments.adapters.worker_process import WorkerProcess, start_worker
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.environments.two_player import GameTurn
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class ProcessOptions(Config):
    """Environment or game to run, and its worker processes."""

    of: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Specification of the environment or game."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes."""
    episodes_per_worker: int = Field(default=1, ge=1, le=1024)
    """Episodes that a worker runs at once. With 1, an episode that hangs or crashes disturbs no other."""
    python: Annotated[str, SettableBy.RECIPE] = ""
    """Interpreter of the workers, in whose environment `pip install astraflow` and the environment's packages are
    installed; empty: the interpreter of the node. Workers import the plugins that `ASTRAFLOW_PLUGINS` names."""
    variables: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Names of environment variables of the node that workers get, such as that of a key. Others with secrets do not
    reach them."""
    start_s: float = Field(default=120.0, gt=0)
    """Time for a worker to start, in seconds."""
    begin_s: float = Field(default=60.0, gt=0)
    """Time for the begin of an episode; a worker that needs longer is killed."""
    act_s: float = Field(default=30.0, gt=0)
    """Time for an action; a worker that needs longer is killed."""


class _ProcessFactory:
    """Workers of a factory, and its limits."""

    _is_game: ClassVar[bool]

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        if not options.python:
            (games if self._is_game else environments).check(options.of)
        self._pool: WorkerPool | None = None

    @property
    def limits(self) -> EnvironmentLimits:
        """As many environments as the workers run. The adapter kills before a workflow would stop waiting."""
        options = self._options
        return EnvironmentLimits(
            concurrency=options.workers * options.episodes_per_worker,
            begin_s=options.begin_s + options.start_s + 1.0,
            act_s=options.act_s + 1.0,
        )

    async def start(self) -> None:
        """Starts the workers. Raises: InvalidInput or Unavailable when the environment does not work in them."""
        self._pool = WorkerPool(
            partial(_start, self._options, is_game=self._is_game),
            workers=self._options.workers,
            episodes_per_worker=self._options.episodes_per_worker,
        )
        await self._pool.start()

    async def close(self) -> None:
        """Stops the workers."""
        if self._pool is not None:
            await self._pool.stop()
            self._pool = None

    async def check(self) -> None:
        """Starts a worker, whose environment checks itself; after `start` all workers have done so."""
        if self._pool is not None:
            return
        worker = await _start(self._options, is_game=self._is_game)
        await worker.stop()

    def _started(self) -> WorkerPool:
        if self._pool is None:
            raise InvalidInput(
                "cannot make an environment: its workers are not started; start the factory first",
                code="environment.not_started",
            )
        return self._pool


@environments.register("process", options=ProcessOptions)
class ProcessFactory(_ProcessFactory):
    """Runs the environment `of` in worker processes. A worker that dies or hangs fails its episodes and is replaced."""

    _is_game = False

    def make(self) -> "ProcessEnvironment":
        """Returns a new environment. Raises: InvalidInput before `start`."""
        return ProcessEnvironment(self._started(), begin_s=self._options.begin_s, act_s=self._options.act_s)


@games.register("process", options=ProcessOptions)
class ProcessGameFactory(_ProcessFactory):
    """Runs the game `of` in worker processes. A worker that dies or hangs fails its episodes and is replaced."""

    _is_game = True

    def make(self) -> "ProcessGame":
        """Returns a new game. Raises: InvalidInput before `start`."""
        return ProcessGame(self._started(), begin_s=self._options.begin_s, act_s=self._options.act_s)


class _WorkerEpisode:
    """Episode in a worker process."""

    def __init__(self, pool: WorkerPool, *, begin_s: float, act_s: float) -> None:
        """begin_s, act_s: time limits, after which the worker is killed."""
        self._pool = pool
        self._begin_s = begin_s
        self._act_s = act_s
        self._episode = uuid4().hex
        self._worker: WorkerProcess | None = None
        self._turn = 0

    async def _begin(self, prompt: Prompt, seed: int) -> object:
        """Begins the episode in a free worker; waits for one."""
        self._worker = await self._pool.acquire()
        values = {"episode": self._episode, "prompt_id": prompt.id, "fields": dict(prompt.fields), "seed": seed}
        return await self._worker.request("begin", values, limit_s=self._begin_s)

    async def _act(self, values: Mapping[str, object]) -> object:
        if self._worker is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        self._turn += 1
        values = {"episode": self._episode, "turn": self._turn, **values}
        return await self._worker.request("act", values, limit_s=self._act_s)

    async def close(self) -> None:
        """Closes the episode and frees its place in the worker."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if worker.is_usable:
                await worker.request("close", {"episode": self._episode}, limit_s=self._act_s)
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


async def _start(options: ProcessOptions, *, is_game: bool) -> WorkerProcess:
    return await start_worker(
        options.of,
        is_game=is_game,
        python=options.python,
        variables=options.variables,
        episodes=options.episodes_per_worker,
        limit_s=options.start_s,
    )
