"""A hosted endpoint in the place of a run's policies: for workflows that ask for answers, and for agent programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astraflow.agents.calls import (
    AgentMessage,
    CallOptions,
    CallRefused,
    FunctionCall,
    ModelCall,
    ModelReply,
    Refusal,
    ReplyFinish,
    Role,
    TokenCall,
    TokenReply,
)
from astraflow.agents.text_tokens import TextTokenizer
from astraflow.agents.upstream import Upstream
from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.contract.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.trajectories import Int32Array, Trajectory
from astraflow.contract.values import Json
from astraflow.rewards.base import Score
from astraflow.workflows.trajectory_builder import TrajectoryBuilder

_VERSION = Version(0)
"""Version of texts of an endpoint, which has none."""


class UpstreamPolicy:
    """Policy of one task whose answers an endpoint gives: the interface `PolicyClient` of workflows.

    Token ids carry the text (`TextTokenizer`), logprobs are 0: trajectories of it are scored and shown, never trained.
    """

    def __init__(self, upstream: Upstream, model: str, *, seed: int = 0) -> None:
        """model: name of the model at the endpoint. seed: of the episode; added to that of the sampling."""
        self.upstream = upstream
        self.model = model
        self._seed = seed
        self._requests = 0
        self._tokenizer = TextTokenizer()

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer that carries messages to `generate`."""
        return self._tokenizer

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the endpoint's answer to the messages of the prompt.

        A stop string ends the answer and stays part of it, as for every engine: the endpoint is not told of it,
        because endpoints leave it out and do not say which one they met. Raises: RolloutFailed at the boundary
        `engine`.
        """
        options = CallOptions(
            model=self.model,
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=None if sampling.top_p == 1 else sampling.top_p,
            json_schema=sampling.json_schema,
        )
        extra: dict[str, Json] = {"top_k": sampling.top_k or None, "min_p": sampling.min_p or None}
        if sampling.seed is not None:  # the answers of a prompt differ
            extra["seed"] = (sampling.seed + self._seed + self._requests) % 2**31
        self._requests += 1
        try:
            call = ModelCall(options=options, messages=self._tokenizer.messages(prompt))
            given = {name: value for name, value in extra.items() if value is not None}
            reply = await self.upstream.complete(call, extra=given)
        except Exception as problem:
            raise RolloutFailed(str(problem), boundary=Boundary.ENGINE, code="rollout.engine_failed") from problem
        text, is_stopped = _cut(reply.message.content, sampling.stop_strings)
        is_cut = reply.finish is ReplyFinish.LENGTH and not is_stopped
        return _generation(self._tokenizer, text, is_complete=not is_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A call that was answered."""

    policy: PolicyId
    call: ModelCall
    reply: ModelReply


