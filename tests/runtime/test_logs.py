import json
import sys

import pytest

from astraflow.runtime import logs


class FullDisk:
    """Standard error whose file has no space left."""

    def __init__(self) -> None:
        self.refused = 0
        """Writes."""

    def write(self, _text: str) -> int:
        self.refused += 1
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_without_a_terminal_log_lines_are_json_with_bound_values(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logs.bind(role="node")
    logs.get_logger().info("lease_expired", task="train:0/1")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["role"], line["task"], line["level"]) == ("lease_expired", "node", "train:0/1", "info")


def test_secrets_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.get_logger().info("joined", run_token="hunter2")
    assert "hunter2" not in capsys.readouterr().err


def test_a_full_disk_loses_only_the_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullDisk()
    monkeypatch.setattr(sys, "stderr", full)
    logs.get_logger().warning("disk_full")
    assert full.refused > 0, "the stream received the line"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_local_variables(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    logs.configure(as_json=as_json)
    secret = "hunter" + "2"
    try:
        raise ValueError(f"{len(secret)}")
    except ValueError:
        logs.get_logger().exception("handler_failed")
    output = capsys.readouterr().err
    assert "ValueError: 7" in output
    assert "hunter2" not in output
