"""The clients of a server of MCP, told apart: each has its own plans, its own keys and its own transcript.

How a client is known    what is its own
one pipe (stdio)         everything: it is the only one
`Mcp-Session-Id`         everything: the SDK made the id, and answers one that it does not know with 404
neither                  each plan is its own session: only who was told its id can apply it

The last are requests over HTTP of the protocol's newer versions, which have no sessions: nothing tells two such clients
apart but what they know. They have one transcript together.
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
from astraflow.contract.fleet import Actor, KillScope, PlanId, Role
from astraflow.contract.maintenance import Maintainer, MaintainerMode, MaintainerOrders
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.config import WatchConfig
from maintainer.names import Names
from maintainer.observation import Memory, Signal, observe
from maintainer.prompt import PROMPT_HASH, TOOLS_HASH
from maintainer.sight import Eyes, Sight, WatchPort
from maintainer.toolbox.answers import ADVICE, ToolResult
from maintainer.toolbox.changes import KEPT_PLANS
from maintainer.toolbox.ports import FleetPort
from maintainer.toolbox.sparing import Sparing
from maintainer.toolbox.toolbox import Toolbox
from maintainer.tools import outputs
from maintainer.tools.base import Kind as ToolKind
from maintainer.tools.base import Tool
from maintainer.tools.registry import TOOLS
from maintainer.transcript import Kind, Transcript

log = get_logger()

MOST_SESSIONS = 100
"""Of more, the one that was quiet for longest is forgotten: it plans again."""
FOLDER = "mcp"
"""Of transcripts, in the directory."""


class SessionFleet(FleetPort, WatchPort, Protocol):
    """What a session asks of the fleet service: the fleet plane's client is one."""

    async def maintainer(self) -> Maintainer:
        """The mode that people set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who calls."""

    session: str
    """By which it is known; empty for the only one there is."""
    client: str = ""
    """What it calls itself: for people, nothing is decided by it."""
    is_alone: bool = True
    """Whether nobody else can be known by the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """How far a server goes, whoever its clients are."""

    is_read_only: bool = False
    """No tool that writes is there."""
    is_sparing: bool = False
    """Nothing takes a node away."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Those that are there."""
        return {name: tool for name, tool in TOOLS.items() if not self.is_read_only or tool.kind is ToolKind.READ}