class UpstreamSession:
    """Answers the model calls of an agent program with an endpoint: a `CallHandler` behind the proxy.

    Nothing is trained, so the conversation is recorded as text: `trajectories` has one for each conversation that was
    not continued.
    """

    def __init__(self, policies: Mapping[PolicyId, UpstreamPolicy], *, default: PolicyId, max_calls: int = 0) -> None:
        """default: policy for model names that are no policy. max_calls: of the session; 0: no limit."""
        self._policies = dict(policies)
        self._default = default
        self._max_calls = max_calls
        self._turns: list[_Turn] = []
        self._by_retry_key: dict[str, ModelReply] = {}

    @property
    def models(self) -> Sequence[str]:
        """Names of the policies."""
        return tuple(self._policies)

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the endpoint's reply, or the stored one for a repeated call.

        Raises: CallRefused for a call that the endpoint refuses; Unavailable and other errors when it gives no answer,
        which fail the session.
        """
        options = call.options
        stored = self._by_retry_key.get(options.retry_key) if options.is_retry else None
        if stored is not None:
            return stored
        if self._max_calls and len(self._turns) >= self._max_calls:
            raise CallRefused(
                f"cannot complete the call: the session has made its {self._max_calls} calls; end the episode",
                refusal=Refusal.LIMIT,
                code="upstream.call_limit",
            )
        name = PolicyId.unchecked(options.model) if options.model in self._policies else self._default
        policy = self._policies[name]
        upstream_reply = await policy.upstream.complete(replace(call, options=replace(options, model=policy.model)))
        reply = ModelReply(
            id=f"reply-{len(self._turns) + 1}",
            message=upstream_reply.message,
            finish=upstream_reply.finish,
            prompt_tokens=upstream_reply.prompt_tokens,
            cached_tokens=upstream_reply.cached_tokens,
            completion_tokens=upstream_reply.completion_tokens,
        )
        self._turns.append(_Turn(policy=name, call=call, reply=reply))
        if options.retry_key:
            self._by_retry_key[options.retry_key] = reply
        return reply

    async def generate(self, call: TokenCall) -> TokenReply:
        """Raises: CallRefused: an endpoint of chat messages has no token ids."""
        raise CallRefused(
            "cannot continue token ids: the session is answered by a chat endpoint; send messages, or evaluate a model "
            "folder",
            refusal=Refusal.INVALID,
            code="upstream.no_tokens",
        )

    async def count_tokens(self, call: ModelCall) -> int:
        """Raises: CallRefused: only the endpoint knows its tokenizer."""
        raise CallRefused(
            "cannot count tokens: the session is answered by an endpoint whose tokenizer is unknown; read the usage of "
            "replies",
            refusal=Refusal.INVALID,
            code="upstream.no_token_count",
        )

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including an earlier reply. Raises: CallRefused for an unknown id."""
        for turn in self._turns:
            if turn.reply.id == reply_id:
                return (*turn.call.messages, turn.reply.message)
        raise CallRefused(
            f"cannot continue {reply_id!r}: the session has no such reply; send the whole conversation",
            refusal=Refusal.NOT_FOUND,
            code="upstream.unknown_reply",
        )

    def trajectories(self, score: Score) -> tuple[Trajectory, ...]:
        """Returns the conversations as text, with the score of the episode; those that a later one continues are part
        of it. Raises: RolloutFailed when no call was answered."""
        leaves = [turn for index, turn in enumerate(self._turns) if not self._is_continued(index)]
        if not leaves:
            raise RolloutFailed(
                "cannot score the episode: the agent made no call that was answered; let it call the model",
                boundary=Boundary.WORKFLOW,
                code="upstream.no_calls",
            )
        return tuple(_trajectory(turn, score) for turn in leaves)

    def _is_continued(self, index: int) -> bool:
        turn = self._turns[index]
        length = len(turn.call.messages) + 1
        texts = [_text_of(message) for message in (*turn.call.messages, turn.reply.message)]
        return any(
            later.policy == turn.policy and [_text_of(message) for message in later.call.messages[:length]] == texts
            for later in self._turns[index + 1 :]
        )


def _trajectory(turn: _Turn, score: Score) -> Trajectory:
    """Returns a conversation in which every message of the assistant counts as the model's."""
    tokenizer, builder = TextTokenizer(), TrajectoryBuilder(turn.policy)
    prompt: list[dict[str, str]] = []
    for message in turn.call.messages:
        if message.role is not Role.ASSISTANT:
            prompt.append({"role": message.role.value, "content": message.content})
            continue
        builder.add_context(tokenizer.encode_chat(prompt))
        builder.add_generation(_generation(tokenizer, _text_of(message), is_complete=True))
        prompt = []
    builder.add_context(tokenizer.encode_chat(prompt))
    is_complete = turn.reply.finish is not ReplyFinish.LENGTH
    builder.add_generation(_generation(tokenizer, _text_of(turn.reply.message), is_complete=is_complete))
    return builder.build(score)


def _generation(tokenizer: TextTokenizer, text: str, *, is_complete: bool) -> Generation:
    tokens = tokenizer.encode(text)
    if is_complete or not len(tokens):
        tokens = np.append(tokens, np.int32(tokenizer.stop_tokens[0])).astype(np.int32)
    return Generation(
        tokens=tokens,
        logprobs=np.zeros(len(tokens), dtype=np.float32),
        spans=(VersionSpan(version=_VERSION, length=len(tokens)),),
        finish=Finish.STOP if is_complete else Finish.LENGTH,
    )


def _text_of(message: AgentMessage) -> str:
    """Returns the text of a message with its calls, and without its thoughts, which clients may leave out."""
    return "\n".join([message.content, *(_call_text(call) for call in message.function_calls)]).strip()


def _call_text(call: FunctionCall) -> str:
    return f"[call {call.name} {call.arguments}]"


def _cut(text: str, stop_strings: Sequence[str]) -> tuple[str, bool]:
    """Returns the text up to the end of its first stop string, and whether it has one.

    >>> _cut("go <end> on", ("<end>",))
    ('go <end>', True)
    """
    ends = [(text.find(stop), stop) for stop in stop_strings if stop in text]
    if not ends:
        return text, False
    begin, stop = min(ends)
    return text[: begin + len(stop)], True
