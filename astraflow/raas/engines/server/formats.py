"""Formats that both server programs share: version spans, columns of tokens and Prometheus metrics."""

import base64
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.expert_columns import encoded_experts
from astraflow.contract.rollouts.generation import Sampling, VersionSpan
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import ColumnArray, TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models.mixtures import mixture_of
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.engines.server.dialect import ServerLoad

_NO_LOGPROB = -9000.0
"""Less than any logprob: vLLM writes -9999 for minus infinity, and for no number."""
_FIELDS = {
    "num_running_reqs": "running",
    "num_requests_running": "running",
    "num_queue_reqs": "waiting",
    "num_requests_waiting": "waiting",
    "token_usage": "cache",
    "kv_cache_usage_perc": "cache",
    "generation_tokens_total": "tokens",
    "prompt_tokens_total": "prompts",
    "cached_tokens_total": "cached",
    "prefix_cache_hits_total": "cached",
    "max_total_num_tokens": "capacity",
    "num_requests_total": "requests",
    "spec_verify_calls_total": "drafts",
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
}
_CAPACITY = re.compile(r'cache_config_info\{.*kv_cache_size_tokens="([0-9]{1,12})"')
_ACCEPTED_AT = re.compile(r'spec_decode_num_accepted_tokens_per_pos_total\{.*position="([0-9]{1,2})"')


def version_spans(spans: Any, tokens: int) -> tuple[VersionSpan, ...]:
    """Returns version spans from `[{version, start, end}]`; neighbours of one version are joined, empty ones dropped.

    Raises: KeyError, TypeError, ValueError for another format, and for a version that no load has set.
    """
    result: list[VersionSpan] = []
    for span in spans or []:
        length = min(int(span["end"]), tokens) - int(span["start"])
        if length <= 0:
            continue
        version = Version(int(span["version"]))
        if result and result[-1].version == version:
            length += result.pop().length
        result.append(VersionSpan(version=version, length=length))
    return tuple(result)


def top_columns(tokens: Int32Array, logprobs: Float32Array, *, count: int) -> TokenColumns:
    """Returns the columns of the `count` most likely of the candidates `[tokens, candidates]`.

    logprobs: of the sampled distribution; -inf, NaN or less than `_NO_LOGPROB` for tokens outside of it.
    Raises: ValueError without candidates.
    """
    if not logprobs.shape[1]:
        raise ValueError("no candidates")
    is_in = logprobs > _NO_LOGPROB
    ordered = np.argsort(-np.where(is_in, logprobs, -np.inf), axis=1, kind="stable")[:, :count]
    is_in = np.take_along_axis(is_in, ordered, axis=1)
    likely = np.minimum(np.take_along_axis(logprobs, ordered, axis=1), 0.0)
    top_tokens, top_logprobs = TokenColumn.TOP_TOKENS, TokenColumn.TOP_LOGPROBS
    return {
        top_tokens: np.where(is_in, np.take_along_axis(tokens, ordered, axis=1), -1).astype(top_tokens.dtype),
        top_logprobs: np.where(is_in, likely, -np.inf).astype(top_logprobs.dtype),
    }


def is_recorded(sampling: Sampling) -> bool:
    """Returns whether a request asks for columns of the distribution."""
    return sampling.with_support or sampling.top_tokens > 0


def distribution_columns(
    tokens: Int32Array, logprobs: Float32Array, sampling: Sampling
) -> dict[TokenColumn, ColumnArray]:
    """Returns the columns that a request asks for, from candidates and their logprobs as `top_columns`; all that could
    be sampled, where the kept set is recorded."""
    columns = dict(top_columns(tokens, logprobs, count=sampling.top_tokens)) if sampling.top_tokens else {}
    if sampling.with_support:
        kept = top_columns(tokens, logprobs, count=tokens.shape[1])[TokenColumn.TOP_TOKENS]
        columns[TokenColumn.SUPPORT] = kept[:, : max(1, (kept >= 0).sum(1).max(initial=0))]
    return columns


def table(values: npt.NDArray[Any], lengths: npt.NDArray[np.intp], *, absent: float) -> npt.NDArray[Any]:
    """Returns the values of rows of different lengths, one after another, as `[rows, longest]`.

    >>> table(np.array([1, 2, 3]), np.array([2, 0, 1]), absent=-1).tolist()
    [[1, 2], [-1, -1], [3, -1]]
    """
    rows = np.full((len(lengths), lengths.max(initial=0)), absent, values.dtype)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = values
    return rows


