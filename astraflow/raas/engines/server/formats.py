"""Formats that both server programs share: version spans and Prometheus metrics."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import UInt16Array, VersionSpan
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.engines.server.dialect import ServerLoad

_FIELDS = {
    "num_running_reqs": "running",
    "num_requests_running": "running",
    "num_queue_reqs": "waiting",
    "num_requests_waiting": "waiting",
    "token_usage": "cache",
    "kv_cache_usage_perc": "cache",
    "generation_tokens_total": "tokens",
}


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


def routes_from_npy(encoded: str) -> UInt16Array:
    """Returns the experts per token and layer from base64 of an `.npy` file, as vLLM returns them.

    Raises: ValueError for another format.
    """
    return _checked_routes(np.load(io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False))


def routes_from_int32(encoded: str, *, layers: int, experts: int) -> UInt16Array:
    """Returns the experts per token and layer from base64 of int32 without a shape, as SGLang returns them.

    layers, experts: layers of the model and experts per token. Raises: ValueError for another size.
    """
    flat = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<i4")
    return _checked_routes(flat.reshape(-1, layers, experts))


def _checked_routes(routes: npt.NDArray[Any]) -> UInt16Array:
    if routes.ndim != 3 or routes.dtype.kind not in "iu":
        raise ValueError(f"routes of shape {routes.shape} and type {routes.dtype}")
    if routes.size and (routes.min() < 0 or routes.max() > np.iinfo(np.uint16).max):
        raise ValueError(f"routes to experts {routes.min()} to {routes.max()}")
    return routes.astype(np.uint16)


def route_shape(model: Path) -> tuple[int, int]:
    """Returns the layers and the experts per token of a model folder. Raises: InvalidInput for a dense model."""
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    experts = config.get("num_experts_per_tok") or 0
    if not experts:
        raise InvalidInput(
            f"cannot return routes of {config.get('model_type', 'the model')!r}: it has no mixture of experts; set "
            "return_routes = false",
            code="engine.no_experts",
        )
    return int(config["num_hidden_layers"]), int(experts)


def parse_metrics(text: str, *, prefix: str) -> ServerLoad:
    """Returns the load from Prometheus text: the sum over ranks of requests and tokens, the largest cache use.

    >>> parse_metrics('vllm:num_requests_running{engine="0"} 3.0\\nvllm:generation_tokens_total 7', prefix="vllm:")
    ServerLoad(gauges=EngineGauges(running=3, waiting=0, cache_used=0.0), tokens_total=7.0)
    """
    values = {"running": 0.0, "waiting": 0.0, "cache": 0.0, "tokens": 0.0}
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        name, _, value = line.removeprefix(prefix).rpartition(" ")
        field = _FIELDS.get(name.partition("{")[0])
        if field == "cache":
            values[field] = max(values[field], float(value))
        elif field is not None:
            values[field] += float(value)
    return ServerLoad(
        gauges=EngineGauges(
            running=int(values["running"]), waiting=int(values["waiting"]), cache_used=min(1.0, values["cache"])
        ),
        tokens_total=values["tokens"],
    )


def invalid_answer(kind: str, answer: Any) -> CorruptData:
    """Returns the error for an answer in an unknown format."""
    return CorruptData(
        f"cannot read the answer of the {kind} server: {str(answer)[:300]}; "
        "use a tested release (docs/how-to/engines.md)",
        code="engine.invalid_answer",
    )
