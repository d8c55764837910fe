"""Engines of a node, and the columns that algorithms need of them."""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.nodes import JoinResult, PolicySpec
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.raas.builders import build_flow, build_policies
from tests.errors import raises_code
from tests.fakes.dataflow import flow

pytestmark = pytest.mark.anyio
SOLVER = PolicyId("solver")


@pytest.mark.parametrize(
    ("needs", "column"), [(ColumnNeeds(top_tokens=4), ""), (ColumnNeeds(experts=True), "expert_sets")]
)
async def test_an_engine_that_records_less_than_an_algorithm_needs_is_refused(needs: ColumnNeeds, column: str) -> None:
    spec = replace(flow(), columns={SOLVER: needs})
    joined = JoinResult(
        node=NodeId("n"),
        lease_s=1,
        heartbeat_s=1,
        run="test",
        weights_address="127.0.0.1:1",
        flows=(spec,),
        policies=(PolicySpec(id=SOLVER, model={"kind": "scripted"}),),
        engine={"kind": "scripted"},
    )
    flows = {spec.id: build_flow(spec)}
    async with AsyncExitStack() as resources:
        if not column:
            assert SOLVER in await build_policies(joined, flows, {SOLVER: {"kind": "scripted"}}, resources)
            return
        with raises_code(InvalidInput, "node.engine_records_less", column):
            await build_policies(joined, flows, {SOLVER: {"kind": "scripted"}}, resources)
