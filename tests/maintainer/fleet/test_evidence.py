"""What the guard was told can be judged again, and is judged the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.advice import Mode
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import Actor, InstanceState, KillScope, LaunchId, Role
from maintainer.fleet import guard
from maintainer.fleet.evidence import Evidence, _instances
from maintainer.fleet.guard import Limits, Situation, judge
from tests.maintainer.fleet.parts import POOL, START, spec

seconds = st.floats(START - 4000, START + 4000)
amounts = st.floats(0, 1000)
states = st.dictionaries(
    st.integers(0, 9).map(lambda n: f"L{n}"), st.sampled_from(InstanceState).map(lambda s: s.value)
)


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
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
        hold_until=draw(st.none() | seconds),
        breaker_until=draw(st.none() | seconds),
        kill=draw(st.sampled_from(KillScope)),
        usd_per_hour=draw(amounts),
        usd_today=draw(amounts),
        fleet_usd_per_hour=draw(amounts),
        fleet_usd_today=draw(amounts),
    )
    proposal = guard.Proposal(
        actor=Actor(name="somebody", role=draw(st.sampled_from(Role))),
        target=draw(st.integers(0, 60)),
        launches=draw(st.integers(0, 60)),
        victims=_instances({k: v for k, v in here.items() if draw(st.booleans())}, POOL),
        usd_per_hour_change=draw(st.floats(-100, 100)),
        is_kill=draw(st.booleans()),
        is_named=draw(st.booleans()),
    )
    limits = Limits(usd_per_hour_max=draw(st.none() | amounts), usd_per_day_max=draw(st.none() | amounts))
    return Evidence(situation=situation, proposal=proposal, limits=limits)


@given(evidence())
def test_the_guard_says_the_same_of_what_was_kept(told: Evidence) -> None:
    again = Evidence.parse(told.to_json())
    assert again.findings() == judge(told.situation, told.proposal, told.limits)
    assert again.to_json() == told.to_json()
    assert "secret-looking" not in told.to_json()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"spec": 1}'])
def test_what_is_no_evidence_is_told_so(text: str) -> None:
    with pytest.raises(InvalidInput, match="not what the guard was told"):
        Evidence.parse(text)


def test_names_of_instances_are_kept() -> None:
    assert [one.id for one in _instances({"L1": "ready"}, POOL)] == [LaunchId("L1")]
