"""Builders of domain objects with sensible defaults."""

from dataclasses import fields, replace
from itertools import groupby
from typing import Any

import numpy as np

from astraflow.contract.batches import Batch, Row
from astraflow.contract.fleet.recommendations import Mode, PoolRecommendation, Reason
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, PoolId, PromptId, TaskId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.contract.reports.report import (
    FlowReport,
    NodeReport,
    NodeState,
    Pace,
    Report,
    StreamGroups,
    StreamReport,
    TrainingReport,
)
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.contract.weight_reports import LinkReport, VersionReport, WeightsReport
from astraflow.contract.weights import Dtype, Probe
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.weights.tensors import VerifiedWeights, build_layout


def prompt(ordinal: int = 0) -> Prompt:
    return Prompt(id=PromptId(f"letters:{ordinal}"), fields={"question": "rev abcd=", "answer": "dcba"})


def task(
    *,
    flow: str = "train",
    group: int = 0,
    member: int = 0,
    attempt: int = 0,
    prompt_given: Prompt | None = None,
    pinned: int | None = None,
) -> Task:
    group_id = GroupId(f"{flow}:{group}")
    return Task(
        id=TaskId(f"{group_id}/{member}"),
        group=group_id,
        flow=FlowId(flow),
        member=member,
        attempt=attempt,
        prompt=prompt_given or prompt(group),
        pinned={} if pinned is None else {PolicyId("solver"): Version(pinned)},
    )


def trajectory(
    *, policy: str = "solver", prompt_tokens: int = 3, model_tokens: int = 5, version: int = 0, reward: float = 1.0
) -> Trajectory:
    return Trajectory(
        policy=PolicyId(policy),
        tokens=np.arange(prompt_tokens + model_tokens, dtype=np.int32),
        logprobs=np.full(model_tokens, -0.5, dtype=np.float32),
        spans=(
            Span(author=Author.CONTEXT, length=prompt_tokens),
            Span(author=Author.MODEL, length=model_tokens, version=Version(version)),
        ),
        reward=reward,
    )


def episode(
    task_id: str = "train:0/0",
    *,
    node: str = "node-1",
    reward: float = 1.0,
    version: int = 0,
    model_tokens: int = 5,
    attempt: int = 0,
    continued_tokens: int = 0,
) -> Episode:
    return Episode(
        task=TaskId(task_id),
        node=NodeId(node),
        trajectories=(trajectory(reward=reward, version=version, model_tokens=model_tokens),),
        duration_s=0.1,
        attempt=attempt,
        continued_tokens=continued_tokens,
    )


def generation(
    text: str, *, version: int = 0, finish: Finish = Finish.STOP, versions: tuple[int, ...] = ()
) -> Generation:
    """Returns the bytes of `text`; `versions` gives one for each, instead of `version` for all."""
    tokens = ByteTokenizer().encode(text)
    written = versions or (version,) * len(tokens)
    return Generation(
        tokens=tokens,
        logprobs=np.full(len(tokens), -0.5, dtype=np.float32),
        spans=tuple(VersionSpan(version=Version(number), length=len(list(run))) for number, run in groupby(written)),
        finish=finish,
    )


def recorded(
    text: str = "dc", *, request: str = "first", policy: str = "solver", version: int = 0, finish: Finish = Finish.ABORT
) -> RecordedGeneration:
    written = generation(text, version=version, finish=finish)
    return RecordedGeneration(policy=PolicyId(policy), request=request.encode(), generation=written)


def partial(
    task_id: str = "train:0/0",
    *generations: RecordedGeneration,
    attempt: int = 0,
    continued_tokens: int = 0,
    nothing: bool = False,
) -> PartialRollout:
    """Returns a partial rollout with one recorded generation, unless others are given."""
    return PartialRollout(
        task=TaskId(task_id),
        attempt=attempt,
        generations=() if nothing else generations or (recorded(),),
        continued_tokens=continued_tokens,
    )


