"""Client of an OpenAI-compatible model server: repeats refused and cut requests, and explains their failures."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from astraflow.client.model_server import ServerClient, ServerRefused, ServerUnreachable
from astraflow.contract.errors import (
    AstraFlowError,
    CorruptData,
    InvalidInput,
    NotAuthenticated,
    RateLimited,
    Unavailable,
)
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

_T = TypeVar("_T")

COMPLETIONS = "/v1/completions"

_FIRST_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopScores:
    """Scores of given tokens, and the most likely tokens in their place."""

    logprobs: Float32Array
    """`[tokens]`, of the given ones."""
    top_tokens: Int32Array
    """`[tokens, k]`, in any order; -1: none."""
    top_logprobs: Float32Array
    """`[tokens, k]`; -inf where there is none."""

    def at(self, indices: npt.NDArray[np.integer[Any]]) -> Self:
        return replace(
            self,
            logprobs=self.logprobs[indices],
            top_tokens=self.top_tokens[indices],
            top_logprobs=self.top_logprobs[indices],
        )

    @classmethod
    def of(cls, logprobs: Sequence[float], candidates: Sequence[Mapping[int, float]], count: int) -> Self:
        """Returns the scores with the `count` most likely candidates of each token."""
        shape = (len(candidates), count)
        tokens, values = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
        for index, entries in enumerate(candidates):
            likeliest = sorted(entries.items(), key=lambda entry: -entry[1])[:count]
            tokens[index, : len(likeliest)] = [token for token, _ in likeliest]
            values[index, : len(likeliest)] = [value for _, value in likeliest]
        return cls(logprobs=np.array(logprobs, dtype=np.float32), top_tokens=tokens, top_logprobs=values)


class OpenAIClient:
    """Client of `/v1` routes.

    Its calls raise InvalidInput and NotAuthenticated when the server refuses the request, and RateLimited and
    Unavailable when it is overloaded or unreachable after all attempts.
    """

    def __init__(
        self, base_url: str, *, key: str, key_variable: str, attempts: int, max_backoff_s: float, clock: Clock
    ) -> None:
        """base_url: with or without a final `/v1`. key: empty for none. key_variable: name of its variable, for
        messages.

        attempts: maximum attempts of a request, at least 1. max_backoff_s: longest wait before the next attempt, in
        seconds.
        """
        self._client = ServerClient(base_url.rstrip("/").removesuffix("/v1"), key=key)
        self._base_url = base_url
        self._key_variable = key_variable
        self._attempts = attempts
        self._max_backoff_s = max_backoff_s
        self._clock = clock
        self._scores_by_echo = False

    async def get(self, path: str, *, limit_s: float) -> str:
        """Returns the body of a GET request."""
        answer = await self._with_retries(lambda: self._client.get(path, limit_s=limit_s))
        return answer.decode(errors="replace")

    async def get_once(self, path: str, *, limit_s: float) -> str:
        """Returns the body of a GET request that is not repeated.

        Raises: ServerRefused, ServerUnreachable, TimeoutError instead of the errors of the class.
        """
        return (await self._client.get(path, limit_s=limit_s)).decode(errors="replace")

    async def post(self, path: str, body: Mapping[str, Any], *, limit_s: float) -> Any:
        """Returns the JSON answer to a POST request."""
        return await self._with_retries(lambda: self._client.post(path, body, limit_s=limit_s))

    async def check_model(self, model: str, *, limit_s: float) -> None:
        """Raises: InvalidInput when the server does not serve `model`."""
        if f'"{model}"' not in await self.get("/v1/models", limit_s=limit_s):
            raise InvalidInput(
                f"cannot use the server at {self._base_url!r}: it serves no model {model!r}; name one of its "
                "/v1/models",
                code="engine.unknown_model",
            )

    async def token_logprobs(self, model: str, tokens: Int32Array, scored_from: int, *, limit_s: float) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]`, at temperature 1. The server also generates one token.

        scored_from: at least 1. Raises: CorruptData for an answer without logprobs.
        """
        request = {**_scoring(model, tokens), "return_token_ids": True}
        if not self._scores_by_echo:
            choice = first_choice(await self.post(COMPLETIONS, {**request, "prompt_logprobs": 0}, limit_s=limit_s))
            if choice.get("prompt_logprobs") is not None:
                return _parse_prompt_logprobs(choice, tokens, scored_from)
            self._scores_by_echo = True
        echo = {**request, "echo": True, "logprobs": 1}  # with 0, SGLang leaves out the logprobs of the prompt
        choice = first_choice(await self.post(COMPLETIONS, echo, limit_s=limit_s))
        return _parse_echo(choice, len(tokens), scored_from)

    async def top_logprobs(
        self, model: str, tokens: Int32Array, scored_from: int, count: int, *, limit_s: float
    ) -> "TopScores":
        """Returns the logprobs of `tokens[scored_from:]`, and in place of each the `count` most likely tokens, at
        temperature 1: by vLLM's `prompt_logprobs`, or by SGLang's own route.

        scored_from: at least 1. Raises: CorruptData for an answer without them.
        """
        if not self._scores_by_echo:
            request = {**_scoring(model, tokens), "prompt_logprobs": count}
            choice = first_choice(await self.post(COMPLETIONS, request, limit_s=limit_s))
            if choice.get("prompt_logprobs") is not None:
                return _parse_top_of_vllm(choice, tokens, scored_from, count)
            self._scores_by_echo = True
        body = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": scored_from - 1,
            "top_logprobs_num": count,
        }
        return _parse_top_of_sglang(
            await self.post("/generate", body, limit_s=limit_s), len(tokens) - scored_from, count
        )

    async def tokenize(self, model: str, text: str, *, limit_s: float) -> list[int] | None:
        """Returns the server's tokens of a text, without special tokens; None if it does not say."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            answer = await self._client.post("/tokenize", body, limit_s=limit_s)
        except ServerRefused as problem:
            if problem.status in (400, 404, 405, 422):
                return None
            raise self._failure(problem) from problem
        except (ServerUnreachable, TimeoutError) as problem:
            raise self._failure(problem) from problem
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        return tokens if isinstance(tokens, list) else None

    async def close(self) -> None:
        """Closes all connections; requests in flight fail."""
        await self._client.close()

    async def _with_retries(self, send: Callable[[], Awaitable[_T]]) -> _T:
        """Returns the answer. Repeats a request that an overloaded server refused or that was interrupted without an
        answer."""
        backoff_s = _FIRST_BACKOFF_S
        for attempt in count(1):
            try:
                return await send()
            except (ServerRefused, ServerUnreachable, TimeoutError) as problem:
                failure = self._failure(problem)
                if attempt >= self._attempts or not isinstance(failure, RateLimited | Unavailable):
                    raise failure from problem
                retry_after_s = problem.retry_after_s if isinstance(problem, ServerRefused) else None
                wait_s = min(self._max_backoff_s, backoff_s if retry_after_s is None else retry_after_s)
            log.info("engine_request_repeated", server=self._base_url, attempt=attempt, wait_s=wait_s)
            await self._clock.sleep(wait_s)
            backoff_s *= 2
        raise AssertionError

    def _failure(self, problem: ServerRefused | ServerUnreachable | TimeoutError) -> AstraFlowError:
        where, detail = self._base_url, str(problem)
        if isinstance(problem, ServerRefused):
            if problem.status in (401, 403):
                variable = self._key_variable or "nothing: set key_variable"
                return NotAuthenticated(
                    f"cannot use the server at {where!r}: it refused the key from {variable}; set the variable to a "
                    "valid key where the server is called",
                    code="engine.key_refused",
                )
            if problem.status in (429, 503):
                return RateLimited(
                    f"cannot use the server at {where!r}: it is overloaded, after {self._attempts} attempts; "
                    "send fewer requests at a time, or add servers",
                    code="engine.overloaded",
                )
            if problem.status < 500:
                return InvalidInput(
                    f"cannot use the server at {where!r}: it refused the request: {detail}; check its model, context "
                    "length and release",
                    code="engine.request_refused",
                )
        return Unavailable(
            f"cannot reach the server at {where!r}: {detail or type(problem).__name__}; check that it runs",
            code="engine.unreachable",
        )


def read_key(variable: str) -> str:
    """Returns the key in an environment variable; empty without a variable. Raises: InvalidInput when it is not set."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise InvalidInput(
            f"cannot use the model server: the environment variable {variable} is not set; set it to the key of the "
            "server where the server is called",
            code="engine.key_missing",
        )
    return key


