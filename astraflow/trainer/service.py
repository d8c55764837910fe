"""Trainer role: builds its components and trains until it is stopped."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from astraflow.access.callers import Role
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.credential import HeldCredential, join_run
from astraflow.client.data_plane import TrainerDataClient
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import TrainerAttachment
from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, Version, adapter_base_of
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import bind, get_logger
from astraflow.runtime.retries import TRANSIENT, current_waits, retry
from astraflow.runtime.service import run_until
from astraflow.runtime.system_metrics import SystemMonitor
from astraflow.runtime.tracing import begin_run
from astraflow.trainer.backends import backends
from astraflow.trainer.batch_stream import BatchStream
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.config import TrainerConfig
from astraflow.trainer.driver import BackendDriver
from astraflow.trainer.loop import TrainerLoop
from astraflow.trainer.ranks.launch import launched_early, select_gpus
from astraflow.trainer.retention import KeepBest, scores_of
from astraflow.trainer.step_mark import StepMark
from astraflow.trainer.worker import BackendThread
from astraflow.weights.adapters import AdapterBinding
from astraflow.weights.publish.publisher import PublishConfig, Publisher
from astraflow.weights.signing import SigningKey
from astraflow.wire.channel import ClientTls

log = get_logger()

SCORES_S = 2.0
"""Interval at which the scores of evaluations are read, where they decide which checkpoints stay. Seconds."""

WAIT_REPORT_S = 2.0
"""Time after which a wait is reported to dataflow, and repeated. Seconds."""


async def serve(
    config: TrainerConfig,
    *,
    dataflow: str,
    token: str,
    tls: ClientTls | None,
    directory: Path,
    stop: asyncio.Event,
    ca_hash: str = "",
    credential_folder: Path | None = None,
    signing: SigningKey | None = None,
) -> None:
    """Trains `config.policy` with batches of the dataflow service at `dataflow` until `stop` is set.

    directory: this trainer's own; it resumes from the checkpoints there. signing: the run's key, in a run that signs
    its versions. credential_folder: stores the credential that the token is exchanged for, for the next process of
    this trainer. Stopping takes at most `config.drain_s`.
    Raises: InvalidInput, NotAuthenticated, UnknownPolicy, ProtocolMismatch, Conflict.
    """
    bind(policy=config.policy)
    address, credential = await join_run(
        dataflow,
        token=token,
        tls=tls,
        ca_hash=ca_hash,
        role=Role.TRAINER,
        name=config.policy,
        credential_folder=credential_folder,
    )
    identity = CheckpointIdentity(policy=PolicyId(config.policy), model=config.model, backend=config.state_kind)
    checkpoints = Checkpoints(directory / "checkpoints", identity, keep=config.retention)
    mark = StepMark(checkpoints.folder, identity.policy, clock=SystemClock())
    select_gpus(config.backend)
    with (
        checkpoints.exclusive_lock(),
        mark.recording_fatal_errors(),
        launched_early(config.backend),
        BackendThread(f"trainer {config.policy}") as worker,
        BackendThread(f"checkpoints {config.policy}") as writer,
    ):
        driver = BackendDriver(
            lambda: backends.build(config.backend, config.model, config.algorithm, seed=config.seed),
            worker=worker,
            writer=writer,
            checkpoints=checkpoints,
            clock=SystemClock(),
        )
        training = asyncio.create_task(
            _train(
                config, driver, mark, checkpoints, dataflow=address, credential=credential, stop=stop, signing=signing
            )
        )
        await run_until(stop, training, drain=lambda: _finish(training, config.drain_s))
        if training.cancelled():
            worker.abandon()
            writer.abandon()
            log.warning("step_abandoned", drain_s=config.drain_s)
        else:
            training.result()
    log.info("trainer_stopped")


async def _finish(training: asyncio.Task[None], drain_s: float) -> None:
    await asyncio.wait({training}, timeout=drain_s)


async def _train(
    config: TrainerConfig,
    driver: BackendDriver,
    mark: StepMark,
    checkpoints: Checkpoints,
    *,
    dataflow: str,
    credential: HeldCredential,
    stop: asyncio.Event,
    signing: SigningKey | None,
) -> None:
    renewing = asyncio.create_task(credential.run(dataflow))
    policy = PolicyId(config.policy)
    reporting = asyncio.create_task(_report_waits(policy, dataflow, credential))
    scoring = asyncio.create_task(_follow_scores(config.keep_best, policy, checkpoints, dataflow, credential))
    try:
        await _run_loop(config, driver, mark, dataflow=dataflow, credential=credential, stop=stop, signing=signing)
    finally:
        renewing.cancel()
        reporting.cancel()
        scoring.cancel()
        await asyncio.gather(renewing, reporting, scoring, return_exceptions=True)


async def _report_waits(policy: PolicyId, dataflow: str, credential: HeldCredential) -> None:
    """Tells dataflow what this process has waited for longer than a moment, such as room on the disk, until cancelled:
    otherwise only the trainer's log says why training stands still."""
    clock, reported = SystemClock(), ""
    async with credential.dial(dataflow) as link:
        client = TrainerDataClient(link, policy)
        while True:
            await clock.sleep(WAIT_REPORT_S)
            problem = "; ".join(current_waits(now=clock.now(), min_s=WAIT_REPORT_S))
            if problem or reported:
                with suppress(*TRANSIENT):  # dataflow is what it waits for
                    await client.report_wait(problem)
                    reported = problem


