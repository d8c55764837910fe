"""`astraflow track` on the folder of an ended run."""

import json
from pathlib import Path

from typer.testing import CliRunner

from astraflow.cli.main import app
from tests import make
from tests.fakes.recorded_run import SOLVER, fill, recorded_archive, run_folder


def test_an_ended_run_is_exported_past_unreadable_reports_and_each_step_once(tmp_path: Path) -> None:
    folder, out = run_folder(tmp_path / "run"), tmp_path / "out"
    archive = recorded_archive(folder)
    fill(
        archive,
        reports=tuple(
            make.report(make.stream_report(steps=step, rewards=(0.1 * step,)), sequence=step) for step in (1, 2, 3)
        ),
    )
    archive.put("update seconds set body = ? where sequence = ?", b"no frame", 2)
    archive.close()
    arguments = ["track", "tensorboard", "--run-dir", str(folder), "--out", str(out)]

    first = CliRunner().invoke(app, arguments)
    again = CliRunner().invoke(app, arguments)

    assert first.exit_code == 0, first.output
    assert "skipped a report:" in first.output
    assert "exported 2 steps to" in first.output
    assert list((out / "tensorboard").rglob("events.out.tfevents.*"))
    assert json.loads((out / "tensorboard" / "reverse-0001.exported.json").read_text()) == {SOLVER: 3}
    assert "exported 0 steps to" in again.output
