"""The whole trainer role: a real data plane, a real weight store, real checkpoints."""

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import Batch
from astraflow.contract.errors import InvalidInput, NotAuthenticated, UnknownPolicy
from astraflow.contract.ids import PolicyId
from astraflow.contract.weight_reports import VersionReport
from astraflow.contract.weights import VersionNotice
from astraflow.trainer import service
from astraflow.trainer.backends.scripted import ScriptedBackend
from astraflow.trainer.config import TrainerConfig
from astraflow.weights.config import WeightsConfig
from astraflow.weights.publish.publisher import PublishConfig
from astraflow.weights.service import running
from astraflow.weights.signing import SigningKey
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions, serving
from tests import make
from tests.errors import raises_code
from tests.fakes.trainer_dataflow import FakeTrainerData

TOKEN = "t"

PATIENCE_S = 30.0


def config(
    *, policy: str = "solver", max_steps: int | None = None, drain_s: float = 1.0, **options: Any
) -> TrainerConfig:
    return TrainerConfig(
        policy=policy,
        model={"kind": "scripted"},
        backend={"kind": "scripted", "step_s": 0.0, "width": 16, **options},
        pull_wait_s=5.0,
        max_steps=max_steps,
        drain_s=drain_s,
        publish=PublishConfig(is_shared=False),  # the test inspects the transferred bytes
    )


@dataclass(kw_only=True)
class Surroundings:
    """Environment of a trainer: dataflow, the weight store, and its directory."""

    data: FakeTrainerData
    address: str
    weights_address: str
    directory: Path

    async def train(
        self,
        trainer: TrainerConfig,
        stop: asyncio.Event | None = None,
        *,
        token: str = TOKEN,
        signing: SigningKey | None = None,
    ) -> None:
        await service.serve(
            trainer,
            dataflow=self.address,
            token=token,
            tls=None,
            directory=self.directory,
            stop=stop or asyncio.Event(),
            signing=signing,
        )

    async def versions(self) -> list[int]:
        return [int(notice.version) for notice in await self.notices()]

    async def notices(self) -> Sequence[VersionNotice]:
        async with dial(self.weights_address, token=TOKEN) as link:
            return await WeightPlaneClient(link).versions(PolicyId("solver"))


@asynccontextmanager
async def surroundings(folder: Path, *, batches: int) -> AsyncIterator[Surroundings]:
    listen = ListenOptions(token=TOKEN, drain_s=0.0)
    async with running(WeightsConfig(), listen=listen, directory=folder / "weights") as weights_address:
        data = FakeTrainerData(
            [make.batch(step, version=step - 1, born=step - 1) for step in range(1, batches + 1)],
            weights_address=weights_address,
        )
        async with serving(listen, data.register) as address:
            yield Surroundings(
                data=data, address=address, weights_address=weights_address, directory=folder / "trainer"
            )


@pytest.mark.long
@pytest.mark.anyio
async def test_the_trainer_publishes_and_acknowledges_until_max_steps(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=5) as around:
        await around.train(config(max_steps=4))
        assert list(around.data.reports) == [f"solver:{step}" for step in range(1, 5)]
        assert await around.versions() == [0, 1, 2, 3, 4]
        (attached,) = around.data.attached
        assert (attached.policy, attached.version, attached.backend, attached.is_simulated) == (
            "solver",
            0,
            "scripted",
            True,
        )
        sent = [report.metrics["published_sent_bytes"] for report in around.data.reports.values()]
        assert sent[0] == around.data.reports["solver:1"].metrics["published_full_bytes"]
        assert max(sent[1:]) < sent[0] / 5


@pytest.mark.long
@pytest.mark.anyio
async def test_step_reports_have_the_changed_share_of_the_weights(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=4) as around:
        await around.train(config(max_steps=4))
        version_reports = [VersionReport.from_metrics(report.metrics) for report in around.data.reports.values()]
        counted = {notice.version: notice.changed_elements for notice in await around.notices()}
        assert [version and version.changed_share for version in version_reports[:1]] == [
            None
        ]  # nothing to compare with
        for version in version_reports[1:]:
            assert version is not None and version.changed_share is not None
            assert version.changed_elements == counted[version.version] > 0
            assert 0 < version.changed_share < 1
            assert version.elements * 2 == version.full_bytes


@pytest.mark.anyio
async def test_published_versions_are_signed_with_the_pinned_key(tmp_path: Path) -> None:
    signing = SigningKey.generate()
    async with surroundings(tmp_path, batches=2) as around:
        around.data.weights_key = signing.public.raw
        await around.train(config(max_steps=1), signing=signing)
        async with dial(around.weights_address, token=TOKEN) as link:
            signing.public.check((await WeightPlaneClient(link).plan(PolicyId("solver"), have=None)).manifest)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("own", "run_signs", "match"),
    [
        (None, True, "signs its versions, and this trainer has no signing key"),
        (SigningKey.generate(), True, "signs its versions, and this trainer uses a different key"),
        (SigningKey.generate(), False, "run 'run': it does not sign its versions"),
    ],
)
async def test_a_trainer_with_a_wrong_signing_key_fails_before_training(
    tmp_path: Path, own: SigningKey | None, run_signs: bool, match: str
) -> None:
    async with surroundings(tmp_path, batches=1) as around:
        around.data.weights_key = SigningKey.generate().public.raw if run_signs else b""
        with raises_code(InvalidInput, "trainer.signing_key_mismatch", match):
            await around.train(config(), signing=own)
        assert await around.versions() == []


