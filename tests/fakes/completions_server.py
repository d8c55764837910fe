"""Small server of `/v1/completions` with token ids, whose weights and faults a test controls."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiohttp import web

from astraflow.contract.weights import Probe

VOCABULARY = 50


class CompletionsServer:
    """Serves one version; its next token and all logprobs are a function of the previous token and the version."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.key = ""
        self.fields: tuple[str, ...] = ("token_ids", "logprobs", "prompt_logprobs")
        """Fields that answers have."""
        self.metrics: str | None = 'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting 2\n'
        self.faults: deque[Callable[[web.Request], Any]] = deque()
        """Each handles one completion instead of the server; returns a response or closes the connection."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests: list[dict[str, Any]] = []
        self.cut = 0
        """Completions whose caller closed the connection."""
        self.url = ""
        self.tokenize: Callable[[str], Any] | None = None
        """Tokenizer; None: the server does not tokenize."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["CompletionsServer"]:
        """Listens on a free port while the block runs."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/completions", self._complete),
                web.post("/generate", self._score),
                web.post("/tokenize", self._tokenize),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def probe(self, version: int) -> Probe:
        """Returns a probe as a trainer with this version publishes it."""
        tokens = np.arange(1, 9, dtype="<i4")
        scores = [logprob(int(before), int(token), version) for before, token in itertools.pairwise(tokens)]
        return Probe(
            tokens=tokens.tobytes(),
            lengths=(8,),
            scored_from=(1,),
            logprobs=np.array(scores, dtype="<f4").tobytes(),
        )

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Returns the logprobs of all tokens but the first."""
        return [logprob(before, token, self.version) for before, token in itertools.pairwise(tokens)]

    def tops(self, tokens: Sequence[int], count: int) -> list[dict[Any, Any] | None]:
        """Returns the most likely tokens in place of all tokens but the first: as if there were no other."""
        return [{token: score} for token, score in zip(tokens[1:], self.score(tokens), strict=True)]

    async def _score(self, request: web.Request) -> web.Response:
        """Answers as SGLang does when asked for the logprobs of a prompt."""
        body = await request.json()
        tokens, begin = body["input_ids"], body["logprob_start_len"]
        heads = self.tops(tokens, body["top_logprobs_num"])[begin:]
        scored = zip(self.score(tokens)[begin:], tokens[begin + 1 :], strict=True)
        facts = {
            "input_token_logprobs": [
                [None, tokens[begin], None],
                *([score, token, None] for score, token in scored),
            ],
            "input_top_logprobs": [
                None,
                *(None if head is None else [[value, token, None] for token, value in head.items()] for head in heads),
            ],
        }
        return web.json_response({"meta_info": facts})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokenize is None:
            return web.Response(status=404)
        return web.json_response({"tokens": self.tokenize((await request.json())["prompt"]).tolist()})

    async def _models(self, request: web.Request) -> web.Response:
        return self._refusal(request) or web.json_response({"data": [{"id": "policy"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics) if self.metrics is not None else web.Response(status=404)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if self.faults:
            answer: web.StreamResponse = await self.faults.popleft()(request)
            return answer
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        body = await request.json()
        self.requests.append(body)
        try:
            if not body.get("echo") and "prompt_logprobs" not in body:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return web.json_response({"choices": [self._choice(body)]})

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        version, tokens = self.version, list(body["prompt"])
        for _ in range(body["max_tokens"]):
            tokens.append((tokens[-1] * 5 + version + 1) % VOCABULARY)
        scores = [None, *self.score(tokens)]
        begin = len(body["prompt"])
        choice: dict[str, Any] = {"finish_reason": "length", "text": ""}
        if "token_ids" in self.fields:
            choice["token_ids"] = tokens[begin:]
        if "logprobs" in self.fields and body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": scores if body.get("echo") else scores[begin:]}
        if "prompt_logprobs" in self.fields and body.get("prompt_logprobs") is not None:
            heads = [None, *self.tops(tokens[:begin], body["prompt_logprobs"])]
            if not body["prompt_logprobs"]:
                heads = [None, *({} for _ in range(begin - 1))]
            choice["prompt_logprobs"] = [
                None
                if head is None
                else {str(entry): {"logprob": value, "rank": 1} for entry, value in {token: score, **head}.items()}
                for token, score, head in zip(tokens[:begin], scores[:begin], heads, strict=True)
            ]
        return choice

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "invalid key"}, status=401)
        return None


def logprob(before: int, token: int, version: int) -> float:
    """Returns the logprob of a token after another one."""
    return -0.1 - ((before * 3 + token * 7 + version * 4) % 11) / 8
