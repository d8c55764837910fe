"""`astraflow track` on the folder of an ended run."""

import json
from pathlib import Path

from typer.testing import CliRunner

from astraflow.archive.set_aside import SET_ASIDE_PATH, DamagedRecord, SetAsideFiles
from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput
from tests import make
from tests.fakes.recorded_run import SOLVER, fill, recorded_archive, run_folder
from tests.fakes.recorded_steps import step


def test_every_step_of_an_ended_run_is_exported_once(tmp_path: Path) -> None:
    folder, out = run_folder(tmp_path / "run"), tmp_path / "out"
    archive = recorded_archive(folder)
    fill(archive, reports=(make.report(make.stream_report(steps=2)),), steps=tuple(map(step, (1, 2, 3))))
    archive.close()
    arguments = ["track", "tensorboard", "--run-dir", str(folder), "--out", str(out)]

    first = CliRunner().invoke(app, arguments)
    again = CliRunner().invoke(app, arguments)

    assert first.exit_code == 0, first.output
    assert "exported 3 steps to" in first.output  # one more than the last report has, after a crash
    assert list((out / "tensorboard").rglob("events.out.tfevents.*"))
    assert json.loads((out / "tensorboard" / "reverse-0001.exported.json").read_text()) == {SOLVER: 3}
    assert "exported 0 steps to" in again.output


def filled(folder: Path) -> Path:
    files = SetAsideFiles(folder / SET_ASIDE_PATH)
    for number in (1, 2):
        record = DamagedRecord(what="group", key=f"train:{number}", problem="it is no JSON", body=b"{")
        files.store_records([record] * number, at=1000.0 + number)
    return folder


def test_the_files_are_listed_newest_first(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["set-aside", str(filled(tmp_path))])
    _, *rows = (line.split(maxsplit=4) for line in listed.output.splitlines())
    assert [(name, day, at, summary) for name, day, at, _, summary in rows] == [
        ("records-1002000", "1970-01-01", "00:16:42", "2 records: 2 group"),
        ("records-1001000", "1970-01-01", "00:16:41", "1 records: 1 group"),
    ]


def test_one_file_is_exported_as_json_lines(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--to", str(out), "--name", "records-1001000"]
    exported = CliRunner().invoke(app, ["set-aside", str(filled(tmp_path)), *options])
    assert exported.output == f"exported {out / 'records-1001000.jsonl'}\n"
    assert [path.name for path in out.iterdir()] == ["records-1001000.jsonl"]
    assert "train:1" in (out / "records-1001000.jsonl").read_text()


def test_an_unknown_name_and_a_run_without_such_data_are_answered(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["set-aside", str(tmp_path)]).output == "nothing was set aside\n"
    refused = CliRunner().invoke(app, ["set-aside", str(tmp_path), "--name", "other"])
    assert isinstance(refused.exception, InvalidInput)
    assert refused.exception.code == "set_aside.unknown"


def test_damaged_files_that_other_services_keep_are_listed(tmp_path: Path) -> None:
    (tmp_path / "weights/solver").mkdir(parents=True)
    (tmp_path / "weights/solver/0000000004.delta.damaged").write_bytes(b"12345")
    listed = CliRunner().invoke(app, ["set-aside", str(tmp_path), "--json"])
    (file,) = json.loads(listed.output)
    assert (file["name"], file["size_bytes"]) == ("weights/solver/0000000004.delta.damaged", 5)
