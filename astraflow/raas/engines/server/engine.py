"""Engine of one policy behind one or several servers on this machine."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any, TypeVar

from astraflow.client.model_server import ServerRefused, ServerUnreachable
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.token_columns import TOP_COLUMNS, TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.contract.weights import Dtype
from astraflow.raas.engines.base import COARSE, EXACT, ROUNDED, EngineGauges, LoadTimings, LogprobTolerance, PauseMode
from astraflow.raas.engines.continuations import ModelDecoder
from astraflow.raas.engines.merged_adapters import AdapterMerger, RoundingWatch
from astraflow.raas.engines.server.dialect import Dialect
from astraflow.raas.engines.server.environments import Environment, find_environment
from astraflow.raas.engines.server.model_folder import ModelFolder
from astraflow.raas.engines.server.options import ServerOptions
from astraflow.raas.engines.server.replica import Replica, ServerLost
from astraflow.raas.engines.server.request_router import RequestRouter
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.logs import get_logger
from astraflow.weights.tensors import VerifiedWeights

log = get_logger()

_T = TypeVar("_T")


class ServerEngine:
    """Serves a policy with servers that this process starts, supervises and refreshes.

    A load stages the new weights in shared memory while the servers continue, then pauses, loads and resumes each
    server; requests in flight are computed again on the new weights. Servers that hold the base of a delta get the
    changed elements only, if engine and model support it, and everything otherwise. After a failed load the weights are
    unknown: the server is restarted and loads the staged version.

    A request whose server is lost is repeated on another server, or on the restarted one: its sampled tokens were not
    returned yet. A request that the server aborted for a load continues after the tokens that it returned.
    """

    is_simulated = False
    evaluation_mode = EvaluationMode.RESERVED

    def __init__(
        self,
        dialect: Dialect,
        options: ServerOptions,
        model: Mapping[str, Any],
        *,
        environment: Environment | None = None,
        clock: Clock | None = None,
    ) -> None:
        """environment: environment of the servers; None for the environment that `options` name. Raises:
        InvalidInput."""
        self.dialect = dialect
        self.options = options
        self.records = TOP_COLUMNS | {TokenColumn.SUPPORT}
        if options.return_routes:
            self.records |= {TokenColumn.EXPERTS}
        self.environment = environment or find_environment(dialect.kind, options.environment)
        self.model = model
        self._clock = clock or SystemClock()
        self.folder: ModelFolder | None = None
        self._replicas: list[Replica] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._version: Version | None = None
        self._open = asyncio.Event()
        """Clear while the caller has paused the engine."""
        self._open.set()
        self._router = RequestRouter(dialect, self._replicas, is_open=self._open, decode=ModelDecoder(model))
        self._load_lock = asyncio.Lock()
        self._stage_lock = asyncio.Lock()
        """Held while the staged weights change, and while a restarted server loads them."""
        self._can_patch = options.patch == "auto" and dialect.can_patch(self.environment, options)
        self.patches = 0
        self._rounding = RoundingWatch(Dtype.FLOAT32 if self._dtype == "float32" else None)
        self._merger = AdapterMerger(Dtype.FLOAT32 if self._dtype == "float32" else None)

    @property
    def version(self) -> Version | None:
        """Version in service; None before the first load and while the weights are unknown."""
        return self._version

    @property
    def logprob_tolerance(self) -> LogprobTolerance:
        """`EXACT` in float32, `ROUNDED` in other types, `COARSE` with rounded weights."""
        if self.options.weights != "exact":
            return COARSE
        return EXACT if self._dtype == "float32" else ROUNDED

    @property
    def servers(self) -> tuple[Replica, ...]:
        """Servers of the engine."""
        return tuple(self._replicas)

    @property
    def _dtype(self) -> str:
        return self.options.dtype_on(self.environment.device)

    async def start(self) -> None:
        """Starts the servers; returns when all are up. Raises: Unavailable, InvalidInput."""
        self.folder = await asyncio.to_thread(ModelFolder, self.model)
        try:
            await self._start_servers(self.folder)
        except Unavailable as problem:
            if not self.options.lora:
                raise
            log.warning("adapters_merged", engine=self.dialect.kind, problem=str(problem))
            self.options = self.options.model_copy(update={"lora": False})
            await self._start_servers(self.folder)
        self._supervisors = [asyncio.create_task(replica.supervise()) for replica in self._replicas]

    async def _start_servers(self, folder: ModelFolder) -> None:
        log_folder = home() / "logs" / "engines"
        self._replicas[:] = [
            Replica(
                self.dialect,
                self.environment,
                self.options,
                number=number,
                model=folder.path,
                log_file=log_folder / f"{folder.path.name}-{number}.log",
                reload=self._reload_restarted,
                clock=self._clock,
            )
            for number in range(self.options.servers)
        ]
        await _all(replica.start() for replica in self._replicas)

    async def wait_failed(self) -> str:
        """Waits until a server has used up its restarts; returns the reason."""
        failures = {asyncio.shield(replica.failed) for replica in self._replicas}
        if not failures:
            await asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    def gauges(self) -> EngineGauges:
        """Returns sums over the servers, and the mean use of their caches."""
        gauges = [replica.gauges for replica in self._replicas]
        return EngineGauges(
            running=sum(replica_gauges.running for replica_gauges in gauges),
            waiting=sum(replica_gauges.waiting for replica_gauges in gauges),
            cache_used=sum(replica_gauges.cache_used for replica_gauges in gauges) / max(1, len(gauges)),
            restarts=sum(replica.restarts for replica in self._replicas),
            prompt_tokens=sum(replica_gauges.prompt_tokens for replica_gauges in gauges),
            cached_tokens=sum(replica_gauges.cached_tokens for replica_gauges in gauges),
            drafts=sum(replica_gauges.drafts for replica_gauges in gauges),
            drafted_tokens=sum(replica_gauges.drafted_tokens for replica_gauges in gauges),
            accepted_tokens=sum(replica_gauges.accepted_tokens for replica_gauges in gauges),
            accepted_drafts=tuple(map(sum, zip_longest(*(each.accepted_drafts for each in gauges), fillvalue=0))),
            prefix_moves=self._router.affinity.moves,
            lost_prefix_tokens=self._router.affinity.lost_tokens,
        )

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`.

        Raises: InvalidInput when the server refuses the request; Conflict for an id that is in flight; Unavailable
        before the first load and when the engine has failed.
        """
        if self._version is None and not self._load_lock.locked():
            raise Unavailable(
                "cannot generate: the engine has no weights; load a version first", code="engine.no_weights"
            )
        if sampling.max_new_tokens < 1 or not len(prompt):
            raise InvalidInput(
                f"cannot continue {len(prompt)} tokens by {sampling.max_new_tokens}: both must be at least 1",
                code="engine.invalid_sampling",
            )
        return await self._router.generate(request_id, prompt, sampling)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]`, from every server in turn; waits while paused.

        Raises: InvalidInput, Unavailable.
        """
        return await self._router.score(tokens, scored_from)

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Swaps all servers to these weights; running requests continue on them.

        Raises: InvalidInput when they do not fit the model; Unavailable when a server cannot be restarted. A server
        that is lost meanwhile is restarted and loads the same weights.
        """
        if self.folder is None:
            await self.start()
        folder = self.folder
        assert folder is not None  # noqa: S101 (set by start)
        async with self._load_lock:
            began_at = time.perf_counter()
            base = self._version
            async with self._stage_lock:
                await asyncio.to_thread(self._stage, folder, weights)
            stage_s = time.perf_counter() - began_at
            version = weights.manifest.version
            self._version = None
            timings = await _all(self._load_replica(replica, base=base) for replica in self._replicas)
            self._version = version
            rounded_away = 0.0 if self.options.lora else await asyncio.to_thread(self._rounding.lost_share, weights)
            return LoadTimings(
                rounded_away=rounded_away,
                stage_s=stage_s,
                pause_s=max(timing.pause_s for timing in timings),
                apply_s=max(timing.apply_s for timing in timings),
                resume_s=max(timing.resume_s for timing in timings),
            )

    async def pause(self, mode: PauseMode) -> None:
        """Stops generation; further requests wait."""
        self._open.clear()
        if mode is PauseMode.ABORT:
            self._router.mark_all_aborted()
        await asyncio.gather(*(self._pause_replica(replica, mode) for replica in self._replicas))

    async def resume(self) -> None:
        """Resumes generation."""
        await asyncio.gather(*(self._resume_replica(replica) for replica in self._replicas))
        self._open.set()

    async def abort(self, request_id: str) -> None:
        """Ends one request at once."""
        await self._router.abort(request_id)

    async def close(self) -> None:
        """Aborts all requests, ends the servers and removes their memory."""
        self._router.close()
        for supervisor in self._supervisors:
            supervisor.cancel()
        if self._supervisors:
            await asyncio.wait(self._supervisors)
        try:
            await asyncio.gather(*(replica.stop_server() for replica in self._replicas))
        finally:  # also when the caller's time limit cancels this: the memory must not outlive the process
            self._open.set()
            if self.folder is not None:
                self.folder.close()
                self.folder = None

    def _stage(self, folder: ModelFolder, weights: VerifiedWeights) -> None:
        """Stages whole weights, the sum of adapters and their base, or adapters in addition to their base; blocks."""
        if self.options.lora and weights.adapter_base is not None:
            folder.stage_adapter(weights)
        else:
            folder.stage(self._merger.merge(weights), with_patch=self._can_patch)

    async def _load_replica(self, replica: Replica, *, base: Version | None) -> LoadTimings:
        """Loads the staged weights into one server. A server whose weights are unknown afterwards is restarted."""
        began_at = time.perf_counter()
        if replica.is_restarting:
            await replica.wait_serving()
            if self.folder is not None and replica.loaded == self.folder.version:
                return LoadTimings(apply_s=time.perf_counter() - began_at)
        try:
            async with replica.control:
                return await replica.until_lost(self._swap(replica, base=base))
        except (ServerLost, ServerUnreachable, ServerRefused, TimeoutError) as problem:
            replica.declare_lost(f"its weights are unknown after a failed load: {problem}")
        await replica.wait_serving()
        return LoadTimings(apply_s=time.perf_counter() - began_at)

    async def _swap(self, replica: Replica, *, base: Version | None) -> LoadTimings:
        """Pauses, loads and resumes one server. After an error the server stays paused."""
        client, was_paused = replica.client, replica.is_paused
        began_at = time.perf_counter()
        if self.folder is not None and self.folder.adapter is not None:
            replica.serving.clear()  # requests that the pause aborts are sent again with the new adapters
            await self.dialect.pause(client, PauseMode.ABORT)
        elif not was_paused:
            await self.dialect.pause(client, PauseMode.KEEP)
        replica.is_paused = True
        paused_at = time.perf_counter()
        is_resumed = await self._apply(replica, base=base, resumes=not was_paused)
        applied_at = time.perf_counter()
        if not was_paused:
            if not is_resumed:
                await self.dialect.resume(client)
            replica.is_paused = False
        replica.serving.set()
        return LoadTimings(
            pause_s=paused_at - began_at, apply_s=applied_at - paused_at, resume_s=time.perf_counter() - applied_at
        )

    async def _apply(self, replica: Replica, *, base: Version | None, resumes: bool) -> bool:
        """Patches or reloads a paused server; returns whether it has resumed, which only a patch does if `resumes`."""
        folder = self.folder
        assert folder is not None  # noqa: S101 (the engine was started)
        client, version = replica.client, str(folder.version)
        self._router.affinity.forget(replica.number)
        if folder.adapter is not None:
            await self._apply_adapter(replica, folder)
            return False
        client.adapter, replica.base_root = "", b""
        if folder.patch is not None and base is not None and folder.patch_base == base == replica.loaded:
            is_check_due = (self.patches + 1) % self.options.patch_check_every == 0
            resumes = resumes and not is_check_due
            try:
                await self.dialect.patch(client, folder.patch, version, resumes=resumes)
                self.patches += 1
                if is_check_due:
                    await self._check_patches(replica, version)
            except ServerRefused as problem:
                log.warning("engine_patch_refused", engine=self.dialect.kind, problem=str(problem))
                self._can_patch = False
            else:
                replica.loaded = folder.version
                return resumes
        replica.loaded = None
        await self.dialect.reload(client, folder.path, version, learn_mapping=self._can_patch)
        replica.loaded = folder.version
        return False

    async def _apply_adapter(self, replica: Replica, folder: ModelFolder) -> None:
        """Loads the staged adapters, and first their base unless the server has it."""
        assert folder.adapter is not None  # noqa: S101 (the caller checked it)
        replica.loaded = None
        if replica.base_root != folder.root_hash:
            replica.base_root = b""
            await self.dialect.reload(replica.client, folder.path, str(folder.version), learn_mapping=False)
            replica.base_root = folder.root_hash
        await self.dialect.load_adapter(replica.client, folder.adapter, str(folder.adapter_version))
        replica.loaded = folder.adapter_version

    async def _check_patches(self, replica: Replica, version: str) -> None:
        """Compares the patched weights with a reload; a difference ends patching."""
        assert self.folder is not None  # noqa: S101 (the engine was started)
        patched = await self.dialect.checksum(replica.client)
        await self.dialect.reload(replica.client, self.folder.path, version, learn_mapping=True)
        if patched != await self.dialect.checksum(replica.client):
            log.error("engine_patch_wrong", engine=self.dialect.kind, version=version)
            self._can_patch = False

    async def _reload_restarted(self, replica: Replica) -> None:
        """Loads the staged weights, if any, into a server that has just started."""
        replica.loaded, replica.base_root = None, b""
        self._router.affinity.forget(replica.number)
        async with self._stage_lock:
            if self.folder is None or self.folder.version is None:
                return
            await self.dialect.pause(replica.client, PauseMode.KEEP)
            if self.folder.adapter is not None:
                await self._apply_adapter(replica, self.folder)
            else:
                await self.dialect.reload(
                    replica.client, self.folder.path, str(self.folder.version), learn_mapping=self._can_patch
                )
                replica.loaded = self.folder.version
        if self._open.is_set():
            await self.dialect.resume(replica.client)
        else:
            replica.is_paused = True

    async def _pause_replica(self, replica: Replica, mode: PauseMode) -> None:
        async with replica.control:
            if replica.serving.is_set():
                with suppress(ServerLost, ServerUnreachable):  # the restarted server stays paused
                    await replica.until_lost(self.dialect.pause(replica.client, mode))
                    replica.is_paused = True

    async def _resume_replica(self, replica: Replica) -> None:
        async with replica.control:
            if replica.is_paused:
                with suppress(ServerLost, ServerUnreachable):
                    await replica.until_lost(self.dialect.resume(replica.client))
                    replica.is_paused = False


async def _all(works: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Returns the results of concurrent calls; the first error cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as problems:
        raise problems.exceptions[0] from problems
    return [task.result() for task in tasks]
