"""Options of the page's process."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.access.authority import Authority
from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput

EXTRAS = {
    "fleet": ["serve", "fleet", "fleet.toml", "--dataflow", "h:1"],
    "maintainer": ["maintainer", "replay", "transcript.jsonl"],
    "web": ["serve", "web"],
}

BEYOND = "192.0.2.7"
"""Documentation address (RFC 5737); no service listens on it."""

Serve = Callable[..., dict[str, str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Runs `astraflow serve web` without the final exec; returns the options of the process that it would become."""

    def served(*words: str) -> dict[str, str]:
        became: list[list[str]] = []
        monkeypatch.setattr(os, "execve", lambda _, command, __: became.append(command))
        done = CliRunner().invoke(app, ["serve", "web", *words])
        assert done.exit_code == 0, done
        ((_, _, program, *arguments),) = became
        assert program == "web"
        return {word: arguments[index + 1] for index, word in enumerate(arguments[:-1]) if word.startswith("--")}

    return served


@pytest.mark.long
def test_the_page_stores_its_data_in_the_astraflow_home_by_default(
    serve: Serve, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert serve()["--directory"] == str(own_home / "web")
    assert not list(tmp_path.iterdir())
    assert serve("--directory", str(tmp_path / "page"))["--directory"] == str(tmp_path / "page")


def test_the_page_gets_a_certificate_of_the_runs_authority_beyond_loopback(serve: Serve, tmp_path: Path) -> None:
    folder = str(Authority.create(tmp_path / "authority", run="evening").folder)
    web_options = serve("--host", BEYOND, "--authority", folder, "--directory", str(tmp_path / "page"))
    assert web_options["--tls-certificate"] == web_options["--tls-key"] == str(tmp_path / "page" / "page.pem")
    assert Path(web_options["--tls-key"]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "certificate"),
    [
        (("--host", "127.0.0.1"), None),
        (("--host", BEYOND, "--behind-proxy", "https://page.example.org"), None),
        (("--host", BEYOND, "--tls-certificate", "own.pem", "--tls-key", "own.key"), "own.pem"),
    ],
)
def test_no_certificate_is_issued_on_loopback_behind_a_proxy_or_beside_a_given_one(
    serve: Serve, tmp_path: Path, words: tuple[str, ...], certificate: str | None
) -> None:
    folder = str(Authority.create(tmp_path / "authority", run="evening").folder)
    assert serve("--authority", folder, *words).get("--tls-certificate") == certificate


def test_no_certificate_is_issued_without_an_authority(serve: Serve) -> None:
    assert "--tls-certificate" not in serve("--host", BEYOND)


@pytest.mark.long
def test_a_remote_page_gets_the_pin_and_the_credential_folder(serve: Serve, tmp_path: Path) -> None:
    pin = f"sha256:{'0' * 64}"
    (tmp_path / "pin").write_text(f"{pin}\n")
    for ca_hash in (pin, str(tmp_path / "pin")):
        web_options = serve(
            "--dataflow", "192.0.2.7:7002", "--ca-hash", ca_hash, "--credential-folder", str(tmp_path / "kept")
        )
        assert (web_options["--ca-hash"], web_options["--credential-folder"]) == (pin, str(tmp_path / "kept"))
    assert "--ca-hash" not in serve("--dataflow", "127.0.0.1:7001")


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_service_without_its_packages_names_its_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("fastapi", "sqlmodel"):
        monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, EXTRAS[extra])
    assert isinstance(done.exception, InvalidInput)
    assert (done.exception.code, f"'astraflow[{extra}]'" in str(done.exception)) == ("package.missing", True)
