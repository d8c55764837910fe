"""Sampling of a simulated engine: temperature, truncation, seeds, stop conditions and simple structured output."""

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tests.fakes.engine_server import token_model


class InvalidRequest(ValueError):
    """The server refuses the request."""


@dataclass(frozen=True)
class Parameters:
    """Sampling parameters, as both protocols have them."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    seed: int | None = None
    allowed: tuple[frozenset[str], ...] = ()
    """Characters allowed at each position; the generation ends after the last. Empty: no restriction."""
    choices: tuple[str, ...] = ()
    """Texts of which the output must be one."""


def kept(
    state: bytes, parameters: Parameters, *, position: int, text: str, vocabulary: Sequence[str]
) -> tuple[Sequence[int], Sequence[float]]:
    """Returns the tokens that can be sampled, the most likely first, and their weights. text: output so far."""
    logits = token_model.logits(state)
    candidates: Sequence[int] = range(token_model.VOCAB)
    if parameters.allowed:
        candidates = [token for token in candidates if vocabulary[token] in parameters.allowed[position]]
    if parameters.choices:
        candidates = [
            token
            for token in candidates
            if vocabulary[token] and any(choice.startswith(text + vocabulary[token]) for choice in parameters.choices)
        ]
    ordered = sorted(candidates, key=lambda token: -logits[token])
    if not ordered:
        raise InvalidRequest("no token matches the structure")
    if parameters.temperature == 0 or parameters.top_k == 1:
        return ordered[:1], [1.0]
    if parameters.top_k > 0:
        ordered = ordered[: parameters.top_k]
    weights = [math.exp((logits[token] - logits[ordered[0]]) / parameters.temperature) for token in ordered]
    is_likely = sum(weight >= parameters.min_p for weight in weights)
    ordered, weights = ordered[:is_likely], weights[:is_likely]
    total, above = sum(weights), 0.0
    for count, weight in enumerate(weights, 1):
        above += weight
        if above >= parameters.top_p * total:
            return ordered[:count], weights[:count]
    return ordered, weights


def choose(tokens: Sequence[int], weights: Sequence[float], state: bytes, parameters: Parameters) -> int:
    """Returns the next token, one of `kept`."""
    if parameters.seed is None:
        return random.choices(tokens, weights)[0]
    digest = blake2b(state + str(parameters.seed).encode(), digest_size=8).digest()
    return random.Random(digest).choices(tokens, weights)[0]


def logprobs_of(tokens: Sequence[int], weights: Sequence[float]) -> list[tuple[int, float]]:
    """Returns the tokens with their logprobs among each other."""
    total = math.log(sum(weights))
    return [(token, math.log(weight) - total) for token, weight in zip(tokens, weights, strict=True)]


def is_complete(parameters: Parameters, tokens: Sequence[int], text: str) -> int | str | bool:
    """Returns the stop token or text, or True for a complete structure; False while the generation goes on."""
    if tokens and tokens[-1] in parameters.stop_tokens:
        return tokens[-1]
    for stop in parameters.stop_strings:
        if stop in text:
            return stop
    return bool(
        (parameters.allowed and len(tokens) == len(parameters.allowed))
        or (parameters.choices and text in parameters.choices)
    )


def allowed_characters(pattern: str) -> tuple[frozenset[str], ...]:
    """Returns the characters that a pattern of classes with fixed counts allows: `[ab]{3}`. Raises: InvalidRequest."""
    allowed: list[frozenset[str]] = []
    rest = pattern
    while rest:
        part = re.match(r"(\[[^\]]+\]|[^\[\]{}()*+?|\\.^$])(?:\{(\d+)\})?", rest)
        if part is None:
            raise InvalidRequest(f"the simulated server does not know the pattern {pattern!r}")
        members = {chr(code) for code in range(128) if re.fullmatch(part[1], chr(code))}
        allowed += [frozenset(members)] * int(part[2] or 1)
        rest = rest[part.end() :]
    return tuple(allowed)


def schema_choices(schema: str) -> tuple[str, ...]:
    """Returns the texts that a JSON schema allows: `{"enum": [...]}` only. Raises: InvalidRequest."""
    parsed: Mapping[str, Any] = json.loads(schema)
    if set(parsed) != {"enum"}:
        raise InvalidRequest(f"the simulated server knows enum only, not {schema!r}")
    return tuple(json.dumps(choice) for choice in parsed["enum"])
