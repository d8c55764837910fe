"""Raw requests for exact tokens, as the clients of vLLM's route send them."""

from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from astraflow.agents.calls import ReplyFinish, TokenReply
from tests.fakes.agent_handlers import ScriptedHandler, serving

pytestmark = pytest.mark.anyio

PATH = "/inference/v1/generate"
BODY: dict[str, Any] = {
    "model": "policy",
    "token_ids": [5, 6, 7],
    "sampling_params": {
        "max_tokens": 8,
        "temperature": 0.7,
        "top_p": 0.95,
        "stop": ["x"],
        "stop_token_ids": [2],
        "logprobs": 1,
        "skip_special_tokens": False,
        "n": 1,
    },
    "cache_salt": "salt",
    "priority": 0,
}


async def test_a_call_reaches_the_handler_and_its_tokens_come_back_exactly() -> None:
    tokens = np.array([9, 2], dtype=np.int32)
    logprobs = np.array([-0.1, -3.3333333], dtype=np.float32)
    handler = ScriptedHandler(tokens=TokenReply(id="t", tokens=tokens, logprobs=logprobs, finish=ReplyFinish.LENGTH))
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        answer = (await raw.post(PATH, json=BODY)).json()
        record = access.record
    (call,) = handler.token_calls
    assert call.prompt.dtype == np.int32
    assert call.prompt.tolist() == [5, 6, 7]
    assert call.stop_tokens == (2,)
    options = call.options
    assert (options.model, options.max_tokens, options.temperature, options.stop) == ("policy", 8, 0.7, ("x",))
    (choice,) = answer["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == ([9, 2], "length")
    content = choice["logprobs"]["content"]
    assert np.array([entry["logprob"] for entry in content], dtype=np.float32).tolist() == logprobs.tolist()
    assert [(entry["token_id"], entry["token"]) for entry in content] == [(9, "token_id:9"), (2, "token_id:2")]
    assert answer["usage"]["total_tokens"] == 5
    assert (answer["request_id"], answer["prompt_token_ids"]) == ("t", None)
    assert [(entry.dialect, reply_id) for entry, reply_id in record] == [("tokens", "t")]


async def test_the_client_chooses_what_the_answer_contains() -> None:
    async with serving(ScriptedHandler()) as access, httpx.AsyncClient(base_url=access.url) as raw:
        body = {"token_ids": [5], "request_id": "mine", "return_token_ids": True}
        plain = (await raw.post(PATH, json=body)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = (await raw.post(PATH, json={**body, **options})).text
    assert (plain["request_id"], plain["prompt_token_ids"]) == ("mine", [5])
    assert plain["choices"][0]["logprobs"] is None
    *events, end = [line.removeprefix("data: ") for line in streamed.strip().split("\n\n")]
    first, last = map(orjson.loads, events)
    assert first["choices"] == plain["choices"]
    assert (first["prompt_token_ids"], last["usage"], end) == ([5], plain["usage"], "[DONE]")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token_ids": []}, "agent.no_tokens"),
        ({"token_ids": "x"}, "agent.invalid_tokens"),
        ({"token_ids": None}, "agent.invalid_tokens"),
        ({"token_ids": [1, True]}, "agent.invalid_tokens"),
        ({"token_ids": [1.0]}, "agent.invalid_tokens"),
        ({"token_ids": [-1]}, "agent.invalid_tokens"),
        ({"token_ids": [2**31]}, "agent.invalid_tokens"),
        ({"sampling_params": {"n": 2}}, "agent.several_replies"),
        ({"sampling_params": {"stop_token_ids": ["x"]}}, "agent.invalid_tokens"),
        ({"sampling_params": {"prompt_logprobs": 1}}, "agent.unsupported_field"),
        ({"sampling_params": []}, "agent.invalid_field"),
        ({"features": {"mm_hashes": {}}}, "agent.unsupported_field"),
        ({"output_mode": "text"}, "agent.unsupported_field"),
    ],
)
async def test_a_request_without_an_answer_is_refused_with_a_code(change: dict[str, Any], code: str) -> None:
    handler = ScriptedHandler()
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        answer = await raw.post(PATH, json={**BODY, **change})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert not handler.token_calls
