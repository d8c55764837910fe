"""Sessions of an MCP server: each client has its own plans, idempotency keys and transcript.

Client is identified by   scope of plans and keys
one pipe (stdio)          the only client
`Mcp-Session-Id`          the session: the SDK created the id, and answers an unknown one with 404
neither                   the plan: only a client that received its id can apply it

The last are HTTP requests of newer protocol versions, which have no sessions: such clients cannot be distinguished
except by the plan ids they know. They share one transcript.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.maintainer import Maintainer, MaintainerControlState, MaintainerMode
from astraflow.contract.fleet.plans import Actor, PlanId, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.agent.config import WatchConfig
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.signals import Signal, SignalMemory, detect_signals
from maintainer.agent.observation.snapshot import FleetStatusSource, Snapshot, SnapshotReader
from maintainer.agent.prompt import PROMPT_HASH, TOOLS_HASH
from maintainer.agent.tools import outputs
from maintainer.agent.tools.base import Kind as ToolKind
from maintainer.agent.tools.base import Tool
from maintainer.agent.tools.changes import MAX_PLANS
from maintainer.agent.tools.interfaces import FleetClient
from maintainer.agent.tools.registry import TOOLS
from maintainer.agent.tools.results import ERROR_ADVICE, ToolResult
from maintainer.agent.tools.toolbox import Toolbox
from maintainer.agent.transcript.transcript import Kind, Transcript

log = get_logger()

MAX_SESSIONS = 100
"""Maximum number of sessions; beyond it, the least recently used one is closed, and its client must plan again."""
TRANSCRIPT_FOLDER = "mcp"
"""Folder of transcripts in the directory."""


class SessionFleet(FleetClient, FleetStatusSource, Protocol):
    """Interface of the fleet service that a session uses; implemented by the client of the fleet plane."""

    async def maintainer(self) -> Maintainer:
        """Returns the mode that people set, among others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Calling client."""

    session: str
    """Session id; empty for the only client."""
    client: str = ""
    """Self-reported client name, for people; never used for decisions."""
    is_identified: bool = True
    """True if no other client can have this session id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModes:
    """Restrictions of a server for all of its clients."""

    is_read_only: bool = False
    """Only tools that read are offered."""
    is_non_destructive: bool = False
    """Plans that remove nodes are refused."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Tools that are offered."""
        return {name: tool for name, tool in TOOLS.items() if not self.is_read_only or tool.kind is ToolKind.READ}


