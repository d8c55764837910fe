"""Environments of the package `openenv`: a server of `reset` and `step`, in this process or at an address.

The server of an installed environment runs in this process on a free port of loopback, and episodes are its WebSocket
sessions, as for any other client of it.
"""

import asyncio
import importlib
import json
import math
import os
import socket
import urllib.request
from typing import Any

import serving
import uvicorn
from openenv import GenericEnvClient

_INVALID = "(code: VALIDATION_ERROR)"
"""End of the client's error for an action that does not fit the schema."""
_MESSAGE_S = 86400.0
"""The node has its own time limits, and ends this process."""


class OpenEnv:
    """One server, and the episodes on it."""

    def __init__(self) -> None:
        self._url = ""
        self._text = ""
        self._schema: dict[str, Any] = {}
        self._episodes: dict[str, Any] = {}
        self._server: asyncio.Task[None] | None = None

    async def open(self, request: serving.Request) -> dict[str, Any]:
        """Starts the server of an application, or uses the one at the address, and reads the schema of actions."""
        self._text = request["text"]
        self._url = request["url"] or await self._serve(request["id"])
        self._schema = (await asyncio.to_thread(_read, f"{self._url}/schema"))["action"]
        return {}

    async def begin(self, request: serving.Request) -> dict[str, Any]:
        """Opens a session and resets it with the arguments of the prompt."""
        reset = request["fields"].get("reset")
        if not isinstance(reset, dict):
            raise serving.InvalidInput(
                "cannot begin: the prompt has no field `reset`; use the dataset `openenv`",
                code="environment.wrong_prompt",
            )
        client = GenericEnvClient(base_url=self._url, message_timeout_s=_MESSAGE_S)
        self._episodes[request["episode"]] = client
        await client.connect()
        return self._observed(await client.reset(**reset))

    async def act(self, request: serving.Request) -> dict[str, Any]:
        """Steps a session; an action that does not fit the schema is malformed."""
        client = self._episodes[request["episode"]]
        try:
            action = self._action(request["action"])
        except ValueError as problem:
            return {"text": f"Cannot read the action: {problem}.", "is_malformed": True}
        try:
            return self._observed(await client.step(action))
        except RuntimeError as problem:
            if not str(problem).endswith(_INVALID):
                raise
            return {"text": f"The action does not fit {json.dumps(self._properties)}.", "is_malformed": True}

    async def close(self, request: serving.Request) -> dict[str, Any]:
        """Closes a session."""
        client = self._episodes.pop(request["episode"], None)
        if client is not None:
            await client.close()
        return {}

    @property
    def _properties(self) -> dict[str, Any]:
        """Properties of an action, without what every action has."""
        return {name: value for name, value in self._schema.get("properties", {}).items() if name != "metadata"}

    def _action(self, text: str) -> dict[str, Any]:
        """Returns the action of a text: a JSON object, or the value of the only property. Raises: ValueError."""
        names = list(self._properties)
        if len(names) == 1:
            kind = self._properties[names[0]].get("type")
            if kind == "string" and not text.lstrip().startswith("{"):
                return {names[0]: text}
        try:
            action = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"it is no JSON object with {', '.join(names)}") from None
        if not isinstance(action, dict):
            if len(names) != 1:
                raise ValueError(f"it is no JSON object with {', '.join(names)}")
            action = {names[0]: action}
        return action

    def _observed(self, result: Any) -> dict[str, Any]:
        """Returns an observation for the policy. Raises: RolloutFailed for a reward that is no finite number."""
        reward = float(result.reward or 0.0)
        if not math.isfinite(reward):
            raise serving.RolloutFailed("the reward of a step is not finite", code="environment.no_reward")
        shown = {
            name: value for name, value in result.observation.items() if name not in ("done", "reward", "metadata")
        }
        text = shown.get(self._text) if self._text else json.dumps(shown, ensure_ascii=False)
        if not isinstance(text, str):
            raise serving.InvalidInput(
                f"cannot show an observation: it has no text {self._text!r}, only {', '.join(shown)}; set `text`",
                code="environment.no_text",
            )
        return {"text": text, "reward": reward, **({"ending": "done"} if result.done else {})}

    async def _serve(self, entry: str) -> str:
        """Starts the server of an application `module:name`; returns its address."""
        module, _, name = entry.partition(":")
        try:
            application = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as problem:
            raise serving.InvalidInput(
                f"cannot load the environment {entry!r}: {problem}; correct its id, or install its package: astraflow "
                "environments install openenv --package NAME",
                code="environment.not_loadable",
            ) from problem
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(serving.LoopbackOnly(application), log_level="warning", lifespan="on"))
        self._server = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            if self._server.done():
                raise serving.RolloutFailed(
                    f"the server of {entry!r} does not start", code="environment.server_not_started"
                )
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _read(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10.0) as reply:
        return json.load(reply)


if __name__ == "__main__":
    os.environ["ENABLE_WEB_INTERFACE"] = "false"  # its page is for people
    bridge = OpenEnv()
    serving.serve({"open": bridge.open, "begin": bridge.begin, "act": bridge.act, "close": bridge.close})
