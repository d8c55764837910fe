"""Adapter to a SandboxFusion service, which runs jobs in containers elsewhere.

Source: https://github.com/bytedance/SandboxFusion, POST /run_code.
"""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import aiohttp
from pydantic import Field

from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.untrusted_json import PLAIN, parsed_json
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, JobLimits, JobResult, Level, Outcome, SandboxError, Session

_GRACE_S = 30.0
"""Time beyond a job's wall limit for the service to start it and to answer."""
_MAX_ANSWER_BYTES = 2**26


class SandboxFusionOptions(Config):
    """Address and limits of the service."""

    url: Annotated[str, SettableBy.RECIPE]
    """Address of the service, such as `http://sandbox:8080`."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Requests at once from this node; further jobs wait. The service's reads time out when it has too many."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Requests for a job before it has no result."""
    retry_s: Annotated[float, Field(ge=0)] = 1.0
    """Pause before the second attempt; doubles with each further one."""


@sandboxes.register("sandbox_fusion", options=SandboxFusionOptions)
class SandboxFusion:
    """Runs jobs on a SandboxFusion service. It has no sessions, and its limits of output and processes are its own."""

    def __init__(self, options: SandboxFusionOptions) -> None:
        self._options = options
        self._slots = asyncio.Semaphore(options.concurrency)
        self._client: aiohttp.ClientSession | None = None

    @property
    def level(self) -> Level:
        return Level.REMOTE

    async def start(self) -> None:
        """Runs a probe on the service. Raises: SandboxError."""
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
            trust_env=False,
            headers=PLAIN,
            auto_decompress=False,
        )
        result = await self.run(Job(source="print(6 * 7)"))
        if result.stdout.strip() != "42":
            raise SandboxError(
                f"cannot use the sandbox service at {self._options.url}: a probe ended with {result.outcome.value} and "
                f"printed {result.stdout[:100]!r}; check that the service runs Python",
                code="sandbox.probe_failed",
            )

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def run(self, job: Job) -> JobResult:
        """Runs a job; a request that fails is repeated. Raises: SandboxError."""
        cause = ""
        async with self._slots:
            for attempt in range(self._options.attempts):
                if attempt:
                    await asyncio.sleep(self._options.retry_s * 2 ** (attempt - 1))
                try:
                    return _result(await self._answer(job), job.limits)
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
                    cause = f"{type(problem).__name__}: {problem}"
        raise SandboxError(
            f"cannot run a job on {self._options.url}: {cause}; check the service, or set `concurrency` lower",
            code="sandbox.service_failed",
        )

    def session(self, limits: JobLimits, *, port: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Raises: SandboxError, because the service runs single programs only."""
        raise SandboxError(
            "cannot open a session: SandboxFusion runs single programs; use the sandbox `local`",
            code="sandbox.no_sessions",
        )

    async def _answer(self, job: Job) -> Mapping[str, Any]:
        if self._client is None:
            raise SandboxError("cannot use the sandbox: it is not started; call start", code="sandbox.closed")
        limits = job.limits
        request = {
            "language": "python",
            "code": f"{job.library}\n{job.source}" if job.library else job.source,
            "stdin": job.stdin,
            "run_timeout": min(limits.wall_s, limits.cpu_s),
            "memory_limit_MB": limits.memory_bytes // 2**20,
            "files": {path: base64.b64encode(text.encode()).decode() for path, text in job.files.items()},
        }
        timeout = aiohttp.ClientTimeout(total=limits.wall_s + _GRACE_S, sock_connect=5.0)
        async with self._client.post(
            f"{self._options.url.rstrip('/')}/run_code", json=request, timeout=timeout
        ) as reply:
            reply.raise_for_status()
            content = bytearray()
            async for chunk in reply.content.iter_chunked(2**16):
                content += chunk
                if len(content) > _MAX_ANSWER_BYTES:
                    raise ValueError(f"the answer has more than {_MAX_ANSWER_BYTES} bytes")
        return _object(content)


def _object(content: bytes | bytearray) -> Mapping[str, Any]:
    answer = parsed_json(content, limit=_MAX_ANSWER_BYTES)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no JSON object")
    return answer


def _result(answer: Mapping[str, Any], limits: JobLimits) -> JobResult:
    """Returns the service's answer as a result. Raises: ValueError for a failure of the service, or another form."""
    run = answer.get("run_result")
    if answer.get("status") not in {"Success", "Failed"} or not isinstance(run, dict):
        raise ValueError(f"{answer.get('status')}: {str(answer.get('message'))[:300]}")
    stdout, stderr = (str(run.get(name) or "") for name in ("stdout", "stderr"))
    code, seconds = run.get("return_code"), run.get("execution_time")
    status = code if isinstance(code, int) else None
    outcome = _outcome(str(run.get("status")), status, stderr)
    return JobResult(
        outcome=outcome,
        exit_status=status if outcome in {Outcome.PASSED, Outcome.FAILED} else None,
        stdout=stdout[: limits.output_bytes],
        stderr=stderr[: limits.output_bytes],
        wall_s=float(seconds) if isinstance(seconds, int | float) else 0.0,
        is_output_cut=max(len(stdout), len(stderr)) > limits.output_bytes,
    )


def _outcome(run_status: str, status: int | None, stderr: str) -> Outcome:
    if run_status == "TimeLimitExceeded":
        return Outcome.TIMEOUT
    if run_status != "Finished" or status is None:
        raise ValueError(f"the run ended as {run_status} with status {status}")
    if status == 0:
        return Outcome.PASSED
    if status < 0 or status > 128:
        return Outcome.MEMORY if status in (-9, 137) else Outcome.CRASHED  # the service enforces memory by SIGKILL
    return Outcome.MEMORY if stderr.rstrip().endswith("MemoryError") else Outcome.FAILED
