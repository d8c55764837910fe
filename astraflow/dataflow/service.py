"""The dataflow role: builds a run from its configuration and serves it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc

from astraflow.access.keeper import Keeper
from astraflow.contract.ids import FlowId, PolicyId, PoolId
from astraflow.contract.nodes import FlowSpec, PolicySpec, Welcome
from astraflow.contract.plugins import Seam
from astraflow.contract.reports import Report
from astraflow.dataflow.admitting.admitter import Admitter
from astraflow.dataflow.admitting.filters import filters
from astraflow.dataflow.config import DataflowConfig, EvaluationConfig, FlowConfig, StreamConfig
from astraflow.dataflow.evaluating.evaluation import Evaluation
from astraflow.dataflow.evaluating.round import Rounds
from astraflow.dataflow.evaluating.schedule import Schedule
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.issuer import Issuer
from astraflow.dataflow.issuing.leases import Leases
from astraflow.dataflow.issuing.mixture import build_selector
from astraflow.dataflow.issuing.stalls import Patience, Stalls
from astraflow.dataflow.journal import Journal, sole_user
from astraflow.dataflow.metrics_door import MetricsDoor, metrics_door
from astraflow.dataflow.node_side import NodeSide
from astraflow.dataflow.plugged import Plugged
from astraflow.dataflow.pool.credentials import Credentials
from astraflow.dataflow.pool.ledger import Ledger
from astraflow.dataflow.pool.registry import Node, Registry
from astraflow.dataflow.reporting.advice import Advisor
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.reporting.events import Events
from astraflow.dataflow.reporting.history import History
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.reporting.rounds import KeptRounds
from astraflow.dataflow.reporting.samples import Samples
from astraflow.dataflow.reporting.watching import Watch
from astraflow.dataflow.run import Run
from astraflow.dataflow.servicers import (
    ControlService,
    EnrollmentService,
    NodeDataService,
    Ports,
    TrainerDataService,
)
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.stopping import StopCondition
from astraflow.dataflow.trainer_side import TrainerSide
from astraflow.dataflow.unkept import NoJournal
from astraflow.datasets import datasets
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import run_until
from astraflow.runtime.tracing import begin_run
from astraflow.scaling.options import Spec
from astraflow.wire.listeners import ENROLMENT
from astraflow.wire.pb.control_plane_pb2_grpc import add_ControlPlaneServicer_to_server
from astraflow.wire.pb.data_plane_pb2_grpc import add_NodeDataServicer_to_server, add_TrainerDataServicer_to_server
from astraflow.wire.pb.enrollment_pb2_grpc import add_EnrollmentServicer_to_server
from astraflow.wire.server import Listen, keeper_of, serving
from astraflow.workflows import workflows

log = get_logger()

TICK_S = 0.25
"""How often leases and beats are checked."""

ALIVE_BEATS = 3.0
"""A node that reported within so many periods of its beat is alive: its name is not given to another process."""

GRACE_S = 5.0
"""After a restart, nodes have this long to come back and say which tasks they still run."""


async def serve(
    config: DataflowConfig,
    *,
    listen: Listen,
    directory: Path,
    weights_address: str,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    metrics_token: str = "",
    weights_key: bytes = b"",
    clock: Clock | None = None,
) -> None:
    """Serve a run until `stop`; its state is kept in `directory` and taken up from there.

    metrics_token: what whoever reads the metrics must show. weights_key: the public key that signs the run's versions,
    for all who join; empty when it does not sign.
    Raises: InvalidInput for a configuration that does not fit together, a port in use, or a directory that cannot be
    written or that another service is using.
    """
    begin_run(config.run)
    door = metrics_door(config.metrics, token=metrics_token)
    with sole_user(directory):
        is_durable = config.durability == "disk"
        clock = clock or SystemClock()
        await _serve(
            config,
            Journal(directory / "journal.sqlite") if is_durable else NoJournal(),
            Archive(directory / "history.sqlite", clock=clock, begins_anew=not is_durable),
            listen=listen,
            weights_address=weights_address,
            weights_key=weights_key,
            stop=stop,
            on_ready=on_ready,
            door=door,
            clock=clock,
        )


async def _serve(
    config: DataflowConfig,
    journal: Journal,
    archive: Archive,
    *,
    listen: Listen,
    weights_address: str,
    weights_key: bytes,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    door: MetricsDoor | None,
    clock: Clock,
) -> None:
    run = build_run(config, journal=journal, archive=archive, clock=clock)
    run.restore(grace_s=min(config.lease_s, GRACE_S))
    keeper = keeper_of(listen, clock=clock)
    service = Service(
        config,
        run,
        journal=journal,
        archive=archive,
        weights_address=weights_address,
        weights_key=weights_key,
        credentials=_credentials(run, listen, keeper, beat_s=config.beat_s),
        clock=clock,
    )
    async with asyncio.TaskGroup() as tasks:
        writing = [tasks.create_task(journal.run()), tasks.create_task(archive.run())]
        try:
            async with (
                serving(listen, service.register, keeper=keeper) as address,
                service.enrolling(listen, address),
                service.metrics(door),
                service.keda(),
            ):
                run.events.add("service_started", config.run, f"dataflow at {address}")
                on_ready(address)
                log.info("dataflow_ready", address=address, run=config.run)
                await run_until(stop, service.work(), drain=service.drain)
        finally:
            for task in writing:
                task.cancel()


class Service:
    """A run with everything that goes on around it."""

    def __init__(
        self,
        config: DataflowConfig,
        run: Run,
        *,
        journal: Journal,
        archive: Archive,
        weights_address: str,
        weights_key: bytes,
        credentials: Credentials,
        clock: Clock,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._ports = Ports()
        self._run = run
        self._nodes = NodeSide(run)
        self._archive = archive
        self._history = History(journal, archive, seconds=config.history, minutes=config.history_minutes)
        self._watch = Watch()
        pools = {PoolId(name): options for name, options in config.pools.items()}
        spec = Spec(options=config.scaling, pools=pools)
        self._advisor = Advisor(spec, journal=journal, events=run.events)
        self._weights_address = weights_address
        self._weights_key = weights_key
        self._clock = clock
        self._began_at = clock.now()

    def register(self, server: grpc.aio.Server) -> None:
        """Add the data and control planes to a server."""
        trainers = TrainerDataService(
            TrainerSide(self._run),
            name=self._config.run,
            weights_address=self._weights_address,
            weights_key=self._weights_key,
        )
        control = ControlService(
            self._run,
            self._history,
            self.report,
            nodes=self._nodes,
            credentials=self._credentials,
            ports=self._ports,
            advisor=self._advisor,
        )
        add_NodeDataServicer_to_server(NodeDataService(self._nodes, self._welcome, self._credentials), server)
        add_TrainerDataServicer_to_server(trainers, server)
        add_ControlPlaneServicer_to_server(control, server)
        self._register_enrollment(server)

    @asynccontextmanager
    async def enrolling(self, listen: Listen, address: str) -> AsyncIterator[None]:
        """With mutual TLS, let those who have no certificate get one, on a port where nothing else is to be had.

        address: where the other planes are. Raises: InvalidInput.
        """
        self._ports.main = self._ports.enrollment = _port(address)
        if listen.tls is None or not listen.wants_certificates:
            yield
            return
        door = replace(listen, port=listen.enroll_port, tls=replace(listen.tls, client_ca=None))
        register = partial(self._register_enrollment, wants_tokens=True)
        async with serving(door, register, limits=ENROLMENT) as enroll_address:
            self._ports.enrollment = _port(enroll_address)
            log.info("enrollment_ready", address=enroll_address)
            yield

    def _register_enrollment(self, server: grpc.aio.Server, *, wants_tokens: bool = False) -> None:
        service = EnrollmentService(self._run, self._credentials, self._ports, self._nodes, wants_tokens=wants_tokens)
        add_EnrollmentServicer_to_server(service, server)

    @asynccontextmanager
    async def metrics(self, door: MetricsDoor | None) -> AsyncIterator[None]:
        """Serve metrics at the door, if there is one, for the block. Raises: InvalidInput."""
        if door is None:
            yield
            return
        from astraflow.dataflow.metrics import serving_metrics  # an HTTP server, for those who want one

        losses = self._archive.losses
        async with serving_metrics(door, lambda: self._history.latest or self.report(), losses) as address:
            log.info("metrics_ready", address=address)
            yield

    @asynccontextmanager
    async def keda(self) -> AsyncIterator[None]:
        """Answer KEDA for the block, if that is wanted. Raises: InvalidInput."""
        if self._config.keda is None:
            yield
            return
        from astraflow.dataflow.keda import serving_keda  # another server, for those who want one

        async with serving_keda(self._config.keda, lambda: self._history.latest, self._history) as address:
            log.info("keda_ready", address=address)
            yield

    async def work(self) -> None:
        """Check leases and report, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(periodic(self._tick, every_s=TICK_S, clock=self._clock))
            tasks.create_task(periodic(self._report, every_s=self._config.report_s, clock=self._clock))

    async def drain(self) -> None:
        """Let those who wait go; whatever was answered is durable."""
        self._run.events.stop()
        self._run.stop()
        self._history.stop()

    def report(self) -> Report:
        """The state of the run now."""
        return build_report(
            self._run,
            name=self._config.run,
            sequence=self._history.next_sequence,
            now=self._clock.now(),
            wall=self._clock.wall(),
            uptime_s=self._clock.now() - self._began_at,
            archive_trouble=self._archive.trouble,
            advice=self._advisor.latest,
        )

    def _welcome(self, node: Node) -> Welcome:
        config = self._config
        return Welcome(
            node=node.id,
            lease_s=config.lease_s,
            beat_s=config.beat_s,
            run=config.run,
            weights_address=self._weights_address,
            flows=tuple(flow.spec for flow in self._run.every_flow),
            policies=tuple(PolicySpec(id=PolicyId(policy), model=model) for policy, model in config.models.items()),
            engine=config.engine,
            weights_key=self._weights_key,
        )

    async def _tick(self) -> None:
        self._nodes.tick()

    async def _report(self) -> None:
        """Report once. What fails is left out and counted: a report never ends the service."""
        with self._archive.losses.counted("report"):
            report = self.report()
            for finding in self._watch.findings(report):
                self._run.events.add(finding.kind, finding.subject, finding.message)
            self._run.events.tick()
            with self._archive.losses.counted("report"):
                self._advisor.observe(report)
            self._history.add(replace(report, advice=self._advisor.latest))


