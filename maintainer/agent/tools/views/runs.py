"""Views of the run: its faults of learning, and what a change of the run can name."""

from collections.abc import Iterable, Sequence

from astraflow.contract.fleet.plans import Plan
from astraflow.contract.fleet.run_changes import RUN
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.plugins import PluginKind, PluginSlot, PluginSpec
from astraflow.contract.records import Record
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import FlowReport, StreamReport
from maintainer.agent.observation.names import SINGLE_WORD, Names
from maintainer.agent.observation.signals import FAULTS
from maintainer.agent.tools import outputs
from maintainer.agent.tools.inputs import DoctorInput
from maintainer.agent.tools.views.pools import judged_fields, proposal_fields
from maintainer.agent.tools.views.redacted_texts import problem_view
from maintainer.agent.tools.views.view_context import ViewContext, rounded, rounded_or_none

MOST_FAULTS, MOST_FLOWS, MOST_KINDS = 12, 8, 20


def doctor_view(view_context: ViewContext, arguments: DoctorInput) -> outputs.DoctorOutput:
    """`run_doctor`. Raises: InvalidInput for an unknown token."""
    snapshot, names = view_context.snapshot, view_context.names
    report = snapshot.report
    streams = [
        (stream, names.token("policy", stream.policy)) for stream in (report.streams if report is not None else ())
    ]
    chosen = names.name("policy", arguments.policy) if arguments.policy is not None else None
    faults = [
        record
        for record in (report.learning_faults if report is not None else ())
        if record.cause in FAULTS and chosen in (None, record.subject)
    ]
    return outputs.DoctorOutput(
        report_age_s=rounded_or_none(snapshot.report_age_s),
        faults=[_fault(record, names) for record in faults[:MOST_FAULTS]],
        policies=[_policy(stream, token) for stream, token in streams if chosen in (None, stream.policy)],
        flows=[_flow(flow, names) for flow in (report.flows if report is not None else ())[:MOST_FLOWS]],
        evaluations=_evaluations(report.evaluations if report is not None else (), names)[:MOST_FLOWS],
        plugins=_plugins(report.plugin_kinds if report is not None else ()),
        proposal_state=proposal_fields(snapshot, RUN)["proposal_state"],
    )


def run_plan_view(view_context: ViewContext, plan: Plan) -> outputs.RunChangeOutput:
    """`run_change`."""
    assert plan.request.run is not None  # noqa: S101 (the tool plans nothing else)
    return outputs.RunChangeOutput(action=plan.request.run.action, **judged_fields(view_context, plan))


def _fault(record: Record, names: Names) -> outputs.FaultView:
    fault, view = LearningFault(record.cause), problem_view(record, names)
    return outputs.FaultView(
        policy=names.token("policy", record.subject),
        fault=fault,
        severity=record.severity,
        numbers=view.numbers,
        text=view.text,
        headline=fault.headline,
        threshold=fault.threshold,
        remedy=fault.remedy,
    )


def _policy(stream: StreamReport, token: str) -> outputs.PolicyView:
    rate = stream.training.metrics.get("learning_rate")
    return outputs.PolicyView(
        policy=token,
        steps=stream.training.steps,
        reward_mean=rounded(stream.training.reward_mean),
        learning_rate=rounded_or_none(rate),
    )


def _flow(flow: FlowReport, names: Names) -> outputs.FlowView:
    return outputs.FlowView(
        flow=names.token("flow", flow.id),
        is_paused=flow.is_paused,
        selector=next(iter(_kinds([flow.selector])), None),
        filters=_kinds(flow.filters),
        scores={},
    )


def _evaluations(rounds: Iterable[EvaluationReport], names: Names) -> list[outputs.FlowView]:
    """Views of the newest round of each evaluation."""
    newest: dict[str, EvaluationReport] = {}
    for report in sorted(rounds, key=lambda report: report.round):
        newest[report.flow] = report
    return [
        outputs.FlowView(
            flow=names.token("flow", flow),
            is_paused=False,
            selector=None,
            filters=[],
            scores={names.token("policy", score.policy): rounded(score.value) for score in report.scores[:MOST_FLOWS]},
        )
        for flow, report in newest.items()
    ]


def _plugins(kinds: Iterable[PluginKind]) -> dict[PluginSlot, list[str]]:
    """Kinds by slot. A plugin of another package can have any name: only single words are shown."""
    shown: dict[PluginSlot, list[str]] = {slot: [] for slot in PluginSlot}
    for kind in kinds:
        if SINGLE_WORD.fullmatch(kind.kind) and len(shown[kind.slot]) < MOST_KINDS:
            shown[kind.slot].append(kind.kind)
    return shown


def _kinds(specs: Sequence[PluginSpec]) -> list[str]:
    kinds = [str(spec.get("kind", "")) for spec in specs]
    return [kind for kind in kinds if SINGLE_WORD.fullmatch(kind)]
