"""Metrics of a batch by role."""

from dataclasses import replace

from astraflow.contract.training_metrics import MetricGroup, training_metric
from astraflow.dataflow.serving.step_history import MAX_ROLE_METRICS, role_metrics
from tests import make


def test_rewards_and_metrics_are_means_over_the_trajectories_of_a_role() -> None:
    trajectories = [
        replace(make.trajectory(reward=1.0), role="solver"),
        replace(make.trajectory(reward=0.0), role="solver"),
        replace(make.trajectory(reward=0.5), role="solver.retry"),
        replace(make.trajectory(reward=1.0), role="verifier", metrics={"approves": 1.0}),
        replace(make.trajectory(reward=0.0), role="verifier", metrics={"approves": 0.0}),
    ]

    metrics_by_role = role_metrics(trajectories)

    assert metrics_by_role == {
        "reward_mean_solver": 0.5,
        "reward_mean_solver_retry": 0.5,
        "reward_mean_verifier": 0.5,
        "verifier_approves": 0.5,
    }
    described = training_metric("reward_mean_solver")
    assert described is not None
    assert described.group is MetricGroup.LEARNING


def test_trajectories_without_roles_have_none_and_floods_are_bounded() -> None:
    assert role_metrics([make.trajectory()]) == {}
    many = replace(make.trajectory(), role="solver", metrics={f"metric_{number}": 1.0 for number in range(200)})
    assert len(role_metrics([many])) == MAX_ROLE_METRICS
