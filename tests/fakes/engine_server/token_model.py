"""Next-token distribution of a simulated engine: a pure function of the weights' content and of the prefix.

The state of a sequence is a chain of hashes, one per token, each made with the weights with which the token was
computed, as in a key-value cache. A cache of older weights therefore gives other logprobs than a new computation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from operator import mul

VOCAB = 128
_SCALE = 32.0
_EXP = [math.exp(byte / _SCALE) for byte in range(256)]
_TIE = 1 / 4096
"""Difference of the logits of neighbours with equal bytes, so that one token is the most likely."""
_TIE_EXP = [math.exp(token * _TIE) for token in range(VOCAB)]

DUMMY = b"weights before the first load"
"""Identity of placeholder weights."""


def identity(tensors: Mapping[str, bytes]) -> bytes:
    """Returns the identity of weights, from the bits of each tensor."""
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name])
    return digest.digest()


def adapted(weights: bytes, adapter: bytes) -> bytes:
    """Returns the identity of weights with the adapter of an identity."""
    return blake2b(weights + adapter, digest_size=16).digest()


def empty(weights: bytes) -> bytes:
    """Returns the state of a sequence without tokens."""
    return blake2b(weights, digest_size=16).digest()


def extended(state: bytes, tokens: Iterable[int], weights: bytes) -> bytes:
    """Returns the state after more tokens, computed with `weights`."""
    for token in tokens:
        state = blake2b(state + weights + token.to_bytes(4, "little"), digest_size=16).digest()
    return state


def logits(state: bytes) -> list[float]:
    """Returns the logits of the next token: `[VOCAB]`."""
    return [byte / _SCALE + token * _TIE for token, byte in enumerate(_bytes(state))]


def logprob(state: bytes, token: int) -> float:
    """Returns the logprob of `token` at temperature 1."""
    row = _bytes(state)
    return row[token] / _SCALE + token * _TIE - math.log(sum(map(mul, map(_EXP.__getitem__, row), _TIE_EXP)))


def logprobs(weights: bytes, tokens: Sequence[int], scored_from: int) -> list[float]:
    """Returns the logprobs of `tokens[scored_from:]`, all computed with the same weights."""
    state = extended(empty(weights), tokens[:scored_from], weights)
    values = []
    for token in tokens[scored_from:]:
        values.append(logprob(state, token))
        state = extended(state, (token,), weights)
    return values


def _bytes(state: bytes) -> bytes:
    return blake2b(state, person=b"first").digest() + blake2b(state, person=b"second").digest()
