"""One server of an engine: start, supervision and restart.

    starting ──up──► empty ──load──► serving ──exit or hang──► starting ...   (restart budget) ──► failed

A server counts as hung when two probes in a row get no answer in time, or six while it generates tokens: on a host
without free cores a server may be too slow for the probe, and a restart would not help; but a server whose answers no
longer leave it also generates for a while. The probe scores two tokens, which takes the path of a request through all
processes of the server; the servers' own `/health` answers while an inner process is stopped (vLLM) and fails while
generation is paused (SGLang), so it is not used. The probe runs at an interval, at once when a process of the server
has ended, and after `stall_s` seconds without a new token while requests are in flight.
"""

import asyncio
import os
import re
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from astraflow.client.model_server import ServerClient
from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.contract.ids import Version
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.engines.server.dialect import Dialect
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.options import ServerOptions
from astraflow.raas.engines.server.process import ServerProcess
from astraflow.runtime.clock import Clock
from astraflow.runtime.folders.compile_caches import private_cache_variables
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.child import child_environment

log = get_logger()

_T = TypeVar("_T")

GAUGES_EVERY_S = 1.0
MISSES = 2
"""Probes without an answer after which a server counts as hung."""
MISSES_WHILE_GENERATING = 6
"""The same for a server that generates tokens meanwhile."""
_PROBE_TOKENS = np.array([1, 2, 3], dtype=np.int32)
_ERROR = re.compile(r"\b\w*(Error|Exception)\b")
_LONGEST_ERROR = 200
_PASSED_VARIABLES = ("CUDA_HOME", "HF_HOME")


class ServerLost(Unavailable):
    """The server ended or hangs; requests in flight are lost. The replica restarts it."""


