"""View of the report, sent at the start of a wake and returned by `fleet_report`."""

from collections import Counter

from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.pools import FleetStatus, Pool
from astraflow.contract.record_kinds import Severity
from astraflow.contract.reports.diagnosis import diagnose
from astraflow.contract.reports.report import Report, StreamReport
from maintainer.agent.tools import outputs
from maintainer.agent.tools.inputs import ReportInput
from maintainer.agent.tools.views.pools import pool_details, pool_view
from maintainer.agent.tools.views.redacted_texts import problem_view
from maintainer.agent.tools.views.view_context import ViewContext, rounded, rounded_or_none

MOST_POOLS = 6
"""Pools in one concise report; those with signals come first."""
MOST_STREAMS = 4
MOST_TROUBLES = 4


def report_view(view_context: ViewContext, arguments: ReportInput, *, mode: MaintainerMode) -> outputs.ReportOutput:
    """`fleet_report`. mode: mode of the maintainer. Raises: InvalidInput for an unknown token."""
    snapshot, fleet = view_context.snapshot, view_context.snapshot.fleet
    chosen = _chosen(view_context, arguments.pool)
    shown = chosen[:MOST_POOLS]
    streams = snapshot.report.streams if snapshot.report is not None else ()
    is_simulated = any(pool.simulated for pool in fleet.pools) or bool(snapshot.report and snapshot.report.simulated)
    return outputs.ReportOutput(
        report_age_s=rounded_or_none(snapshot.report_age_s),
        is_simulated=is_simulated,
        maintainer_mode=mode,
        kill_switch=fleet.kill,
        usd_per_hour=rounded(fleet.usd_per_hour),
        usd_today=rounded(fleet.usd_today),
        streams=[_stream_view(snapshot.report, stream, fleet) for stream in streams[:MOST_STREAMS] if snapshot.report],
        pools=[pool_view(view_context, pool) for pool in shown],
        details=[pool_details(view_context, pool) for pool in shown] if arguments.format == "detailed" else [],
        pools_left_out=len(chosen) - len(shown),
        orphans=fleet.orphans,
        problems=[problem_view(record, view_context.names) for record in fleet.problems[:MOST_TROUBLES]],
        learning_faults=[
            problem_view(record, view_context.names)
            for record in (snapshot.report.learning_faults[:MOST_TROUBLES] if snapshot.report is not None else ())
        ],
    )


def _stream_view(report: Report, stream: StreamReport, fleet: FleetStatus) -> outputs.StreamView:
    diagnosis = diagnose(report, stream.policy, fleet)
    return outputs.StreamView(
        wait_fraction=rounded(stream.training.wait_fraction),
        is_waiting=stream.training.is_waiting,
        steps=stream.training.steps,
        buffered_groups=stream.groups.buffered,
        limiting_stage=diagnosis.stage,
        limiting_cause=diagnosis.cause,
        needs_person=diagnosis.severity is Severity.CRITICAL,
    )


def _chosen(view_context: ViewContext, token: str | None) -> list[Pool]:
    """Requested pools; those with signals come first."""
    pools = view_context.snapshot.fleet.pools
    if token is not None:
        name = view_context.names.name("pool", token)
        return [pool for pool in pools if pool.spec.id == name]
    signal_counts = Counter(signal.pool for signal in view_context.signals)
    return sorted(pools, key=lambda pool: (-signal_counts[pool.spec.id], pool.spec.id))
