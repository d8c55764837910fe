"""SDKs of the model APIs in the process that forks agents: clients that modules created, and a warm-up before forks."""

import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from astraflow.runtime.logs import get_logger

log = get_logger()

UNSET_URL = "http://127.0.0.1:9/astraflow"
UNSET_KEY = "key-of-no-episode"
"""Base URL and key while modules are imported. Clients of SDKs that a module creates with them get those of each
episode."""
_CLIENTS = {"openai": ("OpenAI", "AsyncOpenAI"), "anthropic": ("Anthropic", "AsyncAnthropic")}
"""Classes of clients in the packages of the SDKs, and the prefix of their environment variables in small letters."""

_QUESTION = [{"role": "user", "content": "a"}]
_REPLY = {"role": "assistant", "content": ""}
_CALLS: dict[str, Callable[[Any], object]] = {
    "chat": lambda client: client.chat.completions.create(model="m", messages=_QUESTION),
    "responses": lambda client: client.responses.create(model="m", input="a"),
    "messages": lambda client: client.messages.create(model="m", messages=_QUESTION, max_tokens=1),
}
_ANSWERS: dict[str, Mapping[str, Any]] = {
    "chat": {
        "object": "chat.completion",
        "created": 0,
        "choices": [{"index": 0, "message": _REPLY, "finish_reason": "stop"}],
    },
    "responses": {
        "object": "response",
        "created_at": 0,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    },
    "messages": {
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
_APIS = {"openai": ("chat", "responses"), "anthropic": ("messages",)}
"""APIs of each SDK, by their names in the tables above."""


def early_clients() -> list[tuple[str, Any]]:
    """Returns the clients of SDKs that were created while modules were imported, each with the name of its SDK; those
    with a base URL or key of their own are not among them."""
    kinds = {
        getattr(sys.modules[sdk], name): sdk for sdk, names in _CLIENTS.items() if sdk in sys.modules for name in names
    }
    clients = [(kinds[type(thing)], thing) for thing in gc.get_objects() if type(thing) in kinds]
    return [
        (sdk, client)
        for sdk, client in clients
        if client.api_key == UNSET_KEY and str(client.base_url).startswith(UNSET_URL)
    ]


def point_clients(clients: Sequence[tuple[str, Any]], environment: Mapping[str, str]) -> None:
    """Gives clients base URL and key of an episode."""
    for sdk, client in clients:
        client.base_url = environment[f"{sdk.upper()}_BASE_URL"]
        client.api_key = environment[f"{sdk.upper()}_API_KEY"]


def warm_up() -> None:
    """Makes a client of each imported SDK and calls its APIs once, without a connection.

    SDKs import modules and build the validators of their answers on first use, which takes longer than the rest of a
    short episode. Forks have the result.
    """
    for sdk, apis in _APIS.items():
        for api in apis if sdk in sys.modules else ():
            try:
                _call(sys.modules[sdk], sdk, api)
            except Exception as problem:  # another release of the SDK: agents work, and begin more slowly
                log.warning("agent_sdk_not_warmed_up", sdk=sdk, api=api, error=f"{type(problem).__name__}: {problem}")


def _call(module: Any, sdk: str, api: str) -> None:
    base = next(kind for kind in module.DefaultHttpxClient.__mro__ if kind.__name__ == "Client")
    http = import_module(base.__module__.partition(".")[0])  # httpx, or another package of its authors
    body = json.dumps({"id": "warm-up", "model": "m", **_ANSWERS[api]}).encode()
    answer = http.Response(200, content=body, headers={"content-type": "application/json"})
    connection = http.Client(transport=http.MockTransport(lambda _: answer))
    kind = getattr(module, _CLIENTS[sdk][0])
    kind(base_url=UNSET_URL, api_key=UNSET_KEY).close()  # with a transport for connections, as agents make it
    with kind(base_url=UNSET_URL, api_key=UNSET_KEY, max_retries=0, http_client=connection) as client:
        _CALLS[api](client)
