"""The check of a trainer: AstraFlow's own and the examples pass it, and trainers that break a promise fail."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from astraflow.access.authority import Authority
from astraflow.cli.main import app
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.conformance import trainers as conformance
from astraflow.conformance.trainers import (
    ACKNOWLEDGES,
    BATCHES,
    FIRST_VERSION,
    PROMISES,
    PUBLISHES,
    SAME_LAYOUT,
    TrainerCheck,
    check_trainer,
)
from astraflow.contract.batches import StepReport
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.plugins import Outcome
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.stop_condition import StopConfig
from astraflow.models import models
from astraflow.runtime.folders.run_folders import RunFacts
from astraflow.trainer import service
from astraflow.trainer.config import TrainerConfig
from astraflow.trainer.session import TrainerSession
from astraflow.weights import service as weights_service
from astraflow.weights.config import WeightsConfig
from astraflow.weights.signing import SigningKey
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions
from tests import make
from tests.dataflow import running as dataflow
from tests.errors import raises_code
from tests.fakes.forking import ForkingProgram

POLICY, TOKEN = "policy", "a-token"
PATIENCE_S = 20.0
EXAMPLES = Path(__file__).parents[2] / "recipes" / "examples"

Trainer = Callable[[str], Awaitable[object]]


async def broken_promises(trainer: Trainer, *, limit_s: float = 60.0) -> dict[str, str]:
    """Runs the check on a trainer; returns promise -> detail of those that failed."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    check = TrainerCheck(policy=PolicyId(POLICY), token=TOKEN, limit_s=limit_s)
    checking = asyncio.create_task(check_trainer(check, on_ready=ready.set_result))
    training = asyncio.ensure_future(trainer(await ready))
    results = await checking
    await asyncio.wait({training}, timeout=PATIENCE_S)  # until it learns that the run is complete
    training.cancel()
    await asyncio.gather(training, return_exceptions=True)
    assert [result.promise for result in results] == list(PROMISES)
    return {result.promise: result.detail for result in results if result.outcome is not Outcome.PASSED}


async def in_thread(train: Callable[[TrainerSession], None], address: str) -> None:
    def run() -> None:
        with TrainerSession(address, token=TOKEN, policy=POLICY) as session:
            train(session)

    await asyncio.to_thread(run)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with a vocabulary that is larger than that of the batches."""
    source = models.build({"kind": "tiny", "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32})
    folder = tmp_path / "model"
    torch.manual_seed(0)
    source.architecture().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Writes a tokenizer that only has the tokens for padding and for the end, which TRL needs."""
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)


async def example(command: tuple[str, ...], script: str, *arguments: str, token: str = TOKEN) -> tuple[int | None, str]:
    """Runs an example to its end. command: of Python."""
    process = await asyncio.create_subprocess_exec(
        *(*command, str(EXAMPLES / script), *arguments),
        env={**os.environ, "ASTRAFLOW_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize(
    "script",
    ["plain_trainer.py", "transformers_trainer.py", "trl_trainer.py"],
)
async def test_third_party_trainers_pass_all_checks(
    script: str, model: Path, tmp_path: Path, rank_python: ForkingProgram
) -> None:
    if script == "trl_trainer.py":
        pytest.importorskip("trl")
    ended: list[tuple[int | None, str]] = []
    command = rank_python.command  # starts the process that forks, which imports torch, before time is measured

    async def run(address: str) -> None:
        ended.append(await example(command, script, address, str(model), str(tmp_path / "checkpoint")))

    assert await broken_promises(run, limit_s=100.0) == {}, ended
    assert [code for code, _ in ended] == [0], ended


@pytest.mark.long
@pytest.mark.anyio
async def test_a_third_party_trainer_trains_the_batches_of_a_run(
    model: Path, tmp_path: Path, rank_python: ForkingProgram
) -> None:
    """A real dataflow service and a real weight store; the test is the node."""
    run = dataflow.config(policies=(POLICY,), max_staleness=4, filters=("keep_all",), stop=StopConfig(steps=3))
    listen = ListenOptions(token=dataflow.TOKEN, drain_s=0.0)
    async with (
        weights_service.running(WeightsConfig(), listen=listen, directory=tmp_path / "weights") as weights_address,
        dataflow.running(tmp_path / "dataflow", run, weights_address=weights_address) as service_,
        dial(weights_address, token=dataflow.TOKEN) as link,
    ):
        node = (await service_.nodes.join(dataflow.facts())).node
        lease = await service_.nodes.lease(node, 12, wait_s=1.0)
        rows = [
            Episode(
                task=task.id,
                node=node,
                trajectories=(make.trajectory(policy=POLICY, reward=float(task.member % 2)),),
                duration_s=0.1,
            )
            for task in lease.tasks
        ]
        assert len(rows) == 12
        await service_.nodes.push(node, rows)
        code, output = await example(
            rank_python.command,
            "plain_trainer.py",
            service_.address,
            str(model),
            str(tmp_path / "checkpoint"),
            token=dataflow.TOKEN,
        )
        assert code == 0, output
        versions = await WeightPlaneClient(link).versions(PolicyId(POLICY))
        assert [notice.version for notice in versions] == [0, 1, 2, 3]
        (stream,) = (await service_.control.report()).streams
        assert stream.training.steps == 3


@pytest.mark.anyio
async def test_the_built_in_trainer_passes_all_checks(tmp_path: Path) -> None:
    config = TrainerConfig(
        policy=POLICY,
        model={"kind": "scripted"},
        backend={"kind": "scripted", "step_s": 0.0, "width": 16},
        pull_wait_s=1.0,
        drain_s=0.0,
    )

    async def run(address: str) -> None:
        await service.serve(config, dataflow=address, token=TOKEN, tls=None, directory=tmp_path, stop=asyncio.Event())

    assert await broken_promises(run) == {}


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_session_reads_address_token_and_keys_from_the_folder_of_a_run(tmp_path: Path, is_tls: bool) -> None:
    key = SigningKey.generate()
    Authority.create(tmp_path / "authority", run="r")
    facts = RunFacts(
        run="r", recipe="smoke", seed=0, started_at="", release="", commit="", python="", pid=1,
        dataflow="127.0.0.1:7", is_tls=is_tls,
    )  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(asdict(facts)))
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "weights.key").touch(mode=0o600)
    (tmp_path / "weights.key").write_text(key.text())

    session = TrainerSession.of_run(tmp_path, policy=POLICY)
    session._loop.close()

    assert (session._address, session._token, session._policy) == ("127.0.0.1:7", "secret", POLICY)
    assert session._signing is not None
    assert session._signing.public == key.public
    assert (session._tls is not None) is is_tls


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "run_folder.invalid"):
        TrainerSession.of_run(tmp_path, policy=POLICY)


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((4,), float(step))}