def first_choice(answer: Any) -> Mapping[str, Any]:
    """Returns the only choice of an answer of `/v1/completions`. Raises: CorruptData."""
    try:
        choice = answer["choices"][0]
        if not isinstance(choice, dict):
            raise TypeError("a choice is no object")
        return choice
    except (KeyError, TypeError, IndexError) as problem:
        raise invalid_answer(problem, answer) from problem


def invalid_answer(problem: Exception, answer: Any) -> CorruptData:
    """Returns the error for an answer without the requested values."""
    return CorruptData(
        f"cannot use the answer of the server: {problem}: {str(answer)[:300]}; use an endpoint that returns token ids "
        "and logprobs, such as vLLM",
        code="engine.invalid_completion",
    )


def _scoring(model: str, tokens: Int32Array) -> dict[str, Any]:
    """Returns what requests for logprobs of a prompt have in common."""
    return {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 1.0, "add_special_tokens": False}


def _parse_prompt_logprobs(choice: Mapping[str, Any], tokens: Int32Array, scored_from: int) -> Float32Array:
    """Returns the scores from vLLM's `prompt_logprobs`: per token, a map of token ids."""
    try:
        entries, scored = choice["prompt_logprobs"][scored_from:], tokens[scored_from:].tolist()
        logprobs = [entry[str(token)]["logprob"] for entry, token in zip(entries, scored, strict=True)]
        return np.minimum(np.array(logprobs, dtype=np.float32), 0.0)
    except (KeyError, TypeError, IndexError, ValueError) as problem:
        raise invalid_answer(problem, choice) from problem


