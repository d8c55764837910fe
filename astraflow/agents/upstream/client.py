"""Client of a hosted model endpoint that is only evaluated: retries, a budget, and counts of what was used."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import httpx2
from pydantic import Field, field_validator

from astraflow.agents.calls import CallRefused, ModelCall, Refusal
from astraflow.agents.upstream.formats import AnthropicMessages, ChatCompletions, UpstreamFormat, UpstreamReply
from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, Unavailable
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config.base import Config
from astraflow.runtime.logs import get_logger
from astraflow.runtime.untrusted_json import PLAIN, parsed_json

log = get_logger()

MAX_REPLY_BYTES = 8 * 2**20
"""Longest reply that is read. Bytes."""
MAX_PAUSE_S = 60.0
"""Longest pause before another attempt, also when the endpoint asks for a longer one. Seconds."""
MAX_UNANSWERED_CALLS = 16
"""Calls in a row without an answer, all attempts counted as one, after which the endpoint counts as down."""
MAX_REFUSED_CALLS = 8
"""Refused calls before the first answer, after which the options count as wrong."""

_RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_QUOTED_CHARACTERS = 300


class BudgetSpent(AstraFlowError):
    """The calls or tokens that the caller allowed are used up."""


class UpstreamOptions(Config):
    """Hosted endpoint and limits of its use."""

    base_url: str
    """Address up to the version, such as `https://api.example.com/v1`."""
    api: Literal["chat", "messages"] = "chat"
    """`chat`: Chat Completions of OpenAI and compatible servers; `messages`: Messages of Anthropic."""
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Field of Chat Completions for the length limit of a reply."""
    omitted_fields: tuple[str, ...] = ()
    """Fields of requests that the endpoint refuses, such as `temperature`: they are left out."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of one attempt. Seconds."""
    attempts: int = Field(default=6, ge=1)
    """Attempts of one call while the endpoint is overloaded, fails, or answers with something else than a reply."""
    concurrency: int = Field(default=16, ge=1)
    """Calls at the same time."""
    max_calls: int = Field(default=0, ge=0)
    """Budget of calls; 0: no limit."""
    max_tokens: int = Field(default=0, ge=0)
    """Budget of tokens, prompts and replies as the endpoint counts them; calls in progress may exceed it. 0: no
    limit."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be a URL that begins with http:// or https://")
        if parts.username or parts.password or parts.query:
            raise ValueError("must have no user, password or query; give a key by file or environment variable")
        return url.rstrip("/")


@dataclass(slots=True)
class UpstreamUsage:
    """Use of an endpoint so far. Counts."""

    calls: int = 0
    """Calls begun, whatever became of them."""
    retries: int = 0
    refused: int = 0
    """Calls that the endpoint refused as invalid."""
    failed: int = 0
    """Calls without an answer in all attempts."""
    malformed: int = 0
    """Answers that were no reply; the call was repeated."""
    prompt_tokens: int = 0
    """As the endpoint counts them, like the other tokens."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    unmeasured: int = 0
    """Replies without token counts."""