def test_a_session_that_cannot_begin_closes_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    async def connect(session: TrainerSession) -> None:
        session._stack.callback(closed.append, True)
        raise Unavailable("no dataflow", code="test.unavailable")

    monkeypatch.setattr(TrainerSession, "_connect", connect)
    session = TrainerSession("127.0.0.1:1", token=TOKEN, policy=POLICY)

    with raises_code(Unavailable, "test.unavailable"), session:
        pass

    assert closed == [True]
    assert not session._thread.is_alive()


@pytest.mark.anyio
async def test_a_trainer_without_a_first_version_fails() -> None:
    def train(session: TrainerSession) -> None:
        while (batch := session.pull()) is not None:
            session._call(session._batches.acknowledge(session._report(batch.id, {})))

    broken = await broken_promises(lambda address: in_thread(train, address), limit_s=5.0)
    assert {FIRST_VERSION, ACKNOWLEDGES, PUBLISHES} <= broken.keys()


@pytest.mark.anyio
async def test_a_trainer_whose_tensors_change_shape_fails() -> None:
    def train(session: TrainerSession) -> None:
        session.begin({"weight": torch.zeros(4)})
        while (batch := session.pull()) is not None:
            session.end_step(batch, {"weight": torch.zeros(4 + session.step)})

    assert (await broken_promises(lambda address: in_thread(train, address))).keys() == {SAME_LAYOUT}


@pytest.mark.anyio
async def test_a_trainer_that_repeats_a_batch_after_a_lost_acknowledgement_fails() -> None:
    async def give_up(session: TrainerSession, report: StepReport) -> None:
        try:
            await session._batches._client.report_step(report)
        except Unavailable:
            session.last_batch = ""

    def train(session: TrainerSession) -> None:
        session.begin(weights(0))
        while (batch := session.pull()) is not None:
            session.step += 1
            session._call(session._publish(weights(session.step)))
            session._call(give_up(session, session._report(batch.id, {})))

    broken = await broken_promises(lambda address: in_thread(train, address), limit_s=5.0)
    assert {ACKNOWLEDGES, conformance.REPEATS} <= broken.keys()


@pytest.mark.anyio
async def test_a_silent_trainer_fails_at_the_time_limit() -> None:
    broken = await broken_promises(lambda address: asyncio.sleep(1), limit_s=0.5)
    assert broken.keys() == set(PROMISES)
    assert f"0 of {BATCHES} batches" in broken[ACKNOWLEDGES]


@pytest.mark.anyio
async def test_a_session_continues_where_its_checkpoint_ended(tmp_path: Path) -> None:
    """The first session is lost after its checkpoint and before its acknowledgement, in the middle of the script."""

    def run(address: str) -> None:
        with TrainerSession(address, token=TOKEN, policy=POLICY) as session:
            session.begin(weights(0))
            batch = session.pull()
            assert batch is not None
            session.end_step(batch, weights(1))
            batch = session.pull()
            assert batch is not None
            saved = session.state_after(batch)
        with TrainerSession(address, token=TOKEN, policy=POLICY, **saved) as session:
            session.begin(weights(session.step))
            while (batch := session.pull()) is not None:
                version = session.end_step(batch, weights(session.step + 1))
            assert version == Version(BATCHES)

    assert await broken_promises(lambda address: asyncio.to_thread(run, address)) == {}


def test_the_command_reports_each_check_and_exits_with_1_if_one_fails() -> None:
    result = CliRunner().invoke(app, ["check", "trainer", "127.0.0.1:0", "--token", TOKEN, "--limit-s", "1"])
    assert result.exit_code == 1, result.output
    assert all(promise in result.output for promise in PROMISES)
    assert f"{len(PROMISES)} failed" in result.output


@pytest.mark.parametrize("address", ["7000", "host", ":7000"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    result = CliRunner().invoke(app, ["check", "trainer", address, "--token", TOKEN])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.code == "check.invalid_address"
