"""Session of an agent program whose model calls are answered by policies of the run, with exact traces."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from astraflow.agents.branches import CallRecord, Scores, build_trajectories
from astraflow.agents.calls import (
    AgentMessage,
    CallOptions,
    CallRefused,
    ModelCall,
    ModelReply,
    Refusal,
    ReplyFinish,
    Role,
    TokenCall,
    TokenReply,
)
from astraflow.agents.joined_calls import JoinedCalls
from astraflow.agents.prompts import PolicyPrompts, Prompt
from astraflow.agents.renderers import Renderer
from astraflow.agents.sampled_calls import sampled
from astraflow.agents.session_limits import LimitReached, Session, SessionOptions
from astraflow.agents.traces import Reply, function_calls_with_ids
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.tools.call_parsers import closing_strings
from astraflow.tools.calls import CallFormat
from astraflow.workflows.base import PolicyClient, PolicyClients
from astraflow.workflows.components.tool_calls import generate_whole_calls

_MIN_TOP_P = 1e-6
"""Stands for top_p 0, which engines refuse: only the most probable token is sampled."""

_T = TypeVar("_T")


class PolicySession(Session):
    """Answers the model calls of one session, and returns its trajectories: a `CallHandler`.

    Each policy has a token tree. A failure of an engine fails the session: every later call raises it, and `failure`
    holds it for the workflow.
    """

    def __init__(
        self,
        policies: PolicyClients,
        options: SessionOptions,
        *,
        default: PolicyId,
        models: Mapping[str, PolicyId] | None = None,
    ) -> None:
        """default: policy of model names that are neither in `models` nor a policy."""
        super().__init__(options)
        self._default = default
        self._names = {str(policy): policy for policy in policies} | dict(models or {})
        self._prompts = {
            policy: PolicyPrompts(
                policy,
                client,
                Renderer(client.tokenizer),
                thinking=options.thinking,
            )
            for policy, client in policies.items()
        }
        self._replies: dict[str, tuple[PolicyPrompts, Reply]] = {}
        self._model_calls: JoinedCalls[ModelReply] = JoinedCalls(lambda reply: self._take_back(reply.id))
        self._token_calls: JoinedCalls[TokenReply] = JoinedCalls(lambda reply: self._take_back(reply.id))

    @property
    def models(self) -> Sequence[str]:
        """Names of the policies, and the model names that stand for one."""
        return tuple(self._names)

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the next assistant message. Raises: CallRefused; RolloutFailed."""
        return await self._run(self._model_calls, call.options, lambda number: self._complete(number, call))

    async def generate(self, call: TokenCall) -> TokenReply:
        """Continues exact tokens. Raises: CallRefused; RolloutFailed."""
        return await self._run(self._token_calls, call.options, lambda number: self._continue(number, call))

    async def count_tokens(self, call: ModelCall) -> int:
        """Returns the length of the prompt, in tokens. Raises: CallRefused."""
        prompt = await self._prompts_of(call.options).of_messages(self.usage.calls, self._shown(call))
        return len(prompt.tokens())

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

    @property
    def last_reply(self) -> tuple[str, Finish] | None:
        """Text and end of the reply that was committed last; None before the first."""
        if not self._replies:
            return None
        prompts, reply = next(reversed(self._replies.values()))
        message = reply.message
        text = prompts.client.tokenizer.decode(reply.generation.tokens) if message is None else message.content
        return text, reply.generation.finish

    def trajectories(
        self, scores: Scores, *, calls: Sequence[CallRecord] = (), roles: Mapping[PolicyId, str] | None = None
    ) -> tuple[Trajectory, ...]:
        """Returns a trajectory of each leaf of the token trees; none when no call was answered.

        scores: of all policies, or of each. calls: recorded calls, each with the id of its reply. roles: of the
        policies; by default their names. Raises: the failure of the session.
        """
        if self.failure is not None:
            raise self.failure
        replayed = self._model_calls.replayed + self._token_calls.replayed
        return build_trajectories(
            [prompts.tree for prompts in self._prompts.values()],
            scores,
            calls=calls,
            roles=roles or {},
            ending=self.usage.ending,
            keeps_superseded=self._options.superseded == "keep",
            metrics={
                "calls": float(self.usage.turns),
                "replayed_calls": float(replayed),
                "refused_calls": float(self.usage.refused),
            },
        )

    async def _run(self, calls: JoinedCalls[_T], options: CallOptions, start: Callable[[int], Awaitable[_T]]) -> _T:
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
        except Exception as problem:  # kept as the session's failure, and raised again
            self.failure = self.failure or problem
            raise
        finally:
            self.usage.end()

    def _shown(self, call: ModelCall) -> ModelCall:
        """Returns the call without the lines that policies do not read."""
        hidden = self._options.hidden_lines
        return replace(call, messages=tuple(message for sent in call.messages for message in _without(sent, hidden)))

    async def _complete(self, number: int, sent: ModelCall) -> ModelReply:
        call = self._shown(sent)
        prompts = self._prompts_of(call.options)
        prompt = await prompts.of_messages(number, call)
        ends_after_call = bool(call.tools) and not call.allows_parallel_calls
        stops = (*call.options.stop, *(closing_strings(CallFormat.HERMES, ()) if ends_after_call else ()))
        generation = await self._generation(prompts, prompt, call.options, stops, ends_after_call=ends_after_call)
        parsed = await prompts.parsed(prompt, generation, call)
        calls = tuple(function_calls_with_ids(parsed.message.function_calls, f"call_{number}_"))
        message = replace(parsed.message, function_calls=calls)
        reply = self._commit(prompts, prompt, generation, message, is_malformed=parsed.is_malformed)
        parent_length = 0 if prompt.parent is None else prompt.parent.length
        return ModelReply(
            id=reply.id,
            message=message,
            finish=_finish(generation, has_calls=bool(calls)),
            prompt_tokens=parent_length + len(prompt.bridge),
            cached_tokens=parent_length,
            completion_tokens=len(generation.tokens),
        )

    async def _continue(self, number: int, call: TokenCall) -> TokenReply:
        prompts = self._prompts_of(call.options)
        prompt = prompts.of_tokens(number, call)
        generation = await self._generation(prompts, prompt, call.options, call.options.stop, call.stop_tokens)
        reply = self._commit(prompts, prompt, generation)
        return TokenReply(
            id=reply.id,
            tokens=generation.tokens,
            logprobs=generation.logprobs,
            finish=_finish(generation, has_calls=False),
        )

    def _prompts_of(self, options: CallOptions) -> PolicyPrompts:
        """Returns the conversations of the policy that a model name stands for."""
        return self._prompts[self._names.get(options.model, self._default)]

    async def _generation(
        self,
        prompts: PolicyPrompts,
        prompt: Prompt,
        client: CallOptions,
        stop_strings: Sequence[str],
        stop_tokens: tuple[int, ...] = (),
        *,
        ends_after_call: bool = False,
    ) -> Generation:
        """Returns the generation of a call. Raises: CallRefused at a limit; RolloutFailed."""

        def generate(tokens: Int32Array, sampling: Sampling) -> Awaitable[Generation]:
            hold_s = self._options.hold_s
            return sampled(prompts.policy, prompts.client, prompt, tokens, sampling, hold_s=hold_s)

        tokens = prompt.tokens()
        try:
            self.usage.check(prompt_tokens=len(tokens))
            _check_schema(client, prompts.client)
            sampling = self._sampling(
                len(tokens), client, stop_strings, stop_tokens or prompts.client.tokenizer.stop_tokens
            )
            async with self.usage.time_limit():
                if not ends_after_call:
                    return await generate(tokens, sampling)
                return await generate_whole_calls(
                    generate, prompts.client.tokenizer, tokens, sampling, form=CallFormat.HERMES
                )
        except LimitReached as problem:
            if prompt.parent is not None:
                prompt.parent.ending = problem.ending
            raise
        except RolloutFailed as problem:
            if client.json_schema and isinstance(problem.__cause__, InvalidInput):  # the schema, or the engine has none
                raise CallRefused(
                    str(problem.__cause__), refusal=Refusal.INVALID, code=problem.__cause__.code
                ) from problem
            raise

    def _sampling(
        self, prompt_tokens: int, client: CallOptions, stop_strings: Sequence[str], stop_tokens: tuple[int, ...]
    ) -> Sampling:
        """Returns the sampling of a call: the flow's, within the client's limits. Raises: CallRefused."""
        options = self._options
        limits = [options.max_new_tokens, options.max_context - prompt_tokens, options.max_tokens - self.usage.tokens]
        sampling = options.sampling(
            stop_tokens=stop_tokens,
            max_new_tokens=min([*limits, *([client.max_tokens] if client.max_tokens else [])]),
            stop_strings=[text for text in stop_strings if text],
        )
        if options.uses_client_sampling:
            temperature = sampling.temperature if client.temperature is None else client.temperature
            top_p = sampling.top_p if client.top_p is None else max(client.top_p, _MIN_TOP_P)
            sampling = replace(sampling, temperature=temperature, top_p=top_p)
        return replace(sampling, json_schema=client.json_schema or sampling.json_schema)

    def _commit(
        self,
        prompts: PolicyPrompts,
        prompt: Prompt,
        generation: Generation,
        message: AgentMessage | None = None,
        *,
        is_malformed: bool = False,
    ) -> Reply:
        """Adds a complete reply to its tree. Raises: CallRefused when the session has ended meanwhile."""
        self._check_open()
        conversation = prompt.conversation
        reply = Reply(
            id=f"reply_{prompt.number}",
            parent=prompt.parent,
            bridge=prompt.bridge,
            generation=generation,
            digest=b"" if conversation is None or message is None else conversation.digest_with(message),
            prompt_digest=prompt.digest,
            messages=prompt.messages,
            message=message,
            is_malformed=is_malformed,
            begun=prompt.number,
            committed=self.usage.turns,
            calls_before_commit=self.usage.calls,
        )
        prompts.tree.add(reply, conversation)
        self._replies[reply.id] = (prompts, reply)
        self.usage.commit(len(generation.tokens))
        return reply

    def _take_back(self, reply_id: str) -> None:
        """Removes a reply whose client had gone before it got it."""
        prompts, reply = self._replies[reply_id]
        if not reply.children:
            prompts.tree.remove(reply)
            self.usage.taken_back += 1
            del self._replies[reply_id]


def _check_schema(client: CallOptions, policy: PolicyClient) -> None:
    """Checks that tokens which a schema restricts can be trained. Raises: CallRefused."""
    if client.json_schema and not policy.allows_grammars:
        raise CallRefused(
            "cannot sample by a JSON schema: the trainer needs the tokens that the schema left, and the engine of the "
            "policy records none; use an engine that records kept sets, ask for JSON in the prompt, or set "
            "allow_truncated_sampling in the options of the workflow",
            refusal=Refusal.INVALID,
            code="agent.json_schema",
        )


def _without(message: AgentMessage, hidden: tuple[str, ...]) -> Iterator[AgentMessage]:
    """Yields a message without lines of the system that begin so; nothing if no other lines are left."""
    if message.role is not Role.SYSTEM or not any(begin in message.content for begin in hidden):
        yield message
        return
    lines = [line for line in message.content.splitlines(keepends=True) if not line.startswith(hidden)]
    if lines:
        yield replace(message, content="".join(lines))


def _finish(generation: Generation, *, has_calls: bool) -> ReplyFinish:
    if generation.finish is Finish.LENGTH:
        return ReplyFinish.LENGTH
    return ReplyFinish.FUNCTION_CALLS if has_calls else ReplyFinish.STOP
