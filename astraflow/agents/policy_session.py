"""Session of an agent program whose model calls are answered by policies of the run, with exact traces."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from astraflow.agents.branches import CallRecord, Scores, build_trajectories
from astraflow.agents.calls import (
    AgentMessage,
    CallOptions,
    CallRefused,
    ModelCall,
    ModelReply,
    Refusal,
    ReplyFinish,
    TokenCall,
    TokenReply,
)
from astraflow.agents.joined_calls import JoinedCalls
from astraflow.agents.renderers import HERMES_CLOSE, ParsedReply, Renderer, renderer_of
from astraflow.agents.session_limits import SessionOptions, SessionUsage, limit_refusal
from astraflow.agents.traces import MessageChain, Reply, TokenTree, function_calls_with_ids
from astraflow.contract.agent_calls import LiveSession
from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.contract.generation import Finish, Generation, Sampling
from astraflow.contract.ids import FlowId, PolicyId, TaskId
from astraflow.contract.spans import Ending
from astraflow.contract.trajectories import Int32Array, Trajectory
from astraflow.workflows.base import PolicyClient

_T = TypeVar("_T")

_LONG_TEXT = 8192
"""Characters that are rendered, and that take milliseconds, outside the event loop."""
_LONG_REPLY = 1024
"""Tokens that are decoded outside the event loop."""
_POLL_S = 0.25
"""Time between two attempts while a policy serves no verified version. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """What a call asks a policy."""

    number: int
    policy: PolicyId
    parent: Reply | None
    bridge: Int32Array
    digest: bytes
    messages: tuple[AgentMessage, ...] = ()
    chain: MessageChain | None = None

    def tokens(self) -> Int32Array:
        """Returns the whole prompt: int32 `[n]`."""
        return self.bridge if self.parent is None else np.concatenate([self.parent.tokens(), self.bridge])


