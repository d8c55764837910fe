"""From what dataflow says a run needs to the engines and flows that serve it."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.nodes import FlowSpec, PolicySpec, Welcome
from astraflow.models import build_tokenizer
from astraflow.raas.engines import engines
from astraflow.raas.runner import BuiltFlow
from astraflow.raas.serving import ServedPolicies, ServedPolicy
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.judge import Judge


def build_flow(spec: FlowSpec) -> BuiltFlow:
    """What a flow's tasks need. Raises: InvalidInput for an unknown kind or bad options."""
    return BuiltFlow(workflow=workflows.build(spec.workflow), judge=Judge(rewards.build(spec.reward)))


async def build_policies(
    welcome: Welcome, flows: Mapping[FlowId, BuiltFlow], engine: Mapping[str, Any], resources: AsyncExitStack
) -> ServedPolicies:
    """An engine and a tokenizer for each policy that a flow needs; `resources` closes the engines.

    Building imports and allocates for seconds: it is done in a thread, beats go on meanwhile.
    Raises: InvalidInput for a bad engine or model, or a flow whose policy the run does not have.
    """
    specs = {spec.id: spec for spec in welcome.policies}
    served: dict[PolicyId, ServedPolicy] = {}
    for policy in needed_policies(flows):
        if policy not in specs:
            raise InvalidInput(f"a flow needs the policy {policy!r}, which this run does not have: {', '.join(specs)}")
        served[policy] = await build_policy(specs[policy], engine)
        resources.push_async_callback(served[policy].close)
    return ServedPolicies(served)


async def build_policy(spec: PolicySpec, engine: Mapping[str, Any]) -> ServedPolicy:
    """An engine and a tokenizer for one policy; whoever asks closes it. Raises: InvalidInput."""
    return await asyncio.to_thread(_build_policy, spec, engine)


def needed_policies(flows: Mapping[FlowId, BuiltFlow]) -> list[PolicyId]:
    """Every policy that some flow's workflow talks to, once."""
    return list(dict.fromkeys(policy for flow in flows.values() for policy in flow.workflow.policies))


def _build_policy(spec: PolicySpec, engine: Mapping[str, Any]) -> ServedPolicy:
    return ServedPolicy(spec.id, engines.build(engine, spec.model), build_tokenizer(spec.model))
