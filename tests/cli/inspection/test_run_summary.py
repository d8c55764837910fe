from dataclasses import replace

import pytest

from astraflow.cli.inspection.run_summary import EvaluationSummary, RunReports, Summary, imbalances
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.report import Completion
from tests import make
from tests.fakes.clock import ManualClock

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")


def reports(*policies: PolicyId) -> RunReports:
    return RunReports(policies or (SOLVER,), window_steps=4, clock=ManualClock())


def summary(reports: RunReports, *, has_failed: bool = False) -> Summary:
    return reports.summary(reason="because", has_failed=has_failed, began_at=990.0, ended_at=1010.0, restarts=2)


def learned(has_learned: bool = True) -> Completion:
    return Completion(reason="because", has_learned=has_learned, at=7.0, ends_run=True)


def test_has_learned_follows_the_completion_of_dataflow() -> None:
    gathered = reports()
    gathered.observe(make.report(make.stream_report(steps=4, rewards=(1.0,) * 4)))
    assert not gathered.has_learned
    gathered.observe(replace(make.report(), completion=learned(False)))
    assert not gathered.has_learned
    gathered.observe(replace(make.report(), completion=learned()))
    assert gathered.has_learned


def test_fewer_steps_than_the_window_give_no_reward() -> None:
    gathered = reports()
    gathered.observe(make.report(make.stream_report(steps=3, rewards=(1.0, 1.0, 1.0))))
    assert summary(gathered).reward_last is None


def test_the_lowest_reward_of_all_policies_counts() -> None:
    gathered = reports(SOLVER, VERIFIER)
    good, bad = (1.0,) * 4, (0.1,) * 4
    gathered.observe(
        make.report(make.stream_report(steps=4, rewards=good), make.stream_report("verifier", steps=4, rewards=bad))
    )
    assert summary(gathered).reward_last == pytest.approx(0.1)


def test_the_rewards_of_the_first_steps_are_kept() -> None:
    gathered = reports()
    gathered.observe(make.report(make.stream_report(steps=5, rewards=(0.1, 0.2, 0.3, 0.4, 0.5))))
    gathered.observe(make.report(make.stream_report(steps=40, rewards=(0.8,) * 32)))
    assert summary(gathered).reward_first == pytest.approx(0.3)
    assert summary(gathered).reward_last == pytest.approx(0.8)


@pytest.mark.parametrize(("losses", "has_fallen"), [((2.0, 1.8, 1.2, 0.9, 0.4, 0.3), True), ((0.3,) * 6, False)])
def test_a_policy_that_trains_on_answers_is_judged_by_its_loss(losses: tuple[float, ...], has_fallen: bool) -> None:
    gathered = reports()
    stream = make.changed_stream(make.stream_report(steps=6, rewards=(1.0,) * 6), losses=losses)
    gathered.observe(replace(make.report(stream), completion=learned()))
    result = summary(gathered)

    assert result.learned is has_fallen
    assert result.policies[0].loss_first == pytest.approx(sum(losses[:5]) / 5)
    assert result.policies[0].loss_last == pytest.approx(sum(losses[-4:]) / 4)


def test_counters_of_restarted_nodes_are_summed() -> None:
    gathered = reports()
    first = {"weight_bytes_full": 100.0, "weight_updates_full": 1.0, "weight_bytes_delta": 7.0}
    gathered.observe(make.report(nodes=(make.node_report("node-1.1", counters=first),)))
    gathered.observe(make.report(nodes=(make.node_report("node-1.1", counters={**first, "weight_bytes_delta": 9.0}),)))
    gathered.observe(make.report(nodes=(make.node_report("node-1.2", counters=first),)))
    totals = summary(gathered)
    assert (totals.weight_bytes_full, totals.weight_updates_full, totals.weight_bytes_delta) == (200, 2, 16)


def test_the_largest_mismatch_is_kept() -> None:
    gathered = reports()
    assert summary(gathered).logprob_mismatch_max is None
    for mismatch in (1e-5, 3e-4, 1e-6):
        gathered.observe(make.report(nodes=(make.node_report(gauges={"logprob_mismatch_max": mismatch}),)))
    assert summary(gathered).logprob_mismatch_max == 3e-4


def test_times_count_from_the_command_and_from_the_first_step() -> None:
    gathered = reports()
    gathered.observe(make.report())
    assert summary(gathered).seconds_training == 0.0
    gathered.observe(make.report(make.stream_report(steps=1, rewards=(0.5,))))
    assert (summary(gathered).seconds, summary(gathered).seconds_training) == (20.0, 10.0)


def test_the_wait_fraction_is_relative_to_the_trainers_total_time() -> None:
    gathered = reports()
    gathered.observe(make.report(make.stream_report(steps=1, wait_s=1.0, compute_s=2.0, publish_s=1.0)))
    assert summary(gathered).wait_fraction == 0.25


def test_imbalanced_counts_are_reported_and_kept_in_the_summary() -> None:
    odd = make.report(make.stream_report(steps=1, admitted=99), flows=(replace(make.flow_report(), issued=50),))
    issued, admitted = imbalances(odd)
    assert issued.startswith("flow train: 50")
    assert " 10 " in issued
    assert admitted.startswith("stream solver: 99")
    assert " 7 " in admitted
    gathered = reports()
    gathered.observe(odd)
    gathered.observe(make.report(make.stream_report(steps=2)))
    assert not summary(gathered).balanced


def test_every_partial_rollout_is_accounted_for_once() -> None:
    flow = make.flow_report()
    even = replace(
        flow, partial_rollouts={"handed_back": 5, "stored": 1, "continued": 2, "discarded": 1, "stale": 1, "late": 7}
    )
    odd = replace(flow, partial_rollouts={"handed_back": 5, "stored": 1, "continued": 2, "late": 2})
    assert imbalances(make.report(flows=(flow, even))) == []
    (partial,) = imbalances(make.report(flows=(odd,)))
    assert partial.startswith("flow train: 5")
    assert " 3 " in partial


def test_the_exit_code_is_0_only_for_a_balanced_run_that_learned() -> None:
    gathered = reports()
    assert summary(gathered).exit_code == 1
    gathered.observe(replace(make.report(make.stream_report(steps=1)), completion=learned()))
    assert summary(gathered).exit_code == 0
    assert summary(gathered, has_failed=True).exit_code == 1


def test_an_evaluation_is_summarized_by_its_first_and_last_finished_round() -> None:
    gathered = reports()
    rounds = [make.round_report(number) for number in (1, 2, 3)]
    last = replace(rounds[2].scores[0], value=0.9)
    others = (replace(last, name="pass@1", value=0.1), replace(last, policy=VERIFIER))
    rounds[2] = replace(rounds[2], scores=(last, *others))
    for round_ in (*rounds, make.round_report(4, state=EvaluationState.RUNNING)):
        gathered.observe(replace(make.report(), evaluations=(round_,)))
    (progress,) = summary(gathered).evaluations
    assert progress == EvaluationSummary(
        evaluation="held-out", policy="solver", score="avg@4", first=0.75, first_version=10, last=0.9, last_version=30
    )
