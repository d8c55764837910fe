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
    assert capsys.readouterr().out.startswith("eu: yes: 2.00 USD an hour")


def test_one_pool_that_would_not_be_served_is_enough_for_a_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = "pools.eu = { provider = 'here' }\npools.us = { provider = 'here', type = 'enormous' }\n"
    assert asked(tmp_path, HERE + pools) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("eu: yes")
    assert said[1].startswith("us: no: Invalid: no machine type is called 'enormous'")


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
        assert "spot: yes: EC2 in eu-west-1 would start a t3.micro;" in capsys.readouterr().out
        assert server.client("eu-west-1").describe_instances()["Reservations"] == []
        refused = text.replace(server.url, server.failing("UnauthorizedOperation", 403))
        assert asked(tmp_path, refused) == 1
        assert "spot: no: Auth: EC2 in eu-west-1 says UnauthorizedOperation" in capsys.readouterr().out
