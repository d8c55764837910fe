"""What a log line looks like, and what never stands in one."""

import json

import pytest
import structlog

from astraflow.runtime.logs import bind, configure, get_logger


@pytest.fixture(autouse=True)
def as_before() -> object:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def test_nobody_looking_gets_json_with_what_was_bound(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    bind(policy="solver")
    get_logger().info("step", step=3)
    (line,) = lines(capsys)
    assert line["timestamp"]
    assert {key: line[key] for key in ("event", "level", "policy", "step")} == {
        "event": "step",
        "level": "info",
        "policy": "solver",
        "step": 3,
    }


@pytest.mark.parametrize("key", ["token", "run_token", "api_key", "Authorization", "db_password", "client_secret"])
def test_secrets_are_not_written(capsys: pytest.CaptureFixture[str], key: str) -> None:
    configure(as_json=True)
    get_logger().warning("dialling", **{key: "hunter2"})
    text = capsys.readouterr().err
    assert "hunter2" not in text
    assert "[redacted]" in text


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure(level="WARNING", as_json=True)
    get_logger().info("step")
    get_logger().error("disk_full")
    assert [line["event"] for line in lines(capsys)] == ["disk_full"]


def test_a_traceback_is_part_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure(as_json=True)
    try:
        raise ZeroDivisionError("a defect")
    except ZeroDivisionError as problem:
        get_logger().error("handler_failed", exc_info=problem)
    (line,) = lines(capsys)
    assert "ZeroDivisionError: a defect" in str(line["exception"])


def test_people_get_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure(as_json=False)
    get_logger().info("step", step=3)
    text = capsys.readouterr().err
    assert "step" in text
    assert not text.startswith("{")
