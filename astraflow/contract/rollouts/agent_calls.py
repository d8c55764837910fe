"""Model calls of agent programs, as people see them: recorded calls of a finished session, and live sessions."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from heapq import nlargest

from astraflow.contract.ids import FlowId, TaskId


class CallOutcome(Enum):
    """Outcome of a call."""

    ANSWERED = "answered"
    REPLAYED = "replayed"
    """A retry, which got the stored reply."""
    REFUSED = "refused"
    """Answered with an error."""
    ABORTED = "aborted"
    """The client left before the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """One HTTP request of an agent. Recorded for sampled groups; secrets are removed, long bodies are cut."""

    began_s: float
    """Time since the session began. Seconds."""
    duration_s: float
    """Time until the reply was complete. Seconds."""
    dialect: str
    """`chat`, `responses`, `messages` or `tokens`."""
    model: str
    """Model name as the client sent it."""
    request: str
    """Body, as JSON; cut at `MAX_BODY_CHARACTERS`."""
    reply: str
    """Body of the answer as JSON, or the message of an error; cut likewise."""
    outcome: CallOutcome
    """Result of the call."""
    turn: int | None = None
    """Turn of the trajectory that the reply became, from 0; None when it became none."""


MAX_BODY_CHARACTERS = 16384
MAX_CALLS = 256
"""Recorded calls of an episode; the count of the others is a metric."""
MAX_EPISODE_CHARACTERS = 2**20
"""Characters of the bodies of all calls of an episode: nodes cut the bodies further beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """Session of an agent that runs now, as a node reports it."""

    task: TaskId
    """Task that the session works on."""
    flow: FlowId
    """Flow of the task."""
    age_s: float
    """Time since the session began. Seconds."""
    calls: int
    """Calls answered so far. Count."""
    waiting_calls: int
    """Calls in progress. Count."""
    tokens: int
    """Tokens that policies wrote so far. Count."""
    idle_s: float
    """Time since the last call began or ended. Seconds."""


MAX_LIVE_SESSIONS = 32
"""Sessions in a node's report: those that are oldest."""
MAX_REPORTED_SESSIONS = 128
"""Sessions in a report of the run, over all nodes: those that are oldest."""


def oldest_sessions(sessions: Iterable[LiveSession], limit: int) -> tuple[LiveSession, ...]:
    """Returns the oldest sessions, the oldest first."""
    return tuple(nlargest(limit, sessions, key=lambda session: session.age_s))
