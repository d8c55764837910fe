"""The dataflow role: builds a run from its configuration and serves it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc

from astraflow.access.authenticator import Authenticator
from astraflow.archive.set_aside import FOLDER, SetAsideFiles
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, PoolId, Version
from astraflow.contract.nodes import FlowSpec, JoinResult, PolicySpec, TeacherChoice
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.token_columns import needed_columns
from astraflow.dataflow.admission.admitter import Admitter
from astraflow.dataflow.admission.filters import build_filter, filters
from astraflow.dataflow.admission.group_scoring import GroupScoring
from astraflow.dataflow.admission.limits import ResultLimits
from astraflow.dataflow.config import DataflowConfig, EvaluationConfig, FlowConfig, StreamConfig
from astraflow.dataflow.endpoint_config import MetricsEndpoint, metrics_endpoint
from astraflow.dataflow.evaluation.evaluation import Evaluation, Schedule
from astraflow.dataflow.evaluation.rounds import EvaluationRounds, RoundArchive
from astraflow.dataflow.flow import AnswerSource, Flow
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.history.history import History
from astraflow.dataflow.history.samples import TrajectorySamples
from astraflow.dataflow.history.training_steps import TrainingSteps
from astraflow.dataflow.issuing.issuer import Issuer
from astraflow.dataflow.issuing.leases import Leases
from astraflow.dataflow.issuing.mixture import build_selector
from astraflow.dataflow.issuing.shares import Shares
from astraflow.dataflow.operations.control_servicer import ControlService
from astraflow.dataflow.operations.data_servicers import EnrollmentService, NodeDataService, Ports, TrainerDataService
from astraflow.dataflow.operations.dataset_filler import DatasetFiller
from astraflow.dataflow.operations.group_scorer import GroupScorer
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.pool.credential_ledger import CredentialLedger
from astraflow.dataflow.pool.credentials import Credentials
from astraflow.dataflow.pool.registry import Node, NodeRegistry
from astraflow.dataflow.reporting.binding_constraints import ConstraintMonitor, FlowRole
from astraflow.dataflow.reporting.evaluation_constraints import EvaluationMonitor
from astraflow.dataflow.reporting.health import HealthMonitor, mismatch_problems
from astraflow.dataflow.reporting.learning_monitor import LearningMonitor
from astraflow.dataflow.reporting.recommender import Recommender
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.serving.stalls import StallDetector, StallThreshold
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.stop_condition import StopCondition
from astraflow.dataflow.storage.journal import Journal
from astraflow.dataflow.storage.journal_file import exclusive_use
from astraflow.dataflow.storage.null_journal import NullJournal
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from astraflow.models import build_tokenizer
from astraflow.rewards import judging_policies
from astraflow.runtime.clock import AwakeClock, Clock, SystemClock
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from astraflow.runtime.service import run_until
from astraflow.runtime.tracing import begin_run
from astraflow.scaling.options import Spec
from astraflow.wire.listener_limits import ENROLMENT_LIMITS
from astraflow.wire.pb.control_plane_pb2_grpc import add_ControlPlaneServicer_to_server
from astraflow.wire.pb.data_plane_pb2_grpc import add_NodeDataServicer_to_server, add_TrainerDataServicer_to_server
from astraflow.wire.pb.enrollment_pb2_grpc import add_EnrollmentServicer_to_server
from astraflow.wire.server import ListenOptions, authenticator_for, serving
from astraflow.workflows import workflows
from astraflow.workflows.base import BoundedWorkflow, Workflow
from astraflow.workflows.dataset_answers import DatasetAnswers

log = get_logger()

TICK_S = 0.25
"""Interval at which leases and heartbeats are checked. Seconds."""

SUSPENDED_S = 5.0
"""A service that did not run for longer was suspended; less where leases are short. Seconds."""

LIVENESS_HEARTBEATS = 3.0
"""A node that reported within this many heartbeat periods is alive: its name is not given to another process."""

GRACE_S = 5.0
"""Time after a restart in which nodes may report the tasks that they still run. Seconds."""


async def serve(
    config: DataflowConfig,
    *,
    listen: ListenOptions,
    directory: Path,
    weights_address: str,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    metrics_token: str = "",
    weights_key: bytes = b"",
    clock: Clock | None = None,
) -> None:
    """Serves a run until `stop`; its state is stored in `directory` and restored from there.

    metrics_token: token required to read the metrics. weights_key: public key of the run's signed versions, sent to
    nodes and trainers; empty when versions are not signed.
    Raises: InvalidInput for an inconsistent configuration, a port in use, or a directory that cannot be written or that
    another service is using.
    """
    begin_run(config.run)
    endpoint = metrics_endpoint(config.metrics, token=metrics_token)
    is_durable = config.durability == "disk"
    gap_s = max(4 * TICK_S, min(SUSPENDED_S, config.lease_s / 2))
    awake_clock = AwakeClock(clock or SystemClock(), gap_s=gap_s)
    with (
        exclusive_use(directory),
        closing(Journal(directory / "journal.sqlite") if is_durable else NullJournal()) as journal,
        closing(Archive(directory / "history.sqlite", clock=awake_clock, starts_empty=not is_durable)) as archive,
    ):
        await _serve(
            config,
            journal,
            archive,
            listen=listen,
            weights_address=weights_address,
            weights_key=weights_key,
            stop=stop,
            on_ready=on_ready,
            endpoint=endpoint,
            clock=awake_clock,
        )


async def _serve(
    config: DataflowConfig,
    journal: Journal,
    archive: Archive,
    *,
    listen: ListenOptions,
    weights_address: str,
    weights_key: bytes,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    endpoint: MetricsEndpoint | None,
    clock: AwakeClock,
) -> None:
    run = build_run(config, journal=journal, archive=archive, clock=clock)
    run.restore(grace_s=min(config.lease_s, GRACE_S))
    authenticator = authenticator_for(listen, clock=clock)
    service = Service(
        config,
        run,
        journal=journal,
        archive=archive,
        weights_address=weights_address,
        weights_key=weights_key,
        credentials=_credentials(run, listen, authenticator, heartbeat_s=config.heartbeat_s),
        clock=clock,
    )
    run.report_damage(config.run)
    async with asyncio.TaskGroup() as tasks:
        writing = [tasks.create_task(journal.run()), tasks.create_task(archive.run())]
        try:
            async with (
                serving(listen, service.register, authenticator=authenticator) as address,
                service.serve_enrollment(listen, address),
                service.metrics(endpoint),
                service.keda(),
            ):
                run.events.add(RecordKind.SERVICE_STARTED, config.run, address=address)
                on_ready(address)
                log.info("dataflow_ready", address=address, run=config.run)
                await run_until(stop, service.work(), drain=service.drain)
        finally:
            for task in writing:
                task.cancel()


class Service:
    """Serves a run: planes, metrics, KEDA, periodic checks and reports."""

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
        clock: AwakeClock,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._ports = Ports()
        self._run = run
        self._nodes = NodeOperations(run)
        self._archive = archive
        self._history = History(journal, archive, seconds=config.history, minutes=config.history_minutes)
        self._health_monitor = HealthMonitor()
        self._learning_monitor = LearningMonitor(run, archive)
        self._constraint_monitor = ConstraintMonitor(
            {
                flow.id: FlowRole(
                    policies=flow.policies, served_policies=flow.served_policies, needs_nodes=flow.answers is None
                )
                for flow in run.flows.values()
            },
            is_attached=lambda policy: policy in run.trainers,
        )
        self._evaluation_monitor = EvaluationMonitor(
            {name: evaluation.flow.served_policies for name, evaluation in run.evaluations.items()}
        )
        pools = {PoolId(name): options for name, options in config.pools.items()}
        spec = Spec(options=config.scaling, pools=pools)
        self._recommender = Recommender(spec, journal=journal, events=run.events)
        self._weights_address = weights_address
        self._weights_key = weights_key
        self._clock = clock
        self._began_at = clock.now()

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the data and control planes to a server."""
        trainers = TrainerDataService(
            TrainerOperations(self._run),
            name=self._config.run,
            weights_address=self._weights_address,
            weights_key=self._weights_key,
        )
        control = ControlService(
            self._run,
            self._history,
            self.report,
            membership=self._nodes.membership,
            credentials=self._credentials,
            ports=self._ports,
            recommender=self._recommender,
        )
        add_NodeDataServicer_to_server(NodeDataService(self._nodes, self._welcome, self._credentials), server)
        add_TrainerDataServicer_to_server(trainers, server)
        add_ControlPlaneServicer_to_server(control, server)
        self._register_enrollment(server)

    @asynccontextmanager
    async def serve_enrollment(self, listen: ListenOptions, address: str) -> AsyncIterator[None]:
        """With mutual TLS, serves enrolment without client certificates, on a port with no other service.

        address: of the other planes. Raises: InvalidInput.
        """
        self._ports.main = self._ports.enrollment = _port(address)
        if listen.tls is None or not listen.requires_certificates:
            yield
            return
        enrollment_options = replace(listen, port=listen.enroll_port, tls=replace(listen.tls, client_ca=None))
        register = partial(self._register_enrollment, accepts_tokens=True)
        async with serving(enrollment_options, register, limits=ENROLMENT_LIMITS) as enroll_address:
            self._ports.enrollment = _port(enroll_address)
            log.info("enrollment_ready", address=enroll_address)
            yield

    def _register_enrollment(self, server: grpc.aio.Server, *, accepts_tokens: bool = False) -> None:
        service = EnrollmentService(
            self._run, self._credentials, self._ports, self._nodes.membership, accepts_tokens=accepts_tokens
        )
        add_EnrollmentServicer_to_server(service, server)

    @asynccontextmanager
    async def metrics(self, endpoint: MetricsEndpoint | None) -> AsyncIterator[None]:
        """Serves metrics at the endpoint during the block, if there is one. Raises: InvalidInput."""
        if endpoint is None:
            yield
            return
        with needs_extra("metrics", to="serve metrics"):
            from astraflow.dataflow.endpoints.metrics import serving_metrics

        async with serving_metrics(
            endpoint,
            lambda: self._history.latest or self.report(),
            self._archive.losses,
            directory=self._archive.directory,
        ) as address:
            log.info("metrics_ready", address=address)
            yield

    @asynccontextmanager
    async def keda(self) -> AsyncIterator[None]:
        """Serves KEDA during the block, if configured. Raises: InvalidInput."""
        if self._config.keda is None:
            yield
            return
        from astraflow.dataflow.endpoints.keda import serving_keda  # imports another server, only if used

        async with serving_keda(self._config.keda, lambda: self._history.latest, self._history) as address:
            log.info("keda_ready", address=address)
            yield

    async def work(self) -> None:
        """Checks leases and reports, until cancelled."""
        self._clock.take_suspension_s()  # restoring a run may take long
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(periodic(self._tick, every_s=TICK_S, clock=self._clock))
            tasks.create_task(DatasetFiller(self._run, self._nodes.results).work())
            tasks.create_task(GroupScorer(self._run, self._nodes.results).work())
            tasks.create_task(self._learning_monitor.work())
            tasks.create_task(periodic(self._report, every_s=self._config.report_s, clock=self._clock))

    async def drain(self) -> None:
        """Ends all waits; everything that was answered is durable."""
        self._run.events.stop()
        self._run.stop()
        self._history.stop()

    def report(self) -> Report:
        """Returns the current report."""
        return build_report(
            self._run,
            name=self._config.run,
            sequence=self._history.next_sequence,
            now=self._clock.now(),
            wall=self._clock.wall(),
            uptime_s=self._clock.now() - self._began_at,
            service_problems=self._own_problems(),
            recommendations=self._recommender.latest,
            learning_faults=self._learning_monitor.latest,
        )

    def _own_problems(self) -> tuple[Record, ...]:
        unpublished = self._credentials.problem
        revocations = problem_record("revocations", "", error=unpublished) if unpublished else None
        return tuple(problem for problem in (self._archive.problem, revocations) if problem is not None)

    def _welcome(self, node: Node) -> JoinResult:
        config = self._config
        return JoinResult(
            node=node.id,
            lease_s=config.lease_s,
            heartbeat_s=config.heartbeat_s,
            run=config.run,
            weights_address=self._weights_address,
            flows=tuple(flow.spec for flow in self._run.all_flows),
            policies=tuple(PolicySpec(id=PolicyId(policy), model=model) for policy, model in config.models.items()),
            engine=config.engine,
            engines={PolicyId(policy): engine for policy, engine in config.engines.items()},
            weights_key=self._weights_key,
        )

    async def _tick(self) -> None:
        if suspended_s := self._clock.take_suspension_s():
            self._run.events.add(RecordKind.RUN_SUSPENDED, self._config.run, suspended_s=suspended_s)
        self._nodes.membership.tick()
        self._credentials.tick()

    async def _report(self) -> None:
        """Reports once. Errors are counted and suppressed: a report never ends the service."""
        with self._archive.losses.counting("report"):
            report = self.report()
            constraints = (*self._constraint_monitor.problems(report), *self._evaluation_monitor.problems(report))
            rows = self._run.row_limits(self._run.streams)
            mixtures = [policy for policy, limits in rows.items() if limits.mixture is not None]
            mismatches = mismatch_problems(report, mixtures=mixtures)
            report = replace(report, problems=(*report.problems, *constraints, *mismatches))
            for flow in self._run.all_flows:
                for cause in flow.take_unusable():
                    self._run.events.add(RecordKind.PROMPT_UNUSABLE, flow.id, error=cause)
            for record in self._health_monitor.changes(report):
                self._run.events.add_record(record)
            self._run.events.tick()
            with self._archive.losses.counting("report"):
                self._recommender.observe(report)
            self._history.add(replace(report, recommendations=self._recommender.latest))


