"""Sessions with the real proxy and exact traces, over a policy that decides by the text of its prompt."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow.agents.policy_session import PolicySession
from astraflow.agents.proxy.server import AgentProxy, SessionAccess
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.agent_calls import AgentCall, CallOutcome
from astraflow.contract.rollouts.trajectories import Trajectory
from tests.agents.exactness import assert_token_exact
from tests.fakes.deciding_policy import DecidingPolicy

POLICY = PolicyId("policy")
OPTIONS = SessionOptions(max_context=200_000, max_new_tokens=2000)
"""The prompts of coding agents are long: the byte tokenizer has a token for each byte."""

TIMEOUT_S = 420
"""Time limit of a program on a busy machine. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSession:
    """A session for one client."""

    access: SessionAccess
    policy: DecidingPolicy
    session: PolicySession

    @property
    def calls(self) -> list[AgentCall]:
        """Calls of the client so far, in the order of their ends."""
        return [call for call, _ in self.access.record]

    async def run(
        self,
        *command: str,
        home: Path | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Runs a program of the agent until it ends, and returns what it wrote to its standard output.

        home: its home directory; None: none exists. folder: working directory. variables: besides those of the session.
        """
        environment = {"PATH": os.environ["PATH"], "HOME": str(home or "/nonexistent"), "LANG": "C.UTF-8"}
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**environment, **self.access.environment, **(variables or {})},
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"{command[0]}: exit {process.returncode}\n{output.decode()}\n{errors.decode()}"
        return output.decode()

    def trajectories(self, *, turns: Sequence[int] | None = None) -> Sequence[Trajectory]:
        """Checks that the traces are exact and that no call failed, and returns the trajectories.

        turns: of each trajectory, in order; None: any.
        """
        failed = [call for call in self.calls if call.outcome is not CallOutcome.ANSWERED]
        assert not failed, failed
        assert self.access.failure is None, self.access.failure
        trajectories = self.session.trajectories(1.0, calls=self.access.record)
        assert turns is None or [trajectory.turns for trajectory in trajectories] == list(turns), self.texts
        assert_token_exact(trajectories, self.policy.requests)
        return trajectories

    @property
    def texts(self) -> list[str]:
        """Texts that the policy read and wrote, for the message of a failed test."""
        decode = self.policy.tokenizer.decode
        return [
            decode(request.prompt, keep_special_tokens=True) + decode(request.generation.tokens)
            for request in self.policy.requests
        ]


@asynccontextmanager
async def client_session(policy: DecidingPolicy, options: SessionOptions = OPTIONS) -> AsyncIterator[ClientSession]:
    """Starts a proxy with one session."""
    proxy = AgentProxy()
    await proxy.start()
    try:
        session = PolicySession({POLICY: policy}, options, default=POLICY)
        async with proxy.session(session) as access:
            yield ClientSession(access=access, policy=policy, session=session)
    finally:
        await proxy.close()
