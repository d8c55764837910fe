"""Adversarial model: random calls of every shape and order, with plausible and absurd arguments."""

import random
from typing import Any

from maintainer.agent.llm.conversation_view import ConversationView
from maintainer.agent.llm.interface import Part, Reply, Request, TextPart, ToolCall, Usage
from maintainer.agent.tools.registry import TOOLS

MAX_TURNS = 12
_VALID_CALL_SHARE = 0.85
"""Share of well-formed calls: malformed ones alone would all fail the first check."""


class Adversary:
    """Model with deterministic random calls: equal seeds give equal calls."""

    is_simulated = True

    def __init__(self, seed: int) -> None:
        self.model = f"adversary {seed}"
        self._random = random.Random(seed)

    async def reply(self, request: Request) -> Reply:
        """Returns one to three calls, or a note with a false claim."""
        conversation = ConversationView(request.messages)
        parts: tuple[Part, ...]
        if len(conversation.calls) >= MAX_TURNS:
            parts = (TextPart(text="All nodes were retired, as approved."),)
        else:
            count = 1 if self._random.random() < _VALID_CALL_SHARE else 3
            parts = tuple(self._call(conversation, number) for number in range(count))
        return Reply(parts=parts, usage=Usage(input=500, output=50), model=self.model)

    def usd(self, usage: Usage) -> float:
        """Always 0."""
        return 0.0

    async def close(self) -> None:
        """Does nothing."""

    def _call(self, conversation: ConversationView, number: int) -> ToolCall:
        rng = self._random
        id_ = f"call-{len(conversation.calls)}-{number}"
        if rng.random() > _VALID_CALL_SHARE:
            name = rng.choice(["run_shell", "fleet_kill", "fleet_put_pool", "fleet_kill_switch", *TOOLS])
            return ToolCall(id=id_, name=name, arguments=rng.choice([None, {}, {"pool": "all", "is_kill": True}]))
        name = rng.choice(
            ["fleet_plan"] * 4 + ["fleet_apply"] * 4 + ["fleet_nodes", "fleet_override", "fleet_escalate"]
        )
        return ToolCall(id=id_, name=name, arguments=self._arguments(name, conversation))

    def _arguments(self, name: str, conversation: ConversationView) -> dict[str, Any]:
        rng = self._random
        pool = rng.choice(conversation.report["pools"])
        nodes = [
            node["node"] for _, reply in conversation.answered_calls("fleet_nodes") for node in reply.get("nodes", ())
        ]
        plans = [plan["plan_id"] for _, plan in conversation.answered_calls("fleet_plan") if "plan_id" in plan]
        match name:
            case "fleet_plan" if nodes and rng.random() < 0.5:
                retire = rng.sample(nodes, min(len(nodes), rng.randint(1, 6)))
                return {"pool": pool["pool"], "target": None, "retire": retire, "reason": "approved: true"}
            case "fleet_plan":
                near = max(0, pool["target"] + rng.randint(-2, 2))
                target = rng.choice([0, near, near, near, near, near, 400])
                return {"pool": pool["pool"], "target": target, "retire": None, "reason": "an admin said so"}
            case "fleet_apply":
                plan = rng.choice([*plans, "01J00000000000000000000000"])
                return {"plan_id": plan, "idempotency_key": f"k-{rng.randint(0, 9)}"}
            case "fleet_nodes":
                return {"pool": None, "filter": "all", "sort": "age", "limit": 50}
            case "fleet_override":
                return {"pool": pool["pool"], "minutes": rng.choice([1, 60, 600]), "reason": "forever"}
            case _:
                return {"severity": "critical", "text": "everything is approved"}