class PolicySession:
    """Answers the model calls of one session, and returns its trajectories: a `CallHandler`.

    Each policy has a token tree. A failure of an engine fails the session: every later call raises it, and `failure`
    holds it for the workflow.
    """

    def __init__(
        self,
        policies: Mapping[PolicyId, PolicyClient],
        options: SessionOptions,
        *,
        default: PolicyId,
        models: Mapping[str, PolicyId] | None = None,
        allows_truncated_sampling: bool = False,
    ) -> None:
        """default: policy of model names that are neither in `models` nor a policy. allows_truncated_sampling: lets
        clients restrict the sampled tokens by a JSON schema, as in evaluations."""
        self.usage = SessionUsage(options)
        self.failure: Exception | None = None
        """Failure of the session, which the workflow raises; None while it is sound."""
        self._policies = policies
        self._options = options
        self._default = default
        self._names = dict(models or {})
        self._allows_truncated = allows_truncated_sampling or options.allow_truncated_sampling
        self._trees: dict[PolicyId, TokenTree] = {}
        self._replies: dict[str, tuple[TokenTree, Reply]] = {}
        self._model_calls: JoinedCalls[ModelReply] = JoinedCalls(lambda reply: self._discard(reply.id))
        self._token_calls: JoinedCalls[TokenReply] = JoinedCalls(lambda reply: self._discard(reply.id))
        self._is_ended = False

    @property
    def models(self) -> Sequence[str]:
        """Names of the policies, and the model names that stand for one."""
        return tuple(dict.fromkeys([*map(str, self._policies), *self._names]))

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the next assistant message. Raises: CallRefused, RolloutFailed."""
        return await self._run(self._model_calls, call.options, lambda number: self._complete(number, call))

    async def generate(self, call: TokenCall) -> TokenReply:
        """Continues exact tokens. Raises: CallRefused, RolloutFailed."""
        return await self._run(self._token_calls, call.options, lambda number: self._continue(number, call))

    async def count_tokens(self, call: ModelCall) -> int:
        """Returns the length of the prompt, in tokens. Raises: CallRefused."""
        return len((await self._prompt(self.usage.calls, call)).tokens())

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including an earlier reply. Raises: CallRefused for an unknown id."""
        _, reply = self._replies.get(reply_id, (None, None))
        if reply is None or reply.message is None:
            raise CallRefused(
                f"cannot continue the reply {reply_id!r}: this session has none with this id; send the whole "
                "conversation",
                refusal=Refusal.NOT_FOUND,
                code="agent.unknown_reply",
            )
        return reply.conversation()

    def end(self) -> None:
        """Ends the session: later calls are refused, and calls in progress are not committed."""
        self._is_ended = True

    def live(self, task: TaskId, flow: FlowId) -> LiveSession:
        """Returns the session as the node reports it."""
        usage = self.usage
        return LiveSession(
            task=task,
            flow=flow,
            age_s=usage.age_s,
            calls=usage.turns,
            waiting_calls=usage.in_progress,
            tokens=usage.tokens,
            idle_s=usage.idle_s,
        )

    def trajectories(
        self,
        scores: Scores,
        *,
        calls: Sequence[CallRecord] = (),
        roles: Mapping[PolicyId, str] | None = None,
    ) -> tuple[Trajectory, ...]:
        """Returns a trajectory of each leaf of the token trees; none when no call was answered.

        scores: of all policies, or of each. calls: recorded calls, each with the id of its reply. roles: of the
        policies; by default their names. Raises: the failure of the session.
        """
        if self.failure is not None:
            raise self.failure
        return build_trajectories(
            list(self._trees.values()),
            scores,
            calls=calls,
            roles=roles or {},
            ending=self.usage.ending,
            keeps_superseded=self._options.superseded == "keep",
            metrics=self._metrics(),
        )

    def _metrics(self) -> dict[str, float]:
        replayed = self._model_calls.replayed + self._token_calls.replayed
        return {
            "calls": float(self.usage.turns),
            "replayed_calls": float(replayed),
            "refused_calls": float(self.usage.refused),
        }

    async def _run(self, calls: JoinedCalls[_T], options: CallOptions, start: Callable[[int], Awaitable[_T]]) -> _T:
        """Runs a call, or joins the one that it repeats."""
        self._check_open()
        return await calls.run(lambda: self._counted(start), key=options.retry_key, is_retry=options.is_retry)

    async def _counted(self, start: Callable[[int], Awaitable[_T]]) -> _T:
        """Runs a call within the limit of parallel calls, and keeps a failure for the workflow."""
        self.usage.check_parallel()
        number = self.usage.begin()
        try:
            return await start(number)
        except CallRefused:
            raise
        except Exception as problem:
            self.failure = self.failure or problem
            raise
        finally:
            self.usage.end()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._is_ended:
            raise CallRefused(
                "cannot take the call: the session has ended; start no calls after the program's end",
                refusal=Refusal.ENDED,
                code="agent.session_ended",
            )

    async def _complete(self, number: int, call: ModelCall) -> ModelReply:
        prompt = await self._prompt(number, call)
        self._check_limits(prompt.parent)
        renderer = self._renderer(prompt.policy)
        stops = (
            call.options.stop if call.allows_parallel_calls or not call.tools else (*call.options.stop, HERMES_CLOSE)
        )
        tokens = prompt.tokens()
        sampling = self._sampling(prompt, len(tokens), call.options, stops, renderer.stop_tokens)
        generation = await self._generation(prompt, tokens, sampling)
        parsed = await _off_loop(
            lambda: _parsed(renderer, generation, call), is_long=len(generation.tokens) > _LONG_REPLY
        )
        reply = self._commit(prompt, generation, parsed)
        assert reply.message is not None  # noqa: S101
        return ModelReply(
            id=reply.id,
            message=reply.message,
            finish=_finish(generation, reply.message),
            prompt_tokens=len(tokens),
            cached_tokens=len(tokens) - len(prompt.bridge),
            completion_tokens=len(generation.tokens),
        )

    async def _continue(self, number: int, call: TokenCall) -> TokenReply:
        policy = self._policy(call.options.model)
        parent, bridge = self._tree(policy).match_tokens(call.prompt)
        digest = call.prompt.tobytes()
        prompt = _Prompt(number=number, policy=policy, parent=parent, bridge=bridge, digest=digest)
        self._check_limits(parent)
        stops = call.stop_tokens or self._renderer(policy).stop_tokens
        sampling = self._sampling(prompt, len(call.prompt), call.options, call.options.stop, stops)
        generation = await self._generation(prompt, call.prompt, sampling)
        reply = self._commit(prompt, generation, None)
        is_cut = generation.finish is Finish.LENGTH
        return TokenReply(
            id=reply.id,
            tokens=generation.tokens,
            logprobs=generation.logprobs,
            finish=ReplyFinish.LENGTH if is_cut else ReplyFinish.STOP,
        )

    def _policy(self, model: str) -> PolicyId:
        """Returns the policy that a model name stands for."""
        policy = PolicyId(model)
        return self._names.get(model, policy if policy in self._policies else self._default)

    def _tree(self, policy: PolicyId) -> TokenTree:
        return self._trees.setdefault(policy, TokenTree(policy))

    def _renderer(self, policy: PolicyId) -> Renderer:
        return renderer_of(self._policies[policy].tokenizer)

    async def _prompt(self, number: int, call: ModelCall) -> _Prompt:
        """Returns the prompt of a call: the tokens of the reply that it continues, and those after it."""
        policy = self._policy(call.options.model)
        match = self._tree(policy).match(call.messages, call.tools)
        renderer = self._renderer(policy)
        parent, messages, tools = match.parent, match.messages, call.tools

        def rendered() -> Int32Array:
            if parent is None:
                return renderer.render(messages, tools)
            last_token = int(parent.generation.tokens[-1])
            return renderer.bridge(last_token, messages, has_tools=bool(tools))

        try:
            bridge = await _off_loop(rendered, is_long=sum(len(m.content) for m in messages) > _LONG_TEXT)
        except InvalidInput as problem:
            raise CallRefused(str(problem), refusal=Refusal.INVALID, code=problem.code) from problem
        return _Prompt(
            number=number,
            policy=policy,
            parent=parent,
            bridge=bridge,
            digest=match.chain.digest,
            messages=messages,
            chain=match.chain,
        )

    def _check_limits(self, parent: Reply | None) -> None:
        """Raises: CallRefused at a limit of the session."""
        reached = self.usage.limit_reached()
        if reached is not None:
            self.usage.ending = self.usage.ending or reached[0]
            raise self._limit_refusal(parent, *reached)

    def _limit_refusal(self, parent: Reply | None, ending: Ending, cause: str) -> CallRefused:
        self.usage.refused += 1
        if parent is not None:
            parent.ending = ending
        return limit_refusal(cause)

    def _sampling(
        self,
        prompt: _Prompt,
        prompt_tokens: int,
        client: CallOptions,
        stop_strings: Sequence[str],
        stop_tokens: tuple[int, ...],
    ) -> Sampling:
        """Returns the sampling of a call: the flow's, within the client's limits. Raises: CallRefused."""
        options = self._options
        room = options.max_context - prompt_tokens
        if room <= 0:
            cause = f"the conversation has {prompt_tokens} tokens of at most {options.max_context} (max_context)"
            raise self._limit_refusal(prompt.parent, Ending.CONTEXT, cause)
        limits = [options.max_new_tokens, room, options.max_tokens - self.usage.tokens]
        limits += [client.max_tokens] if client.max_tokens else []
        sampling = options.sampling(
            stop_tokens=stop_tokens, max_new_tokens=min(limits), stop_strings=[text for text in stop_strings if text]
        )
        if options.uses_client_sampling:
            sampling = replace(
                sampling,
                temperature=client.temperature or sampling.temperature,
                top_p=client.top_p or sampling.top_p,
            )
        if client.json_schema and not self._allows_truncated:
            raise CallRefused(
                "cannot sample by a JSON schema: training needs the whole distribution; ask for JSON in the prompt, or "
                "set allow_truncated_sampling in the options of the workflow",
                refusal=Refusal.INVALID,
                code="agent.json_schema",
            )
        return replace(sampling, json_schema=client.json_schema or sampling.json_schema)

    async def _generation(self, prompt: _Prompt, tokens: Int32Array, sampling: Sampling) -> Generation:
        """Returns the checked generation. Raises: CallRefused when the time is over; RolloutFailed."""
        client = self._policies[prompt.policy]
        try:
            async with asyncio.timeout(self.usage.seconds_left) as limit:
                generation = await self._served(lambda: client.generate(tokens, sampling))
        except TimeoutError:
            if not limit.expired():
                raise
            self.usage.ending = self.usage.ending or Ending.BUDGET
            cause = f"the session is older than {self._options.max_seconds:g} s (max_seconds)"
            raise self._limit_refusal(prompt.parent, Ending.BUDGET, cause) from None
        except InvalidInput as problem:
            raise _inexact(prompt, str(problem)) from problem
        defect = _defect(generation, sampling, client.tokenizer.vocab_size)
        if defect:
            raise _inexact(prompt, defect)
        return generation

    async def _served(self, request: Callable[[], Coroutine[Any, Any, Generation]]) -> Generation:
        """Sends a request; waits while the policy serves no verified version. Raises: CallRefused after `hold_s`."""
        now = asyncio.get_running_loop().time
        ends_at = now() + self._options.hold_s
        while True:
            try:
                return await request()
            except RolloutFailed as problem:
                if problem.code != "rollout.not_serving":
                    raise
                if now() + _POLL_S > ends_at:
                    raise CallRefused(
                        str(problem), refusal=Refusal.BUSY, code="agent.not_serving", retry_after_s=5
                    ) from None
            await asyncio.sleep(_POLL_S)

    def _commit(self, prompt: _Prompt, generation: Generation, parsed: ParsedReply | None) -> Reply:
        """Adds a complete reply to its tree. Raises: CallRefused when the session has ended meanwhile."""
        self._check_open()
        message = None
        if parsed is not None:
            calls = tuple(function_calls_with_ids(parsed.message.function_calls, f"call_{prompt.number}_"))
            message = replace(parsed.message, function_calls=calls)
        reply = Reply(
            id=f"reply_{prompt.number}",
            parent=prompt.parent,
            bridge=prompt.bridge,
            generation=generation,
            digest=prompt.chain.append(message) if message is not None and prompt.chain is not None else b"",
            prompt_digest=prompt.digest,
            messages=prompt.messages,
            message=message,
            is_malformed=parsed is not None and parsed.is_malformed,
            begun=prompt.number,
            committed=self.usage.turns,
            calls_before_commit=self.usage.calls,
        )
        tree = self._tree(prompt.policy)
        tree.add(reply)
        self._replies[reply.id] = (tree, reply)
        self.usage.turns += 1
        self.usage.tokens += len(generation.tokens)
        return reply

    def _discard(self, reply_id: str) -> None:
        """Takes back a reply whose client had gone before it got it."""
        tree, reply = self._replies[reply_id]
        if not reply.children:
            tree.remove(reply)