def _credentials(run: Run, listen: Listen, keeper: Keeper, *, beat_s: float) -> Credentials:
    return Credentials(
        Ledger(run.journal, run.clock),
        seal=keeper.seal,
        revoked=keeper.revoked,
        authority=listen.authority,
        pin=listen.authority.pin if listen.authority and listen.wants_certificates else "",
        policies=frozenset(run.streams),
        silent_s=lambda name: run.registry.silent_s(name, now=run.clock.now()),
        alive_s=ALIVE_BEATS * beat_s,
        events=run.events,
        clock=run.clock,
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def build_run(config: DataflowConfig, *, journal: Journal, archive: Archive, clock: Clock) -> Run:
    """A run as configured, before it takes up any state. Raises: InvalidInput."""
    registry = Registry()
    streams = {PolicyId(name): _stream(PolicyId(name), stream) for name, stream in config.streams.items()}
    return Run(
        {FlowId(name): _flow(config, FlowId(name), flow, registry) for name, flow in config.flows.items()},
        streams,
        {FlowId(name): _evaluation(config, FlowId(name), one, registry) for name, one in config.evaluations.items()},
        registry=registry,
        journal=journal,
        events=Events(journal, archive, clock, kept=config.events),
        samples=Samples(archive, limit=config.samples, limit_bytes=config.sample_bytes),
        rounds=KeptRounds(archive),
        stalls=Stalls(streams, {PolicyId(name): _patience(stream) for name, stream in config.streams.items()}),
        stop_condition=StopCondition(config.stop, streams),
        lease_s=config.lease_s,
        memory_bytes=config.memory_bytes,
        clock=clock,
    )


def _flow(config: DataflowConfig, flow_id: FlowId, flow: FlowConfig, registry: Registry) -> Flow:
    policies = workflows.build(flow.workflow).policies
    dataset = datasets.build(flow.dataset, config.seed)
    build = partial(build_selector, dataset=dataset, seed=config.seed)
    return Flow(
        FlowSpec(id=flow_id, workflow=flow.workflow, reward=flow.reward),
        policies,
        issuer=Issuer(flow_id, dataset, Plugged(Seam.SELECTOR, [flow.selector], build), group_size=flow.group_size),
        leases=Leases(config.lease_s, owner_of=registry.owner),
        reward_range=flow.reward_range,
        admitter=Admitter(
            policies,
            Plugged(Seam.FILTERS, flow.filters, filters.build),
            min_group_size=min(flow.min_group_size, flow.group_size),
        ),
        max_attempts=flow.max_attempts,
        waits_when_full=flow.when_full == "wait",
    )


def _evaluation(
    config: DataflowConfig, flow_id: FlowId, evaluation: EvaluationConfig, registry: Registry
) -> Evaluation:
    policies = workflows.build(evaluation.workflow).policies
    dataset = datasets.build(evaluation.dataset, config.seed)
    rounds = Rounds(flow_id, dataset, prompts=evaluation.prompts, samples=evaluation.samples, seed=config.seed)
    flow = Flow(
        FlowSpec(id=flow_id, workflow=evaluation.workflow, reward=evaluation.reward, evaluation_share=evaluation.share),
        policies,
        issuer=rounds,
        leases=Leases(config.lease_s, owner_of=registry.owner),
        reward_range=evaluation.reward_range,
        admitter=Admitter((), Plugged(Seam.FILTERS, (), filters.build), min_group_size=1),  # into no stream
        max_attempts=evaluation.max_attempts,
        waits_when_full=True,
    )
    schedule = Schedule(every_versions=evaluation.every_versions, at_start=evaluation.at_start)
    return Evaluation(flow, rounds, schedule, right_from=evaluation.right_from)


def _stream(policy: PolicyId, stream: StreamConfig) -> Stream:
    return Stream(
        policy,
        batch_groups=stream.batch_groups,
        max_staleness=stream.max_staleness,
        sampler=Plugged(Seam.SAMPLER, [stream.sampler], samplers.build),
    )


def _patience(stream: StreamConfig) -> Patience:
    return Patience(usual_steps=stream.stalled_after_steps, at_least_s=stream.stalled_after_s)
