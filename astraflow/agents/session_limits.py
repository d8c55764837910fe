"""Options and limits of an agent's session with the policies of a run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from pydantic import Field

from astraflow.agents.calls import CallRefused, ContextUse, Refusal
from astraflow.contract.ids import FlowId, TaskId
from astraflow.contract.rollouts.agent_calls import LiveSession
from astraflow.contract.rollouts.spans import Ending
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows.components.answers import AnswerOptions


class SessionOptions(AnswerOptions):
    """Sampling and limits of a session. A call that exceeds a limit is refused with an error that clients do not retry,
    and the conversation counts as truncated. A client's `max_tokens` and stop strings are further limits of its call.
    """

    max_turns: int = Field(default=64, ge=1)
    """Replies of a session."""
    max_tokens: int = Field(default=131072, ge=1)
    """Tokens that the policies write in a session; checked when a call arrives. Tokens."""
    max_context: int = Field(default=16384, ge=2)
    """Length limit of a conversation. Tokens."""
    max_parallel_calls: int = Field(default=8, ge=1)
    """Maximum number of concurrent calls; further calls get an answer that asks to retry."""
    max_seconds: float = Field(default=0.0, ge=0)
    """Duration of a session; 0: no limit but the node's `episode_timeout_s`. Seconds."""
    hold_s: float = Field(default=60.0, ge=0)
    """Time for which a call waits while a policy serves no verified version; it then gets an answer that asks to
    retry. Seconds."""
    thinking: Annotated[Literal["keep", "template"], SettableBy.AGENT] = "keep"
    """Thoughts of earlier replies: `keep` continues the exact tokens, so conversations only grow; `template` shows the
    policy what the chat template makes of the client's messages, and begins a new branch where it drops thoughts or
    changes earlier turns otherwise."""
    hidden_lines: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], SettableBy.AGENT] = (
        "x-anthropic-billing-header:",
    )
    """Begins of lines in system messages that the policy does not read, because the client changes them from call to
    call: a line with the time would begin a new conversation with each call."""
    superseded: Annotated[Literal["drop", "keep"], SettableBy.AGENT] = "drop"
    """Replies at the length limit or with unreadable function calls whose call the client sent again."""
    uses_client_sampling: Annotated[bool, SettableBy.AGENT] = False
    """Samples with the client's temperature and top_p where it sends them, instead of the flow's; in training, engines
    must record kept sets."""

    @property
    def truncating_options(self) -> tuple[str, ...]:
        """Names of the options by which samples may be from other distributions than the whole vocabulary."""
        return (*super().truncating_options, *(("uses_client_sampling",) if self.uses_client_sampling else ()))


class LimitReached(CallRefused):
    """A call exceeds a limit of the session; `ending` names it."""

    def __init__(self, message: str, *, ending: Ending, code: str, context: ContextUse | None = None) -> None:
        super().__init__(message, refusal=Refusal.LIMIT, code=code, context=context)
        self.ending = ending


class SessionUsage:
    """Use of the limits of a session."""

    def __init__(self, options: SessionOptions) -> None:
        self.calls = 0
        """Calls that arrived, without retries. Count."""
        self.turns = 0
        """Calls answered. Count."""
        self.taken_back = 0
        """Answered calls whose client had gone before it got the reply. Count."""
        self.in_progress = 0
        """Calls in progress. Count."""
        self.tokens = 0
        """Tokens that policies wrote. Count."""
        self.refused = 0
        """Calls refused at a limit. Count."""
        self.ending: Ending | None = None
        """Limit of the whole session that was reached first."""
        self._options = options
        self._now = asyncio.get_running_loop().time
        self._began_at = self._active_at = self._now()

    @property
    def age_s(self) -> float:
        """Time since the session began. Seconds."""
        return self._now() - self._began_at

    def live(self, task: TaskId, flow: FlowId) -> LiveSession:
        """Returns the session as the node reports it."""
        return LiveSession(
            task=task,
            flow=flow,
            age_s=self.age_s,
            calls=self.turns,
            waiting_calls=self.in_progress,
            tokens=self.tokens,
            idle_s=self.idle_s,
        )

    @property
    def idle_s(self) -> float:
        """Time since the last call began or ended. Seconds."""
        return self._now() - self._active_at

    def restart_clock(self) -> None:
        """Counts the duration from now on: the session waited for its program."""
        self._began_at = self._active_at = self._now()

    def begin(self) -> int:
        """Begins a call; returns its number, from 0."""
        self._active_at = self._now()
        self.in_progress += 1
        self.calls += 1
        return self.calls - 1

    def commit(self, tokens: int) -> None:
        """Counts an answered call with this many sampled tokens."""
        self.turns += 1
        self.tokens += tokens

    def end(self) -> None:
        """Ends a call."""
        self._active_at = self._now()
        self.in_progress -= 1

    def check_parallel(self) -> None:
        """Raises: CallRefused when too many calls are in progress."""
        if self.in_progress >= self._options.max_parallel_calls:
            raise CallRefused(
                f"cannot take the call: {self.in_progress} calls of this session are in progress; send fewer at once",
                refusal=Refusal.BUSY,
                code="agent.parallel_calls",
            )

    def check(self, *, prompt_tokens: int) -> None:
        """Checks the limits for a call in progress. Raises: LimitReached."""
        options = self._options
        if self.turns + self.in_progress > options.max_turns:
            raise self._of_session(f"the session has its {options.max_turns} replies (max_turns)", Ending.TURNS)
        if self.tokens >= options.max_tokens:
            raise self._of_session(f"the session has its {options.max_tokens} tokens (max_tokens)", Ending.CONTEXT)
        if options.max_seconds and self.age_s >= options.max_seconds:
            raise self._too_old()
        if prompt_tokens >= options.max_context:
            self.refused += 1
            cause = f"the conversation has {prompt_tokens} tokens of at most {options.max_context} (max_context)"
            raise _limit_reached(
                cause, Ending.CONTEXT, context=ContextUse(tokens=prompt_tokens, limit=options.max_context)
            )

    @asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """Cancels the body at the session's limit of time. Raises: LimitReached."""
        limit_s = self._options.max_seconds
        if not limit_s:
            yield
            return
        try:
            async with asyncio.timeout(limit_s - self.age_s) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._too_old() from None

    def _too_old(self) -> LimitReached:
        cause = f"the session is older than {self._options.max_seconds:g} s (max_seconds)"
        return self._of_session(cause, Ending.BUDGET)

    def _of_session(self, cause: str, ending: Ending) -> LimitReached:
        self.refused += 1
        self.ending = self.ending or ending
        return _limit_reached(cause, ending)


class Session:
    """Base of sessions: their use of the limits, their failure and their end."""

    def __init__(self, options: SessionOptions) -> None:
        self.usage = SessionUsage(options)
        self.failure: Exception | None = None
        """Failure of the session, which the workflow raises; None while it is sound."""
        self._options = options
        self._is_ended = False

    def end(self) -> None:
        """Ends the session: later calls are refused, and calls in progress are not committed."""
        self._is_ended = True

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._is_ended:
            raise CallRefused(
                "cannot take the call: the session has ended; start no calls after the program's end",
                refusal=Refusal.ENDED,
                code="agent.session_ended",
            )


def _limit_reached(cause: str, ending: Ending, *, context: ContextUse | None = None) -> LimitReached:
    return LimitReached(
        f"cannot continue: {cause}; end the program, or raise the limit in the options of the workflow",
        ending=ending,
        code="agent.limit",
        context=context,
    )