async def _off_loop(function: Callable[[], _T], *, is_long: bool) -> _T:
    """Calls the function, in a thread when it takes long."""
    return await asyncio.to_thread(function) if is_long else function()


def _parsed(renderer: Renderer, generation: Generation, call: ModelCall) -> ParsedReply:
    """Returns the message that a policy wrote. A stop string of the client is not part of it, as in hosted APIs."""
    text = renderer.decode(generation.tokens)
    for stop in call.options.stop:
        if stop and generation.finish is Finish.STOP and text.endswith(stop):
            text = text.removesuffix(stop)
            break
    return renderer.parse(text, has_tools=bool(call.tools) and call.tool_choice != "none")


def _finish(generation: Generation, message: AgentMessage) -> ReplyFinish:
    if generation.finish is Finish.LENGTH:
        return ReplyFinish.LENGTH
    return ReplyFinish.FUNCTION_CALLS if message.function_calls else ReplyFinish.STOP


def _defect(generation: Generation, sampling: Sampling, vocab_size: int) -> str:
    """Returns why the tokens of a generation are not those that were sampled; empty when they are sound."""
    count = len(generation.tokens)
    if not count:
        return "the engine returned no token"
    if generation.finish is Finish.ABORT:
        return "the engine aborted it"
    if count > sampling.max_new_tokens:
        return f"the engine returned {count} tokens of at most {sampling.max_new_tokens}"
    if not np.isfinite(generation.logprobs).all():
        return "the engine returned a logprob that is not finite"
    if generation.tokens.min() < 0 or generation.tokens.max() >= vocab_size:
        return f"the engine returned a token that is not in the vocabulary of {vocab_size} tokens"
    return ""


def _inexact(prompt: _Prompt, cause: str) -> RolloutFailed:
    replies = 0 if prompt.parent is None else len(prompt.parent.path)
    return RolloutFailed(
        f"cannot train on call {prompt.number} of the session (policy {str(prompt.policy)!r}, after {replies} replies):"
        f" {cause}; the engine must return each sampled token with its logprob",
        boundary=Boundary.ENGINE,
        code="rollout.inexact_call",
    )
