"""Client of a language model that judges: any server of OpenAI's chat completions, or a policy of the run, with a
budget and retries."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Annotated, TypeVar

import httpx2
from pydantic import Field

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.rewards.base import JudgePolicy
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.retries import Backoff
from astraflow.runtime.untrusted_json import PLAIN, parsed_json

T = TypeVar("T")

MAX_REPLY_BYTES = 2**20
"""Longest reply that is read. Bytes."""

MAX_PAUSE_S = 30.0
"""Longest pause before another attempt. Seconds."""

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class JudgeFailed(AstraFlowError):
    """The judge gave no usable verdict."""


class JudgeBudgetSpent(JudgeFailed):
    """The calls or tokens that the recipe allows are used up."""


class JudgeOptions(Config):
    """Language model that judges, its limits and its budget."""

    base_url: Annotated[str, SettableBy.RECIPE]
    """Address of the server up to the version, such as `http://127.0.0.1:8000/v1`."""
    model: Annotated[str, SettableBy.RECIPE]
    """Name of the model on the server."""
    key_env: Annotated[str, SettableBy.RECIPE] = ""
    """Environment variable of the node, or of dataflow for a group reward, with the bearer token; empty: none."""
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Sampling temperature of the first attempt; a further one after an unreadable verdict uses at least 0.7."""
    max_reply_tokens: int = Field(default=512, ge=1)
    """Length limit of a reply. Tokens."""
    max_chars: int = Field(default=20_000, ge=100)
    """A longer completion is shown to the judge without its middle. Characters."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Time limit of one request. Seconds."""
    attempts: int = Field(default=3, ge=1)
    """Requests for one verdict, when the server fails or the reply has no verdict."""
    concurrency: int = Field(default=16, ge=1)
    """Requests at the same time."""
    max_calls: int = Field(default=0, ge=0)
    """Budget of requests of one process (a node, or dataflow) until it restarts; 0: no limit."""
    max_tokens: int = Field(default=0, ge=0)
    """Budget of tokens, prompts and replies as the server counts them, likewise; 0: no limit."""

    @property
    def judge(self) -> str:
        """Name of the judge in messages."""
        return f"{self.model} at {self.base_url}"


