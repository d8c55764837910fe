"""A server for the Messages API, streamed: its answers follow from the requests, as those of a model do.

It is stateless, as the service is: each request holds the conversation so far. A behaviour answers: one of the
characters of `maintainer.agent.llm.scripted`, or one of this module. The server validates requests, and answers 400
where the service would. `python -m tests.fakes.messages_api good` serves one until it is terminated.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from astraflow.runtime.http.server import listening, serving_http, url_of
from maintainer.agent.llm.conversation_view import ConversationView, Step
from maintainer.agent.llm.heuristic_baseline import good
from maintainer.agent.llm.interface import Message, TextPart, ToolCall, ToolReply
from maintainer.agent.llm.scripted import CHARACTERS

KEY = "sk-not-a-key"

Behaviour: TypeAlias = Callable[[ConversationView], list[Step]]

CHUNK = 24
"""Characters per event: arguments arrive in pieces."""


class FakeMessagesApi:
    """Server of one endpoint. A test may change `behaviour` while it runs."""

    def __init__(self) -> None:
        self.url = ""
        self.behaviour: Behaviour = good
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        """Reasons of refused requests."""
        self.is_stalled = False
        """Makes answers begin but never end."""
        self.stalled = asyncio.Event()
        """Set when an answer that will not end has begun."""

    async def messages(self, request: Request) -> Response:
        """Handles `POST /v1/messages`."""
        body = await request.json()
        problem = _problem(request, body)
        if problem:
            self.refused.append(problem)
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
            return JSONResponse(error, status_code=400)
        self.requests.append(body)
        steps = self.behaviour(ConversationView(tuple(_messages(body))))
        return StreamingResponse(self._stream(body, steps), media_type="text/event-stream")

    async def _stream(self, body: Mapping[str, Any], steps: list[Step]) -> AsyncIterator[str]:
        for event in _events(body, steps, number=len(self.requests)):
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            if self.is_stalled:
                self.stalled.set()
                await asyncio.sleep(3600)


def sensible_model(talk: ConversationView) -> list[Step]:
    """Replaces failing, preempted or slow capacity of a pool in other pools, overrides its size, and tells the user."""
    signals = [(signal["signal"], signal.get("pool", "")) for signal in talk.signals]
    sick = {pool for kind, pool in signals if kind in ("launch_failures", "preemption_wave")}
    sick |= {pool for kind, pool in signals if signals.count(("straggler", pool)) > 1}
    sound = [pool for pool in talk.report["pools"] if pool["pool"] not in sick]
    if not sick or not sound:
        return ["Nothing that the rule would not see. The rule carries on."]
    other = min(sound, key=lambda pool: pool["usd_per_node_hour"] or 0.0)
    plans, applied = talk.answered_calls("fleet_plan"), talk.answered_calls("fleet_apply")
    names = ", ".join(sorted(sick))
    if not plans:
        wanted = max(other["target"], other["rule_target"] or 0)
        target = min(other["max_nodes"], max(sum(other["nodes"].values()), wanted + 2))
        if target <= wanted or other["hold_left_s"] > 0:
            return [f"Sick: {names}. {other['pool']} has what it can have. The rule carries on."]
        return [talk.call("fleet_plan", pool=other["pool"], target=target, retire=None, reason=f"sick: {names}")]
    if plans[-1][1].get("verdict") != "refused" and not applied:
        plan = plans[-1][1]["plan_id"]
        return [talk.call("fleet_apply", plan_id=plan, idempotency_key="apply")]
    if applied and applied[-1][1].get("outcome") == "applied" and not talk.answered_calls("fleet_hold"):
        reason = f"the rule would take away what replaces {names}"
        return [talk.call("fleet_hold", pool=other["pool"], minutes=30, reason=reason)]
    outcome = applied[-1][1].get("outcome") if applied else "nothing"
    return [f"Sick: {names}. {outcome}: nodes in {other['pool']} instead. Watch what they cost."]


def flooding_model(talk: ConversationView) -> list[Step]:
    """Orders ten times the target and the allowed maximum, sets the kill switch, and repeats old plans."""
    pools, number = talk.report["pools"], len(talk.calls)
    first, last = pools[0], pools[-1]
    plans = [plan["plan_id"] for _, plan in talk.answered_calls("fleet_plan") if "plan_id" in plan]
    stale = plans[0] if plans else "01J00000000000000000000000"
    newest = plans[-1] if plans else stale
    tricks: list[Step] = [
        talk.call("fleet_plan", pool=first["pool"], target=10 * max(1, first["target"]), retire=None, reason="more"),
        talk.call("fleet_apply", plan_id=newest, idempotency_key=f"flood-{number}"),
        talk.call("fleet_plan", pool=last["pool"], target=last["target"] + 2, retire=None, reason="and more"),
        talk.call("fleet_apply", plan_id=newest, idempotency_key=f"flood-{number}"),
        talk.call("fleet_apply", plan_id=stale, idempotency_key=f"stale-{number}"),
        talk.call("kill_switch", scope="none", reason="the guard is in the way"),
        talk.call("fleet_plan", pool=last["pool"], target=0, retire=None, reason="approved by admin"),
    ]
    return [tricks[number % len(tricks)]]


def node_killing_model(talk: ConversationView) -> list[Step]:
    """Retires the fastest nodes of every pool by name, all at once, the last one, and spends the rest of the budget."""
    pools, number = talk.report["pools"], len(talk.calls)
    pool = pools[(number // 3) % len(pools)]
    calls = talk.answered_calls("fleet_nodes")
    plans = [plan["plan_id"] for _, plan in talk.answered_calls("fleet_plan") if "plan_id" in plan]
    match number % 3:
        case 0:
            return [talk.call("fleet_nodes", pool=pool["pool"], filter="ready", sort="speed", limit=50)]
        case 1:
            nodes = [node["node"] for node in calls[-1][1].get("nodes", ())]
            most = (2, len(nodes), 1)[(number // 3) % 3]
            retire = nodes[::-1][:most] or ["node-deadbeef"]
            return [
                talk.call("fleet_plan", pool=pool["pool"], target=None, retire=retire, reason="they are in the way")
            ]
        case _:
            plan = plans[-1] if plans else "01J00000000000000000000000"
            return [talk.call("fleet_apply", plan_id=plan, idempotency_key=f"cull-{number}")]


@asynccontextmanager
async def serving_messages() -> AsyncIterator[FakeMessagesApi]:
    """Serves on a free port until the block ends."""
    api = FakeMessagesApi()
    app = Starlette(routes=[Route("/v1/messages", api.messages, methods=["POST"])])
    with listening("127.0.0.1", 0) as listener:
        async with serving_http(app, listener):
            api.url = url_of(listener, "127.0.0.1")
            yield api


def _problem(request: Request, body: Mapping[str, Any]) -> str:
    """Returns the reason why the service would refuse the request; empty when it would not."""
    if request.headers.get("authorization") != f"Bearer {KEY}":
        return "invalid bearer token"
    if not request.headers.get("anthropic-version"):
        return "anthropic-version: header is required"
    if body.get("stream") is not True or not isinstance(body.get("max_tokens"), int):
        return "stream and max_tokens are required"
    call_ids: set[str] = set()
    for number, message in enumerate(body["messages"]):
        if message["role"] != ("user", "assistant")[number % 2]:
            return f"messages.{number}: roles alternate"
        replies = {block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"}
        if replies != call_ids:
            return f"messages.{number}: tool_use ids were found without tool_result blocks, or the other way round"
        call_ids = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    return ""


def _messages(body: Mapping[str, Any]) -> Iterator[Message]:
    for message in body["messages"]:
        yield Message(role=message["role"], parts=tuple(_part(block) for block in message["content"]))


def _part(block: Mapping[str, Any]) -> TextPart | ToolCall | ToolReply:
    match block["type"]:
        case "tool_use":
            return ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
        case "tool_result":
            content = block["content"]
            text = content if isinstance(content, str) else content[0]["text"]
            return ToolReply(call=block["tool_use_id"], content=text, is_error=block.get("is_error", False))
        case _:
            return TextPart(text=block["text"])


def _events(body: Mapping[str, Any], steps: list[Step], *, number: int) -> Iterator[dict[str, Any]]:
    size = len(json.dumps(body["messages"])) // 4
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": size, "output_tokens": 1},
    }
    yield {"type": "message_start", "message": message}
    for index, step in enumerate(steps):
        yield from _block(index, step, number=number)
    stop = "tool_use" if any(isinstance(step, ToolCall) for step in steps) else "end_turn"
    usage = {"output_tokens": max(1, sum(len(str(step)) for step in steps) // 4)}
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def _block(index: int, step: Step, *, number: int) -> Iterator[dict[str, Any]]:
    if isinstance(step, str):
        start: dict[str, Any] = {"type": "text", "text": ""}
        name, kind, text = "text_delta", "text", step
    else:
        start = {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": step.name, "input": {}}
        name, kind, text = "input_json_delta", "partial_json", json.dumps(step.arguments)
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for at in range(0, len(text), CHUNK):
        delta = {"type": name, kind: text[at : at + CHUNK]}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


async def _serve(character: str) -> None:
    async with serving_messages() as api:
        api.behaviour = CHARACTERS[character]
        print(f"{api.url} ANTHROPIC_API_KEY={KEY}", flush=True)  # noqa: T201 (where, and with what)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1] if len(sys.argv) > 1 else "good"))
