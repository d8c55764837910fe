"""A synthetic run as a function of time: the same second always gives the same values."""

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.plugins import PlannedPlugins
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.contract.reports.queries import (
    GroupPage,
    GroupQuery,
    RewardBin,
    RewardHistogram,
    RewardQuery,
    SampledGroup,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import (
    Event,
    FlowReport,
    NodeReport,
    NodeState,
    PoolReport,
    Report,
    SampledTrajectory,
    StreamGroups,
    StreamReport,
    TrainingReport,
)
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.contract.rollouts.agent_calls import AgentCall, CallOutcome
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.spans import Author, Ending, Span
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.values import Values
from astraflow.contract.weight_reports import LinkReport, VersionReport, WeightsReport
from astraflow.dataflow.plugin_changes import plugin_kinds
from tests import make
from tests.fakes.agent_session import live_session
from tests.fakes.synthetic_interactions import ENDINGS, episode_of

BATCH_GROUPS = 32
MAX_STALENESS = 2
STEPS_PER_S = 0.9
FULL_BYTES = 430_000.0
DELTA_BYTES = 14_000.0
GROUP_SIZE = 8
TICK_S = 30
"""Seconds between two ticks of the sizer."""
RISE_AT = 45
"""Second from which trainers need more."""
FIRST_TICK_AFTER_RISE = 60
NODE_GROUPS_PER_S = 15.25
AGENT_MEMBER = 1
"""Member of each group whose episode is the session of an agent, with one recorded call."""


@dataclass(kw_only=True)
class SyntheticRun:
    """A policy that learns to reverse letters, and the nodes that feed it."""

    run: str = "reverse-0001"
    began_at: float = 1_800_000_000.0
    policies: tuple[str, ...] = ("solver",)
    nodes: tuple[str, ...] = ("node-a", "node-b")
    simulated: tuple[str, ...] = ()
    node_errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[Record, ...] = ()
    has_fault: bool = True
    """The run doctor finds a fault."""
    evaluation: str = "held-out"
    asker: str = "schedule"
    """Requester of its evaluation rounds."""
    prompt: str = "reverse the letters: bdfa="
    draining: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    planned: tuple[PlannedPlugins, ...] = ()
    """Filters that take effect with the next version."""
    plugins: Mapping[str, float] = field(default_factory=dict)
    """Metrics of its data algorithms; if set, some groups are replayed as well."""
    tool: str = ""
    """Answer of the tool to every member that calls it; empty for an environment without a tool."""
    has_interactions: bool = False
    """Episodes have several turns, tools, policies and sub-agents."""
    failing_member: int | None = None
    """A member of every group whose engine fails."""
    journal: list[Event] = field(default_factory=list)
    """Actions on the run, in addition to its own events."""

    def report(self, sequence: int, *, is_history: bool = False) -> Report:
        """Returns the state at one second."""
        streams = tuple(self._stream(policy, sequence) for policy in self.policies)
        nodes = tuple(self._node(name, index, sequence, is_history) for index, name in enumerate(self.nodes))
        return Report(
            run=self.run,
            sequence=sequence,
            at=self.began_at + sequence,
            uptime_s=float(sequence),
            simulated=self.simulated,
            flows=(self._flow(streams),),
            streams=streams,
            pools=(_pool(nodes),),
            nodes=nodes,
            events=() if is_history else self.events(sequence)[-64:],
            problems=self.problems,
            learning_faults=(repeated_answers(self.policies[0]),) if self.has_fault else (),
            evaluations=tuple(reversed(self.rounds(sequence, limit=2))),
            weights=tuple(self._weights(policy, sequence) for policy in self.policies),
            recommendations=(_advice(self.began_at, sequence),) if sequence >= 5 else (),
            plugin_kinds=() if is_history else plugin_kinds(),
        )

    def samples(self, sequence: int) -> list[SampledTrajectory]:
        """Returns sampled trajectories up to a second, newest first."""
        return list(_samples(sequence // 3, tuple((name, getattr(self, name)) for name in _SAMPLE_SETTINGS)))

    def make_samples(self, groups: int) -> list[SampledTrajectory]:
        """Returns the samples of the newest of this number of groups, newest first."""
        samples = [
            self._sample(policy, group, member)
            for group in range(max(0, groups - (6 if self.has_interactions else 40)), groups)
            for policy in self.policies
            for member in range(GROUP_SIZE)
        ]
        if self.has_interactions:
            samples = [member for sample in samples for member in episode_of(sample, self.policies)]
        return samples[::-1]

    def rounds(self, sequence: int, *, limit: int | None = None) -> list[EvaluationReport]:
        """Returns rounds of evaluations up to a second, newest first: one for every ten steps; the latest runs."""
        steps = max(0, math.floor((sequence - 4) * STEPS_PER_S))
        numbers = range(steps // 10, 0, -1)[:limit]
        return [self._round(number, is_latest=number == steps // 10) for number in numbers]

    def trajectories(self, sequence: int, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns one page of trajectories, as the service would."""
        matching_samples = [sample for sample in self.samples(sequence) if _matches(sample, query)]
        older = [sample for sample in matching_samples if query.before is None or sample.ordinal < query.before]
        newer = [sample for sample in matching_samples if query.after is not None and sample.ordinal > query.after]
        page = newer[-query.limit :] if query.after is not None else older[: query.limit]
        if not query.with_tokens:
            page = [replace(sample, token_ends=(), logprobs=()) for sample in page]
        if not query.with_calls:
            page = [replace(sample, calls=()) for sample in page]
        return TrajectoryPage(
            trajectories=tuple(page),
            has_older=bool(page) and page[-1].ordinal != matching_samples[-1].ordinal,
            has_newer=bool(page) and page[0].ordinal != matching_samples[0].ordinal,
        )

    def groups(self, sequence: int, query: GroupQuery) -> GroupPage:
        """Returns one page with the groups of a step."""
        members: dict[str, list[SampledTrajectory]] = {}
        for sample in self.samples(sequence):
            if query.policy in ("", sample.policy) and query.step in (None, sample.step):
                members.setdefault(sample.group, []).append(sample)
        groups = sorted(map(_sampled_group, members.values()), key=lambda group: -group.ordinal)
        matching = [group for group in groups if query.before is None or group.ordinal < query.before]
        return GroupPage(groups=tuple(matching[: query.limit]), has_older=len(matching) > query.limit)

    def sample_index(self, sequence: int, query: SampleIndexQuery) -> SampleIndex:
        """Returns the steps with samples that are nearest to the one of the query; every prompt is sampled once."""
        steps = {sample.step for sample in self.samples(sequence) if query.policy in ("", sample.policy)}
        trained = [step for step in steps if step is not None]
        near = max(trained, default=0) if query.near is None else query.near
        return SampleIndex(
            steps=tuple(sorted(sorted(trained, key=lambda step: abs(step - near))[: query.limit])), prompts=()
        )

    def rewards(self, sequence: int, query: RewardQuery) -> RewardHistogram:
        """Returns tenths, as the service does for rewards from 0 to 1."""
        matching_samples = [sample for sample in self.samples(sequence) if _matches(sample, query.matching)]
        bins: dict[int, list[SampledTrajectory]] = {}
        values = {sample.ordinal: _value(sample, query.term) for sample in matching_samples}
        for sample in matching_samples:
            value = values[sample.ordinal]
            if value is not None:
                bins.setdefault(math.floor(value / 0.1), []).append(sample)
        return RewardHistogram(
            bins=tuple(
                RewardBin(
                    begin=index * 0.1,
                    end=(index + 1) * 0.1,
                    lowest=min(values[member.ordinal] or 0.0 for member in members),
                    highest=max(values[member.ordinal] or 0.0 for member in members),
                    trajectories=len(members),
                    groups=len({(member.policy, member.group) for member in members}),
                )
                for index, members in sorted(bins.items())
            ),
            failed=sum(sample.failure is not None for sample in matching_samples),
            endings=Counter(sample.ending.value for sample in matching_samples if sample.ending),
            roles=Counter(sample.role for sample in matching_samples if sample.role),
            terms=Counter(term for sample in matching_samples for term in sample.reward_terms),
            calls=Counter(outcome for sample in matching_samples for outcome in sample.call_outcomes),
        )

    def training_steps(self, sequence: int, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns one page of the steps up to a second, as the service would."""
        last = max(0, math.floor((sequence - 4) * STEPS_PER_S))
        numbers = range(query.after + 1, min(last, query.after + query.limit) + 1)
        known = query.policy in self.policies
        return TrainingStepPage(
            steps=tuple(self._training_step(query.policy, number) for number in numbers) if known else (),
            has_more=known and last > query.after + query.limit,
        )

    def _training_step(self, policy: str, number: int) -> TrainingStep:
        more = _interaction_metrics(number) if self.has_interactions else {}
        return TrainingStep(
            policy=PolicyId(policy),
            step=number,
            at=self.began_at + math.ceil(number / STEPS_PER_S + 4),
            version=Version(number),
            total_tokens=number * 1331,
            total_episodes=number * BATCH_GROUPS * GROUP_SIZE,
            reward=_step_reward(policy, number - 1),
            metrics=_step_metrics(policy, number) | more,
        )

    def act(self, sequence: int, record: Record) -> None:
        """Writes into the journal."""
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(Record)}
        self.journal.append(Event(ordinal=10_000 + len(self.journal), at=self.began_at + sequence, **fields))

    def _stream(self, policy: str, sequence: int) -> StreamReport:
        chance = random.Random(f"{policy} {sequence}")
        steps = max(0, math.floor((sequence - 4) * STEPS_PER_S))
        trained, stale = steps * BATCH_GROUPS, steps // 9
        buffered = round(24 + 18 * math.sin(sequence / 11) + chance.uniform(-6, 6)) if steps else sequence * 6
        in_batch = BATCH_GROUPS if steps else 0
        wait = min(0.6, max(0.01, 0.05 + 0.42 * math.exp(-sequence / 40) + chance.gauss(0, 0.02)))
        return StreamReport(
            policy=PolicyId(policy),
            version=Version(steps),
            batch_groups=BATCH_GROUPS,
            max_staleness=MAX_STALENESS,
            groups=StreamGroups(
                admitted=buffered + in_batch + trained + stale,
                buffered=buffered,
                in_batch=in_batch,
                trained=trained,
                dropped={"stale": stale} if stale else {},
                replayed=steps if self.plugins else 0,
            ),
            training=TrainingReport(
                steps=steps,
                redelivered=0,
                wait_s=steps * 0.12,
                compute_s=steps * 0.9,
                publish_s=steps * 0.02,
                wait_fraction=wait if steps else 0.0,
                is_waiting=not steps,
                reward_mean=0.35 + 0.3 * learned(sequence) + chance.gauss(0, 0.02) if steps else 0.0,
                tokens_mean=5.2,
                metrics=_step_metrics(policy, steps) | (_interaction_metrics(steps) if self.has_interactions else {})
                if steps
                else {},
                rewards=tuple(_step_reward(policy, step) for step in range(max(0, steps - 32), steps)),
            ),
            issue_headroom=max(0, 40 - buffered),
            produced_per_s=max(0.0, chance.gauss(30.5, 2.0)),
            consumed_per_s=max(0.0, chance.gauss(28.8, 0.6)) if steps else 0.0,
            staleness={0: 210, 1: 90, 2: 20} if steps else {},
            reward_produced=min(1.0, learned(sequence) + 0.02),
            sampler={"kind": "fresh", "order": "deadline"},
        )

    def _flow(self, streams: tuple[StreamReport, ...]) -> FlowReport:
        admitted = streams[0].groups.admitted
        uninformative, failed, opened = admitted // 4, admitted // 400, 61
        return FlowReport(
            id=FlowId("train"),
            issued=admitted + uninformative + failed + opened,
            open=opened,
            admitted=admitted,
            dropped={"informative": uninformative, "failed": failed} if uninformative else {},
            tasks_queued=12,
            tasks_leased=244,
            episodes={
                "accepted": admitted * GROUP_SIZE,
                "duplicate": 3,
                "retried": 1,
                "failed_engine": failed * GROUP_SIZE,
            },
            leases_expired=2,
            tasks_returned=5,
            partial_rollouts={
                "handed_back": 5,
                "stored": 1,
                "continued": 3,
                "discarded": 1,
                "stale": 0,
                "tokens_saved": 1200,
            },
            is_paused="train" in self.paused,
            plugins=self.plugins,
            selector={"kind": "greso", "start": 0.5},
            filters=({"kind": "informative"}, {"kind": "length", "max_share": 0.5}),
            planned=self.planned,
        )

    def _weights(self, policy: str, sequence: int) -> WeightsReport:
        steps = max(0, math.floor((sequence - 4) * STEPS_PER_S))
        return WeightsReport(
            policy=PolicyId(policy),
            versions=tuple(
                VersionReport(
                    version=Version(step),
                    published_at=self.began_at + step / STEPS_PER_S + 4,
                    full_bytes=int(FULL_BYTES),
                    sent_bytes=int(DELTA_BYTES if step else FULL_BYTES),
                    changed_elements=2_100 if step else 0,
                    elements=215_000,
                    copy_s=0.002,
                    hash_s=0.004,
                    encode_s=0.006,
                    send_s=0.01,
                )
                for step in range(max(0, steps - 11), steps + 1)
            ),
        )

    def _link(self, steps: int) -> LinkReport:
        return LinkReport(
            source="127.0.0.1:7001",
            versions=steps + 1,
            full_bytes=int(FULL_BYTES),
            delta_bytes=int(steps * DELTA_BYTES),
            fetch_s=0.04 * (steps + 1),
            verify_s=0.01 * (steps + 1),
            latest_bytes=int(DELTA_BYTES),
            latest_fetch_s=0.04,
        )

    def _node(self, name: str, index: int, sequence: int, is_history: bool) -> NodeReport:
        chance = random.Random(f"{name} {sequence}")
        steps = max(0, math.floor((sequence - 4) * STEPS_PER_S))
        is_slow = index == 1 and 40 <= sequence % 90 < 46
        lag = min(steps, 3 if is_slow else random.Random(f"{name} {sequence // 9}").choice((0, 0, 1)))
        return NodeReport(
            id=NodeId(f"n{index}"),
            facts=NodeFacts(
                name=name,
                pool=PoolId("local"),
                region="here" if index % 2 == 0 else "eu-west",
                engine="local_torch",
                is_simulated=bool(self.simulated),
                hardware="2 cores",
                capacity=128,
                price_per_hour=0.0,
                software="0.1.0",
            ),
            state=self._state(f"n{index}", sequence, index),
            joined_at=self.began_at,
            heartbeat_age_s=chance.uniform(0.05, 0.9),
            leased=round(chance.uniform(104, 128)),
            episodes_per_s=max(0.0, chance.gauss(121, 6)),
            tokens_per_s=max(0.0, chance.gauss(640, 30)),
            versions={PolicyId(policy): Version(steps - lag) for policy in self.policies},
            counters={
                "episodes_done": sequence * 120.0,
                "weight_bytes_full": FULL_BYTES * len(self.policies),
                "weight_bytes_delta": steps * DELTA_BYTES,
                "weight_updates_full": 1.0 * len(self.policies),
                "weight_updates_delta": float(steps),
                "weight_pause_s": steps * 0.0021,
            },
            gauges={
                "logprob_mismatch": 2.1e-5,
                "logprob_mismatch_max": 4.8e-5 + index * 1e-5,
                "tokens_per_s": 640.0,
                "lease_limit": 128.0,
                "engine_running": 96.0,
                "engine_waiting": 4.0,
                "engine_cache_used": 0.41,
                "agent_sessions": 1.0,
            },
            lease_expiries=0,
            links=(self._link(steps),),
            errors=() if is_history else self.node_errors.get(name, ()),
            sessions=() if is_history else (live_session(f"train:{sequence}/0", age_s=61.0 + index),),
        )

    def _round(self, number: int, *, is_latest: bool) -> EvaluationReport:
        version = 10 * number
        at = self.began_at + version / STEPS_PER_S + 4
        average = learned(round(version / STEPS_PER_S) + 4)
        figures = {"avg@4": average, "pass@1": average, "pass@4": min(1.0, average + 0.2), "maj@4": average}
        return EvaluationReport(
            flow=FlowId(self.evaluation),
            round=number,
            versions={PolicyId(policy): Version(version) for policy in self.policies},
            state=EvaluationState.RUNNING if is_latest else EvaluationState.DONE,
            done=37 if is_latest else 128,
            total=128,
            masked=number % 2,
            failed=0,
            scores=()
            if is_latest
            else tuple(
                EvaluationScore(policy=PolicyId(policy), name=name, value=value, error=0.03)
                for policy in self.policies
                for name, value in figures.items()
            ),
            actor=self.asker,
            reason=f"version {version}",
            requested_at=at,
            started_at=at,
            finished_at=None if is_latest else at + 2,
        )

    def _state(self, node: str, sequence: int, index: int) -> NodeState:
        if node in self.draining:
            return NodeState.DRAINING
        return NodeState.READY if sequence > 1 + index else NodeState.JOINING

    def events(self, sequence: int) -> tuple[Event, ...]:
        """Returns all events so far, oldest first."""
        moved = _advice(0.0, FIRST_TICK_AFTER_RISE).change
        moved = _advice(0.0, FIRST_TICK_AFTER_RISE).change
        planned: list[tuple[int, RecordKind, str, Values]] = [
            (1, RecordKind.NODE_JOINED, self.nodes[0] if self.nodes else "-", _JOINED),
            (2, RecordKind.NODE_JOINED, self.nodes[-1] if self.nodes else "-", _JOINED),
            (4, RecordKind.TRAINER_ATTACHED, self.policies[0], {"backend": "local", "version": 0}),
            *((at, RecordKind.TRAINER_RESUMED, self.policies[0], {}) for at in range(20, sequence, 20)),
            (47, RecordKind.LEASES_EXPIRED, "n9", {"leases": 3}),
            (
                FIRST_TICK_AFTER_RISE,
                RecordKind.TARGET_MOVED,
                "local",
                _advice(0.0, FIRST_TICK_AFTER_RISE).change.values,
            ),
            (118, RecordKind.NODE_LOST, "n9", {"silent_s": 9.0}),
        ]
        happened = [
            Event(
                ordinal=ordinal,
                at=self.began_at + at,
                kind=kind,
                subject=subject,
                cause=moved.cause if kind is moved.kind else "",
                values=values,
            )
            for ordinal, (at, kind, subject, values) in enumerate(sorted(planned, key=lambda event: event[0]))
            if at <= sequence
        ]
        return (*happened, *self.journal)

    def _sample(self, policy: str, group: int, member: int) -> SampledTrajectory:
        chance = random.Random(f"{policy} {group} {member}")
        at = group * 3
        is_right = chance.random() < learned(at)
        answer = "afdb"
        step = math.floor((at - 4) * STEPS_PER_S) if at > 6 else None
        version = Version(max(0, (step or 0) - 1))
        group_id = f"train:{group}"
        reply = answer if is_right else "".join(chance.sample("abcdefgh", 4))
        call = f"reverse({answer})\n" if self.tool else ""
        spans, ends = _spans(version, is_split=member == 5, prompt=self.prompt, call=call, tool=self.tool, reply=reply)
        return SampledTrajectory(
            ordinal=(group * len(self.policies) + self.policies.index(policy)) * GROUP_SIZE + member,
            group=GroupId(group_id),
            task=TaskId(f"{group_id}/{member}"),
            flow=FlowId("train"),
            policy=PolicyId(policy),
            node=NodeId(f"n{member % max(1, len(self.nodes))}"),
            at=self.began_at + at,
            step=step,
            outcome="trained" if step is not None else "buffered",
            reward=1.0 if is_right else 0.0,
            prompt_text=self.prompt,
            completion_text=f"{call}{self.tool}{reply}",
            reference_text=answer,
            prompt_fields=json.dumps({"question": self.prompt, "answer": answer}),
            tokens=sum(span.length for span in spans),
            model_tokens=sum(span.length for span in spans if span.author is Author.MODEL),
            spans=spans,
            text_ends=ends,
            is_truncated=not is_right and chance.random() < 0.2,
            member=member,
            duration_s=0.4,
            metrics={"turns": 2.0},
            hops=_hops(self.began_at + at, is_failed=member == self.failing_member),
            batched_at=self.began_at + at + 1.0 if step is not None else None,
            trained_at=self.began_at + at + 1.5 if step is not None else None,
            call_outcomes={"answered": 1} if member == AGENT_MEMBER else {},
            calls=(_call(self.prompt, reply, turn=None if member == self.failing_member else 0),)
            if member == AGENT_MEMBER
            else (),
            failure=Failure(boundary=Boundary.ENGINE, message="out of memory")
            if member == self.failing_member
            else None,
        )


def _hops(admitted_at: float, *, is_failed: bool) -> tuple[Hop, ...]:
    """Returns the spans of an episode with two turns and a tool, whose push ended 0.2 s before its admission."""
    spans = [
        ("rl.lease", 0.9, 0.3, ""),
        ("rl.episode", 0.6, 0.3, "attempt 1 on n1"),
        ("rl.generate", 0.59, 0.1, "policy solver, prompt_tokens 24"),
        ("rl.tool", 0.49, 0.05, "tool calculator"),
        ("rl.generate", 0.43, 0.1, "policy solver, prompt_tokens 40"),
        ("rl.reward", 0.32, 0.001, ""),
        ("rl.push", 0.3, 0.1, ""),
    ]
    return tuple(
        Hop(
            name=name,
            began_at=admitted_at - before_s,
            duration_s=duration_s,
            detail=detail,
            error="MemoryError: out of memory" if is_failed and name == "rl.generate" else "",
        )
        for name, before_s, duration_s, detail in spans
    )


_SAMPLE_SETTINGS = ("policies", "nodes", "began_at", "prompt", "tool", "has_interactions", "failing_member")
"""Fields of `SyntheticRun` that determine its samples."""


@lru_cache(maxsize=8)
def _samples(groups: int, settings: tuple[tuple[str, Any], ...]) -> list[SampledTrajectory]:
    """Returns samples that several queries of a test, and many tests, read."""
    return SyntheticRun(**dict(settings)).make_samples(groups)


def _call(prompt: str, reply: str, *, turn: int | None) -> AgentCall:
    return AgentCall(
        began_s=0.1,
        duration_s=0.3,
        dialect="chat",
        model=prompt,
        request=json.dumps({"messages": [{"role": "user", "content": prompt}]}),
        reply=reply,
        outcome=CallOutcome.ANSWERED,
        turn=turn,
    )


def _spans(
    version: Version, *, is_split: bool, prompt: str, call: str, tool: str, reply: str
) -> tuple[tuple[Span, ...], tuple[int, ...]]:
    """Returns the spans and their end offsets in the text. is_split: weights changed in the middle of the answer."""
    written: list[tuple[Author, int, Version | None, str]] = [(Author.CONTEXT, 26, None, prompt)]
    if tool:
        written += [(Author.MODEL, 8, version, call), (Author.CONTEXT, 12, None, tool)]
    if is_split:
        written += [(Author.MODEL, 3, version, reply[:2]), (Author.MODEL, 2, Version(version + 1), reply[2:])]
    else:
        written += [(Author.MODEL, 5, version, reply)]
    spans = tuple(Span(author=author, length=length, version=by) for author, length, by, _ in written)
    return spans, tuple(accumulate(len(text) for *_, text in written))


@cache
def _step_reward(policy: str, step: int) -> float:
    noise = random.Random(f"{policy} step {step}").gauss(0, 0.03)
    return min(1.0, max(0.0, learned(round(step / STEPS_PER_S) + 4) + noise))


def _step_metrics(policy: str, step: int) -> dict[str, float]:
    chance = random.Random(f"{policy} metrics {step}")
    remaining = math.exp(-step / 60)
    return {
        name: (last + (first - last) * remaining) * max(0.0, chance.gauss(1, noise))
        for name, (first, last, noise) in METRICS.items()
    }


def _interaction_metrics(step: int) -> dict[str, float]:
    """Returns shares of endings and means of reward terms: more games are won as the steps go on."""
    chance = random.Random(f"interactions {step}")
    won = min(0.9, 0.1 + step / 200)
    weights = {ending: (won if ending is Ending.WON else 0.2) * chance.uniform(0.8, 1.2) for ending in ENDINGS}
    total = sum(weights.values())
    shares = {f"ending_{ending.value}": weight / total for ending, weight in weights.items()}
    return shares | {"reward_term_correct": won, "reward_term_format": 0.5, "reward_term_length": -0.1 - step / 1000}


METRICS = {
    "reward_mean": (0.3, 0.7, 0.05),
    "signal_fraction": (0.9, 0.4, 0.05),
    "loss": (0.02, -0.004, 0.4),
    "grad_norm": (2.4, 0.6, 0.3),
    "learning_rate": (0.0, 1e-6, 0.0),
    "entropy": (1.6, 0.35, 0.03),
    "clip_fraction": (0.001, 0.02, 0.2),
    "ratio_mean": (1.0, 1.0, 0.002),
    "kl_behaviour": (1e-4, 2e-3, 0.2),
    "mismatch_k3": (4e-5, 6e-5, 0.3),
    "mismatch_max": (0.02, 0.05, 0.3),
    "mismatch_sample_size": (0.999, 0.98, 0.002),
    "mismatch_cut": (0.0, 0.0, 0.0),
    "kl_corrected": (0.0, 4e-4, 0.2),
    "kept_tokens": (6.0, 4.0, 0.05),
    "head_mass": (0.93, 0.98, 0.005),
    "outside_head": (0.05, 0.02, 0.2),
    "centering_share": (0.01, 0.03, 0.2),
    "tokens_mean": (220.0, 1480.0, 0.04),
    "truncated_fraction": (0.01, 0.08, 0.3),
    "staleness_mean": (0.4, 0.4, 0.3),
    "tokens": (112_000.0, 520_000.0, 0.04),
    "tokens_per_s": (31_000.0, 38_000.0, 0.02),
    "mfu": (0.36, 0.46, 0.02),
    "wait_s": (2.0, 0.3, 0.4),
    "compute_s": (11.0, 14.0, 0.05),
    "publish_copy_s": (0.08, 0.08, 0.1),
    "checkpoint_s": (0.4, 0.4, 0.2),
    "tis_cut": (1e-3, 2e-3, 0.3),
}
"""Metrics of a step: its value at first and in the end, and its relative noise. The last is not described."""


def learned(sequence: int) -> float:
    """Returns the mean reward of the policy at that time: from 0.3 to 0.95."""
    return 0.30 + 0.65 / (1 + math.exp(-(sequence - 70) / 18))


def _value(sample: SampledTrajectory, term: str) -> float | None:
    if term:
        return sample.reward_terms.get(term)
    return sample.reward if sample.failure is None else None


def _has_term(sample: SampledTrajectory, query: TrajectoryQuery) -> bool:
    value = _value(sample, query.term)
    low = -math.inf if query.min_term is None else query.min_term
    high = math.inf if query.max_term is None else query.max_term
    return value is not None and low <= value <= high


def _matches(sample: SampledTrajectory, query: TrajectoryQuery) -> bool:
    has_reward = sample.failure is None
    return (
        all(
            wanted in ("", getattr(sample, name))
            for name in ("policy", "flow", "group", "task", "node", "outcome", "role")
            for wanted in [getattr(query, name)]
        )
        and query.step in (None, sample.step)
        and query.is_truncated in (None, sample.is_truncated)
        and query.ending in (None, sample.ending)
        and (query.call is None or query.call.value in sample.call_outcomes)
        and (not query.term or _has_term(sample, query))
        and query.is_failed in (None, not has_reward)
        and (query.min_reward is None or (has_reward and sample.reward >= query.min_reward))
        and (query.max_reward is None or (has_reward and sample.reward <= query.max_reward))
        and query.text.lower() in f"{sample.prompt_text}\n{sample.completion_text}".lower()
    )


def _sampled_group(members: list[SampledTrajectory]) -> SampledGroup:
    rewards = [member.reward for member in members if member.failure is None]
    newest = members[0]
    return SampledGroup(
        group=newest.group,
        policy=newest.policy,
        flow=newest.flow,
        ordinal=newest.ordinal,
        at=newest.at,
        step=newest.step,
        outcome=newest.outcome,
        trajectories=len(rewards),
        failed=len(members) - len(rewards),
        truncated=sum(member.is_truncated for member in members),
        reward_mean=sum(rewards) / len(rewards) if rewards else None,
        reward_min=min(rewards, default=None),
        reward_max=max(rewards, default=None),
    )


_JOINED = {"name": "a", "pool": "local", "engine": "scripted"}


def repeated_answers(policy: str) -> Record:
    """Returns a fault whose text the policy wrote."""
    return Record(
        kind=RecordKind.LEARNING_FAULT,
        subject=policy,
        cause=LearningFault.ANSWERS_REPEAT.value,
        severity=LearningFault.ANSWERS_REPEAT.severity,
        values={"step": 12, "share": 0.8, "answers": 400, "prompts": 50, "answer": "'<b>yes</b>'", "limit": 0.5},
    )


def text_record(kind: RecordKind, subject: str, text: str) -> Record:
    """Returns a record with this sentence."""
    return Record(kind=kind, subject=subject, values={"text": text})


def hostile_record(text: str) -> Record:
    """Returns the loss of a node whose name, cause and sentence are this text."""
    return Record(kind=RecordKind.NODE_LOST, subject=text, cause=text, values={"text": text})


def _advice(began_at: float, sequence: int) -> PoolRecommendation:
    """Returns the last recommendation: demand rises, a node is ordered at the next tick and arrives one tick later."""
    tick = sequence // TICK_S * TICK_S
    demand = 28.0 if tick < RISE_AT else 41.0
    target = 2 if tick < FIRST_TICK_AFTER_RISE else 3
    ready = 2 if tick < FIRST_TICK_AFTER_RISE + TICK_S else 3
    return make.pool_advice(
        at=began_at + max(5, tick),
        target=target,
        present=target,
        pending=target - ready,
        before=2,
        inputs={
            "demand_groups_per_s": demand,
            "capacity_groups_per_s": ready * NODE_GROUPS_PER_S,
            "capacity_ordered_groups_per_s": target * NODE_GROUPS_PER_S,
            "ratio": target * NODE_GROUPS_PER_S / demand,
            "noise": 0.04,
            "band_low": 1.0,
            "band_aim": 1.08,
            "band_high": 1.4,
            "trim": 1.0,
            "compute_s": 1.1,
            "groups_per_step": 32.0,
            "produced_per_usable": 1.25,
            "wait_share_300_s": 0.05,
            "wait_share_600_s": 0.05,
            "node_groups_per_s": NODE_GROUPS_PER_S,
            "price_per_hour": 2.0,
        },
    )


def _pool(nodes: tuple[NodeReport, ...]) -> PoolReport:
    states = [node.state for node in nodes]
    return PoolReport(
        id=PoolId("local"),
        ready=states.count(NodeState.READY),
        joining=states.count(NodeState.JOINING),
        draining=states.count(NodeState.DRAINING),
        lost=states.count(NodeState.LOST),
        episodes_per_s=sum(node.episodes_per_s for node in nodes),
        tokens_per_s=sum(node.tokens_per_s for node in nodes),
    )