class Upstream:
    """Endpoint of a model. The key is sent to the endpoint only: messages of errors do not contain it."""

    def __init__(
        self,
        options: UpstreamOptions,
        *,
        key: str = "",
        extra: Mapping[str, Json] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """key: empty for none. extra: fields that are added to every request, such as `top_k`."""
        self.usage = UpstreamUsage()
        self.reason: AstraFlowError | None = None
        """Why no further call can succeed, once that is so. Calls in progress may still succeed."""
        self._options = options
        self._key = key
        self._extra = dict(extra or {})
        self._clock = clock or SystemClock()
        self._format: UpstreamFormat = (
            ChatCompletions(options.length_field) if options.api == "chat" else AnthropicMessages()
        )
        self._slots = asyncio.Semaphore(options.concurrency)
        self._unanswered = 0
        self._has_answered = False
        self._client: httpx2.AsyncClient | None = None

    async def start(self) -> None:
        """Opens the connections."""
        self._client = httpx2.AsyncClient(
            headers={**PLAIN, **self._format.headers(self._key)},
            timeout=self._options.timeout_s,
            limits=httpx2.Limits(max_connections=self._options.concurrency),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def complete(self, call: ModelCall, *, extra: Mapping[str, Json] | None = None) -> UpstreamReply:
        """Returns the endpoint's reply; `call.options.model` is the name of the model there. extra: further fields.

        Raises: CallRefused for a call that the endpoint refuses; Unavailable after the last attempt; BudgetSpent;
        NotAuthenticated, InvalidInput when no call can succeed.
        """
        self._check_usable()
        body = self._body(call, extra or {})
        async with self._slots:
            self._check_usable()
            self.usage.calls += 1
            problem: AstraFlowError | None = None
            for attempt in range(self._options.attempts):
                if attempt:
                    if self.reason is not None and not isinstance(self.reason, BudgetSpent):
                        raise self.reason
                    self.usage.retries += 1
                result = await self._attempt(body, attempt)
                if isinstance(result, UpstreamReply):
                    return self._counted(result)
                problem = result
            assert problem is not None  # noqa: S101 (there is at least one attempt)
            raise self._unanswered_call(problem)

    def _check_usable(self) -> None:
        usage, options = self.usage, self._options
        tokens = usage.prompt_tokens + usage.completion_tokens
        for name, used, limit in (("calls", usage.calls, options.max_calls), ("tokens", tokens, options.max_tokens)):
            if limit and used >= limit:
                self._halt(
                    BudgetSpent(
                        f"cannot call the endpoint: the budget of {limit} {name} is spent; raise max_{name}",
                        code="upstream.budget_spent",
                    )
                )
        if self.reason is not None:
            raise self.reason

    def _body(self, call: ModelCall, extra: Mapping[str, Json]) -> dict[str, Json]:
        try:
            body = {**self._format.body(call), **self._extra, **extra}
        except (ValueError, LookupError, TypeError) as problem:
            raise CallRefused(
                f"cannot forward the call: {problem}; send tools and arguments of calls as JSON objects",
                refusal=Refusal.INVALID,
                code="upstream.unreadable_call",
            ) from problem
        return {name: value for name, value in body.items() if name not in self._options.omitted_fields}

    async def _attempt(self, body: dict[str, Json], attempt: int) -> UpstreamReply | Unavailable:
        """Returns the reply, or the reason for another attempt, after a pause unless it was the last one."""
        pause_s = min(MAX_PAUSE_S, 0.5 * 2**attempt) * random.uniform(0.7, 1.3)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                status, content, retry_after_s = await self._post(body)
        except (httpx2.HTTPError, TimeoutError) as problem:
            failure = self._unavailable(type(problem).__name__)
        else:
            if status == 200:
                try:
                    return self._format.reply(parsed_json(content, limit=MAX_REPLY_BYTES))
                except (ValueError, LookupError, TypeError, AttributeError):
                    self.usage.malformed += 1
                    failure = self._unavailable(f"its answer is no reply: {self._quoted(content)}")
            elif status in _RETRIED_STATUSES:
                pause_s = max(pause_s, min(MAX_PAUSE_S, retry_after_s))
                failure = self._unavailable(f"status {status}: {self._quoted(content)}")
            else:
                raise self._refusal(status, content)
        if attempt + 1 < self._options.attempts:
            log.debug("upstream_retry", problem=str(failure), pause_s=round(pause_s, 1))
            await self._clock.sleep(pause_s)
        return failure

    async def _post(self, body: dict[str, Json]) -> tuple[int, bytes, float]:
        """Returns status, content and the seconds of `Retry-After`."""
        if self._client is None:
            raise Unavailable("cannot call the endpoint: the client is closed; start it", code="upstream.closed")
        content = bytearray()
        async with self._client.stream("POST", self._options.base_url + self._format.path, json=body) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_REPLY_BYTES:
                    break
            after = response.headers.get("retry-after", "")
            return response.status_code, bytes(content), float(after) if after.isdecimal() else 0.0

    def _counted(self, reply: UpstreamReply) -> UpstreamReply:
        usage = self.usage
        self._unanswered, self._has_answered = 0, True
        usage.prompt_tokens += reply.prompt_tokens
        usage.cached_tokens += reply.cached_tokens
        usage.completion_tokens += reply.completion_tokens
        usage.unmeasured += not reply.prompt_tokens
        return reply

    def _refusal(self, status: int, content: bytes) -> AstraFlowError:
        """Returns the error for a status that no retry changes, and halts when no other call can succeed either."""
        self.usage.refused += 1
        cause = f"{self._options.base_url} answered {status}: {self._quoted(content)}"
        if status in (401, 403):
            return self._halt(
                NotAuthenticated(f"cannot use the endpoint: {cause}; check the key", code="upstream.not_authenticated")
            )
        is_wrong = self.usage.refused >= MAX_REFUSED_CALLS and not self._has_answered
        if status in (404, 405) or 300 <= status < 400 or is_wrong:
            return self._halt(
                InvalidInput(
                    f"cannot use the endpoint: {cause}; check URL, model and options, or leave out refused fields",
                    code="upstream.refused",
                )
            )
        return CallRefused(
            f"cannot complete the call: {cause}; change the request",
            refusal=Refusal.INVALID,
            code="upstream.call_refused",
        )

    def _unanswered_call(self, problem: AstraFlowError) -> AstraFlowError:
        self.usage.failed += 1
        self._unanswered += 1
        return self._halt(problem) if self._unanswered >= MAX_UNANSWERED_CALLS else problem

    def _halt(self, reason: AstraFlowError) -> AstraFlowError:
        if self.reason is None:
            self.reason = reason
        return self.reason

    def _unavailable(self, cause: str) -> Unavailable:
        return Unavailable(
            f"cannot complete the call: {self._options.base_url} did not answer ({cause}); check that it works, or "
            "allow more attempts",
            code="upstream.unavailable",
        )

    def _quoted(self, content: bytes) -> str:
        """Returns the begin of an answer as text, without the key, which some endpoints repeat."""
        text = content.decode(errors="replace")
        return repr((text.replace(self._key, "[key]") if self._key else text)[:_QUOTED_CHARACTERS])
