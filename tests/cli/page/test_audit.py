"""`astraflow audit` on an audit log that a page wrote."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import Session
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.cli.run_directory import RunDirectory
from astraflow.contract.errors import InvalidInput
from tests.fakes.clock import ManualClock
from web.database.db import Database, open_database
from web.security.audit_log import AuditedCommand, AuditLog, Author

ALICE = Author(name="alice", role="operator", via="session", came_from="192.0.2.1")
BOB = Author(name="bob", role="admin", via="session", came_from="192.0.2.2")

pytestmark = pytest.mark.usefixtures("forked_programs")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Database of a running page, left open during the test."""
    opened = open_database(tmp_path / "run" / "web")
    audit_log = AuditLog(opened, clock=ManualClock(1_800_000_000.0))
    deeds = [AuditedCommand(action="node.drain", target=f"n{number}", reason="slow") for number in range(3)]
    for author, deed in zip((ALICE, BOB, ALICE), deeds, strict=True):
        opened.write_sync(lambda session, author=author, deed=deed: audit_log.append(session, author, deed))  # type: ignore[misc] # defaults
    yield opened
    opened.close()


def tamper(database: Database, statement: str) -> None:
    def change(session: Session) -> None:
        for trigger in ("audit_entries_update", "audit_entries_delete"):
            session.execute(text(f"DROP TRIGGER {trigger}"))
        session.execute(text(statement))

    database.write_sync(change)


class Said:
    """Output of a command and of the process that it starts."""

    def __init__(self, capfd: pytest.CaptureFixture[str], *arguments: str) -> None:
        capfd.readouterr()
        ran = CliRunner().invoke(app, ["audit", *arguments])
        self.code, self.problem = ran.exit_code, ran.exception
        self.out, self.err = capfd.readouterr()


@pytest.mark.long
def test_verifying_an_intact_chain_prints_its_newest_hash(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path / "run", tmp_path / "run" / "web"):
        result = Said(capfd, "verify", str(folder))
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("Chain intact: 3")
        assert "1 to 3" in result.out
        assert len(result.out.splitlines()[1].removeprefix("Newest hash: ")) == 64


@pytest.mark.long
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit_entries SET actor = 'carol' WHERE sequence = 2", "entry 2 was changed after it was written"),
        ("DELETE FROM audit_entries WHERE sequence = 2", "entry 2 is missing: the next one is 3"),
        ("UPDATE audit_chain SET seal = 'made up'", "the seal of the newest entry does not match the secret"),
    ],
)
def test_verifying_a_broken_chain_names_the_first_invalid_entry_and_exits_with_1(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], statement: str, problem: str
) -> None:
    tamper(database, statement)
    result = Said(capfd, "verify", str(tmp_path / "run"))
    assert result.code == 1
    assert result.out.startswith(f"Chain broken: {problem}")
    assert "valid before" in result.err


@pytest.mark.long
def test_verify_and_export_change_no_file(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    database.close()
    files = sorted((tmp_path / "run" / "web").iterdir())
    before = [(file, file.read_bytes()) for file in files]
    assert Said(capfd, "verify", str(tmp_path / "run")).code == 0
    assert Said(capfd, "export", str(tmp_path / "run")).code == 0
    assert [(file, file.read_bytes()) for file in sorted((tmp_path / "run" / "web").iterdir())] == before


def test_the_active_run_of_this_machine_is_the_default(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing = Said(capfd, "verify")
    assert isinstance(nothing.problem, InvalidInput)
    assert nothing.problem.code == "cli.no_active_run"
    with RunDirectory.opened(tmp_path / "run", name="smoke", seed=3, recipe="{}"):
        assert Said(capfd, "verify").out.startswith("Chain intact: 3")


def test_the_page_in_the_astraflow_home_is_the_default_without_an_active_run(
    tmp_path: Path, own_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    open_database(own_home / "web").close()
    (own_home / "web" / "login-link").write_text("http://127.0.0.1:9/login?token=used")
    assert CliRunner().invoke(app, ["login-link"]).exit_code == 0
    assert capfd.readouterr().out.startswith("http://127.0.0.1:9/login?token=")


def test_the_audit_log_of_a_run_is_found_by_its_name(
    database: Database, tmp_path: Path, own_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (own_home / "runs").mkdir()
    (own_home / "runs" / "evening").symlink_to(tmp_path / "run")
    assert Said(capfd, "verify", "evening").out.startswith("Chain intact: 3")


def test_a_folder_without_an_audit_log_is_refused_and_left_unchanged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = Said(capfd, "verify", str(tmp_path))
    assert isinstance(result.problem, InvalidInput)
    assert result.problem.code == "audit.not_found"
    assert list(tmp_path.iterdir()) == []


def test_without_the_secret_the_newest_entry_cannot_be_verified(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "web" / "web.secret").unlink()
    result = Said(capfd, "verify", str(tmp_path / "run"))
    assert isinstance(result.problem, InvalidInput)
    assert result.problem.code == "audit.unreadable_secret"


@pytest.mark.long
def test_an_export_contains_the_selected_entries(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_folder = str(tmp_path / "run")
    lines = [json.loads(line) for line in Said(capfd, "export", run_folder).out.splitlines()]
    assert [(line["sequence"], line["actor"]) for line in lines] == [(3, "alice"), (2, "bob"), (1, "alice")]
    only = Said(capfd, "export", run_folder, "--actor", "bob", "--format", "csv", "--since", "2027-01-01")
    assert only.code == 0
    assert [row["target"] for row in csv.DictReader(io.StringIO(only.out))] == ["n1"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--result", "maybe"), "--result 'maybe': invalid value; use for example done, refused, failed"),
        pytest.param(
            ("--since", "yesterday"),
            "--since 'yesterday': invalid value; use for example 2026-11-21",
            marks=pytest.mark.long,
        ),
        pytest.param(("--format", "xml"), "invalid choice: 'xml'", marks=pytest.mark.long),
    ],
)
def test_an_invalid_filter_exports_nothing(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    result = Said(capfd, "export", str(tmp_path / "run"), *arguments)
    assert result.code == 2
    assert result.out == ""
    assert problem in result.err
