"""Subjects of a baseline: a hosted endpoint, or model folders in a real engine, as policies for workflows."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astraflow.agents.text_tokens import TextTokenizer
from astraflow.agents.upstream.client import Upstream
from astraflow.agents.upstream.policy import UpstreamPolicy
from astraflow.contract.errors import AstraFlowError, DeadlineExceeded, InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.nodes import PolicySpec
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.values import Json
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.raas.builders import build_policy
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.logprob_mismatch import STALL_S, TIMEOUT_S, measure_logprob_mismatch
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.sampling_check import SamplingCheck
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.raas.policies.turn_times import TurnTimes
from astraflow.workflows.base import PolicyClient, episode_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Policies that are scored, and what is known about them."""

    policies: ServedPolicies
    counters: NodeCounters
    tokenizers: Mapping[PolicyId, ChatTokenizer]
    """Decode the trajectories of each policy."""
    description: Mapping[str, Json]
    usage: Callable[[], Mapping[str, Json]]
    """Returns what was used so far: tokens, and calls of an endpoint."""
    halted: Callable[[], AstraFlowError | None]
    """Returns why no further episode can succeed, once that is so."""


class EndpointPolicies(ServedPolicies):
    """Policies whose answers an endpoint gives; no engine serves them here."""

    def __init__(self, upstream: Upstream, models: Mapping[PolicyId, str]) -> None:
        """models: name of each policy's model at the endpoint."""
        super().__init__({})
        self._upstream = upstream
        self._models = models

    def for_task(
        self,
        task: Task,
        recorder: RolloutRecorder,
        counters: NodeCounters,
        turns: TurnTimes | None = None,
        sampling_check: SamplingCheck | None = None,
        *,
        columns: Mapping[PolicyId, ColumnNeeds] | None = None,
    ) -> dict[PolicyId, PolicyClient]:
        """Returns the clients for the workflow of a task."""
        seed = episode_seed(task)
        return {name: UpstreamPolicy(self._upstream, model, seed=seed) for name, model in self._models.items()}


async def endpoint_subject(
    upstream: Upstream, url: str, models: Mapping[PolicyId, str], resources: AsyncExitStack
) -> Subject:
    """Opens the connections to an endpoint; `resources` closes them."""
    resources.push_async_callback(upstream.close)
    await upstream.start()
    return Subject(
        policies=EndpointPolicies(upstream, models),
        counters=NodeCounters(),
        tokenizers=dict.fromkeys(models, TextTokenizer()),
        description={
            "kind": "endpoint",
            "url": url,
            "models": {str(policy): model for policy, model in models.items()},
        },
        usage=lambda: asdict(upstream.usage),
        halted=lambda: upstream.reason,
    )


def model_folder(path: str) -> Path:
    """Returns the folder of a model. Raises: InvalidInput for another one."""
    folder = Path(path).expanduser().resolve()
    if not (folder / "config.json").is_file():
        raise InvalidInput(
            f"cannot load {path!r}: it has no config.json; name a folder in Hugging Face format, such as one of "
            "astraflow export",
            code="baseline.no_model",
        )
    return folder


async def folder_subject(
    folders: Mapping[PolicyId, Path], engine: Mapping[str, Any], resources: AsyncExitStack
) -> Subject:
    """Loads model folders into engines, one for each policy, and verifies that the engines compute what the models do.

    Raises: InvalidInput for a folder that is no model, a simulated engine, or one that computes something else;
    Unavailable when an engine does not start.
    """
    served = {policy: await served_folder(policy, folder, engine, resources) for policy, folder in folders.items()}
    policies = ServedPolicies(served)
    for policy in served:
        policies.set_version(policy, served[policy].engine.version)
    counters = NodeCounters()
    return Subject(
        policies=policies,
        counters=counters,
        tokenizers={policy: served_policy.tokenizer for policy, served_policy in served.items()},
        description={
            "kind": "model_folder",
            "folders": {policy: str(folder) for policy, folder in folders.items()},
            "engine": str(engine["kind"]),
        },
        usage=lambda: {"completion_tokens": int(counters.counters()["tokens_generated"])},
        halted=lambda: None,
    )


async def served_folder(
    policy: PolicyId, folder: Path, engine: Mapping[str, Any], resources: AsyncExitStack
) -> ServedPolicy:
    """Loads a model folder into an engine, which `resources` closes, and verifies what it computes.

    Raises: as `folder_subject`.
    """
    spec: dict[str, Json] = {"kind": "huggingface", "path": str(folder)}
    served = await build_policy(PolicySpec(id=policy, model=spec), engine)
    resources.push_async_callback(served.close)
    if served.engine.is_simulated:
        raise InvalidInput(
            f"cannot serve {str(folder)!r}: the engine {engine['kind']!r} only simulates a model; use --engine "
            "local_torch, sglang or vllm",
            code="baseline.simulated_engine",
        )
    # torch is imported only with an engine that needs it
    from astraflow.raas.engines.model_weights import folder_weights

    weights = await asyncio.to_thread(folder_weights, spec, policy=policy)
    await served.engine.load(weights)
    try:
        mismatch = await measure_logprob_mismatch(served.engine, weights.manifest)
    except TimeoutError:
        raise DeadlineExceeded(
            f"cannot serve {str(folder)!r}: the engine made no progress with its logprobs for {STALL_S:g} s, or took "
            f"longer than {TIMEOUT_S:g} s; try again on a less busy machine, or use a faster engine or a smaller model",
            code="baseline.slow_engine",
        ) from None
    excess = mismatch.excess(served.engine.logprob_tolerance) if mismatch else ""
    if excess:
        raise InvalidInput(
            f"cannot serve {str(folder)!r}: the logprobs of the engine and of the model differ by {excess}; use "
            "another engine or element type",
            code="baseline.logprob_mismatch",
        )
    return served
