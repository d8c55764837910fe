"""Request bodies of pools."""

import json
from dataclasses import asdict, replace

from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PolicyId, PoolId
from web.history.report_json import json_value
from web.pools.requests import PoolChange


def test_a_spec_that_was_read_can_be_sent_back_with_a_change() -> None:
    spec = PoolSpec(
        id=PoolId("eu"), provider="here", mode=Mode.ADVISE, policies=(PolicyId("solver"),), options={"zone": "a"}
    )
    read = json.loads(json.dumps(json_value(asdict(spec))))
    name = read.pop("id")
    body = PoolChange.model_validate(read | {"max_nodes": 9, "observed_version": 1, "reason": "more room"})
    assert body.spec(name) == replace(spec, max_nodes=9)
