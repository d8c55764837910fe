"""Serves a model folder by the APIs of OpenAI and Anthropic on loopback, without a run."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from astraflow.agents.calls import AgentMessage, CallRefused, ModelCall, ModelReply, Refusal, TokenCall, TokenReply
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.proxy.server import AgentProxy, ProxyOptions
from astraflow.agents.session_limits import SessionOptions
from astraflow.baselines.subjects import Subject, folder_subject
from astraflow.contract.ids import FlowId, GroupId, PolicyId, PromptId, TaskId
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.raas.policies.recorder import RolloutRecorder


class ServedModel:
    """Answers each call in a session of its own, so that nothing is kept of it: a `CallHandler`."""

    def __init__(self, subject: Subject, name: PolicyId, options: SessionOptions) -> None:
        self._subject = subject
        self._name = name
        self._options = options
        self._numbers = count(1)

    @property
    def models(self) -> Sequence[str]:
        """The name of the model; every other name is answered by it too."""
        return (self._name,)

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the next assistant message. Raises: CallRefused; RolloutFailed."""
        return await self._session().complete(call)

    async def generate(self, call: TokenCall) -> TokenReply:
        """Continues exact tokens. Raises: CallRefused; RolloutFailed."""
        return await self._session().generate(call)

    async def count_tokens(self, call: ModelCall) -> int:
        """Returns the length of the prompt, in tokens. Raises: CallRefused."""
        return await self._session().count_tokens(call)

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Raises: CallRefused, because no reply is kept."""
        raise CallRefused(
            f"cannot continue the reply {reply_id!r}: no reply is kept; send the whole conversation",
            refusal=Refusal.NOT_FOUND,
            code="agent.unknown_reply",
        )

    def _session(self) -> PolicySession:
        name = f"call-{next(self._numbers)}"
        prompt = Prompt(id=PromptId(name), fields={})
        task = Task(id=TaskId(name), group=GroupId(name), flow=FlowId("serve"), member=0, attempt=0, prompt=prompt)
        clients = self._subject.policies.for_task(task, RolloutRecorder(), self._subject.counters)
        return PolicySession(clients, self._options, default=self._name)


async def serve_model(
    folder: Path,
    engine: Mapping[str, Any],
    options: SessionOptions,
    *,
    port: int,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
) -> None:
    """Serves a folder until `stop`. on_ready: gets the base URL, which contains the key. Raises: as
    `folder_subject`; InvalidInput when the port is in use."""
    name = PolicyId(folder.name)
    async with AsyncExitStack() as resources:
        subject = await folder_subject({name: folder}, engine, resources)
        proxy = AgentProxy(ProxyOptions(port=port))
        await proxy.start()
        resources.push_async_callback(proxy.close)
        access = await resources.enter_async_context(
            proxy.session(ServedModel(subject, name, options), is_recorded=False)
        )
        on_ready(f"{access.url}/v1")
        await stop.wait()
