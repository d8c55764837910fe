"""A dataflow that only reports: the real control plane service over a synthetic run.

To work on the pages, run it alone: `python -m tests.fakes.control_plane --port 4700 --from 20`.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from astraflow.contract.errors import InvalidInput, UnknownNode
from astraflow.contract.fleet.recommendations import FleetConstraints, WhatIfQuestion
from astraflow.contract.plugins import PluginChange
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, render
from astraflow.contract.reports.queries import GroupQuery, RewardQuery, SampleIndexQuery, TrajectoryQuery
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.scaling.options import Spec
from astraflow.scaling.what_if import changed_spec, replay
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneServicer, add_ControlPlaneServicer_to_server
from astraflow.wire.server import ListenOptions, serving
from tests.fakes.synthetic_run import SyntheticRun

HISTORY_REPORTS = 900
TOKEN = "run-token"


@cache
def _usual_past_report(second: int) -> Report:
    """Returns a report that hundreds of tests read."""
    return SyntheticRun().report(second, is_history=True)


@cache
def _usual_past_message(second: int) -> pb.Report:
    """Returns the message of such a report. Do not change it."""
    return to_message(_usual_past_report(second), pb.Report)


class FakeControlPlane(ControlPlaneServicer):
    """Serves a synthetic run whose clock the test advances."""

    def __init__(
        self, synthetic_run: SyntheticRun | None = None, *, sequence: int = 0, history: int = HISTORY_REPORTS
    ) -> None:
        """history: past reports that it stores, the newest. Count."""
        self.synthetic_run = synthetic_run or SyntheticRun()
        self.sequence = sequence
        self._history = history
        self.actions: list[tuple[str, str, str]] = []
        """Kind, subject and actor of each request."""
        self.changes: list[PluginChange] = []
        self.terms: FleetConstraints | None = None
        """Last constraints from a fleet service."""
        self._moved = asyncio.Condition()

    async def advance(self, seconds: int = 1) -> None:
        """Advances the time; watchers get only the newest report, as from a busy service."""
        async with self._moved:
            self.sequence += seconds
            self._moved.notify_all()

    @asynccontextmanager
    async def serving(self, *, port: int = 0) -> AsyncIterator[str]:
        """Serves until the block ends; yields the address."""
        listen = ListenOptions(port=port, token=TOKEN, drain_s=0.0)
        async with serving(listen, lambda server: add_ControlPlaneServicer_to_server(self, server)) as address:
            yield address

    async def GetReport(self, request: pb.GetReportRequest, context: Any) -> pb.Report:
        return to_message(self.synthetic_run.report(self.sequence), pb.Report)

    async def WatchReport(self, request: pb.WatchReportRequest, context: Any) -> AsyncIterator[pb.Report]:
        sent = 0
        while True:
            async with self._moved:
                while self.sequence <= sent:
                    await self._moved.wait()
                sent = self.sequence
            yield to_message(self.synthetic_run.report(sent), pb.Report)

    async def History(self, request: pb.HistoryRequest, context: Any) -> pb.HistoryReply:
        first = max(request.after_sequence + 1, self.sequence - min(request.limit, self._history) + 1, 1)
        seconds = range(first, self.sequence + 1)
        if self.synthetic_run == SyntheticRun():
            return pb.HistoryReply(reports=map(_usual_past_message, seconds))
        reports = self._past_reports(seconds)
        return pb.HistoryReply(reports=[to_message(report, pb.Report) for report in reports])

    def _past_reports(self, seconds: range) -> Iterator[Report]:
        if self.synthetic_run == SyntheticRun():
            return map(_usual_past_report, seconds)
        return (self.synthetic_run.report(second, is_history=True) for second in seconds)

    async def Trajectories(self, request: pb.TrajectoriesRequest, context: Any) -> pb.TrajectoriesReply:
        page = self.synthetic_run.trajectories(self.sequence, from_message(request, TrajectoryQuery))
        return pb.TrajectoriesReply(
            trajectories=[to_message(sample, pb.SampledTrajectory) for sample in page.trajectories],
            has_older=page.has_older,
            has_newer=page.has_newer,
        )

    async def Groups(self, request: pb.GroupsRequest, context: Any) -> pb.GroupsReply:
        page = self.synthetic_run.groups(self.sequence, from_message(request, GroupQuery))
        return pb.GroupsReply(
            groups=[to_message(group, pb.SampledGroup) for group in page.groups], has_older=page.has_older
        )

    async def SampleIndex(self, request: pb.SampleIndexRequest, context: Any) -> pb.SampleIndexReply:
        index = self.synthetic_run.sample_index(self.sequence, from_message(request, SampleIndexQuery))
        return to_message(index, pb.SampleIndexReply)

    async def Rewards(self, request: pb.RewardsRequest, context: Any) -> pb.RewardsReply:
        return to_message(
            self.synthetic_run.rewards(self.sequence, from_message(request, RewardQuery)), pb.RewardsReply
        )

    async def Events(self, request: pb.EventsRequest, context: Any) -> pb.EventsReply:
        known = {
            event.ordinal: event
            for event in self.synthetic_run.events(self.sequence)
            if (not request.kinds or event.kind.value in request.kinds)
            and (not request.HasField("before") or event.ordinal < request.before)
            and request.text.casefold() in f"{event.subject} {render(event)}".casefold()
        }
        newest = sorted(known, reverse=True)
        shown = [to_message(known[ordinal], pb.Event) for ordinal in newest[: request.limit]]
        return pb.EventsReply(events=shown, has_older=len(newest) > len(shown))

    async def TrainingSteps(self, request: pb.TrainingStepsRequest, context: Any) -> pb.TrainingStepsReply:
        query = from_message(request, TrainingStepQuery)
        return to_message(self.synthetic_run.training_steps(self.sequence, query), pb.TrainingStepsReply)

    def _act(self, kind: RecordKind, subject: str, request: Any) -> None:
        record = Record(kind=kind, subject=subject, actor=request.actor, reason=request.reason)
        self.synthetic_run.act(self.sequence, record)

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Any) -> pb.ControlReply:
        names = {f"n{index}": name for index, name in enumerate(self.synthetic_run.nodes)}
        if request.node not in names:
            raise UnknownNode(f"no node {request.node} is in the run")
        self.synthetic_run.draining.add(request.node)
        self.actions.append(("drain", request.node, request.actor))
        self._act(RecordKind.NODE_DRAINED, names[request.node], request)
        return pb.ControlReply(message=f"node {request.node} finishes what it has, then leaves")

    async def PauseFlow(self, request: pb.PauseFlowRequest, context: Any) -> pb.ControlReply:
        if request.flow != "train":
            raise InvalidInput(f"the run has no flow {request.flow}")
        word = "paused" if request.is_paused else "resumed"
        (self.synthetic_run.paused.add if request.is_paused else self.synthetic_run.paused.discard)(request.flow)
        self.actions.append((word, request.flow, request.actor))
        self._act(RecordKind.FLOW_PAUSED if request.is_paused else RecordKind.FLOW_RESUMED, request.flow, request)
        return pb.ControlReply(message=f"flow {request.flow} is {word}")

    async def Evaluate(self, request: pb.EvaluateRequest, context: Any) -> pb.EvaluationReport:
        if request.flow != self.synthetic_run.evaluation:
            raise InvalidInput(f"this run has no evaluation {request.flow!r}")
        self.actions.append(("evaluate", request.flow, request.actor))
        return to_message(self.synthetic_run.rounds(self.sequence)[0], pb.EvaluationReport)

    async def Evaluations(self, request: pb.EvaluationsRequest, context: Any) -> pb.EvaluationsReply:
        rounds = [
            round_
            for round_ in self.synthetic_run.rounds(self.sequence)
            if request.flow in ("", round_.flow) and (not request.HasField("before") or round_.round < request.before)
        ]
        return pb.EvaluationsReply(
            evaluations=[to_message(round_, pb.EvaluationReport) for round_ in rounds[: request.limit]]
        )

    async def StopEvaluation(self, request: pb.StopEvaluationRequest, context: Any) -> pb.ControlReply:
        self.actions.append(("stop", request.flow, request.actor))
        return pb.ControlReply(message=f"the round of {request.flow} is stopped")

    async def ChangePlugins(self, request: pb.ChangePluginsRequest, context: Any) -> pb.ControlReply:
        change = from_message(request, PluginChange)
        known = {"uniform", "greso", "informative", "length", "keep_all", "fresh", "replay"}
        for slot, specs in change.specs_by_slot().items():
            for spec in specs:
                if spec.get("kind") not in known:
                    raise InvalidInput(
                        f"{slot.value}: no kind {spec.get('kind')!r}; known: {', '.join(sorted(known))}",
                        code="plugin.unknown_kind",
                    )
        self.changes.append(change)
        self.actions.append(("plugins", change.flow or change.policy or "", change.actor))
        return pb.ControlReply(message="it changes with the next version")

    async def MintJoinToken(self, request: pb.MintJoinTokenRequest, context: Any) -> pb.MintJoinTokenReply:
        self.actions.append(("mint", request.pool or request.name, request.actor))
        return pb.MintJoinTokenReply(token=f"afj.{request.role}.0", id="0", expires_at=2e9, port=7001)

    async def JoinTokens(self, request: pb.JoinTokensRequest, context: Any) -> pb.JoinTokensReply:
        known = pb.KnownJoinToken(
            id="0", role="node", pool="eu", expires_at=2e9, is_reusable=True, uses=3, state="minted"
        )
        return pb.JoinTokensReply(tokens=[known])

    async def RevokeJoinToken(self, request: pb.RevokeJoinTokenRequest, context: Any) -> pb.ControlReply:
        self.actions.append(("revoke", request.id, request.actor))
        return pb.ControlReply(message=f"join token {request.id} is good no more")

    async def RevokeCredential(self, request: pb.RevokeCredentialRequest, context: Any) -> pb.ControlReply:
        self.actions.append(("revoke", request.name, request.actor))
        return pb.ControlReply(message=f"{request.role} {request.name} is let in no more")

    async def ReportFleetConstraints(self, request: pb.FleetConstraints, context: Any) -> pb.ControlReply:
        self.terms = from_message(request, FleetConstraints)
        return pb.ControlReply(message="advice keeps to it")

    async def WhatIf(self, request: pb.WhatIfRequest, context: Any) -> pb.WhatIfReply:
        question = from_message(request, WhatIfQuestion)
        reports = self._past_reports(range(1, self.sequence + 1))
        return to_message(
            replay(reports, changed_spec(Spec(), options=question.options, pools=question.pools)), pb.WhatIfReply
        )


async def _show(port: int, began: int, synthetic_run: SyntheticRun) -> None:
    fake = FakeControlPlane(synthetic_run, sequence=began)
    async with fake.serving(port=port) as address:
        print(address, flush=True)  # noqa: T201 (printed for the user)
        while True:
            await asyncio.sleep(1)
            await fake.advance()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--from", dest="began", type=int, default=0)
    parser.add_argument("--policies", nargs="+", default=["solver"])
    parser.add_argument("--nodes", nargs="+", default=["node-a", "node-b"])
    parser.add_argument("--simulated", nargs="*", default=[])
    chosen = parser.parse_args()
    imagined = SyntheticRun(
        began_at=time.time() - chosen.began,
        policies=tuple(chosen.policies),
        nodes=tuple(chosen.nodes),
        simulated=tuple(chosen.simulated),
        prompt="rev bdfa=",
    )
    asyncio.run(_show(chosen.port, chosen.began, imagined))
