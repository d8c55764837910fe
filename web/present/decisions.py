"""Decisions: a line of the table, and one with the figures that it was made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from astraflow.contract.advice import ADVICE_INPUTS, PoolAdvice
from web.present import formats
from web.present.plans import FindingRow, finding_row
from web.present.pools import usd
from web.present.sentences import bare, grounded
from web.reading.decisions import RULE, Entry
from web.reading.exports import Sheet

COLUMNS = ("id", "time", "unix_s", "source", "kind", "pool", "actor", "role", "message", "reason", "key", "guard")

KINDS = {
    "apply": ("applied", "good"),
    "refuse": ("refused", "bad"),
    "spec": ("changed", "busy"),
    "hold": ("held", "warn"),
    "escalate": ("told people", "warn"),
    "kill_switch": ("kill switch", "bad"),
    "alarm": ("alarm", "bad"),
    "alarm_over": ("alarm over", "good"),
    "replace": ("replaced", "busy"),
    "orphan": ("orphan", "warn"),
    "launch_failed": ("launch failed", "bad"),
    "target_moved": ("target moved", "good"),
    "target_capped": ("held back", "warn"),
    "cap_ended": ("free again", "good"),
    "propose": ("proposed", "warn"),
    "reject": ("rejected", "bad"),
    "note": ("note", "good"),
    "maintainer_mode": ("mode", "busy"),
}
"""Word and tone of each kind; one that is not here is shown as it is."""

_TIMES = "\N{MULTIPLICATION SIGN}"
SAME_MOMENT_S = 10.0
"""One tick of the rule, and what follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """One line."""

    id: str
    at: float
    moment: str
    kind: str
    kind_word: str
    tone: str
    pool: str
    actor: str
    role: str
    message: str
    reason: str
    key: str
    what: str
    """The message without its ground."""
    why: str
    """The ground, of the message or the reason; empty for none. It is the same text for pools that it moved alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another size, by the same figures."""

    nodes: int
    ratio: str
    usd_per_hour: str
    verdict: str
    tone: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One line of the reckoning, with the numbers in it."""

    name: str
    text: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """One decision and what it was made from."""

    row: DecisionRow
    sentence: str
    advice_note: str
    """Whether the figures are of that very tick."""
    formulas: tuple[Formula, ...]
    inputs: tuple[tuple[str, str, str], ...]
    """Name, value and meaning."""
    alternatives: tuple[Alternative, ...]
    caps: tuple[str, ...]
    victims: tuple[str, ...]
    input_hash: str
    findings: tuple[FindingRow, ...]
    """What the guard said of the plan."""
    problem: str


def decision_row(entry: Entry) -> DecisionRow:
    """An entry for the table."""
    word, tone = KINDS.get(entry.kind, (entry.kind.replace("_", " "), "off"))
    what, ground = grounded(_message(entry))
    reason = bare(entry.reason, entry.pool) if entry.reason.startswith(f"{entry.pool}: ") else entry.reason
    _, reason_ground = grounded(reason)
    return DecisionRow(
        id=entry.id,
        at=entry.at,
        moment=datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        kind=entry.kind,
        kind_word=word,
        tone=tone,
        pool=entry.pool,
        actor=entry.actor,
        role=entry.role,
        message=_message(entry),
        reason=reason,
        key=entry.key,
        what=what,
        why=ground or reason_ground or reason[:1].upper() + reason[1:],
    )


def decision_groups(rows: Sequence[DecisionRow]) -> tuple[tuple[DecisionRow, ...], ...]:
    """Neighbours of one moment that have one ground, together: it is said once for all of them."""
    groups: list[list[DecisionRow]] = []
    for row in rows:
        first = groups[-1][0] if groups else None
        if first is not None and row.why and row.why == first.why and abs(first.at - row.at) <= SAME_MOMENT_S:
            groups[-1].append(row)
        else:
            groups.append([row])
    return tuple(map(tuple, groups))


def decision_sheet(entries: Sequence[Entry]) -> Sheet:
    """What the table shows, to take away."""
    rows = [
        (
            entry.id,
            datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="milliseconds"),
            round(entry.at, 3),
            entry.source,
            entry.kind,
            entry.pool,
            entry.actor,
            entry.role,
            entry.message,
            entry.reason,
            entry.key,
            " ".join(finding.code for finding in entry.findings),
        )
        for entry in entries
    ]
    return Sheet(name="astraflow-decisions", columns=COLUMNS, rows=rows)


def decision_view(entry: Entry, advice: PoolAdvice | None, *, problem: str = "") -> DecisionView:
    """A decision with its figures, as far as they are known."""
    inputs = advice.inputs if advice else {}
    return DecisionView(
        row=decision_row(entry),
        sentence=advice.sentence if advice and advice.sentence not in entry.message else "",
        advice_note=_note(entry, advice),
        formulas=tuple(_formulas(advice)) if advice else (),
        inputs=tuple((name, _number(inputs[name]), text) for name, text in ADVICE_INPUTS.items() if name in inputs),
        alternatives=tuple(_alternatives(advice)) if advice else (),
        caps=tuple(cap.value.replace("_", " ") for cap in advice.capped_by) if advice else (),
        victims=tuple(map(str, advice.victims)) if advice else (),
        input_hash=advice.input_hash if advice else "",
        findings=tuple(finding_row(finding) for finding in entry.findings),
        problem=problem,
    )


def _message(entry: Entry) -> str:
    """Without the name of the pool, which stands beside it."""
    return bare(entry.message, entry.pool)


def _note(entry: Entry, advice: PoolAdvice | None) -> str:
    if advice is None:
        return ""
    if entry.source == RULE and advice.sentence and advice.sentence in entry.message:
        return "The figures of that very tick."
    apart = formats.duration(max(1.0, abs(advice.at - entry.at)))
    return f"What the rule said {apart} {'before' if advice.at < entry.at else 'after'}."


def _formulas(advice: PoolAdvice) -> list[Formula]:
    """The rule's own reckoning; a line whose figures are not measured is left out."""
    get = advice.inputs.get
    lines = []
    if _has(advice.inputs, "groups_per_step", "compute_s", "produced_per_usable", "trim", "demand_groups_per_s"):
        text = (
            f"{_number(get('groups_per_step'))} groups a step ÷ {_number(get('compute_s'))} s of compute {_TIMES} "
            f"{_number(get('produced_per_usable'))} produced for each usable {_TIMES} {_number(get('trim'))} trim"
        )
        lines.append(Formula(name="Demand", text=text, result=f"{_number(get('demand_groups_per_s'))} groups/s"))
    if _has(advice.inputs, "capacity_groups_per_s", "capacity_ordered_groups_per_s"):
        text = f"{_number(get('capacity_groups_per_s'))} groups/s of nodes at work, and what is on its way"
        result = f"{_number(get('capacity_ordered_groups_per_s'))} groups/s"
        lines.append(Formula(name="Ordered capacity", text=text, result=result))
    if _has(advice.inputs, "ratio", "band_low", "band_high", "noise"):
        text = (
            f"ordered capacity ÷ demand, median of five ticks; band {_number(get('band_low'))} to "
            f"{_number(get('band_high'))}, noise {_number(get('noise'))}"
        )
        lines.append(Formula(name="Ratio", text=text, result=_number(get("ratio"))))
    if _has(advice.inputs, "band_aim", "demand_groups_per_s", "node_groups_per_s") and get("node_groups_per_s"):
        aim, demand, rate = (advice.inputs[name] for name in ("band_aim", "demand_groups_per_s", "node_groups_per_s"))
        text = f"{_number(aim)} aim {_TIMES} {_number(demand)} groups/s ÷ {_number(rate)} groups/s of a node, all pools"
        lines.append(Formula(name="Nodes needed", text=text, result=f"{aim * demand / rate:.1f}"))
    held = f", {advice.pending} of them on the way" if advice.pending else ""
    text = f"{formats.several(advice.present, 'node')} there{held}; reasons: " + ", ".join(
        reason.value.replace("_", " ") for reason in advice.reasons
    )
    lines.append(Formula(name="Target", text=text, result=formats.several(advice.target, "node")))
    return lines


