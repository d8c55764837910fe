"""The report that a wake begins with, and that can be asked for at any time."""

from collections import Counter

from astraflow.contract.fleet import Pool
from astraflow.contract.maintenance import MaintainerMode
from maintainer.texts import abstract
from maintainer.tools import outputs
from maintainer.tools.inputs import ReportInput
from maintainer.views.figures import figure, rounded
from maintainer.views.moment import Moment
from maintainer.views.pools import pool_details, pool_view

MOST_POOLS = 6
"""In one concise report; those that something is the matter with come first."""
MOST_STREAMS = 4
MOST_TROUBLES = 4


def report_view(moment: Moment, asked: ReportInput, *, mode: MaintainerMode) -> outputs.ReportOutput:
    """`fleet_report`. mode: how far people let it go. Raises: InvalidInput for an unknown token."""
    sight, fleet = moment.sight, moment.sight.fleet
    chosen = _chosen(moment, asked.pool)
    shown = chosen[:MOST_POOLS]
    streams = sight.report.streams if sight.report is not None else ()
    is_simulated = any(pool.simulated for pool in fleet.pools) or bool(sight.report and sight.report.simulated)
    return outputs.ReportOutput(
        report_age_s=figure(sight.report_age_s),
        is_simulated=is_simulated,
        maintainer_mode=mode.value,
        kill_switch=fleet.kill.value,
        usd_per_hour=rounded(fleet.usd_per_hour),
        usd_today=rounded(fleet.usd_today),
        streams=[
            outputs.StreamView(
                wait_fraction=rounded(stream.wait_fraction),
                is_waiting=stream.is_waiting,
                steps=stream.steps,
                buffered_groups=stream.buffered,
            )
            for stream in streams[:MOST_STREAMS]
        ],
        pools=[pool_view(moment, pool) for pool in shown],
        details=[pool_details(moment, pool) for pool in shown] if asked.format == "detailed" else [],
        pools_left_out=len(chosen) - len(shown),
        orphans=fleet.orphans,
        troubles=[abstract(text, moment.names) for text in fleet.troubles[:MOST_TROUBLES]],
    )


def _chosen(moment: Moment, token: str | None) -> list[Pool]:
    """Those that something is the matter with come first."""
    pools = moment.sight.fleet.pools
    if token is not None:
        name = moment.names.name("pool", token)
        return [pool for pool in pools if pool.spec.id == name]
    troubled = Counter(signal.pool for signal in moment.signals)
    return sorted(pools, key=lambda pool: (-troubled[pool.spec.id], pool.spec.id))
