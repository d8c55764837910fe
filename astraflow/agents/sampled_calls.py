"""Generations for the calls of a session, checked so that exactly what was sampled is trained."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from astraflow.agents.calls import CallRefused, Refusal
from astraflow.agents.prompts import Prompt
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.workflows.base import PolicyClient

_POLL_S = 0.25
"""Time between two attempts while a policy serves no verified version. Seconds."""


async def sampled(
    policy: PolicyId, client: PolicyClient, prompt: Prompt, tokens: Int32Array, sampling: Sampling, *, hold_s: float
) -> Generation:
    """Returns a complete generation after these tokens. hold_s: time to wait for a verified version of the policy.

    Raises: CallRefused after `hold_s`; RolloutFailed, also for a generation that is not exact.
    """
    try:
        generation = await _served(lambda: client.generate(tokens, sampling), hold_s)
    except InvalidInput as problem:
        raise _inexact(policy, prompt, str(problem)) from problem
    defect = _defect(generation, sampling, client.tokenizer.vocab_size)
    if defect:
        raise _inexact(policy, prompt, defect)
    return generation


async def _served(request: Callable[[], Coroutine[Any, Any, Generation]], hold_s: float) -> Generation:
    now = asyncio.get_running_loop().time
    ends_at = now() + hold_s
    while True:
        try:
            return await request()
        except RolloutFailed as problem:
            if problem.code != "rollout.not_serving":
                raise
            if now() + _POLL_S > ends_at:
                raise CallRefused(
                    str(problem), refusal=Refusal.BUSY, code="agent.not_serving", retry_after_s=5
                ) from None
        await asyncio.sleep(_POLL_S)


def _defect(generation: Generation, sampling: Sampling, vocab_size: int) -> str:
    """Returns why the tokens of a generation are not those that were sampled; empty when they are sound."""
    count = len(generation.tokens)
    if not count:
        return "the engine returned no token"
    if generation.finish is Finish.ABORT:
        return "the engine aborted it"
    if count > sampling.max_new_tokens:
        return f"the engine returned {count} tokens of at most {sampling.max_new_tokens}"
    if not np.isfinite(generation.logprobs).all():
        return "the engine returned a logprob that is not finite"
    if (generation.tokens.view(np.uint32) >= vocab_size).any():  # negative ids are large then
        return f"the engine returned a token that is not in the vocabulary of {vocab_size} tokens"
    return ""


def _inexact(policy: PolicyId, prompt: Prompt, cause: str) -> RolloutFailed:
    replies = 0 if prompt.parent is None else len(prompt.parent.path)
    return RolloutFailed(
        f"cannot train on call {prompt.number} of the session (policy {str(policy)!r}, after {replies} replies): "
        f"{cause}; the engine must return each sampled token with its logprob",
        boundary=Boundary.ENGINE,
        code="rollout.inexact_call",
    )
