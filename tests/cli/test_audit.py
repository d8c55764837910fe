"""`astraflow audit`, against what a page wrote."""

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
from astraflow.cli.rundir import RunDirectory
from astraflow.contract.errors import InvalidInput
from tests.fakes.clock import ManualClock
from web.audit.entries import Author, Deed, Trail
from web.db import Database, open_database

ALICE = Author(name="alice", role="operator", via="session", came_from="192.0.2.1")
BOB = Author(name="bob", role="admin", via="session", came_from="192.0.2.2")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Of a page that runs: it stays open."""
    opened = open_database(tmp_path / "run" / "web")
    trail = Trail(opened, clock=ManualClock(1_800_000_000.0))
    deeds = [Deed(action="node.drain", target=f"n{number}", reason="slow") for number in range(3)]
    for author, deed in zip((ALICE, BOB, ALICE), deeds, strict=True):
        opened.do_now(lambda session, author=author, deed=deed: trail.append(session, author, deed))  # type: ignore[misc] # defaults
    yield opened
    opened.close()


def tamper(database: Database, statement: str) -> None:
    def change(session: Session) -> None:
        for trigger in ("audit_entries_update", "audit_entries_delete"):
            session.execute(text(f"DROP TRIGGER {trigger}"))
        session.execute(text(statement))

    database.do_now(change)


class Said:
    """What a command and the process that it starts said."""

    def __init__(self, capfd: pytest.CaptureFixture[str], *arguments: str) -> None:
        capfd.readouterr()
        ran = CliRunner().invoke(app, ["audit", *arguments])
        self.code, self.problem = ran.exit_code, ran.exception
        self.out, self.err = capfd.readouterr()


def test_a_chain_that_is_whole_is_said_to_be_with_the_hash_to_write_down(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path / "run", tmp_path / "run" / "web"):
        said = Said(capfd, "verify", str(place))
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith("The chain is whole: 3 entries, from 1 to 3, ending in ")
        assert len(said.out.splitlines()[1].removeprefix("The newest hash: ")) == 64


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit_entries SET actor = 'carol' WHERE sequence = 2", "entry 2 was changed after it was written"),
        ("DELETE FROM audit_entries WHERE sequence = 2", "entry 2 is missing: after it comes 3"),
        ("UPDATE audit_chain SET seal = 'made up'", "the seal of the newest entry was not made with the secret"),
    ],
)
def test_the_first_entry_that_does_not_hold_is_told_and_the_code_is_1(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], statement: str, problem: str
) -> None:
    tamper(database, statement)
    said = Said(capfd, "verify", str(tmp_path / "run"))
    assert said.code == 1
    assert said.out.startswith(f"The chain is broken: {problem}")
    assert "before it hold" in said.err


def test_looking_changes_nothing(database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    database.close()
    files = sorted((tmp_path / "run" / "web").iterdir())
    before = [(file, file.read_bytes()) for file in files]
    assert Said(capfd, "verify", str(tmp_path / "run")).code == 0
    assert Said(capfd, "export", str(tmp_path / "run")).code == 0
    assert [(file, file.read_bytes()) for file in sorted((tmp_path / "run" / "web").iterdir())] == before


def test_the_run_that_is_active_here_is_the_one_that_is_meant(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing = Said(capfd, "verify")
    assert isinstance(nothing.problem, InvalidInput)
    assert "name a run's folder" in str(nothing.problem)
    with RunDirectory.opened(tmp_path / "run", name="smoke", seed=3, recipe="{}"):
        assert Said(capfd, "verify").out.startswith("The chain is whole: 3 entries")


def test_a_folder_without_an_audit_is_told_and_nothing_is_made_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = Said(capfd, "verify", str(tmp_path))
    assert isinstance(said.problem, InvalidInput)
    assert "has a web.sqlite" in str(said.problem)
    assert list(tmp_path.iterdir()) == []


def test_without_the_secret_nobody_can_say_whose_the_newest_entry_is(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "web" / "web.secret").unlink()
    said = Said(capfd, "verify", str(tmp_path / "run"))
    assert isinstance(said.problem, InvalidInput)
    assert "whether the newest entry is the page's own" in str(said.problem)


def test_what_is_exported_is_what_was_asked_for(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "run")
    lines = [json.loads(line) for line in Said(capfd, "export", place).out.splitlines()]
    assert [(line["sequence"], line["actor"]) for line in lines] == [(3, "alice"), (2, "bob"), (1, "alice")]
    only = Said(capfd, "export", place, "--actor", "bob", "--format", "csv", "--since", "2027-01-01")
    assert only.code == 0
    assert [row["target"] for row in csv.DictReader(io.StringIO(only.out))] == ["n1"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--result", "maybe"), "--result 'maybe' is not understood; as in: done, refused, failed"),
        (("--since", "yesterday"), "--since 'yesterday' is not understood; as in: 2026-11-21"),
        (("--format", "xml"), "invalid choice: 'xml'"),
    ],
)
def test_a_filter_that_is_not_understood_exports_nothing(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    said = Said(capfd, "export", str(tmp_path / "run"), *arguments)
    assert said.code == 2
    assert said.out == ""
    assert problem in said.err
