"""Builds the engines and flows of a node from the specs that dataflow sends on join."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.nodes import FlowSpec, JoinResult, NodeFacts, PolicySpec
from astraflow.contract.rollouts.token_columns import TokenColumn, needed_columns
from astraflow.models import build_tokenizer
from astraflow.raas.config import RaasConfig
from astraflow.raas.engines import engines
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.raas.tasks.runner import BuiltFlow
from astraflow.rewards import judging_policies, rewards
from astraflow.runtime.plugins import start_managed
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.components.answers import AnswerOptions


def build_flow(spec: FlowSpec) -> BuiltFlow:
    """Builds the workflow and reward of a flow. Raises: InvalidInput for an unknown kind or bad options."""
    options = workflows.check(spec.workflow)
    answers = options if isinstance(options, AnswerOptions) else AnswerOptions()
    temperatures = {} if answers.allow_truncated_sampling else spec.temperatures
    return BuiltFlow(
        workflow=workflows.build(spec.workflow),
        scorer=RewardScorer(rewards.build(spec.reward)),
        judges=judging_policies(spec.reward),
        attaches_texts=spec.attaches_texts,
        temperatures=temperatures,
        columns=spec.columns,
        filters=answers.truncating_options if temperatures else (),
        teacher_choices={choice.policy: choice for choice in spec.teacher_choices},
    )


def build_flows(join_result: JoinResult, facts: NodeFacts) -> dict[FlowId, BuiltFlow]:
    """Builds the flows of the run whose policies the node serves.

    Raises: InvalidInput for an unknown kind or bad options, for policies that the run does not have, and when the
    node serves no flow.
    """
    policy_ids = [spec.id for spec in join_result.policies]
    flows = {spec.id: build_flow(spec) for spec in join_result.flows}
    for policy in (*facts.policies, *needed_policies(flows)):
        if policy not in policy_ids:
            raise InvalidInput(
                f"cannot build the flows: a workflow, a reward or the node's `policies` name the unknown policy "
                f"{policy!r}; use one of {', '.join(policy_ids)}",
                code="node.unknown_policy",
            )
    served = {name: flow for name, flow in flows.items() if facts.serves(flow.policies)}
    if flows and not served:
        raise InvalidInput(
            f"cannot serve only the policies {', '.join(facts.policies)}: every flow needs another one as well; add it "
            "to `policies` of the node",
            code="node.no_flow",
        )
    return served


def choose_engines(config: RaasConfig, join_result: JoinResult) -> dict[PolicyId, Mapping[str, Any]]:
    """Returns the engine of each policy of the run: the node's for the policy, the node's, the run's for the policy, or
    the run's."""
    return {
        spec.id: config.engines.get(spec.id) or config.engine or join_result.engines.get(spec.id) or join_result.engine
        for spec in join_result.policies
    }


async def start_flows(flows: Mapping[FlowId, BuiltFlow], resources: AsyncExitStack) -> None:
    """Starts the workflows and rewards that own processes or connections; `resources` closes them."""
    for flow in flows.values():
        await start_managed((flow.workflow, flow.scorer.reward), resources)


async def build_policies(
    join_result: JoinResult,
    flows: Mapping[FlowId, BuiltFlow],
    engines: Mapping[PolicyId, Mapping[str, Any]],
    resources: AsyncExitStack,
) -> ServedPolicies:
    """Builds an engine and a tokenizer for each policy that a flow uses; `resources` closes the engines.

    Building imports modules and allocates memory for seconds, so it runs in a thread while heartbeats continue.
    Raises: InvalidInput for a bad engine or model.
    """
    served: dict[PolicyId, ServedPolicy] = {}
    for spec in join_result.policies:
        if spec.id in needed_policies(flows):
            served[spec.id] = await asyncio.to_thread(_build_policy, spec, engines[spec.id])
            resources.push_async_callback(served[spec.id].close)
    _check_recorded(flows, served)
    return ServedPolicies(served)


def _check_recorded(flows: Mapping[FlowId, BuiltFlow], served: Mapping[PolicyId, ServedPolicy]) -> None:
    """Checks that the engines record what algorithms need of each token. Raises: InvalidInput."""
    for name, flow in flows.items():
        reasons = [
            (policy, column, _REMEDIES[column])
            for policy, needs in flow.columns.items()
            if policy in served
            for column in needed_columns(needs) & _REMEDIES.keys()
        ]
        filtered = [policy for policy in flow.temperatures if flow.filters and policy in flow.workflow.policies]
        reasons += [(policy, TokenColumn.SUPPORT, f"leave out {', '.join(flow.filters)}") for policy in filtered]
        for policy, column, remedy in reasons:
            if column not in served[policy].engine.records:
                raise InvalidInput(
                    f"cannot serve the flow {name!r}: training {policy!r} needs the column {column.value!r} of every "
                    "token, which the engine of this node does not record for its model; use the engine "
                    f"sglang, vllm or local_torch, or {remedy}",
                    code="node.engine_records_less",
                )


_REMEDIES = {
    TokenColumn.TOP_TOKENS: "set centering = 0 in its loss",
    TokenColumn.EXPERTS: "set router_replay = false in its algorithm",
}


async def start_engines(policies: ServedPolicies) -> None:
    """Starts the engines at the same time. Raises: Unavailable when one does not start."""
    starts = [asyncio.create_task(served.engine.start()) for served in policies.values()]
    try:
        await asyncio.gather(*starts)
    finally:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


async def build_policy(spec: PolicySpec, engine: Mapping[str, Any]) -> ServedPolicy:
    """Builds and starts an engine, and builds a tokenizer, for one policy; the caller closes it.

    Raises: InvalidInput; Unavailable when the engine does not start.
    """
    served = await asyncio.to_thread(_build_policy, spec, engine)
    try:
        await served.engine.start()
    except BaseException:
        await served.close()
        raise
    return served


def needed_policies(flows: Mapping[FlowId, BuiltFlow]) -> list[PolicyId]:
    """Returns the policies that the workflows and rewards of the flows use, each once."""
    return list(dict.fromkeys(policy for flow in flows.values() for policy in flow.policies))


def _build_policy(spec: PolicySpec, engine: Mapping[str, Any]) -> ServedPolicy:
    return ServedPolicy(spec.id, engines.build(engine, spec.model), build_tokenizer(spec.model))