def _alternatives(advice: PoolAdvice) -> list[Alternative]:
    """Sizes around the target, by the same figures: what each would have meant, and why it was not taken."""
    needed = ("ratio", "demand_groups_per_s", "node_groups_per_s", "band_low", "band_high")
    if not _has(advice.inputs, *needed) or not advice.inputs["demand_groups_per_s"]:
        return []
    step = advice.inputs["node_groups_per_s"] / advice.inputs["demand_groups_per_s"]
    sizes = sorted({advice.present, *(advice.target + more for more in (-2, -1, 0, 1, 2))})
    price = advice.inputs.get("price_per_hour", 0.0)
    return [
        _alternative(advice, nodes, advice.inputs["ratio"] + (nodes - advice.present) * step, price)
        for nodes in sizes
        if nodes >= 0
    ]


def _alternative(advice: PoolAdvice, nodes: int, ratio: float, price: float) -> Alternative:
    low, high = advice.inputs["band_low"], advice.inputs["band_high"]
    if ratio < low:
        verdict, tone = f"too few: {formats.percent(1 - ratio)} of the need is not met", "bad"
    elif ratio > high:
        verdict, tone = f"more than the band: {formats.percent(ratio - high)} beyond it", "warn"
    else:
        verdict, tone = "inside the band", "good"
    return Alternative(
        nodes=nodes,
        ratio=f"{max(0.0, ratio):.2f}",
        usd_per_hour=usd(nodes * price) if price else formats.MISSING,
        verdict=verdict,
        tone=tone,
        is_chosen=nodes == advice.target,
    )


def _has(inputs: Mapping[str, float], *names: str) -> bool:
    return all(name in inputs for name in names)


def _number(value: float | None) -> str:
    return formats.MISSING if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