class Replica:
    """Keeps one server running and loaded."""

    def __init__(
        self,
        dialect: Dialect,
        environment: Environment,
        options: ServerOptions,
        *,
        number: int,
        model: Path,
        log_file: Path,
        reload: "Callable[[Replica], Awaitable[None]]",
        clock: Clock,
    ) -> None:
        """number: position among the servers of the engine. reload: loads the staged weights into a new server."""
        self._dialect = dialect
        self._environment = environment
        self._options = options
        self.number = number
        self._model = model
        self._log_file = log_file
        self._reload = reload
        self._clock = clock
        self._process: ServerProcess | None = None
        self._client: ServerClient | None = None
        self._lost: asyncio.Future[ServerLost] = asyncio.get_running_loop().create_future()
        self._declared: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Completes when a caller found the server unusable."""
        self._starts: deque[float] = deque()
        self.serving = asyncio.Event()
        """Set while the server accepts requests: it is up, and has the committed weights once there are any."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Completes with the reason when the restart budget is used up."""
        self.in_flight = 0
        """Requests sent to the server and not answered."""
        self.control = asyncio.Lock()
        """Held during pause, load and resume; the probe waits for it."""
        self.is_paused = False
        self.is_restarting = False
        """True from the loss of the server until the restarted one serves the staged weights."""
        self.loaded: Version | None = None
        """Version of the server's weights; None while they are unknown."""
        self.base_root = b""
        """Root hash of the base on which the server serves adapters; empty while it serves whole weights."""
        self.restarts = 0
        self.gauges = EngineGauges()

    @property
    def client(self) -> ServerClient:
        """Client of the running server. Raises: ServerLost while none runs."""
        if self._client is None:
            raise ServerLost("cannot send the request: the engine server restarts; try again", code="engine.restarting")
        return self._client

    @property
    def pids(self) -> list[int]:
        """Process ids of the server, the first, and its child processes."""
        if self._process is None:
            return []
        return [process.pid for process in self._process.refresh_descendants()]

    async def until_lost(self, work: Awaitable[_T]) -> _T:
        """Returns the result of a call to the server. Raises: ServerLost when the server is lost first; its errors."""
        task = asyncio.ensure_future(work)
        waits: set[asyncio.Future[Any]] = {task, self._lost}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._lost.result()
        finally:
            task.cancel()

    async def has_been_lost(self, within_s: float) -> bool:
        """Returns whether the server of the caller's failed request was lost, or is within `within_s` seconds."""
        if self._client is not None:
            await asyncio.wait({self._lost}, timeout=within_s)
        return self._client is None or self._lost.done()

    async def wait_serving(self) -> None:
        """Waits until the server serves. Raises: Unavailable when it has failed."""
        serving = asyncio.ensure_future(self.serving.wait())
        waits: set[asyncio.Future[Any]] = {serving, self.failed}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
        if self.failed.done():
            raise Unavailable(f"cannot load the weights: {self.failed.result()}", code="engine.failed")

    def declare_lost(self, reason: str) -> None:
        """Makes the supervisor restart the server."""
        self.serving.clear()
        if not self._declared.done():
            self._declared.set_result(reason)

    async def start(self) -> None:
        """Starts the server; returns when it is up. Raises: Unavailable."""
        port = free_port()
        key = secrets.token_hex(24)  # no leading dash, which an argument parser would take for an option
        launch = self._dialect.launch(
            self._environment,
            self._options,
            model=self._model,
            port=port,
            key=key,
            devices=self._devices(),
        )
        inherited = child_environment(_PASSED_VARIABLES)
        began_at = self._clock.now()
        self._starts.append(began_at)
        variables = {**private_cache_variables(os.environ), **inherited, **launch.variables}
        self._process = await ServerProcess.start(launch.argv, variables, self._log_file, secret=key)
        self._client = ServerClient(f"http://127.0.0.1:{port}", key=key)
        self._lost = asyncio.get_running_loop().create_future()
        self._declared = asyncio.get_running_loop().create_future()
        exited = asyncio.ensure_future(self._process.wait())
        try:
            while not await self._is_up():
                if exited.done():
                    raise self._start_failure(f"it exited with code {exited.result()}")
                if self._clock.now() - began_at > self._options.start_timeout_s:
                    raise self._start_failure(f"no answer within {self._options.start_timeout_s:g} s")
                self._process.refresh_descendants()  # a failed start must not leave their shared memory
                await self._clock.sleep(0.2)
        except BaseException:
            await self.stop_server()
            raise
        finally:
            exited.cancel()
        self._process.refresh_descendants()
        log.info(
            "engine_started",
            engine=self._dialect.kind,
            server=self.number,
            pids=self.pids,
            seconds=round(self._clock.now() - began_at, 1),
        )

    async def supervise(self) -> None:
        """Restarts the server whenever it is lost; returns when the budget is used up. Requires a started server."""
        while True:
            loss = await self._wait_lost()
            self.serving.clear()
            self.is_restarting = True
            self.is_paused = False
            self.gauges = EngineGauges()
            self._lost.set_result(ServerLost(f"cannot finish the request: {loss}; it is repeated", code="engine.lost"))
            tail = self._process.log_tail if self._process is not None else ()
            log.error("engine_lost", engine=self._dialect.kind, server=self.number, reason=loss, log=list(tail)[-5:])
            await self.stop_server()
            if not await self._restart(loss):
                return

    async def stop_server(self) -> None:
        """Kills the server and all its processes."""
        self.serving.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def _restart(self, loss: str) -> bool:
        """Returns whether the server is back."""
        while True:
            now = self._clock.now()
            while self._starts and now - self._starts[0] > self._options.restart_window_s:
                self._starts.popleft()
            if len(self._starts) > self._options.restarts:
                self.failed.set_result(
                    f"the {self._dialect.kind} server failed {len(self._starts)} times within "
                    f"{self._options.restart_window_s:g} s (restarts = {self._options.restarts}): {loss}; see "
                    f"{self._log_file}"
                )
                return False
            self.restarts += 1
            try:
                await self.start()
                async with self.control:
                    await self._reload(self)
            except (AstraFlowError, TimeoutError, OSError) as problem:
                loss = str(problem)
                log.warning("engine_restart_failed", engine=self._dialect.kind, server=self.number, problem=loss)
                await self.stop_server()
                continue
            self.serving.set()
            self.is_restarting = False
            return True

    async def _wait_lost(self) -> str:
        """Returns the reason when the server ended or hangs."""
        assert self._process is not None  # noqa: S101 (it was started)
        process = self._process
        exited = asyncio.ensure_future(process.wait())
        hung = asyncio.ensure_future(self._wait_hung(process))
        waits: set[asyncio.Future[Any]] = {exited, hung, self._declared}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._declared.done():
                return self._declared.result()
            return exit_reason(exited.result(), process.log_tail) if exited.done() else hung.result()
        finally:
            exited.cancel()
            hung.cancel()

    async def _wait_hung(self, process: ServerProcess) -> str:
        probed_at = progressed_at = self._clock.now()
        tokens_total, misses, has_ended = 0.0, 0, False
        children = {child.pid for child in process.refresh_descendants()}
        while True:
            await self._clock.sleep(GAUGES_EVERY_S)
            children_before = children
            children = {child.pid for child in process.refresh_descendants()}
            tokens = await self._observe_load()
            now = self._clock.now()
            if tokens != tokens_total or not self.in_flight or self.is_paused:
                tokens_total, progressed_at = tokens, now
            is_stalled = now - progressed_at > self._options.stall_s
            # A process that ended during a load is still a reason to probe after it. It is perhaps a helper that has
            # finished, perhaps a worker.
            has_ended = has_ended or bool(children_before - children)
            if self.control.locked() or self.is_paused or not self.serving.is_set():
                probed_at = now
                continue
            if not is_stalled and not has_ended and not misses and now - probed_at < self._options.probe_every_s:
                continue
            misses = 0 if await self._probe() else misses + 1
            is_generating = bool(misses) and 0 <= tokens < await self._observe_load()
            probed_at = progressed_at = self._clock.now()
            has_ended = False
            if misses >= (MISSES_WHILE_GENERATING if is_generating else MISSES):
                return f"the server hangs: no answer to {misses} probes of {self._options.probe_timeout_s:g} s"

    async def _probe(self) -> bool:
        """Returns whether the server scores two tokens in time; True while it is paused or loads meanwhile."""
        try:
            await self._within_probe_limit(self._dialect.score(self.client, _PROBE_TOKENS, 1, limit_s=None))
        except (AstraFlowError, TimeoutError) as problem:
            if self.control.locked() or self.is_paused:
                return True
            log.warning("engine_probe_missed", engine=self._dialect.kind, server=self.number, problem=str(problem))
            return False
        return True

    async def _observe_load(self) -> float:
        """Updates the gauges; returns the tokens generated so far, -1 when the server does not say."""
        try:
            load = await self._within_probe_limit(self._dialect.load(self.client))
        except (AstraFlowError, TimeoutError):
            return -1.0
        self.gauges = load.gauges
        return load.tokens_total

    async def _within_probe_limit(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Returns the result of a call to the server. Raises: TimeoutError after `probe_timeout_s`; its errors."""
        task, limit = (
            asyncio.ensure_future(work),
            asyncio.ensure_future(self._clock.sleep(self._options.probe_timeout_s)),
        )
        waits: set[asyncio.Future[Any]] = {task, limit}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise TimeoutError(f"no answer within {self._options.probe_timeout_s:g} s")
            return task.result()
        finally:
            task.cancel()
            limit.cancel()

    async def _is_up(self) -> bool:
        try:
            return await self._dialect.is_up(self.client)
        except (AstraFlowError, TimeoutError):
            return False

    def _devices(self) -> str:
        if self._options.devices:
            return self._options.devices[self.number]
        width = self._options.tensor_parallel * self._options.pipeline_parallel
        return ",".join(str(device) for device in range(self.number * width, (self.number + 1) * width))

    def _start_failure(self, cause: str) -> Unavailable:
        tail = "\n".join(self._process.log_tail if self._process is not None else ())
        return Unavailable(
            f"cannot start the {self._dialect.kind} server: {cause}; its last lines, of {self._log_file}:\n{tail}",
            code="engine.not_started",
        )


def exit_reason(code: int, log_tail: Sequence[str]) -> str:
    """Returns why a server was lost that ended by itself, with the last error of its log.

    The code says little: a server whose worker failed often ends with 0 (SGLang, vLLM).
    """
    error = next((line.strip() for line in reversed(log_tail) if _ERROR.search(line)), "")
    return f"the server exited with code {code}" + (f" ({error[:_LONGEST_ERROR]})" if error else "")


def free_port() -> int:
    """Returns a free port of loopback; another program may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
