"""Learning on the first screen: the headline, the chart of the reward by step with the evaluations, and its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import StreamReport
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from web.charts.panels import EACH_STEP_NOTE, MEAN_NOTE, Panel, PanelView, Row, Series, panel_view
from web.charts.tables import columns_json
from web.components import formats
from web.history.points import AVERAGED_STEPS

LOSS = "loss"
EVALUATION = "evaluation"
MEAN = "mean"
KINDS = {"step": "step", "time": "at"}
SHOWN_STEPS = 800
"""Most steps of the chart; of more, only every second, third, ... is sent."""

FIRST_STEPS = 3
"""Steps whose mean is the begin of the headline: one step alone is noisy."""

STEADY = 0.02
"""Change of the reward up to which it counts as steady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """View model of the learning of one policy."""

    metric: str
    """`reward_rollouts`; `loss` for a policy that trains on answers of data sets."""
    headline: str
    tone: str
    evaluation: str
    """Newest result of an evaluation; empty without one."""
    evaluation_note: str
    steps: int
    chart: PanelView
    step_table: Mapping[str, Any]
    evaluation_table: Mapping[str, Any]


def metric_of(stream: StreamReport) -> str:
    """Returns the metric that shows whether a policy learns."""
    return LOSS if stream.training.losses else ROLLOUT_REWARD


def learning(stream: StreamReport, rows: Sequence[Row], rounds: Sequence[EvaluationReport]) -> Learning:
    """Builds the view. rows: all steps, oldest first, of `with_means`. rounds: newest first."""
    metric = metric_of(stream)
    scores = evaluation_rows(rounds, stream.policy)
    headline, tone = change_headline([values[metric] for _, values in rows], metric)
    name, value, version = _newest_score(rounds, stream.policy)
    panel = learning_panel(metric, evaluation=name, has_evaluations=bool(rounds))
    shown = rows[::-1][:: max(1, -(-len(rows) // SHOWN_STEPS))][::-1]
    return Learning(
        metric=metric,
        headline=headline,
        tone=tone,
        evaluation=value,
        evaluation_note=f"{name} of version {version}" if value else "",
        steps=stream.training.steps,
        chart=panel_view(panel, *(scores if series.table == "evaluations" else shown for series in panel.series)),
        step_table=columns_json(shown, (metric, MEAN), kinds=KINDS),
        evaluation_table=columns_json(scores, (EVALUATION,), kinds=KINDS),
    )


def learning_panel(metric: str, *, evaluation: str, has_evaluations: bool) -> Panel:
    """Returns the chart. evaluation: name of the score."""
    is_reward = metric == ROLLOUT_REWARD
    results = Series(
        value=EVALUATION,
        label=f"evaluation {evaluation}".strip(),
        style="second",
        table="evaluations",
        note="Score of a round of the evaluation, at the version that it measured; its answers are not trained on",
    )
    return Panel(
        name="learning",
        label="Mean reward of rollouts, before filters" if is_reward else "Loss",
        series=(
            Series(value=metric, label="each step", style="faint", note=EACH_STEP_NOTE if is_reward else ""),
            Series(value=MEAN, label=f"{AVERAGED_STEPS}-step mean", note=MEAN_NOTE),
            *((results,) if has_evaluations else ()),
        ),
        format="reward" if is_reward else "figure",
        table="steps",
        height=280,
        reason="Values appear with the first training step",
    )


def with_means(steps: Sequence[tuple[float, int, float | None]], metric: str) -> list[Row]:
    """Returns rows of steps, oldest first: with the mean of the last ten."""
    rows: list[Row] = []
    recent: list[float] = []
    for at, step, value in steps:
        if value is not None:
            recent = [*recent, value][-AVERAGED_STEPS:]
        rows.append((at, {"step": step, metric: value, MEAN: fmean(recent) if recent else None}))
    return rows


def change_headline(values: Sequence[float | None], metric: str) -> tuple[str, str]:
    """Returns what a metric did since the first step, as a sentence with its tone."""
    known = [value for value in values if value is not None]
    name, text = ("Reward", formats.reward) if metric == ROLLOUT_REWARD else ("Loss", formats.figure)
    if not known:
        return "No training step yet", ""
    steps = formats.several(len(values), "step")
    half = max(1, len(known) // 2)
    first, last = fmean(known[: min(FIRST_STEPS, half)]), fmean(known[-AVERAGED_STEPS:])  # both are points of the line
    if len(known) == 1 or abs(last - first) < (STEADY if metric == ROLLOUT_REWARD else STEADY * abs(first)):
        return f"{name} is {'steady at ' if len(known) > 1 else ''}{text(last)} after {steps}", ""
    is_better = (last > first) == (metric == ROLLOUT_REWARD)
    verb = "rose" if last > first else "fell"
    return f"{name} {verb} from {text(first)} to {text(last)} in {steps}", "good" if is_better else "warn"


def evaluation_rows(rounds: Sequence[EvaluationReport], policy: str) -> list[Row]:
    """Returns the scores of ended rounds of the first evaluation, by version, oldest first."""
    rows: dict[int, Row] = {}
    flow = next((round_report.flow for round_report in rounds), "")
    for round_report in rounds:
        score = next((score for score in round_report.scores if score.policy == policy), None)
        if score is not None and round_report.flow == flow and round_report.finished_at is not None:
            version = next(number for name, number in round_report.versions.items() if name == policy)
            rows.setdefault(int(version), (round_report.finished_at, {"step": int(version), EVALUATION: score.value}))
    return [rows[version] for version in sorted(rows)]


def _newest_score(rounds: Sequence[EvaluationReport], policy: str) -> tuple[str, str, int]:
    """Returns the name, the value with its error, and the version of the newest score."""
    for round_report in rounds:
        for score in round_report.scores:
            if score.policy == policy:
                error = f" ± {score.error:.2f}" if score.error is not None else ""
                version = next(number for name, number in round_report.versions.items() if name == policy)
                return score.name, f"{formats.reward(score.value)}{error}", int(version)
    return "", "", 0
