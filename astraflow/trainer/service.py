"""The trainer role: builds its parts, trains until told to stop."""

import asyncio
from pathlib import Path

from astraflow.access.callers import Role
from astraflow.client.badge import Badge, badge_for
from astraflow.client.data_plane import TrainerDataClient
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import TrainerWelcome
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.logs import bind, get_logger
from astraflow.runtime.service import run_until
from astraflow.runtime.tracing import begin_run
from astraflow.trainer.backends import backends
from astraflow.trainer.checkpoint import Checkpoints, Identity, Progress
from astraflow.trainer.config import TrainerConfig
from astraflow.trainer.feed import Feed
from astraflow.trainer.learner import Learner
from astraflow.trainer.loop import TrainerLoop
from astraflow.trainer.worker import Worker
from astraflow.weights.publisher import Publisher
from astraflow.weights.signing import SigningKey
from astraflow.wire.channel import ClientTls

log = get_logger()


async def serve(
    config: TrainerConfig,
    *,
    dataflow: str,
    token: str,
    tls: ClientTls | None,
    directory: Path,
    stop: asyncio.Event,
    ca_hash: str = "",
    keep: Path | None = None,
    signing: SigningKey | None = None,
) -> None:
    """Train `config.policy` from the batches of the dataflow service at `dataflow` until `stop` is set.

    directory: this trainer's own; it resumes from the checkpoints there. signing: the run's key, in a run that signs
    its versions. keep: folder for the credential that the token is exchanged for, for the next process of this
    trainer. Stopping takes at most `config.drain_s`.
    Raises: InvalidInput, NotAuthenticated, UnknownPolicy, ProtocolMismatch, Conflict, CorruptData, saying what to do.
    """
    bind(policy=config.policy)
    address, badge = await badge_for(
        dataflow, token=token, tls=tls, ca_hash=ca_hash, role=Role.TRAINER, name=config.policy, keep=keep
    )
    identity = Identity(policy=PolicyId(config.policy), model=config.model, backend=config.backend_kind)
    checkpoints = Checkpoints(directory / "checkpoints", identity, keep=config.keep_checkpoints)
    with checkpoints.held(), Worker(f"trainer {config.policy}") as worker:
        learner = Learner(
            lambda: backends.build(config.backend, config.model, config.algorithm, seed=config.seed),
            worker=worker,
            checkpoints=checkpoints,
            clock=SystemClock(),
        )
        training = asyncio.create_task(
            _train(config, learner, dataflow=address, badge=badge, stop=stop, signing=signing)
        )
        await run_until(stop, training, drain=lambda: _finish(training, config.drain_s))
        if training.cancelled():
            worker.abandon()
            log.warning("step_abandoned", drain_s=config.drain_s)
        else:
            training.result()
    log.info("trainer_stopped")


async def _finish(training: asyncio.Task[None], drain_s: float) -> None:
    await asyncio.wait({training}, timeout=drain_s)


async def _train(
    config: TrainerConfig,
    learner: Learner,
    *,
    dataflow: str,
    badge: Badge,
    stop: asyncio.Event,
    signing: SigningKey | None,
) -> None:
    renewing = asyncio.create_task(badge.run(dataflow))
    try:
        await _learn(config, learner, dataflow=dataflow, badge=badge, stop=stop, signing=signing)
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def _learn(
    config: TrainerConfig,
    learner: Learner,
    *,
    dataflow: str,
    badge: Badge,
    stop: asyncio.Event,
    signing: SigningKey | None,
) -> None:
    policy, clock = PolicyId(config.policy), SystemClock()
    progress = await learner.start()
    async with badge.dial(dataflow) as data_link:
        feed = Feed(
            TrainerDataClient(data_link, policy),
            policy,
            backend=config.backend_kind,
            is_simulated=learner.is_simulated,
            pull_wait_s=config.pull_wait_s,
            clock=clock,
        )
        welcome = await feed.attach(progress)
        _check_key(signing, welcome)
        begin_run(welcome.run)
        if progress is None:
            progress = Progress(run=welcome.run, step=0, report=None)
            await learner.keep(progress)
        async with (
            badge.dial(welcome.weights_address) as weights_link,
            Publisher(WeightPlaneClient(weights_link), policy, config=config.publish, signing=signing) as publisher,
        ):
            loop = TrainerLoop(
                policy=policy,
                feed=feed,
                learner=learner,
                publisher=publisher,
                probe_every=config.probe_every,
                progress=progress,
                max_steps=config.max_steps,
                clock=clock,
            )
            await loop.run(stop)


def _check_key(signing: SigningKey | None, welcome: TrainerWelcome) -> None:
    """Nobody would take versions that are not signed with the key that the run pins: say so before the first step."""
    own = b"" if signing is None else signing.public.raw
    if own != welcome.weights_key:
        has = "this trainer signs with another one" if own else "this trainer has none"
        wanted = "signs its versions with a key" if welcome.weights_key else "does not sign its versions"
        raise InvalidInput(
            f"run {welcome.run!r} {wanted}, and {has}: give --signing-key the file `weights.key` of the run directory, "
            "or leave it out where there is none"
        )