def batch(
    step: int = 1, *, policy: str = "solver", version: int = 0, born: int = 0, groups: int = 2, members: int = 2
) -> Batch:
    """Returns batch `policy:step` for a trainer at `version`; its rows began with version `born`, rewards alternate."""
    return Batch(
        id=BatchId(f"{policy}:{step}"),
        policy=PolicyId(policy),
        version=Version(version),
        is_redelivered=False,
        rows=tuple(
            Row(
                group=GroupId(f"train:{step}.{group}"),
                task=TaskId(f"train:{step}.{group}/{member}"),
                node=NodeId("node-1"),
                trajectory=trajectory(policy=policy, version=born, reward=float(member % 2)),
            )
            for group in range(groups)
            for member in range(members)
        ),
    )


def verified_weights(version: int = 0, *, policy: str = "solver", probe: Probe | None = None) -> VerifiedWeights:
    """Returns a tiny version, all of its bits equal to its number."""
    bits = np.full(8, version, dtype="<u2")
    manifest, buffer = build_layout(
        {"weight": (Dtype.BFLOAT16, (2, 4), bits)}, policy=PolicyId(policy), version=Version(version), probe=probe
    )
    return VerifiedWeights(manifest=manifest, buffer=buffer)


def sampling(max_new_tokens: int = 16) -> Sampling:
    """Returns a sampling for the byte tokenizer."""
    return Sampling(max_new_tokens=max_new_tokens, stop_tokens=ByteTokenizer().stop_tokens)


def stream_report(
    policy: str = "solver", *, steps: int = 0, rewards: tuple[float, ...] = (), **changes: Any
) -> StreamReport:
    """changes: of the report, its groups and its training."""
    groups = {
        "admitted": 4 * steps + 3,
        "buffered": 3,
        "in_batch": 0,
        "trained": 4 * steps,
        "dropped": {},
        **_taken(changes, StreamGroups),
    }
    training = {
        "steps": steps,
        "redelivered": 0,
        "wait_s": 1.0,
        "compute_s": 2.0,
        "publish_s": 1.0,
        "wait_fraction": 0.25,
        "is_waiting": False,
        "reward_mean": rewards[-1] if rewards else 0.0,
        "tokens_mean": 5.0,
        "rewards": rewards,
        **_taken(changes, TrainingReport),
    }
    values: dict[str, Any] = {
        "policy": PolicyId(policy),
        "version": Version(steps),
        "batch_groups": 4,
        "max_staleness": 2,
        "groups": StreamGroups(**groups),
        "training": TrainingReport(**training),
        "issue_headroom": 9,
        "pace": Pace(limit=24.0, outstanding=20.0, group_s=2.0, step_s=1.5),
        "produced_per_s": 2.0,
        "consumed_per_s": 2.0,
        "staleness": {},
        "reward_produced": 0.5,
    }
    return StreamReport(**values | changes)


def changed_stream(stream: StreamReport, **changes: Any) -> StreamReport:
    """Returns a stream's report with changes of it, its groups and its training."""
    groups = replace(stream.groups, **_taken(changes, StreamGroups))
    training = replace(stream.training, **_taken(changes, TrainingReport))
    return replace(stream, groups=groups, training=training, **changes)


def _taken(changes: dict[str, Any], kind: type) -> dict[str, Any]:
    """Removes and returns the changes that are fields of a data class."""
    return {field.name: changes.pop(field.name) for field in fields(kind) if field.name in changes}


def flow_report(flow: str = "train", *, issued: int = 10, dropped: int = 1) -> FlowReport:
    return FlowReport(
        id=FlowId(flow),
        issued=issued,
        open=2,
        admitted=issued - dropped - 2,
        dropped={"informative": dropped} if dropped else {},
        tasks_queued=0,
        tasks_leased=2,
        episodes={"accepted": 4 * issued},
        leases_expired=0,
        tasks_returned=0,
    )


