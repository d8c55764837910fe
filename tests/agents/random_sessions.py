"""Random agent programs: they branch, edit, retry, leave, compact, and run sub-agents at once, on scripted policies."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from astraflow.agents.calls import AgentMessage, CallOptions, CallRefused, ModelCall, ModelReply, Role, TokenCall
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.agent_calls import AgentCall, CallOutcome
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.workflows.scripted.policies import EpisodeRecord, Request
from tests.agents.dialect_clients import Calls, DialectClient
from tests.agents.messages import ADD, assistant, result, system, user, written

POLICIES = (PolicyId("solver"), PolicyId("critic"))


class DriftingPolicy:
    """Writes given replies in tokens that the tokenizer would not choose, as models do: encoded again, most of them
    would have other ids. The logprobs of a generation are the number of its request."""

    def __init__(self, policy: PolicyId, record: EpisodeRecord, tokenizer: ChatTokenizer, rng: random.Random) -> None:
        self._policy = policy
        self._record = record
        self._tokenizer = tokenizer
        self._rng = rng

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer of the test."""
        return self._tokenizer

    @property
    def allows_grammars(self) -> bool:
        """True."""
        return True

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the next reply after other tasks have run."""
        number, self._record.started = self._record.started, self._record.started + 1
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)
        tokens = self._tokens(self._record.reply(self._policy, number), sampling)
        generation = Generation(
            tokens=tokens[: sampling.max_new_tokens],
            logprobs=np.full(min(len(tokens), sampling.max_new_tokens), -(1 + number) / 1024, dtype=np.float32),
            spans=(VersionSpan(version=Version(0), length=min(len(tokens), sampling.max_new_tokens)),),
            finish=Finish.LENGTH if len(tokens) > sampling.max_new_tokens else Finish.STOP,
        )
        self._record.requests.append(
            Request(policy=self._policy, prompt=prompt.copy(), sampling=sampling, generation=generation)
        )
        for _ in range(self._rng.randrange(2)):
            await asyncio.sleep(0)
        return generation

    def _tokens(self, text: str, sampling: Sampling) -> Int32Array:
        pieces = []
        while text:
            size = self._rng.randint(1, 6)
            pieces.append(self._tokenizer.encode(text[:size]))
            text = text[size:]
        end = np.array(sampling.stop_tokens[:1], dtype=np.int32)
        return np.concatenate([*pieces, end]).astype(np.int32)


def reply_text(rng: random.Random) -> str:
    """Returns a reply with or without a thought, function calls, unreadable calls, and spaces around it."""
    words = " ".join(rng.choice(("the", "answer", "is", "what", "user", "tool")) for _ in range(rng.randint(1, 6)))
    thought = rng.choice(("", "", f"<think>\n{words}?\n</think>\n\n"))
    calls = "".join(written("add", a=rng.randrange(9), b=[1.0, {"c": "d"}]) for _ in range(rng.randrange(3)))
    broken = rng.choice(("", "", "", '<tool_call>{"name": }</tool_call>', "<tool_call>"))
    return thought + rng.choice(("", " ", "\n")) + words + calls + broken


@dataclass
class RandomSession:
    """A session of random agents, and what they saw."""

    rng: random.Random
    session: PolicySession
    client: Calls
    """Sends the calls: the session itself, or a client in a dialect."""
    links: list[tuple[str, str]] = field(default_factory=list)
    """Replies of consecutive calls of an agent that changed nothing in between."""
    records: list[tuple[AgentCall, str | None]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Actions so far, by name."""
    keys: int = 0

    async def run(self) -> None:
        """Runs some agents at once."""
        first = [self._agent([system("You add."), user(f"task {number}")]) for number in range(self.rng.randint(1, 3))]
        await asyncio.gather(*first, self._token_agent())

    async def _agent(self, messages: list[AgentMessage], depth: int = 0) -> None:
        """Runs an agent from a conversation."""
        before = ""
        tools = () if self.rng.random() < 0.2 else (ADD,)
        model = self.rng.choice(("solver", "solver", "critic", "gpt-mini"))
        children = []
        for _ in range(self.rng.randint(1, 5)):
            reply = await self._call(messages, tools, model)
            if reply is None:
                break
            if before:
                self.links.append((before, reply.id))
            messages = [*messages, self._as_client(reply.message), *self._next_messages(reply.message)]
            before = reply.id
            action = self.rng.choice(("go on", "go on", "branch", "sub-agent", "edit", "compact", "inject"))
            self.done[action] += 1
            if action == "branch" and depth < 2:
                children.append(self._agent(messages, depth + 1))
            elif action == "sub-agent" and depth < 2:
                children.append(self._agent([system("You help."), user("part")], depth + 1))
            elif action == "edit":
                messages, before = self._edited(messages), ""
            elif action == "compact":
                messages, before = [messages[0], user(f"summary {len(messages)}")], ""
            elif action == "inject":
                messages = [*messages, assistant("noted"), user("go on")]
        await asyncio.gather(*children)

    async def _call(self, messages: list[AgentMessage], tools: tuple[object, ...], model: str) -> ModelReply | None:
        """Sends a call as clients do: with retries, after leaving, twice; returns None at a limit."""
        self.keys += 1
        options = CallOptions(
            model=model,
            max_tokens=self.rng.choice((None, None, 8, 200)),
            retry_key=f"key {self.keys}",
        )
        call = ModelCall(options=options, messages=tuple(messages), tools=tools)  # type: ignore[arg-type]
        retry = replace(call, options=replace(options, is_retry=True))
        action = self.rng.choice(("once", "once", "retry", "join", "leave", "again"))
        self.done[action] += 1
        try:
            if action == "leave":
                await self._leave(call)
                return await self._answer(retry)
            if action == "join":
                replies = await asyncio.gather(self._answer(call), self._answer(retry))
                assert replies[0] == replies[1]
                return replies[0]
            reply = await self._answer(call)
            if action == "retry":
                assert await self._answer(retry) == reply
            if action == "again":
                reply = await self._answer(replace(call, options=replace(options, retry_key="")))
        except CallRefused as problem:
            self.done[problem.code] += 1
            return None
        return reply

    async def _leave(self, call: ModelCall) -> None:
        """Sends a call and leaves before, or just when, the reply is there."""
        task = asyncio.ensure_future(self.client.complete(call))
        for _ in range(self.rng.randrange(7)):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, ModelReply):
            self._record(outcome.id)
        elif isinstance(outcome, CallRefused):
            raise outcome

    async def _answer(self, call: ModelCall) -> ModelReply:
        reply = await self.client.complete(call)
        self._record(reply.id)
        return reply

    def _record(self, reply_id: str) -> None:
        call = AgentCall(
            began_s=0, duration_s=0, dialect="chat", model="", request=reply_id, reply="", outcome=CallOutcome.ANSWERED
        )
        self.records.append((call, reply_id))

    def _as_client(self, message: AgentMessage) -> AgentMessage:
        """Returns the reply as a client sends it back: without thoughts or spaces, with other ids and forms of JSON."""
        if self.rng.random() < 0.5:
            message = replace(message, reasoning=None)
        calls = [
            replace(call, arguments=call.arguments.replace(", ", ",").replace("1.0", "1"))
            for call in message.function_calls
        ]
        return replace(
            message, content=self.rng.choice((message.content, f"{message.content}\n")), function_calls=tuple(calls)
        )

    def _next_messages(self, message: AgentMessage) -> list[AgentMessage]:
        if message.function_calls:
            return [result(f"{number} <|im_end|>", call.id) for number, call in enumerate(message.function_calls)]
        return [user(self.rng.choice(("go on", "sure?", "")))]

    def _edited(self, messages: list[AgentMessage]) -> list[AgentMessage]:
        places = [index for index, message in enumerate(messages) if message.role is Role.ASSISTANT]
        index = self.rng.choice(places)
        changed = self.rng.choice(
            (
                replace(messages[index], content="changed"),
                replace(messages[index], reasoning="changed"),
            )
        )
        return [*messages[:index], changed, *messages[index + 1 :]]

    async def _token_agent(self) -> None:
        """Runs an agent that renders prompts itself, and sometimes goes on from the middle of a reply."""
        prompt = np.array([5, 6, 7], dtype=np.int32)
        for _ in range(self.rng.randrange(4)):
            try:
                reply = await self.client.generate(TokenCall(options=CallOptions(model="solver"), prompt=prompt))
            except CallRefused:
                return
            self._record(reply.id)
            kept = reply.tokens if self.rng.random() < 0.7 else reply.tokens[: len(reply.tokens) // 2]
            extra = np.array([8] * self.rng.randrange(3), dtype=np.int32)
            prompt = np.concatenate([prompt, kept, extra])


async def random_session(
    seed: int, tokenizer: ChatTokenizer, options: SessionOptions, dialect: str = ""
) -> tuple[RandomSession, EpisodeRecord]:
    """Runs a session; returns it and what the engine read and wrote. dialect: of the calls; empty: none, calls are
    objects."""
    rng = random.Random(seed)
    record = EpisodeRecord(reply=lambda policy, number: reply_text(rng))
    policies = {policy: DriftingPolicy(policy, record, tokenizer, rng) for policy in POLICIES}
    session = PolicySession(policies, options, default=POLICIES[0])
    agents = RandomSession(rng, session, DialectClient(session, dialect) if dialect else session)
    await agents.run()
    return agents, record