class JudgeClient:
    """Asks for verdicts. `counts` has the requests, tokens and failures by cause since the process began."""

    def __init__(self, options: JudgeOptions, *, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._client: httpx2.AsyncClient | None = None
        self._slots = asyncio.Semaphore(options.concurrency)
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Opens the client. Raises: InvalidInput when the variable with the key is not set."""
        headers = dict(PLAIN)
        if self._options.key_env:
            key = os.environ.get(self._options.key_env, "")
            if not key:
                raise InvalidInput(
                    f"cannot start the judge: the environment variable {self._options.key_env!r} is not set; set it to "
                    "the server's key where the judge is called",
                    code="judge.no_key",
                )
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.AsyncClient(
            headers=headers, timeout=self._options.timeout_s, follow_redirects=False, trust_env=False
        )

    async def close(self) -> None:
        """Closes the client. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def verdict(self, prompt: str, parse: Callable[[str], T | None], *, policy: JudgePolicy | None = None) -> T:
        """Returns what `parse` reads in the reply to a prompt; a reply without a verdict is requested again.

        policy: judges instead of the server. Raises: JudgeFailed; JudgeBudgetSpent; Unavailable when the judge does
        not answer.
        """
        backoff = Backoff(self._clock, first_s=0.5, max_s=MAX_PAUSE_S)
        failure: AstraFlowError = JudgeFailed("cannot judge: no attempt", code="judge.no_attempt")
        for attempt in range(self._options.attempts):
            is_unreadable = isinstance(failure, JudgeFailed) and attempt > 0
            if attempt and not is_unreadable:
                await backoff.wait()
            try:
                reply = await self._reply(prompt, is_unreadable=is_unreadable, policy=policy)
            except Unavailable as problem:
                failure = problem
                continue
            result = parse(reply)
            if result is not None:
                return result
            self.counts["unreadable_verdicts"] += 1
            failure = JudgeFailed(
                f"cannot judge: the reply of {self._options.judge} has no verdict in the required form (it ends with "
                f"{reply[-80:]!r}); use a stronger model, or raise max_reply_tokens",
                code="judge.unreadable_verdict",
            )
        raise failure

    async def _reply(self, prompt: str, *, is_unreadable: bool, policy: JudgePolicy | None) -> str:
        self._check_budget()
        temperature = max(0.7, self._options.temperature) if is_unreadable else self._options.temperature
        async with self._slots:
            self.counts["calls"] += 1
            if policy is not None:
                return await self._reply_of_policy(policy, prompt, temperature)
            return await self._reply_of_server(prompt, temperature)

    async def _reply_of_policy(self, policy: JudgePolicy, prompt: str, temperature: float) -> str:
        tokens = policy.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        sampling = Sampling(
            max_new_tokens=self._options.max_reply_tokens,
            temperature=temperature,
            stop_tokens=policy.tokenizer.stop_tokens,
        )
        try:
            async with asyncio.timeout(self._options.timeout_s):
                generation = await policy.generate(tokens, sampling)
        except (RolloutFailed, TimeoutError) as problem:
            raise self._unavailable(str(problem) or type(problem).__name__) from problem
        self.counts["tokens"] += len(tokens) + len(generation.tokens)
        # Of a reply that the limit cuts, the last line may be a part of a number, or what the judge quotes.
        return "" if generation.finish is Finish.LENGTH else policy.tokenizer.answer_text(tokens, generation.tokens)

    async def _reply_of_server(self, prompt: str, temperature: float) -> str:
        body = {
            "model": self._options.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._options.max_reply_tokens,
            "temperature": temperature,
        }
        try:
            async with asyncio.timeout(self._options.timeout_s):
                status, content = await self._post(body)
        except (httpx2.HTTPError, TimeoutError) as problem:
            raise self._unavailable(type(problem).__name__) from problem
        if status in RETRIED_STATUSES:
            raise self._unavailable(f"status {status}")
        if status != 200:
            self.counts["refused"] += 1
            raise JudgeFailed(
                f"cannot judge: {self._options.base_url} answered {status}: {content[:200]!r}; check model and key",
                code="judge.refused",
            )
        return self._read(content)

    async def _post(self, body: dict[str, object]) -> tuple[int, bytes]:
        if self._client is None:
            raise JudgeFailed("cannot judge: the judge is not started; call start() first", code="judge.not_started")
        url = f"{self._options.base_url.rstrip('/')}/chat/completions"
        content = bytearray()
        async with self._client.stream("POST", url, json=body) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_REPLY_BYTES:
                    break
            return response.status_code, bytes(content)

    def _read(self, content: bytes) -> str:
        """Returns the text of a reply and counts its tokens; a malformed or cut reply is an empty text."""
        try:
            message = parsed_json(content, limit=MAX_REPLY_BYTES)
            choice = message["choices"][0]
            text = choice["message"]["content"]
            used = (message.get("usage") or {}).get("total_tokens", 0)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.counts["malformed_replies"] += 1
            return ""
        if isinstance(used, int):
            self.counts["tokens"] += max(0, used)
        return text if isinstance(text, str) and choice.get("finish_reason") != "length" else ""

    def _check_budget(self) -> None:
        for name, limit in (("calls", self._options.max_calls), ("tokens", self._options.max_tokens)):
            if limit and self.counts[name] >= limit:
                self.counts["refused_by_budget"] += 1
                raise JudgeBudgetSpent(
                    f"cannot judge: the budget of {limit} {name} is spent; raise max_{name} of the judge, or restart",
                    code="judge.budget_spent",
                )

    def _unavailable(self, cause: str) -> Unavailable:
        self.counts["unavailable"] += 1
        return Unavailable(
            f"cannot judge: {self._options.judge} did not answer ({cause}); check that the judge is served",
            code="judge.unavailable",
        )


class Judge:
    """Base of rewards that ask a judge: managed plugins, which own its client."""

    def __init__(self, options: JudgeOptions) -> None:
        self.client = JudgeClient(options)
        """Client of the judge, with its counts."""

    async def start(self) -> None:
        """Opens the client. Raises: InvalidInput without a key."""
        await self.client.start()

    async def close(self) -> None:
        await self.client.close()


def quoted(text: str, *, max_chars: int) -> str:
    """Returns a text of a policy between marks that it cannot write itself, without its middle when it is too long.

    The marks are a digest of the text, which no text can contain; so the same text is always quoted alike.
    """
    half, omitted = max_chars // 2, len(text) - max_chars
    if omitted > 0:
        text = f"{text[:half]}\n[... {omitted} characters left out ...]\n{text[-half:]}"
    text = text.encode(errors="replace").decode()  # a lone surrogate has no encoding
    mark = blake2b(text.encode(), digest_size=8).hexdigest()
    return f"<text {mark}>\n{text}\n</text {mark}>"


def last_line(reply: str) -> str:
    """Returns the last line of a reply that is not empty, without markup around it."""
    lines = [line.strip().strip("*`").strip() for line in reply.splitlines() if line.strip()]
    return lines[-1] if lines else ""