def _parse_echo(choice: Mapping[str, Any], length: int, scored_from: int) -> Float32Array:
    try:
        entries = choice["logprobs"]["token_logprobs"][scored_from:length]
        if len(entries) != length - scored_from or any(entry is None for entry in entries):
            raise ValueError("neither prompt_logprobs nor logprobs of the echoed prompt")
        return np.minimum(np.array(entries, dtype=np.float32), 0.0)
    except (KeyError, TypeError, ValueError) as problem:
        raise invalid_answer(problem, choice) from problem


def _parse_top_of_vllm(choice: Mapping[str, Any], tokens: Int32Array, scored_from: int, count: int) -> TopScores:
    """Returns the scores from vLLM's `prompt_logprobs`, which name the most likely tokens and the given one."""
    try:
        entries, scored = choice["prompt_logprobs"][scored_from:], tokens[scored_from:].tolist()
        maps = [{int(token): float(facts["logprob"]) for token, facts in entry.items()} for entry in entries]
        logprobs = [entry[token] for entry, token in zip(maps, scored, strict=True)]
        return TopScores.of(logprobs, maps, count)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as problem:
        raise invalid_answer(problem, choice) from problem


def _parse_top_of_sglang(answer: Any, scored: int, count: int) -> TopScores:
    """Returns the scores from SGLang's `input_token_logprobs` and `input_top_logprobs`, whose first entry is of the
    token before the scored ones."""
    try:
        facts = answer["meta_info"]
        own, top = facts["input_token_logprobs"][1:], facts["input_top_logprobs"][1:]
        if not len(own) == len(top) == scored:
            raise ValueError(f"{len(own)} scores and {len(top)} heads of {scored} tokens")
        maps = [{int(entry[1]): float(entry[0]) for entry in entries} for entries in top]
        return TopScores.of([float(entry[0]) for entry in own], maps, count)
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as problem:
        raise invalid_answer(problem, answer) from problem
