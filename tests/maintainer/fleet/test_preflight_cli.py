"""Preflight check of each pool's provider from the command line, before a run."""

import re
from pathlib import Path

import pytest

from maintainer.fleet.preflight import TO_DO
from maintainer.fleet.preflight_cli import main
from maintainer.fleet.providers.base import AuthError, InvalidError
from tests.fakes.ec2_server import CREDENTIALS, serving_ec2

HERE = "providers.here = { kind = 'local_process', types = { small = 2.0 } }\n"


EU, US = "pools.eu = { provider = 'here' }\n", "pools.us = { provider = 'here', type = 'enormous' }\n"
CHECK = re.compile(r"(?P<provider>\w+): (?P<kind>\w+)(?: for pool (?P<pool>\w+))?: (?P<answer>yes|no): (?P<message>.+)")


def run_preflight(tmp_path: Path, text: str) -> int:
    (tmp_path / "fleet.toml").write_text(text)
    return main([str(tmp_path / "fleet.toml")])


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[list[tuple[str, str, str | None, str]], list[str]]:
    """Returns provider, kind, pool and answer of each printed check, and the messages."""
    matches = [CHECK.fullmatch(line) for line in capsys.readouterr().out.splitlines()]
    checks = [match.groupdict() for match in matches if match is not None]
    assert len(checks) == len(matches)
    return (
        [(check["provider"], check["kind"], check["pool"], check["answer"]) for check in checks],
        [check["message"] for check in checks],
    )


def test_a_pool_whose_launch_is_accepted_is_printed_with_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_preflight(tmp_path, HERE + EU) == 0
    checks, messages = printed(capsys)
    assert checks == [
        ("here", "list", None, "yes"),
        ("here", "launch", "eu", "yes"),
        ("here", "price", "eu", "yes"),
    ]
    assert messages[2].startswith("2.00 USD")


def test_one_refused_launch_fails_the_whole_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_preflight(tmp_path, HERE + EU + US) == 1
    checks, messages = printed(capsys)
    assert checks[1] == ("here", "launch", "eu", "yes")
    assert checks[3] == ("here", "launch", "us", "no")
    assert messages[3].startswith("InvalidError: ")
    assert "'enormous'" in messages[3]
    assert messages[3].endswith(TO_DO[InvalidError])


def test_a_provider_without_pools_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = "providers.there = { kind = 'local_process', program = ['/no/such'] }\n"
    assert run_preflight(tmp_path, HERE + there) == 1
    checks, messages = printed(capsys)
    assert checks[1] == ("here", "launch", None, "yes")
    assert checks[4] == ("there", "launch", None, "no")
    assert "/no/such" in messages[4]


def test_an_invalid_configuration_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown_kind = "providers.here = { kind = 'local_proces' }\n"
    assert run_preflight(tmp_path, unknown_kind) != 0
    assert "local_process" in capsys.readouterr().err


def test_ec2_is_checked_by_a_dry_run_that_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    with serving_ec2() as server:
        options = f"regions = ['eu-west-1'], types = {{ 't3.micro' = 1.0 }}, endpoint_url = '{server.url}'"
        boot = "boot = { program = ['/bin/astraflow'] }, machine = { image_id = 'ami-12c6146b' }"
        pool = "pools.spot = { provider = 'aws', is_spot = true }"
        text = f"providers.aws = {{ kind = 'ec2', {options}, {boot} }}\n{pool}\n"
        assert run_preflight(tmp_path, text) == 0
        checks, messages = printed(capsys)
        assert checks[1] == ("aws", "launch", "spot", "yes")
        assert "t3.micro" in messages[1]
        assert server.client("eu-west-1").describe_instances()["Reservations"] == []
        refused = text.replace(server.url, server.failing("UnauthorizedOperation", 403))
        assert run_preflight(tmp_path, refused) == 1
        checks, messages = printed(capsys)
        assert checks[1] == ("aws", "launch", "spot", "no")
        assert messages[1].startswith("AuthError: ")
        assert "UnauthorizedOperation" in messages[1]
        assert messages[1].endswith(TO_DO[AuthError])