def round_report(number: int = 1, *, state: EvaluationState = EvaluationState.DONE) -> EvaluationReport:
    """Returns a round of twenty prompts with four samples each, about version ten times its number."""
    is_over = state in (EvaluationState.DONE, EvaluationState.STOPPED)
    score = EvaluationScore(policy=PolicyId("solver"), name="avg@4", value=0.75, error=0.05)
    return EvaluationReport(
        flow=FlowId("held-out"),
        round=number,
        versions={PolicyId("solver"): Version(10 * number)},
        state=state,
        done=80 if is_over else 60,
        total=80,
        masked=1,
        failed=0,
        scores=(score,) if is_over else (),
        actor="schedule",
        reason=f"version {10 * number}",
        requested_at=1000.0,
        started_at=1000.0,
        finished_at=1010.0 if is_over else None,
    )


def node_report(
    node: str = "node-1.1",
    *,
    state: NodeState = NodeState.READY,
    counters: dict[str, float] | None = None,
    gauges: dict[str, float] | None = None,
) -> NodeReport:
    facts = NodeFacts(
        name=node.partition(".")[0],
        pool=PoolId("local"),
        region="local",
        engine="scripted",
        is_simulated=True,
        hardware="a shelf",
        capacity=8,
        price_per_hour=0.0,
        software="0.1.0",
    )
    return NodeReport(
        id=NodeId(node),
        facts=facts,
        state=state,
        joined_at=0.0,
        heartbeat_age_s=0.1,
        leased=2,
        episodes_per_s=20.0,
        tokens_per_s=100.0,
        versions={PolicyId("solver"): Version(3)},
        counters=counters or {},
        gauges=gauges or {},
        lease_expiries=0,
    )


def pool_advice(pool: str = "local", *, target: int = 2, **changes: Any) -> PoolRecommendation:
    values: dict[str, Any] = {
        "pool": PoolId(pool),
        "at": 1000.0,
        "mode": Mode.ADVISE,
        "policy": "sizer",
        "present": 1,
        "pending": 0,
        "target": target,
        "band_low": 1.5,
        "band_high": 2.5,
        "reasons": (Reason.BELOW_BAND,),
        "before": 1,
        "inputs": {
            "compute_s": 10.0,
            "groups_per_step": 4.0,
            "produced_per_usable": 1.0,
            "ratio": 0.8,
            "band_low": 1.0,
            "band_high": 1.25,
            "node_groups_per_s": 0.3,
            "price_per_hour": 2.0,
        },
    }
    return PoolRecommendation(**values | changes)


def link_report(source: str = "store:7000") -> LinkReport:
    return LinkReport(
        source=source,
        versions=4,
        full_bytes=1000,
        delta_bytes=60,
        fetch_s=2.0,
        decode_s=0.4,
        stage_s=0.2,
        verify_s=0.1,
        pause_s=0.04,
        resumes=2,
        failures=1,
        latest_bytes=20,
        latest_fetch_s=0.5,
        latest_versions_behind=1,
    )


def weights_report(*versions: int, policy: str = "solver", first_at: float = 1000.0) -> WeightsReport:
    """Returns versions, each published a second after the previous one."""
    return WeightsReport(
        policy=PolicyId(policy),
        versions=tuple(
            VersionReport(
                version=Version(version),
                published_at=first_at + second,
                full_bytes=1000,
                sent_bytes=20,
                changed_elements=10,
                elements=500,
                copy_s=0.25,
            )
            for second, version in enumerate(versions)
        ),
    )


def report(
    *streams: StreamReport, flows: tuple[FlowReport, ...] = (), nodes: tuple[NodeReport, ...] = (), sequence: int = 1
) -> Report:
    return Report(
        run="evening",
        sequence=sequence,
        at=1000.0 + sequence,
        uptime_s=float(sequence),
        simulated=("engine scripted",),
        flows=flows or (flow_report(),),
        streams=streams or (stream_report(),),
        pools=(),
        nodes=nodes or (node_report(),),
        events=(),
    )