def _credentials(run: Run, listen: ListenOptions, authenticator: Authenticator, *, heartbeat_s: float) -> Credentials:
    return Credentials(
        CredentialLedger(run.journal, run.clock),
        signer=authenticator.signer,
        revoked=authenticator.revoked,
        authority=listen.authority,
        pin=listen.authority.pin if listen.authority and listen.requires_certificates else "",
        policies=frozenset(run.streams),
        silent_s=lambda name: run.registry.silent_s(name, now=run.clock.now()),
        alive_s=LIVENESS_HEARTBEATS * heartbeat_s,
        events=run.events,
        clock=run.clock,
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def build_run(config: DataflowConfig, *, journal: Journal, archive: Archive, clock: Clock) -> Run:
    """Builds a run as configured, before it restores any state. Raises: InvalidInput."""
    registry = NodeRegistry()
    shares = Shares(registry.share_keys)
    leases = partial(Leases, config.lease_s, owner_of=registry.owner, on_change=shares.hold)
    streams = {PolicyId(name): _stream(PolicyId(name), stream) for name, stream in config.streams.items()}
    return Run(
        flows={FlowId(name): _flow(config, FlowId(name), flow, leases()) for name, flow in config.flows.items()},
        streams=streams,
        evaluations={
            FlowId(name): _evaluation(config, FlowId(name), evaluation, leases())
            for name, evaluation in config.evaluations.items()
        },
        untrained_policies=frozenset(map(PolicyId, config.models.keys() - config.streams.keys())),
        registry=registry,
        shares=shares,
        journal=journal,
        events=Events(journal, archive, clock, limit=config.events),
        samples=TrajectorySamples(
            archive, limit=config.samples, limit_bytes=config.sample_bytes, per_step=config.samples_per_step
        ),
        training_steps=TrainingSteps(journal, archive),
        round_archive=RoundArchive(archive),
        set_aside=SetAsideFiles(archive.directory / FOLDER),
        stall_detector=StallDetector(
            streams, {PolicyId(name): _stall_threshold(stream) for name, stream in config.streams.items()}
        ),
        stop_condition=StopCondition(config.stop, streams),
        lease_s=config.lease_s,
        episode_ceiling_s=config.episode_ceiling_s,
        memory_bytes=config.memory_bytes,
        clock=clock,
    )


def _flow(config: DataflowConfig, flow_id: FlowId, flow: FlowConfig, leases: Leases) -> Flow:
    workflow = workflows.build(flow.workflow)
    policies = workflow.policies
    dataset = datasets.build(flow.dataset, config.seed)
    build = partial(build_selector, dataset=dataset, seed=config.seed)
    return Flow(
        FlowSpec(
            id=flow_id,
            workflow=flow.workflow,
            reward=flow.reward,
            attaches_texts=flow.group_reward is not None,
            temperatures={PolicyId(policy): value for policy, value in config.temperatures.items()},
            columns={PolicyId(policy): needs for policy, needs in config.columns.items() if needed_columns(needs)},
            teacher_choices=tuple(
                TeacherChoice(policy=PolicyId(policy), field=choice.field, teachers=choice.names)
                for policy, choice in config.teachers.items()
                if policy in policies
            ),
        ),
        policies,
        judges=judging_policies(flow.reward),
        issuer=Issuer(
            flow_id, dataset, SlotPlugins(PluginSlot.SELECTOR, [flow.selector], build), group_size=flow.group_size
        ),
        leases=leases,
        limits=_limits(flow, workflow),
        admitter=Admitter(
            policies,
            SlotPlugins(PluginSlot.FILTERS, flow.filters, partial(build_filter, policies=policies)),
            min_group_size=min(flow.min_group_size, flow.group_size),
        ),
        max_attempts=flow.max_attempts,
        waits_when_full=flow.when_full == "wait",
        answers=_answers(config, workflow, dataset) if isinstance(workflow, DatasetAnswers) else None,
        group_scoring=_group_scoring(flow_id, flow, workflow),
    )


def _group_scoring(flow_id: FlowId, flow: FlowConfig, workflow: Workflow) -> GroupScoring | None:
    if flow.group_reward is None:
        return None
    if isinstance(workflow, DatasetAnswers):
        raise InvalidInput(
            f"cannot use a group reward in flow {flow_id!r}: its workflow 'dataset_answers' samples no completions to "
            "compare; leave out group_reward, or use another workflow",
            code="flow.group_reward_without_rollout",
        )
    return GroupScoring(flow.group_reward, limits=_limits(flow, workflow))


def _limits(options: FlowConfig | EvaluationConfig, workflow: Workflow) -> ResultLimits:
    return ResultLimits(
        policies=frozenset(workflow.policies),
        reward_range=options.reward_range,
        max_tokens=options.max_trajectory_tokens,
        bounds=workflow.bounds if isinstance(workflow, BoundedWorkflow) else EpisodeBounds(),
    )


def _answers(config: DataflowConfig, workflow: DatasetAnswers, dataset: Dataset) -> AnswerSource:
    """Returns the answers of a dataset as trajectories. Raises: InvalidInput when its first prompt has none."""
    tokenizer = build_tokenizer(config.models[workflow.policies[0]])
    for member in range(workflow.group_size):
        workflow.trajectory(dataset.prompt(0), member, tokenizer, Version(0))
    return lambda task, version: workflow.trajectory(task.prompt, task.member, tokenizer, version)


def _evaluation(config: DataflowConfig, flow_id: FlowId, evaluation: EvaluationConfig, leases: Leases) -> Evaluation:
    workflow = workflows.build(evaluation.workflow)
    policies = workflow.policies
    dataset = datasets.build(evaluation.dataset, config.seed)
    rounds = EvaluationRounds(
        flow_id, dataset, prompts=evaluation.prompts, samples=evaluation.samples, seed=config.seed
    )
    flow = Flow(
        FlowSpec(id=flow_id, workflow=evaluation.workflow, reward=evaluation.reward, evaluation_share=evaluation.share),
        policies,
        judges=judging_policies(evaluation.reward),
        issuer=rounds,
        leases=leases,
        limits=_limits(evaluation, workflow),
        admitter=Admitter((), SlotPlugins(PluginSlot.FILTERS, (), filters.build), min_group_size=1),  # feeds no stream
        max_attempts=evaluation.max_attempts,
        waits_when_full=True,
    )
    schedule = Schedule(every_versions=evaluation.every_versions, at_start=evaluation.at_start)
    return Evaluation(flow, rounds, schedule, correct_threshold=evaluation.correct_threshold)


def _stream(policy: PolicyId, stream: StreamConfig) -> Stream:
    return Stream(
        policy,
        batch_groups=stream.batch_groups,
        batch_tokens=stream.batch_tokens,
        max_staleness=stream.max_staleness,
        is_paced=stream.pacing,
        sampler=SlotPlugins(PluginSlot.SAMPLER, [stream.sampler], samplers.build),
    )


def _stall_threshold(stream: StreamConfig) -> StallThreshold:
    return StallThreshold(usual_steps=stream.stalled_after_steps, min_s=stream.stalled_after_s)
