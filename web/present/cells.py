"""Every live text of the pages by its key: the first paint and each push show the same ones."""

from dataclasses import dataclass

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.reports import FlowReport, NodeReport, NodeState, PoolReport, Report, StreamReport
from web.feed.per_nodes import per_nodes
from web.history.points import Series
from web.history.ranges import DEFAULT_RANGE, RANGES_S
from web.present import findings, formats
from web.present.fleet_cells import fleet_cells
from web.present.sentences import bare
from web.present.weights import weight_cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One text, and how good it is: `good`, `warn`, `bad` or nothing. The text says so too."""

    text: str
    tone: str = ""


def live_cells(report: Report, series: Series) -> dict[str, Cell]:
    """Everything that changes while a page is open, but for single nodes: see `web.feed.nodes_now`."""
    cells = _run_cells(report)
    for stream in report.streams:
        cells |= _stream_cells(report, stream, series)
    for flow in report.flows:
        cells |= _flow_cells(flow)
    for pool in report.pools:
        cells |= _pool_cells(pool)
    cells |= {f"pool/{advice.pool}/advice": Cell(text=advice_line(advice)) for advice in report.advice}
    cells |= {
        key: Cell(text=text, tone=tone)
        for key, (text, tone) in (weight_cells(report) | fleet_cells(report, series)).items()
    }
    return cells


def visible_nodes(report: Report) -> list[NodeReport]:
    """Nodes of the run without those that said goodbye; those that need a look come first."""
    order = [NodeState.LOST, NodeState.JOINING, NodeState.DRAINING, NodeState.READY]
    there = [node for node in report.nodes if node.state is not NodeState.GONE]
    return sorted(there, key=lambda node: (order.index(node.state), node.facts.name, node.id))


@per_nodes(lambda _: None)
def node_summary(report: Report) -> str:
    """How many nodes are in which state."""
    counts = {state: sum(node.state is state for node in report.nodes) for state in NodeState}
    shown = (NodeState.READY, NodeState.JOINING, NodeState.DRAINING, NodeState.LOST)
    parts = [f"{counts[state]} {state.value}" for state in shown if counts[state]]
    return ", ".join(parts) or "none has joined"


def advice_line(advice: PoolAdvice) -> str:
    """How large a pool should be, and why."""
    return bare(advice.sentence, advice.pool)


def _run_cells(report: Report) -> dict[str, Cell]:
    rollouts = sum(pool.episodes_per_s for pool in report.pools)
    tokens = sum(pool.tokens_per_s for pool in report.pools)
    return {
        "run/uptime": Cell(text=formats.duration(report.uptime_s)),
        "run/nodes": Cell(text=node_summary(report)),
        "run/episodes_per_s": Cell(text=formats.rate(rollouts)),
        "run/tokens_per_s": Cell(text=formats.rate(tokens)),
    }


def _stream_cells(report: Report, stream: StreamReport, series: Series) -> dict[str, Cell]:
    key = f"policy/{stream.policy}"
    points = series.window(RANGES_S[DEFAULT_RANGE])
    newest = points[-1].policies.get(stream.policy) if points else None
    reward = newest.reward_average if newest else None
    wait = newest.wait if newest else None
    answer = findings.verdict(report, stream)
    cells = {
        "verdict": Cell(text=answer.headline, tone=answer.tone),
        "verdict_note": Cell(text=answer.note),
        "reward": Cell(text=formats.reward(reward)),
        "reward_note": Cell(text=findings.reward_note(stream.policy, points)),
        "reward_last": Cell(text=formats.reward(newest.reward if newest else None)),
        "reward_trained": Cell(text=formats.reward(newest.reward_trained if newest else None)),
        "wait": Cell(text=formats.percent(wait), tone=findings.wait_tone(wait)),
        "wait_note": Cell(text=findings.wait_note(stream, wait), tone=findings.wait_tone(wait)),
        "produced": Cell(text=formats.rate(stream.produced_per_s)),
        "consumed": Cell(text=formats.rate(stream.consumed_per_s)),
        "rates_note": Cell(text=findings.rates_note(stream)),
        "buffered": Cell(text=formats.count(stream.buffered)),
        "buffer_note": Cell(text=findings.buffer_note(stream)),
        "version": Cell(text=f"v{stream.version}"),
        "steps": Cell(text=formats.count(stream.steps)),
        "tokens_mean": Cell(text=formats.rate(stream.tokens_mean)),
        "step_time": Cell(text=_step_time(stream)),
        "admitted": Cell(text=formats.count(stream.admitted)),
        "in_batch": Cell(text=formats.count(stream.in_batch)),
        "trained": Cell(text=formats.count(stream.trained)),
        "dropped": Cell(text=formats.count(sum(stream.dropped.values()))),
        "redelivered": Cell(text=formats.count(stream.redelivered)),
    }
    titles = findings.chart_findings(stream.policy, stream, points)
    cells |= {f"{chart}/{DEFAULT_RANGE}": Cell(text=title) for chart, title in titles.items()}
    return {f"{key}/{name}": cell for name, cell in cells.items()}


def _step_time(stream: StreamReport) -> str:
    if not stream.steps:
        return formats.MISSING
    return formats.duration((stream.wait_s + stream.compute_s + stream.publish_s) / stream.steps)


def _flow_cells(flow: FlowReport) -> dict[str, Cell]:
    cells = {
        "state": Cell(text="paused", tone="warn") if flow.is_paused else Cell(text="issuing", tone="good"),
        "issued": Cell(text=formats.count(flow.issued)),
        "open": Cell(text=formats.count(flow.open)),
        "admitted": Cell(text=formats.count(flow.admitted)),
        "dropped": Cell(text=formats.count(sum(flow.dropped.values()))),
        "leased": Cell(text=formats.count(flow.tasks_leased)),
        "queued": Cell(text=formats.count(flow.tasks_queued)),
    }
    return {f"flow/{flow.id}/{name}": cell for name, cell in cells.items()}


def _pool_cells(pool: PoolReport) -> dict[str, Cell]:
    cells = {
        "ready": Cell(text=formats.count(pool.ready)),
        "episodes_per_s": Cell(text=formats.rate(pool.episodes_per_s)),
        "tokens_per_s": Cell(text=formats.rate(pool.tokens_per_s)),
    }
    return {f"pool/{pool.id}/{name}": cell for name, cell in cells.items()}