@pytest.mark.long
@pytest.mark.anyio
async def test_a_second_process_resumes_at_the_checkpoint_of_the_first(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=4) as around:
        await around.train(config(max_steps=2))
        await around.train(config(max_steps=4))
        assert [report.version for report in around.data.reports.values()] == [1, 2, 3, 4]
        assert await around.versions() == [0, 1, 2, 3, 4]
        assert [request.version for request in around.data.attached] == [0, 2]


@pytest.mark.anyio
async def test_stopping_during_a_pull_is_immediate(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=2) as around:
        stop = asyncio.Event()
        training = asyncio.create_task(around.train(config(), stop))
        await around.data.until_reported(2)
        stop.set()
        async with asyncio.timeout(PATIENCE_S):  # a third batch never comes
            await training
        assert await around.versions() == [0, 1, 2]


@contextmanager
def held_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[asyncio.Event, threading.Event]]:
    """Holds steps until they are released, at the latest at the end of the block: (a step began, release it)."""
    begun, released = asyncio.Event(), threading.Event()
    loop, step = asyncio.get_running_loop(), ScriptedBackend.step

    def exclusive_lock(backend: ScriptedBackend, batch: Batch) -> Mapping[str, float]:
        loop.call_soon_threadsafe(begun.set)
        released.wait()
        return step(backend, batch)

    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "step", exclusive_lock)
        try:
            yield begun, released
        finally:
            released.set()


@pytest.mark.anyio
async def test_stopping_completes_and_acknowledges_a_short_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surroundings(tmp_path, batches=9) as around:
        stop = asyncio.Event()
        with held_step(monkeypatch) as (begun, released):
            training = asyncio.create_task(around.train(config(drain_s=PATIENCE_S), stop))
            await begun.wait()
            stop.set()
            released.set()
            await training
        assert list(around.data.reports) == [batch.id for batch in around.data.served[:1]]
        assert await around.versions() == [0, 1]


@pytest.mark.long
@pytest.mark.anyio
async def test_stopping_abandons_a_long_step_and_its_batch_is_trained_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surroundings(tmp_path, batches=2) as around:
        stop = asyncio.Event()
        with held_step(monkeypatch) as (begun, _):
            training = asyncio.create_task(around.train(config(), stop))
            await begun.wait()
            stop.set()
            async with asyncio.timeout(PATIENCE_S):
                await training  # while the step still runs
        assert around.data.reports == {}
        await around.train(config(max_steps=2))
        assert [report.version for report in around.data.reports.values()] == [1, 2]
        assert await around.versions() == [0, 1, 2]


@pytest.mark.anyio
async def test_the_trainer_can_be_stopped_before_dataflow_is_reachable(tmp_path: Path) -> None:
    stop = asyncio.Event()
    around = Surroundings(
        data=FakeTrainerData([]), address="127.0.0.1:1", weights_address="", directory=tmp_path / "trainer"
    )
    training = asyncio.create_task(around.train(config(), stop))
    await asyncio.sleep(0.2)
    assert not training.done()
    stop.set()
    async with asyncio.timeout(PATIENCE_S):
        await training
    assert around.data.reports == {}


@pytest.mark.anyio
async def test_invalid_trainer_input_is_refused(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=1) as around:
        with raises_code(NotAuthenticated, "token.invalid"):
            await around.train(config(), token="wrong")
        with raises_code(UnknownPolicy, "unknown_policy", "judge"):
            around.directory = tmp_path / "judge"
            await around.train(config(policy="judge"))
        with raises_code(InvalidInput, "plugin.unknown_kind", "'scripted'"):
            await around.train(config().model_copy(update={"backend": {"kind": "skripted"}}))


@pytest.mark.anyio
async def test_a_directory_of_another_model_is_refused(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=2) as around:
        await around.train(config(max_steps=1))
        with pytest.raises(InvalidInput) as caught:
            await around.train(config().model_copy(update={"model": {"kind": "scripted", "style": "other"}}))
        assert caught.value.code == "checkpoint.identity_mismatch"


PROGRAM = """
import sys
from pathlib import Path
from astraflow.runtime.service import run_process
from astraflow.trainer import service
from astraflow.trainer.config import TrainerConfig

trainer = TrainerConfig.model_validate_json(sys.argv[1])
sys.exit(run_process(lambda stop: service.serve(
    trainer, dataflow=sys.argv[2], token="t", tls=None, directory=Path(sys.argv[3]), stop=stop
)))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.anyio
async def test_kill_9_at_any_moment_trains_each_batch_once(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=40) as around:
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            config(step_s=0.02, max_steps=40).model_dump_json(),
            around.address,
            str(around.directory),
        ]
        for kill in range(1, 6):
            trainer = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
            await around.data.until_reported(6 * kill)
            await asyncio.sleep(random.uniform(0, 0.05))
            trainer.kill()
            await trainer.wait()
        trainer = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
        assert await trainer.wait() == 0
        assert [report.version for report in around.data.reports.values()] == list(range(1, 41))
        assert list(around.data.reports) == [batch.id for batch in around.data.batches]
        assert (await around.versions())[-32:] == list(range(9, 41))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.anyio
async def test_a_process_without_torch_serves_the_scripted_backend(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=1) as around:
        program = PROGRAM.replace("sys.exit(", "code = (") + "\nassert 'torch' not in sys.modules\nsys.exit(code)"
        trainer = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            config(max_steps=1).model_dump_json(),
            around.address,
            str(around.directory),
        )
        assert await trainer.wait() == 0
