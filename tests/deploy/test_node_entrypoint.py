"""The container's entrypoint with a substitute for the `astraflow` program."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "deploy" / "node" / "entrypoint.sh"
TOKEN = "afj.canary-token"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """PATH with a program `astraflow` that prints its arguments, then sleeps if SLEEPS is set."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "astraflow"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n[ -z "${SLEEPS:-}" ] || exec sleep 600\n')
    program.chmod(0o755)
    return f"{tmp_path}/bin:{os.environ['PATH']}"


def run(path: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": path, **environment}
    return subprocess.run(
        [ENTRYPOINT, *arguments], env=variables, capture_output=True, text=True, check=False, timeout=30
    )


def test_the_address_and_the_token_come_from_the_environment(path: str) -> None:
    done = run(path, ASTRAFLOW_ADDRESS="10.0.0.5:20822", ASTRAFLOW_TOKEN=TOKEN)
    assert (done.returncode, done.stdout.split()) == (0, ["join", "10.0.0.5:20822"])
    assert TOKEN not in done.stdout + done.stderr


def test_the_token_file_is_passed_on_by_path(path: str, tmp_path: Path) -> None:
    secret = tmp_path / "token of the node"
    secret.write_text(TOKEN)
    done = run(path, "join", "host:1", "--pool", "eu", ASTRAFLOW_TOKEN_FILE=str(secret))
    assert done.stdout.splitlines() == ["join", "host:1", "--pool", "eu", "--token-file", str(secret)]


def test_arguments_are_passed_on_unchanged(path: str) -> None:
    hostile = ["join", "host:1", "--engine", "{ kind = 'scripted' }", "$(touch x); `id` \"'"]
    assert run(path, *hostile, ASTRAFLOW_TOKEN=TOKEN).stdout.splitlines() == hostile


def test_other_commands_need_no_token(path: str) -> None:
    assert run(path, "doctor").stdout.split() == ["doctor"]


def test_an_existing_token_is_replaced_only_when_missing_or_old(path: str, tmp_path: Path) -> None:
    """Nodes rejoin under their names only with their original token."""
    kept = tmp_path / "token"
    assert run(path, "token", "host:1", ASTRAFLOW_EXISTING_TOKEN_FILE=str(kept)).stdout.split() == ["token", "host:1"]
    kept.write_text(TOKEN)
    assert run(path, "token", "host:1", ASTRAFLOW_EXISTING_TOKEN_FILE=str(kept)).stdout == ""
    old = time.time() - 15 * 86_400
    os.utime(kept, (old, old))
    assert run(path, "token", "host:1", ASTRAFLOW_EXISTING_TOKEN_FILE=str(kept)).stdout.split() == ["token", "host:1"]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {}, "ASTRAFLOW_ADDRESS"),
        (("join", "host:1"), {}, "/run/secrets/astraflow-token"),
        (("join", "host:1"), {"ASTRAFLOW_TOKEN_FILE": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_missing_address_or_token_is_reported(
    path: str, arguments: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    done = run(path, *arguments, **environment)
    assert done.returncode == 64
    assert message in done.stderr
    assert done.stdout == ""


def test_a_node_ends_at_its_expiry(path: str) -> None:
    soon = run(path, "join", "h:1", ASTRAFLOW_TOKEN=TOKEN, SLEEPS="1", ASTRAFLOW_EXPIRES_AT=f"{time.time() + 2:.3f}")
    assert soon.returncode == 124
    late = run(path, "join", "h:1", ASTRAFLOW_TOKEN=TOKEN, ASTRAFLOW_EXPIRES_AT="1000000000.0")
    assert late.returncode == 124
    assert "has passed" in late.stderr


@pytest.mark.parametrize("expiry", [{}, {"ASTRAFLOW_EXPIRES_AT": "4000000000"}])
def test_signals_reach_the_node(path: str, expiry: dict[str, str]) -> None:
    variables = {"PATH": path, "ASTRAFLOW_TOKEN": TOKEN, "SLEEPS": "1", **expiry}
    with subprocess.Popen([ENTRYPOINT, "join", "h:1"], env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "join\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


@pytest.mark.needs("shellcheck")
def test_the_entrypoint_passes_shellcheck() -> None:
    done = subprocess.run(["shellcheck", ENTRYPOINT], capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout == ""
