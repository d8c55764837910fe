"""Live texts of the diagnosis of a policy: its headline, its cause and remedy, and a figure of each stage."""

from astraflow.contract.record_kinds import Severity
from astraflow.contract.reports.diagnosis import Diagnosis, Stage, fed_below
from astraflow.contract.reports.report import Report, StreamReport
from web.components import formats

SHOWN_STAGES = (Stage.NODES, Stage.VERIFIER, Stage.BUFFER, Stage.TRAINER, Stage.STORE)
"""Stages of the chain on the page, in the order of a rollout's way."""

STAGE_LABELS = {
    Stage.NODES: "Nodes",
    Stage.VERIFIER: "Rewards",
    Stage.BUFFER: "Buffer",
    Stage.TRAINER: "Trainer",
    Stage.STORE: "Weights",
}

STAGE_PATHS = {
    Stage.NODES: "/nodes",
    Stage.VERIFIER: "/trajectories",
    Stage.BUFFER: "/dataflow",
    Stage.TRAINER: "/charts/wait",
    Stage.STORE: "/weights",
}
"""Page with the details of each stage."""


TonedTexts = dict[str, tuple[str, str]]
"""Text and tone, by key."""


def diagnosis_texts(report: Report, diagnosis: Diagnosis) -> TonedTexts:
    """Returns the texts of a diagnosis by key."""
    stream = next(stream for stream in report.streams if stream.policy == diagnosis.policy)
    tone = diagnosis_tone(diagnosis)
    is_fed = stream.training.steps > 0
    live_texts: TonedTexts = {
        "diagnosis": (diagnosis.headline, tone),
        "diagnosis_note": (diagnosis.explanation, ""),
        "wait": (formats.percent(diagnosis.wait if is_fed else None), ""),
        "wait_note": (f"A trainer that waits up to {formats.percent(fed_below(report))} counts as fed", ""),
    }
    for stage in SHOWN_STAGES:
        is_limit = stage is diagnosis.stage
        live_texts |= {
            f"stage/{stage.value}": (_figure(stage, stream, diagnosis), tone if is_limit else ""),
            f"stage/{stage.value}/mark": (_mark(diagnosis) if is_limit else "", ""),
        }
    return {f"policy/{diagnosis.policy}/{name}": text for name, text in live_texts.items()}


def diagnosis_tone(diagnosis: Diagnosis) -> str:
    """Returns the tone of a diagnosis: red only for what needs a person, calm where a stage limits as it may."""
    if diagnosis.severity is Severity.CRITICAL:
        return "bad"
    if diagnosis.severity is Severity.WARNING:
        return "warn"
    return "good" if diagnosis.stage in (Stage.TRAINER, Stage.NONE) else "pace"


def _mark(diagnosis: Diagnosis) -> str:
    return "sets the pace" if diagnosis.severity is Severity.INFO else "limits"


def _figure(stage: Stage, stream: StreamReport, diagnosis: Diagnosis) -> str:
    balance = diagnosis.balance
    if stage is Stage.NODES:
        rate = f", {formats.rate(balance.ready)} groups/s" if balance.ready is not None else ""
        return f"{balance.ready_nodes} of {balance.expected_nodes} ready{rate}"
    if stage is Stage.VERIFIER:
        return f"{formats.rate(stream.produced_per_s)} groups/s pass"
    if stage is Stage.BUFFER:
        return f"{formats.several(stream.groups.buffered, 'group')}, a batch has {formats.count(stream.batch_groups)}"
    if stage is Stage.TRAINER:
        demand = f", needs {formats.rate(balance.demand)} groups/s" if balance.demand is not None else ""
        waits = f"waits {formats.percent(diagnosis.wait)}" if stream.training.steps else "no step yet"
        return f"{waits}{demand}"
    return f"v{stream.version}, {formats.percent(diagnosis.publish_share)} of a step"
