"""Rules on one run: what they see of its reports and its fleet."""

from tests.contract.reports.test_diagnosis import STOPPED_FLEET, state
from web.alerting.evaluation import RuleWatch
from web.alerting.rules import RuleSpec
from web.alerting.run_watch import RunWatch


def test_a_rule_on_diagnoses_knows_the_kill_switch_of_the_fleet_service() -> None:
    fields = {"name": "held", "series": "diagnosis", "value": "nodes_held", "condition": "occurred"}
    run, watch = RunWatch("run"), RuleWatch(RuleSpec.parse(fields, where=""), since=0.0)
    run.put(1, watch, since=0.0)
    run.observe(state(ready=3), ())
    assert not watch.firing
    run.observe(state(ready=3), (), STOPPED_FLEET)
    assert [*watch.firing] == ["solver"]