async def _follow_scores(
    best: KeepBest | None, policy: PolicyId, checkpoints: Checkpoints, dataflow: str, credential: HeldCredential
) -> None:
    """Tells the checkpoints the scores of their versions, until cancelled."""
    if best is None:
        return
    clock, rounds = SystemClock(), dict[int, EvaluationReport]()
    async with credential.dial(dataflow) as link:
        client = ControlPlaneClient(link)
        while True:
            with suppress(*TRANSIENT):  # the next attempt reads what is missing
                await _read_rounds(client, FlowId(best.evaluation), rounds)
                scores, evaluated = scores_of(rounds.values(), policy, best.score)
                checkpoints.set_scores(scores, evaluated=evaluated)
            await clock.sleep(SCORES_S)


async def _read_rounds(client: ControlPlaneClient, flow: FlowId, rounds: dict[int, EvaluationReport]) -> None:
    """Adds the rounds of an evaluation that are new or have ended since, from the newest to the first known one."""
    before = None
    while page := await client.evaluations(flow=flow, before=before):
        ended = {number for number, report in rounds.items() if report.state is not EvaluationState.RUNNING}
        rounds.update({report.round: report for report in page})
        if any(report.round in ended for report in page):
            return
        before = page[-1].round


async def _run_loop(
    config: TrainerConfig,
    driver: BackendDriver,
    mark: StepMark,
    *,
    dataflow: str,
    credential: HeldCredential,
    stop: asyncio.Event,
    signing: SigningKey | None,
) -> None:
    policy, clock = PolicyId(config.policy), SystemClock()
    progress = await driver.start()
    async with credential.dial(dataflow) as data_link:
        batches = BatchStream(
            TrainerDataClient(data_link, policy),
            policy,
            backend=config.backend_kind,
            is_simulated=driver.is_simulated,
            limits=driver.row_limits,
            batching=driver.batching,
            pull_wait_s=config.pull_wait_s,
            clock=clock,
        )
        attachment = await batches.attach(progress)
        _check_key(signing, attachment)
        begin_run(attachment.run)
        if progress is not None:
            progress = progress.at_least(attachment.acknowledged_steps)
        else:
            progress = TrainingProgress(run=attachment.run, step=0, report=None)
            await driver.write_checkpoint(progress, await driver.capture())
        async with credential.dial(attachment.weights_address) as weights_link:
            client = WeightPlaneClient(weights_link)
            metadata = await publish_base(driver, client, policy, config=config.publish, signing=signing, clock=clock)
            async with Publisher(client, policy, config=config.publish, signing=signing) as publisher:
                system = SystemMonitor(clock=clock)
                loop = TrainerLoop(
                    policy=policy,
                    batches=batches,
                    driver=driver,
                    publisher=publisher,
                    probe_every=config.probe_every,
                    progress=progress,
                    mark=mark,
                    max_steps=config.max_steps,
                    clock=clock,
                    metadata=metadata,
                    system=system,
                )
                measuring = asyncio.create_task(system.run())
                try:
                    await loop.run(stop)
                finally:
                    measuring.cancel()
                    await asyncio.gather(measuring, return_exceptions=True)


def _check_key(signing: SigningKey | None, attachment: TrainerAttachment) -> None:
    """Checks that the run pins this key; nodes would reject all versions otherwise. Raises: InvalidInput."""
    own = b"" if signing is None else signing.public.raw
    if own != attachment.weights_key:
        has = "uses a different key" if own else "has no signing key"
        expected = "signs its versions" if attachment.weights_key else "does not sign its versions"
        raise InvalidInput(
            f"cannot train for run {attachment.run!r}: it {expected}, and this trainer {has}; give --signing-key the "
            "file `weights.key` of the run directory, or omit the option where there is none",
            code="trainer.signing_key_mismatch",
        )


_VERSION = Version(0)
"""Only version of a base."""


async def publish_base(
    driver: BackendDriver,
    client: WeightPlaneClient,
    policy: PolicyId,
    *,
    config: PublishConfig,
    signing: SigningKey | None,
    clock: Clock,
) -> Mapping[str, str]:
    """Publishes the base of a policy that trains adapters, unless the store has it; returns the metadata of versions.

    Returns nothing for a policy whose versions are whole models. The base is copied only to be published.
    Raises: Conflict when the store has another base for this policy; the errors of `Publisher.wait`.
    """
    base = driver.frozen_base
    if base is None:
        return {}
    name = adapter_base_of(policy)
    binding = AdapterBinding(base=name, base_version=_VERSION, base_root=base.root_hash, scale=base.scale)
    notices = await retry(lambda: client.versions(name), what=f"looking up {name}", clock=clock)
    stored = {notice.root_hash for notice in notices}
    if stored - {base.root_hash}:
        raise Conflict(
            f"cannot publish the base of {policy!r}: the weight store has other weights as {name!r}; use the model and "
            "weights_dtype that the run began with, or start a new run",
            code="trainer.other_base_published",
        )
    if stored:
        log.info("base_already_published", policy=name)
        return binding.metadata()
    async with Publisher(client, name, config=config, signing=signing, clock=clock) as publisher:
        staged = await publisher.begin_version(base.shapes)
        await driver.write_base(base, staged)
        await publisher.publish(_VERSION, staged)
    log.info("base_published", policy=name, bytes=sum(spec.size_bytes for spec in staged.specs))
    return binding.metadata()