class Session:
    """Session of one client: snapshot, control state, plans and transcript."""

    def __init__(
        self,
        *,
        snapshot_reader: SnapshotReader,
        fleet: SessionFleet,
        names: Names,
        name: str,
        clock: Clock,
        modes: ServerModes,
        peer: Peer,
        directory: Path,
    ) -> None:
        """name: agent in the journal. directory: folder of transcripts."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.wall()))
        suffix = secrets.token_hex(6)
        self.name = f"mcp-{stamp}-{suffix}"
        self.path = directory / f"{self.name}.jsonl"
        self.calls = 0
        self.in_flight = 0
        self._snapshot_reader = snapshot_reader
        self._fleet = fleet
        self._names = names
        self._actor = Actor(name=name, role=Role.AGENT)
        self._clock = clock
        self._modes = modes
        self._peer = peer
        self._memory = SignalMemory()
        self._watch = WatchConfig()
        self._control_state: MaintainerControlState | None = None
        self._transcript: Transcript | None = None
        self._open = ExitStack()
        self._begin_lock = asyncio.Lock()
        self._session_toolbox = self._toolbox(suffix)
        self._plan_toolboxes: dict[PlanId, Toolbox] = {}

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolResult:
        """Executes one call after the control state was read: without one, only reading is allowed."""
        self.calls += 1
        number, self.in_flight = self.calls, self.in_flight + 1
        try:
            await self._begin()
            await self._read_control_state()
            toolbox = self._toolbox_for(arguments or {})
            result = await toolbox.call(name, arguments)
            self._remember_plan(result, toolbox)
            body = {
                "call": f"{self.name}:{number}",
                "name": name[:80],
                "arguments": dict(arguments or {}),
                "is_error": result.is_error,
                "result": result.content,
            }
            await self._record(Kind.TOOL, body)
        except AstraFlowError as problem:
            log.warning("tool_call_failed", tool=name[:80], problem=str(problem))
            return ToolResult(
                content=f'{{"error":"not_reachable","advice":"{ERROR_ADVICE["not_reachable"]}"}}', error="away"
            )
        finally:
            self.in_flight -= 1
        log.info("tool_called", session=self.name, tool=name[:80], error=result.error)
        return result

    def close(self) -> None:
        """Closes the transcript."""
        self._open.close()

    async def _begin(self) -> None:
        """Opens the transcript at the first call: clients that only list tools create none."""
        async with self._begin_lock:
            if self._transcript is not None:
                return
            transcript = self._open.enter_context(Transcript(self.path, self._clock))
            tools: list[Json] = [
                [tool.name, tool.description, tool.input_schema()] for tool in self._modes.tools.values()
            ]
            body: dict[str, Json] = {
                "agent": self._actor.name,
                "client": self._peer.client[:200],
                "is_identified": self._peer.is_identified,
                "is_read_only": self._modes.is_read_only,
                "is_non_destructive": self._modes.is_non_destructive,
                "prompt_hash": PROMPT_HASH,
                "tools_hash": TOOLS_HASH,
                "tools": tools,
            }
            await transcript.add(Kind.OPENED, body, wake=self.name)
            self._transcript = transcript

    async def _read_control_state(self) -> None:
        kill, mode = (await self._fleet.status()).kill, (await self._fleet.maintainer()).mode
        control_state = MaintainerControlState(mode=mode, kill=kill)
        if control_state != self._control_state:
            self._control_state = control_state
            await self._record(Kind.CONTROL_STATE, {"mode": mode.value, "kill": kill.value})

    async def _record(self, kind: Kind, body: Mapping[str, Any]) -> None:
        assert self._transcript is not None  # noqa: S101 (opened by _begin)
        await self._transcript.add(kind, body, wake=self.name)

    def _toolbox_for(self, arguments: Mapping[str, Any]) -> Toolbox:
        """Toolbox of the session; for clients without a session, that of the plan in the arguments."""
        if self._peer.is_identified:
            return self._session_toolbox
        plan_toolbox = self._plan_toolboxes.get(PlanId.unchecked(str(arguments.get("plan_id", ""))))
        return plan_toolbox or self._toolbox(secrets.token_hex(6))

    def _remember_plan(self, result: ToolResult, toolbox: Toolbox) -> None:
        if self._peer.is_identified or not isinstance(result.output, outputs.PlanOutput):
            return
        self._plan_toolboxes[PlanId.unchecked(result.output.plan_id)] = toolbox
        for old in list(self._plan_toolboxes)[:-MAX_PLANS]:
            del self._plan_toolboxes[old]

    def _toolbox(self, scope: str) -> Toolbox:
        return Toolbox(
            detect_signals=self._detect_signals,
            fleet=self._fleet,
            names=self._names,
            actor=self._actor,
            control_state=lambda: (
                self._control_state or MaintainerControlState(mode=MaintainerMode.OFF, kill=KillScope.NONE)
            ),
            clock=self._clock,
            scope=f"{self._actor.name}:mcp-{scope}",
            record=self._record,
            is_one_plan_per_pool=False,
            is_read_only=self._modes.is_read_only,
            is_non_destructive=self._modes.is_non_destructive,
        )

    async def _detect_signals(self) -> tuple[Snapshot, tuple[Signal, ...]]:
        snapshot = await self._snapshot_reader.read()
        self._memory, signals = detect_signals(self._memory, snapshot, self._watch)
        return snapshot, signals


class Sessions:
    """Sessions of all clients of a server. A context manager."""

    def __init__(
        self,
        *,
        snapshot_reader: Callable[[], SnapshotReader],
        fleet: SessionFleet,
        names: Names,
        name: str,
        clock: Clock,
        directory: Path,
        modes: ServerModes | None = None,
    ) -> None:
        """snapshot_reader: builds a reader for a new session. name: agent in the journal, owner of the token."""
        self._snapshot_reader = snapshot_reader
        self._fleet = fleet
        self._names = names
        self._name = name
        self._clock = clock
        self._directory = directory / TRANSCRIPT_FOLDER
        self.modes = modes or ServerModes()
        self._sessions: dict[str, Session] = {}
        """Sessions by id, least recently used first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def session_for(self, peer: Peer) -> Session:
        """Session of a client; opens one at its first call."""
        session = self._sessions.pop(peer.session, None) or Session(
            snapshot_reader=self._snapshot_reader(),
            fleet=self._fleet,
            names=self._names,
            name=self._name,
            clock=self._clock,
            modes=self.modes,
            peer=peer,
            directory=self._directory,
        )
        self._sessions[peer.session] = session
        idle = [
            session_id for session_id, other in self._sessions.items() if not other.in_flight and other is not session
        ]
        for session_id in idle[: max(0, len(self._sessions) - MAX_SESSIONS)]:
            self._sessions.pop(session_id).close()
        return session