class Session:
    """One client: what is seen, what people want, its plans, and its transcript."""

    def __init__(
        self,
        *,
        eyes: Eyes,
        fleet: SessionFleet,
        names: Names,
        name: str,
        clock: Clock,
        modes: Modes,
        peer: Peer,
        directory: Path,
    ) -> None:
        """name: of the agent in the journal. directory: of transcripts."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.wall()))
        own = secrets.token_hex(6)
        self.name = f"mcp-{stamp}-{own}"
        self.path = directory / f"{self.name}.jsonl"
        self.calls = 0
        self.in_flight = 0
        self._eyes = eyes
        self._fleet = fleet
        self._names = names
        self._actor = Actor(name=name, role=Role.AGENT)
        self._clock = clock
        self._modes = modes
        self._peer = peer
        self._memory = Memory()
        self._watch = WatchConfig()
        self._orders: MaintainerOrders | None = None
        self._transcript: Transcript | None = None
        self._open = ExitStack()
        self._is_beginning = asyncio.Lock()
        self._own = self._toolbox(own)
        self._of_plans: dict[PlanId, Toolbox] = {}

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolResult:
        """One call, after people's orders were heard: without them nothing but reading is done."""
        self.calls += 1
        number, self.in_flight = self.calls, self.in_flight + 1
        try:
            await self._begin()
            await self._hear()
            toolbox = self._toolbox_for(arguments or {})
            result = await toolbox.call(name, arguments)
            self._keep(result, toolbox)
            body = {
                "call": f"{self.name}:{number}",
                "name": name[:80],
                "arguments": dict(arguments or {}),
                "is_error": result.is_error,
                "result": result.content,
            }
            await self._record(Kind.TOOL, body)
        except AstraFlowError as problem:
            log.warning("not_answered", tool=name[:80], problem=str(problem))
            return ToolResult(content=f'{{"error":"not_reachable","advice":"{ADVICE["not_reachable"]}"}}', error="away")
        finally:
            self.in_flight -= 1
        log.info("called", session=self.name, tool=name[:80], error=result.error)
        return result

    def close(self) -> None:
        """Let the transcript go."""
        self._open.close()

    async def _begin(self) -> None:
        """Open the transcript at the first call: who only lists tools leaves none."""
        async with self._is_beginning:
            if self._transcript is not None:
                return
            transcript = self._open.enter_context(Transcript(self.path, self._clock))
            tools: list[Json] = [
                [tool.name, tool.description, tool.input_schema()] for tool in self._modes.tools.values()
            ]
            body: dict[str, Json] = {
                "agent": self._actor.name,
                "client": self._peer.client[:200],
                "is_alone": self._peer.is_alone,
                "is_read_only": self._modes.is_read_only,
                "is_sparing": self._modes.is_sparing,
                "prompt_hash": PROMPT_HASH,
                "tools_hash": TOOLS_HASH,
                "tools": tools,
            }
            await transcript.add(Kind.OPENED, body, wake=self.name)
            self._transcript = transcript

    async def _hear(self) -> None:
        kill, mode = (await self._fleet.status()).kill, (await self._fleet.maintainer()).mode
        orders = MaintainerOrders(mode=mode, kill=kill)
        if orders != self._orders:
            self._orders = orders
            await self._record(Kind.ORDERS, {"mode": mode.value, "kill": kill.value})

    async def _record(self, kind: Kind, body: Mapping[str, Any]) -> None:
        assert self._transcript is not None  # noqa: S101 (every call begins by opening it)
        await self._transcript.add(kind, body, wake=self.name)

    def _toolbox_for(self, arguments: Mapping[str, Any]) -> Toolbox:
        """The session's; where nothing tells clients apart, that of the plan that is named."""
        if self._peer.is_alone:
            return self._own
        known = self._of_plans.get(PlanId.known(str(arguments.get("plan_id", ""))))
        return known or self._toolbox(secrets.token_hex(6))

    def _keep(self, result: ToolResult, toolbox: Toolbox) -> None:
        if self._peer.is_alone or not isinstance(result.output, outputs.PlanOutput):
            return
        self._of_plans[PlanId.known(result.output.plan_id)] = toolbox
        for old in list(self._of_plans)[:-KEPT_PLANS]:
            del self._of_plans[old]

    def _toolbox(self, scope: str) -> Toolbox:
        return Toolbox(
            look=self._look,
            fleet=Sparing(self._fleet) if self._modes.is_sparing else self._fleet,
            names=self._names,
            actor=self._actor,
            orders=lambda: self._orders or MaintainerOrders(mode=MaintainerMode.OFF, kill=KillScope.NONE),
            clock=self._clock,
            scope=f"{self._actor.name}:mcp-{scope}",
            record=self._record,
            one_plan_each=False,
            is_read_only=self._modes.is_read_only,
        )

    async def _look(self) -> tuple[Sight, tuple[Signal, ...]]:
        sight = await self._eyes.look()
        self._memory, signals = observe(self._memory, sight, self._watch)
        return sight, signals


class Sessions:
    """All clients of one server. A `with`."""

    def __init__(
        self,
        *,
        eyes: Callable[[], Eyes],
        fleet: SessionFleet,
        names: Names,
        name: str,
        clock: Clock,
        directory: Path,
        modes: Modes | None = None,
    ) -> None:
        """eyes: for one more session. name: of the agent in the journal, whose token this is."""
        self._eyes = eyes
        self._fleet = fleet
        self._names = names
        self._name = name
        self._clock = clock
        self._directory = directory / FOLDER
        self.modes = modes or Modes()
        self._known: dict[str, Session] = {}
        """By how they are known; who called last stands last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._known.values():
            session.close()
        self._known.clear()

    def of(self, peer: Peer) -> Session:
        """A client's own."""
        session = self._known.pop(peer.session, None) or Session(
            eyes=self._eyes(),
            fleet=self._fleet,
            names=self._names,
            name=self._name,
            clock=self._clock,
            modes=self.modes,
            peer=peer,
            directory=self._directory,
        )
        self._known[peer.session] = session
        quiet = [known for known, one in self._known.items() if not one.in_flight and one is not session]
        for known in quiet[: max(0, len(self._known) - MOST_SESSIONS)]:
            self._known.pop(known).close()
        return session
