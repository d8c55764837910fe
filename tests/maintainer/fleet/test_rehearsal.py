"""Before a run, each pool's provider is asked whether it would start a machine."""

from pathlib import Path

import pytest

from maintainer.fleet.rehearsal import main
from tests.fakes.ec2_server import CREDENTIALS, serving_ec2

HERE = "providers.here = { kind = 'local_process', types = { small = 2.0 } }\n"


def asked(tmp_path: Path, text: str) -> int:
    (tmp_path / "fleet.toml").write_text(text)
    return main([str(tmp_path / "fleet.toml")])


def test_a_pool_that_would_be_served_is_told_with_its_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, f"{HERE}pools.eu = {{ provider = 'here' }}\n") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "here: list: yes: 0 machines with the tag astraflow"
    assert said[1].startswith("here: launch for pool eu: yes: this machine would start")
    assert said[2].startswith("here: price for pool eu: yes: 2.00 USD an hour")


def test_one_pool_that_would_not_be_served_is_enough_for_a_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = "pools.eu = { provider = 'here' }\npools.us = { provider = 'here', type = 'enormous' }\n"
    assert asked(tmp_path, HERE + pools) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("here: launch for pool eu: yes")
    assert said[3].startswith("here: launch for pool us: no: Invalid: no machine type is called 'enormous'")
    assert "the pool's spec" in said[3]


def test_a_provider_that_no_pool_uses_is_asked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, f"{HERE}providers.there = {{ kind = 'local_process', program = ['/no/such'] }}\n") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("here: launch: yes")
    assert said[4].startswith("there: launch: no: Invalid: /no/such cannot be started here")


def test_a_wrong_configuration_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, "providers.here = { kind = 'local_proces' }\n") != 0
    assert "local_process" in capsys.readouterr().err


def test_ec2_is_asked_by_a_dry_run_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    with serving_ec2() as server:
        options = f"regions = ['eu-west-1'], types = {{ 't3.micro' = 1.0 }}, endpoint_url = '{server.url}'"
        boot = "boot = { program = ['/bin/astraflow'] }, machine = { image_id = 'ami-12c6146b' }"
        pool = "pools.spot = { provider = 'aws', is_spot = true }"
        text = f"providers.aws = {{ kind = 'ec2', {options}, {boot} }}\n{pool}\n"
        assert asked(tmp_path, text) == 0
        assert "aws: launch for pool spot: yes: EC2 in eu-west-1 would start a t3.micro\n" in capsys.readouterr().out
        assert server.client("eu-west-1").describe_instances()["Reservations"] == []
        refused = text.replace(server.url, server.failing("UnauthorizedOperation", 403))
        assert asked(tmp_path, refused) == 1
        said = capsys.readouterr().out
        assert "aws: launch for pool spot: no: Auth: EC2 in eu-west-1 says UnauthorizedOperation" in said
        assert "credentials that may do this" in said
