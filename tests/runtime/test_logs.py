import json
import sys

import pytest

from astraflow.runtime import logs


class FullDisk:
    """What standard error is when its file has no room."""

    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_line_is_json_when_nobody_looks_and_holds_what_was_bound(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logs.bind(role="node")
    logs.get_logger().info("lease_expired", task="train:0/1")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["role"], line["task"], line["level"]) == ("lease_expired", "node", "train:0/1", "info")


def test_secrets_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.get_logger().info("joined", run_token="hunter2")
    assert "hunter2" not in capsys.readouterr().err


def test_a_full_disk_costs_the_line_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    logs.get_logger().warning("disk_full")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_local_variables(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    logs.configure(as_json=as_json)
    secret = "hunter" + "2"
    try:
        raise ValueError(f"of length {len(secret)}")
    except ValueError:
        logs.get_logger().exception("handler_failed")
    said = capsys.readouterr().err
    assert "ValueError: of length 7" in said
    assert "hunter2" not in said
