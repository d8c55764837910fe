"""Sessions with the real proxy and exact traces, over a policy that decides by the text of its prompt."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from astraflow.agents.policy_session import PolicySession
from astraflow.agents.proxy import AgentProxy, SessionAccess
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.agent_calls import AgentCall, CallOutcome
from astraflow.contract.ids import PolicyId
from astraflow.contract.trajectories import Trajectory
from tests.agents.exactness import assert_token_exact
from tests.fakes.deciding_policy import DecidingPolicy

POLICY = PolicyId("policy")
OPTIONS = SessionOptions(max_context=200_000, max_new_tokens=2000)
"""The prompts of coding agents are long: the byte tokenizer has a token for each byte."""


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

    def trajectories(self, *, turns: Sequence[int]) -> Sequence[Trajectory]:
        """Checks that the traces are exact and that no call failed, and returns the trajectories.

        turns: of each trajectory, in order.
        """
        failed = [call for call in self.calls if call.outcome is not CallOutcome.ANSWERED]
        assert not failed
        assert self.access.failure is None
        trajectories = self.session.trajectories(1.0, calls=self.access.record)
        assert [trajectory.turns for trajectory in trajectories] == list(turns)
        assert_token_exact(trajectories, self.policy.requests)
        return trajectories


@asynccontextmanager
async def client_session(policy: DecidingPolicy) -> AsyncIterator[ClientSession]:
    """Starts a proxy with one session."""
    proxy = AgentProxy()
    await proxy.start()
    try:
        session = PolicySession({POLICY: policy}, OPTIONS, default=POLICY)
        async with proxy.session(session) as access:
            yield ClientSession(access=access, policy=policy, session=session)
    finally:
        await proxy.close()
