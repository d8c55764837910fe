"""Recorded guard inputs can be judged again with the same verdict."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import Actor, Role
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from maintainer.fleet.guard import guard
from maintainer.fleet.guard.approval import ApplyAttempt
from maintainer.fleet.guard.guard import Rejection, Situation, judge
from maintainer.fleet.guard.inputs import GuardInputs, _instances
from maintainer.fleet.guard.rules import Limits
from tests.maintainer.fleet.parts import POOL, START, spec

seconds = st.floats(START - 4000, START + 4000)
amounts = st.floats(0, 1000)
states = st.dictionaries(
    st.integers(0, 9).map(lambda n: f"L{n}"), st.sampled_from(InstanceState).map(lambda s: s.value)
)


names = st.sampled_from(["alice", "bob"])
pools = st.sampled_from(["", POOL, "us"])
actors = st.builds(Actor, name=names, role=st.sampled_from(Role), pool=pools)
applications = st.none() | st.builds(
    ApplyAttempt, applier=actors, mode=st.none() | st.sampled_from(MaintainerMode), is_proposed=st.booleans()
)
launches = st.lists(st.integers(0, 9).map(lambda n: LaunchId(f"L{n}")), max_size=3, unique=True).map(tuple)
rejections = st.builds(Rejection, at=seconds, target=st.integers(0, 60), retire=launches, victims=launches)


@st.composite
def evidence(draw: st.DrawFn) -> GuardInputs:
    low = draw(st.integers(0, 5))
    pool = spec(
        mode=draw(st.sampled_from(Mode)),
        min_nodes=low,
        max_nodes=low + draw(st.integers(0, 20)),
        usd_per_hour_max=draw(st.none() | amounts),
        options={"secret-looking": "text"},
    )
    here = draw(states)
    situation = Situation(
        now=START,
        spec=pool,
        instances=_instances(here, POOL),
        target=draw(st.integers(0, 30)),
        rule_target=draw(st.none() | st.integers(0, 30)),
        report_age_s=draw(st.none() | amounts),
        changed_at=tuple(draw(st.lists(seconds, max_size=6))),
        cool_down_s=draw(amounts),
        hold_until_at=draw(st.none() | seconds),
        breaker_until=draw(st.none() | seconds),
        kill=draw(st.sampled_from(KillScope)),
        usd_per_hour=draw(amounts),
        usd_today=draw(amounts),
        fleet_usd_per_hour=draw(amounts),
        fleet_usd_today=draw(amounts),
        rejected=tuple(draw(st.lists(rejections, max_size=3))),
    )
    proposal = guard.ProposedChange(
        actor=Actor(name="carol", role=draw(st.sampled_from(Role))),
        target=draw(st.integers(0, 60)),
        launches=draw(st.integers(0, 60)),
        victims=_instances({k: v for k, v in here.items() if draw(st.booleans())}, POOL),
        usd_per_hour_change=draw(st.floats(-100, 100)),
        is_kill=draw(st.booleans()),
        is_named=draw(st.booleans()),
    )
    limits = Limits(usd_per_hour_max=draw(st.none() | amounts), usd_per_day_max=draw(st.none() | amounts))
    return GuardInputs(situation=situation, proposal=proposal, limits=limits, application=draw(applications))


@given(evidence())
def test_stored_inputs_get_the_same_verdict(inputs: GuardInputs) -> None:
    again = GuardInputs.parse(inputs.to_json())
    of_plan, violations_for_applier = judge(inputs.situation, inputs.proposal, inputs.limits), inputs.violations()
    assert again.violations() == violations_for_applier
    assert violations_for_applier[: len(of_plan)] == of_plan
    assert inputs.application is not None or violations_for_applier == of_plan
    assert again.to_json() == inputs.to_json()
    assert "secret-looking" not in inputs.to_json()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"spec": 1}'])
def test_invalid_inputs_are_an_error(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        GuardInputs.parse(text)
    assert caught.value.code == "fleet.invalid_guard_inputs"


def test_instance_names_are_read_from_stored_inputs() -> None:
    assert [instance.id for instance in _instances({"L1": "ready"}, POOL)] == [LaunchId("L1")]


def test_the_applier_is_judged_again_and_older_records_are_readable() -> None:
    agent = Actor(name="hal", role=Role.AGENT)
    calm = Situation(
        now=START,
        spec=PoolSpec(id=POOL, provider="cloud", mode=Mode.ON),
        instances=(),
        target=0,
        rule_target=1,
        report_age_s=1.0,
        changed_at=(),
        cool_down_s=0.0,
        hold_until_at=None,
        breaker_until=None,
        kill=KillScope.NONE,
        usd_per_hour=0.0,
        usd_today=0.0,
        fleet_usd_per_hour=0.0,
        fleet_usd_today=0.0,
    )
    change = guard.ProposedChange(actor=agent, target=1, launches=1, victims=(), usd_per_hour_change=0.0)
    inputs = GuardInputs(situation=calm, proposal=change, limits=Limits())

    def codes(applier: Actor, mode: MaintainerMode | None, *, is_proposed: bool = False) -> list[str]:
        applying = ApplyAttempt(applier=applier, mode=mode, is_proposed=is_proposed)
        again = GuardInputs.parse(replace(inputs, application=applying).to_json())
        return [finding.code.value for finding in again.violations()]

    assert codes(agent, MaintainerMode.AUTO) == []
    assert codes(agent, MaintainerMode.PROPOSE) == ["maintainer_mode"]
    assert codes(agent, MaintainerMode.AUTO, is_proposed=True) == ["proposed"]
    assert codes(replace(agent, name="other"), None) == ["planner"]
    assert codes(replace(agent, pool="us"), None) == ["scope"]
    old = json.loads(inputs.to_json())
    del old["application"], old["rejected"], old["unmanaged"], old["limits"]["rejected_s"]
    again = GuardInputs.parse(json.dumps(old))
    assert (again.application, again.situation.rejected, again.situation.unmanaged) == (None, (), 0)
    assert again.limits == Limits()
    assert again.violations() == inputs.violations() == ()
