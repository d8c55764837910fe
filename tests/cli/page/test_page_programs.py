"""`astraflow ui`: serves the page of all runs, or gives a link to the one that runs."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from astraflow.cli.inspection.archive_viewer import LINK, WEB
from astraflow.cli.page import page_programs
from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.locks import exclusive_lock

SECOND_LINK = "http://127.0.0.1:1/login?token=second"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Arguments of the pages that were started, each of which writes its link as the page does."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    started: list[Sequence[str]] = []

    def serve(argv: Sequence[str], on_ready: Callable[[str], None]) -> int:
        started.append(argv)
        (tmp_path / WEB / LINK).write_text("http://127.0.0.1:1/login?token=first\n")
        on_ready("http://127.0.0.1:1")
        return 0

    def print_link(argv: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert list(argv[-2:]) == ["--directory", str(tmp_path / WEB)]
        return subprocess.CompletedProcess(argv, 0, stdout=f"{SECOND_LINK}\n")

    monkeypatch.setattr(page_programs, "serve_page", serve)
    monkeypatch.setattr(subprocess, "run", print_link)
    return started


def test_the_first_call_serves_the_page_from_a_private_folder_and_prints_its_link(
    served: list[Sequence[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert page_programs.open_page(port=1234, opens_browser=False) == 0
    assert list(served[0][-4:]) == ["--directory", str(tmp_path / WEB), "--port", "1234"]
    assert (tmp_path / WEB).stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().out.rstrip().endswith("http://127.0.0.1:1/login?token=first")


def test_a_second_call_prints_a_new_link_to_the_page_that_runs(
    served: list[Sequence[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / WEB).mkdir()
    refusal = AstraFlowError("the page runs", code="page.runs")
    with exclusive_lock(tmp_path / WEB / page_programs.PAGE_LOCK, refusal=refusal):
        assert page_programs.open_page(port=0, opens_browser=False) == 0
    assert not served
    assert capsys.readouterr().out.rstrip().endswith(SECOND_LINK)
