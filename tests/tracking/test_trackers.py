"""Every tracker, through its own library: the metrics of steps can be read back from its files."""

import asyncio
import json
import multiprocessing
import os
import sqlite3
import struct
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import wandb
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.tracking import trackers
from astraflow.tracking.base import TrackedRun
from astraflow.tracking.exporter import Exporter
from astraflow.tracking.trace_writers import trace_writer
from astraflow.tracking.traces import trace_of
from tests.errors import raises_code
from tests.fakes.recorded_steps import Steps
from tests.tracking.test_traces import sample

SOLVER = PolicyId("solver")
Points = dict[int, float]
"""Step -> value."""


def read_tensorboard(folder: Path, metric: str) -> Points:
    events = EventAccumulator(str(folder / "astraflow" / "run-1"))
    events.Reload()
    return {event.step: event.tensor_proto.float_val[0] for event in events.Tensors(metric)}


def read_mlflow(folder: Path, metric: str) -> Points:
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("astraflow")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    return {point.step: point.value for point in client.get_metric_history(run.info.run_id, metric)}


def read_trackio(folder: Path, metric: str) -> Points:
    with closing(sqlite3.connect(folder / "astraflow.db")) as database:
        rows = [(step, json.loads(body)) for step, body in database.execute("select step, metrics from metrics")]
    return {step: metrics[metric] for step, metrics in rows if metric in metrics}


def read_wandb(folder: Path, metric: str) -> Points:
    points: Points = {}
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # its stubs lack it
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
                if metric in values:
                    points[values["solver/step"]] = values[metric]
    return points


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Yields the records of an offline file: LevelDB's log format after a header of 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(data):
        if (left := -position % 32768) and left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last fragment
            yield record
            record = b""


READERS: dict[str, Callable[[Path, str], Points]] = {
    "mlflow": read_mlflow,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
}


TRACE_TARGETS = {"mlflow": "mlflow:sqlite:///{}/mlflow.db", "trackio": "trackio:{}"}


def traced(kind: str, folder: Path) -> list[str]:
    """Returns the texts of traces in the library of others."""
    if kind == "mlflow":
        client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("astraflow")
        assert experiment is not None
        return [
            str([(span.name, span.inputs, span.outputs) for span in trace.data.spans])
            for trace in client.search_traces(locations=[experiment.experiment_id])
        ]
    with closing(sqlite3.connect(folder / "astraflow.db")) as database:
        return [str(row) for row in database.execute("select * from traces")]


def export(kind: str, folder: Path, *, steps: int) -> int:
    """Exports a run with this many steps, and a trace, from another folder; returns the number of exported steps."""
    os.chdir(folder / "elsewhere")
    if kind in TRACE_TARGETS and steps == 2:
        with trace_writer(TRACE_TARGETS[kind].format(folder), run="run-1") as write:
            write(trace_of(sample()))
    tracker = trackers.build({"kind": kind}, TrackedRun(name="run-1", folder=folder, id="run-1"))
    exporter = Exporter(tracker, folder / "exported.json")
    asyncio.run(exporter.export(Steps(steps), {SOLVER: steps}))
    tracker.close()
    wandb.teardown()  # ends its service, as the end of the program would: a second run of the same id lost its record
    return exporter.steps


@pytest.mark.filterwarnings("ignore:.*noload.*:sqlalchemy.exc.SADeprecationWarning")  # MLflow's own queries
@pytest.mark.parametrize("kind", sorted(READERS))
def test_metrics_are_read_back_and_a_restart_continues_the_record(kind: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as own_process:
        # Trackio reads its folder when it is imported, and tests of TRL, which imports it, may have run in this one.
        assert own_process.submit(export, kind, tmp_path, steps=2).result() == 2
        assert own_process.submit(export, kind, tmp_path, steps=3).result() == 1
    assert READERS[kind](tmp_path, "solver/loss") == {1: 0.25, 2: 0.5, 3: 0.75}
    assert READERS[kind](tmp_path, "solver/reward_rollouts") == {1: 0.125, 2: 0.25, 3: 0.375}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    if kind in TRACE_TARGETS:
        (text,) = traced(kind, tmp_path)
        assert "It is 3." in text
    if kind == "trackio":
        assert READERS[kind](tmp_path, "solver/at") == {number: 1000.0 + number for number in (1, 2, 3)}


def test_every_tracker_is_tested() -> None:
    assert trackers.kinds() == sorted(READERS)


def test_trackio_that_writes_to_another_folder_is_refused(tmp_path: Path) -> None:
    import trackio  # noqa: F401  # as an import of TRL does

    with pytest.raises(RuntimeError, match="from a process of its own"):
        trackers.build({"kind": "trackio"}, TrackedRun(name="run-1", folder=tmp_path, id="run-1"))


def test_an_unreadable_record_of_exported_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exported.json").write_text('{"solver": "two"}')
    tracker = trackers.build({"kind": "tensorboard"}, TrackedRun(name="run-1", folder=tmp_path, id="run-1"))
    with raises_code(CorruptData, "tracking.unreadable_progress"):
        Exporter(tracker, tmp_path / "exported.json")
    tracker.close()


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        trackers.build({"kind": "mlflow", "url": "http://x"}, TrackedRun(name="run-1", folder=tmp_path, id="run-1"))


@pytest.mark.parametrize("kind", sorted(trackers.built_in_kinds()))
def test_a_tracker_without_its_library_names_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError(name=kind)

    monkeypatch.setattr("astraflow.runtime.plugins.import_module", missing)
    monkeypatch.setattr(trackers, "_registered", {})
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert kind in extras
    with raises_code(InvalidInput, "package.missing", f"astraflow[{kind}]"):
        trackers.check({"kind": kind})
