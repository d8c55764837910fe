"""Session of an agent program whose model calls a hosted endpoint answers: nothing is trained, texts are recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from astraflow.agents.branches import CallRecord, Scores
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
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import Session, SessionOptions
from astraflow.agents.text_tokens import TextTokenizer
from astraflow.agents.traces import MessageChain
from astraflow.agents.upstream.formats import UpstreamReply
from astraflow.agents.upstream.policy import UpstreamPolicy, cut_at_stop, text_generation
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.workflows.base import PolicyClients
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A call that was answered."""

    policy: PolicyId
    call: ModelCall
    reply: ModelReply

    def conversation(self) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including the reply."""
        return (*self.call.messages, self.reply.message)


class UpstreamSession(Session):
    """Answers the model calls of an agent program with an endpoint: a `CallHandler` behind the proxy.

    It has the limits and the sampling of a session with policies, so that a baseline and a trained policy work under
    the same conditions. An endpoint that gives no answer fails the session.
    """

    def __init__(
        self,
        policies: Mapping[PolicyId, UpstreamPolicy],
        options: SessionOptions,
        *,
        default: PolicyId,
        models: Mapping[str, PolicyId] | None = None,
    ) -> None:
        """default: policy of model names that are neither in `models` nor a policy."""
        super().__init__(options)
        self._policies = dict(policies)
        self._default = default
        self._names = dict(models or {})
        self._calls: JoinedCalls[ModelReply] = JoinedCalls(lambda reply: self._discard(reply.id))
        self._turns: dict[str, _Turn] = {}

    @property
    def models(self) -> Sequence[str]:
        """Names of the policies, and the model names that stand for one."""
        return tuple(dict.fromkeys([*map(str, self._policies), *self._names]))

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the endpoint's reply, or that of the call that it repeats.

        Raises: CallRefused; RolloutFailed when the endpoint gives no answer.
        """
        self._check_open()
        options = call.options
        return await self._calls.run(lambda: self._counted(call), key=options.retry_key, is_retry=options.is_retry)

    async def generate(self, call: TokenCall) -> TokenReply:
        """Raises: CallRefused: a chat endpoint has no token ids."""
        raise CallRefused(
            "cannot continue token ids: a chat endpoint answers the session; send messages, or evaluate a model folder",
            refusal=Refusal.INVALID,
            code="upstream.no_tokens",
        )

    async def count_tokens(self, call: ModelCall) -> int:
        """Raises: CallRefused: only the endpoint knows its tokenizer."""
        raise CallRefused(
            "cannot count tokens: the tokenizer of the endpoint is unknown; read the usage of replies",
            refusal=Refusal.INVALID,
            code="upstream.no_token_count",
        )

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including an earlier reply. Raises: CallRefused for an unknown id."""
        turn = self._turns.get(reply_id)
        if turn is None:
            raise CallRefused(
                f"cannot continue {reply_id!r}: the session has no such reply; send the whole conversation",
                refusal=Refusal.NOT_FOUND,
                code="upstream.unknown_reply",
            )
        return turn.conversation()

    @property
    def last_reply(self) -> tuple[str, Finish] | None:
        """Text and end of the last reply; None before the first."""
        if not self._turns:
            return None
        reply = next(reversed(self._turns.values())).reply
        return reply.message.content, Finish.LENGTH if reply.finish is ReplyFinish.LENGTH else Finish.STOP

    def trajectories(self, scores: Scores, *, calls: Sequence[CallRecord] = ()) -> tuple[Trajectory, ...]:
        """Returns each conversation that no later one continues, as text; none when no call was answered.

        scores: of all policies, or of each. calls: recorded calls, for the first trajectory. Raises: the failure of
        the session.
        """
        if self.failure is not None:
            raise self.failure
        leaves = _leaves(list(self._turns.values()))
        recorded = tuple(call for call, _ in calls)
        return tuple(
            replace(
                _trajectory(turn, scores),
                role=str(turn.policy),
                ending=self.usage.ending or Ending.DONE,
                calls=() if index else recorded,
            )
            for index, turn in enumerate(leaves)
        )

    async def _counted(self, call: ModelCall) -> ModelReply:
        """Runs a call within the limits, and keeps a failure for the workflow."""
        self.usage.check_parallel()
        number = self.usage.begin()
        try:
            self.usage.check(prompt_tokens=0)  # unknown before the reply: the endpoint refuses what is too long
            async with self.usage.time_limit():
                return await self._answered(call, number)
        except CallRefused:
            raise
        except Exception as problem:  # whatever the endpoint's client raises is a failed rollout
            self.failure = self.failure or RolloutFailed(
                str(problem), boundary=Boundary.ENGINE, code="rollout.engine_failed"
            )
            raise self.failure from problem
        finally:
            self.usage.end()

    async def _answered(self, call: ModelCall, number: int) -> ModelReply:
        name = self._policy(call.options.model)
        policy = self._policies[name]
        sent = replace(call, options=self._sampling(call.options, policy.model))
        upstream_reply = await policy.upstream.complete(sent, extra=policy.extra_fields(self._options.sampling()))
        self._check_open()
        reply = self._reply(upstream_reply, number)
        self._turns[reply.id] = _Turn(policy=name, call=call, reply=reply)
        self.usage.commit(reply.completion_tokens)
        return reply

    def _sampling(self, client: CallOptions, model: str) -> CallOptions:
        """Returns the options that are sent: the flow's sampling within the client's limits."""
        flow = self._options
        temperature, top_p = flow.temperature, flow.top_p
        if flow.uses_client_sampling:
            temperature = temperature if client.temperature is None else client.temperature
            top_p = top_p if client.top_p is None else client.top_p
        return replace(
            client,
            model=model,
            max_tokens=min(flow.max_new_tokens, client.max_tokens or flow.max_new_tokens),
            temperature=temperature,
            top_p=None if top_p == 1 else top_p,
            json_schema=client.json_schema or flow.json_schema,
        )

    def _reply(self, reply: UpstreamReply, number: int) -> ModelReply:
        text, is_stopped = cut_at_stop(reply.message.content, self._options.stop_strings)
        return ModelReply(
            id=f"reply_{number}",
            message=replace(reply.message, content=text),
            finish=ReplyFinish.STOP if is_stopped and reply.finish is ReplyFinish.LENGTH else reply.finish,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            completion_tokens=reply.completion_tokens,
        )

    def _policy(self, model: str) -> PolicyId:
        return self._names.get(model, next((name for name in self._policies if name == model), self._default))

    def _discard(self, reply_id: str) -> None:
        """Takes back a reply whose client had gone before it got it."""
        if self._turns.pop(reply_id, None) is not None:
            self.usage.taken_back += 1


AgentSession: TypeAlias = PolicySession | UpstreamSession
"""Session of an agent program: trained, or only evaluated."""


def open_session(
    policies: PolicyClients,
    options: SessionOptions,
    *,
    default: PolicyId,
    models: Mapping[str, PolicyId] | None = None,
) -> AgentSession:
    """Returns the session with these policies: with an endpoint where it gives their answers."""
    endpoints = {name: client for name, client in policies.items() if isinstance(client, UpstreamPolicy)}
    if endpoints:
        return UpstreamSession(endpoints, options, default=default, models=models)
    return PolicySession(policies, options, default=default, models=models)


def _leaves(turns: Sequence[_Turn]) -> list[_Turn]:
    """Returns the turns whose conversation no later turn of the same policy continues."""
    continued: set[tuple[PolicyId, bytes]] = set()
    leaves: list[_Turn] = []
    for turn in reversed(turns):
        chain = MessageChain(())
        prompts = [(turn.policy, chain.append(message)) for message in turn.call.messages]
        if (turn.policy, chain.append(turn.reply.message)) not in continued:
            leaves.append(turn)
        continued.update(prompts)
    return leaves[::-1]


def _trajectory(turn: _Turn, scores: Scores) -> Trajectory:
    """Returns a conversation in which every message of the assistant counts as the model's."""
    tokenizer, builder = TextTokenizer(), TrajectoryBuilder(turn.policy)
    for message in turn.call.messages:
        if message.role is Role.ASSISTANT:
            builder.add_context(tokenizer.encode_chat([]))
            builder.add_generation(text_generation(tokenizer, _text_of(message), is_complete=True))
        else:
            messages = [{"role": message.role.value, "content": message.content}]
            builder.add_context(tokenizer.encode_chat(messages, add_generation_prompt=False))
    builder.add_context(tokenizer.encode_chat([]))
    is_complete = turn.reply.finish is not ReplyFinish.LENGTH
    builder.add_generation(text_generation(tokenizer, _text_of(turn.reply.message), is_complete=is_complete))
    return builder.build(scores[turn.policy] if isinstance(scores, Mapping) else scores)


def _text_of(message: AgentMessage) -> str:
    """Returns the text of a message with its calls, and without its thoughts."""
    calls = (f"[call {call.name} {call.arguments}]" for call in message.function_calls)
    return "\n".join([message.content, *calls]).strip()
