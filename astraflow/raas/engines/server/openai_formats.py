"""Requests to `/v1/completions` with token ids, and their answers."""

from typing import Any

import numpy as np

from astraflow.client.openai_server import first_choice, invalid_answer
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array

_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}


def completion_request(
    model: str, prompt: Int32Array, sampling: Sampling, *, has_processed_logprobs: bool
) -> dict[str, Any]:
    """Returns the request that continues `prompt`.

    Raises: InvalidInput for invalid values, and when the logprobs would be those of another distribution.
    """
    if sampling.max_new_tokens < 1 or not len(prompt):
        raise InvalidInput(
            f"cannot continue {len(prompt)} tokens by {sampling.max_new_tokens}: both must be at least 1",
            code="engine.invalid_sampling",
        )
    if not has_processed_logprobs and (sampling.temperature != 1 or not sampling.is_full_distribution):
        raise InvalidInput(
            f"cannot sample with {sampling}: the server may return logprobs of another distribution than the "
            "sampled one; start it so that it returns processed logprobs and set processed_logprobs = true",
            code="engine.raw_logprobs",
        )
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "logprobs": 0,
        "return_token_ids": True,
        # The caller names all stop tokens, but SGLang ignores those as well if it is told to ignore the model's.
        "ignore_eos": not (sampling.stop_tokens or sampling.json_schema or sampling.regex),
        "stop_token_ids": list(sampling.stop_tokens),
        "skip_special_tokens": False,
        "add_special_tokens": False,
    }
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.min_p:
        body["min_p"] = sampling.min_p
    if sampling.stop_strings:
        body["stop"] = list(sampling.stop_strings)
    if sampling.json_schema:
        body["structured_outputs"] = {"json": sampling.json_schema}
    elif sampling.regex:
        body["structured_outputs"] = {"regex": sampling.regex}
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def parse_completion(answer: Any, version: Version) -> Generation:
    """Returns the generation of an answer to `/v1/completions`, all of it by `version`. Raises: CorruptData."""
    choice = first_choice(answer)
    try:
        if choice.get("token_ids") is None:
            raise ValueError("no token_ids; the endpoint must support return_token_ids")
        tokens = np.array(choice["token_ids"], dtype=np.int32)
        entries = (choice.get("logprobs") or {}).get("token_logprobs")
        if entries is None or any(entry is None for entry in entries):
            raise ValueError("no logprobs of the tokens; the endpoint must support logprobs = 0")
        logprobs = np.minimum(np.array(entries, dtype=np.float32), 0.0)
        if len(logprobs) != len(tokens):
            raise ValueError(f"{len(tokens)} token_ids and {len(logprobs)} logprobs")
        return Generation(
            tokens=tokens,
            logprobs=logprobs,
            spans=(VersionSpan(version=version, length=len(tokens)),) if len(tokens) else (),
            finish=_FINISH[choice["finish_reason"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise invalid_answer(problem, answer) from problem