def experts_from_npy(encoded: str, mixture: Mixture, *, tokens: int) -> TokenColumns:
    """Returns the column of experts from base64 of an `.npy` file `[positions, layers, experts]`, as vLLM sends it.

    tokens: of the generation. Raises: ValueError for another format.
    """
    routes = np.load(io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False)
    return _experts(routes, mixture, tokens=tokens)


def experts_from_int32(encoded: str, mixture: Mixture, *, tokens: int) -> TokenColumns:
    """Returns the column of experts from base64 of int32 without a shape, as SGLang sends it.

    tokens: of the generation. Raises: ValueError for another size.
    """
    flat = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<i4")
    return _experts(flat.reshape(-1, mixture.layers, mixture.chosen), mixture, tokens=tokens)


def _experts(routes: npt.NDArray[Any], mixture: Mixture, *, tokens: int) -> TokenColumns:
    """Returns the column from the experts of prompt and answer without the last position, which predicts no token."""
    if len(routes) < tokens:
        raise ValueError(f"experts of {len(routes)} positions, which predict {tokens} tokens")
    return {TokenColumn.EXPERTS: encoded_experts(routes[len(routes) - tokens :], mixture)}


def vocabulary_size(model: Path) -> int:
    """Returns the number of logits of a model folder: both servers end when more candidates are asked for."""
    return int(_text_config(model)["vocab_size"])


def mixture_in(model: Path) -> Mixture:
    """Returns the shape of the mixture in a model folder. Raises: InvalidInput for a dense model."""
    config = _text_config(model)
    mixture = mixture_of(config)
    if mixture is None:
        raise InvalidInput(
            f"cannot return routes of {config.get('model_type', 'the model')!r}: it has no mixture of experts; set "
            "return_routes = false",
            code="engine.no_experts",
        )
    return mixture


def _text_config(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    return config.get("text_config") or config


def parse_metrics(text: str, *, prefix: str, draft_tokens: int = 0) -> ServerLoad:
    """Returns the load from Prometheus text: the sum over ranks of requests and tokens, the largest cache use.

    draft_tokens: length of the drafts of a server that counts drafts only, as SGLang does: every token that is neither
    the first of its request nor the last of a verification was accepted.

    >>> parse_metrics('vllm:num_requests_running{engine="0"} 3.0\\nvllm:generation_tokens_total 7', prefix="vllm:")
    ServerLoad(gauges=EngineGauges(running=3, waiting=0, cache_used=0.0), tokens_total=7.0)
    """
    values: dict[str, float] = dict.fromkeys(_FIELDS.values(), 0.0)
    accepted_at: Counter[int] = Counter()
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        name, _, value = line.removeprefix(prefix).rpartition(" ")
        field = _FIELDS.get(name.partition("{")[0])
        if field == "cache":
            values[field] = max(values[field], float(value))
        elif field is not None:
            values[field] += float(value)
        elif match := _CAPACITY.match(name):
            values["capacity"] += int(match[1])
        elif match := _ACCEPTED_AT.match(name):
            accepted_at[int(match[1])] += round(float(value))
    if draft_tokens and values["drafts"]:
        values["drafted"] = values["drafts"] * draft_tokens
        values["accepted"] = max(0.0, values["tokens"] - values["requests"] - values["drafts"])
    gauges = EngineGauges(
        running=round(values["running"]),
        waiting=round(values["waiting"]),
        cache_used=min(1.0, values["cache"]),
        cache_tokens=round(values["capacity"]),
        prompt_tokens=round(values["prompts"]),
        cached_tokens=round(values["cached"]),
        drafts=round(values["drafts"]),
        drafted_tokens=round(values["drafted"]),
        accepted_tokens=round(values["accepted"]),
        accepted_drafts=tuple(accepted_at[n] for n in range(len(accepted_at))),
    )
    return ServerLoad(gauges=gauges, tokens_total=values["tokens"])


def invalid_answer(kind: str, answer: Any) -> CorruptData:
    """Returns the error for an answer in an unknown format."""
    return CorruptData(
        f"cannot read the answer of the {kind} server: {str(answer)[:300]}; "
        "use a tested release (docs/how-to/engines.md)",
        code="engine.invalid_answer",
    )
