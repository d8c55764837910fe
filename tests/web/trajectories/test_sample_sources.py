"""Pages of an ended run: samples and evaluations come from its folder, and the pages mark them as recorded."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.web import running_web
from tests.web.page_elements import parsed

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"
PAGE = "/runs/1/trajectories"


@asynccontextmanager
async def ended(fake: FakeControlPlane, directory: Path, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client of a page whose run was recorded and is no longer connected."""
    async with (
        fake.serving() as dataflow,
        running_web(directory, dataflow, run_dir=folder) as web,
        web.logged_in() as client,
    ):
        await web.until_live(client, sequence=150)
        for _ in range(3000):
            if (await client.get("/runs/1")).status_code == 200:
                break
            await asyncio.sleep(0.02)
        web.clock.push(60)
        yield client


RECORD_NOTE = "[data-part=record-note]"


def kept_folder(path: Path, *, text: str = "answer") -> Path:
    folder = run_folder(path)
    archive = recorded_archive(folder)
    fill(archive, text=text, rounds=(make.round_report(1), make.round_report(2)))
    archive.close()
    return folder


def links(page: str, pattern: str) -> list[str]:
    return [html.unescape(address) for address in re.findall(f'href="({pattern})"', page)]


@pytest.mark.long
async def test_recorded_trajectories_are_linked_from_the_histogram_of_an_ended_run(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    folder = kept_folder(tmp_path / "run")
    async with ended(fake, tmp_path / "web", folder) as client:
        run = (await client.get("/runs/1")).text
        bar = next(link for link in links(run, r"/runs/1/trajectories\?[^\"]+") if "min_reward=0.0&max" in link)
        of_bin = (await client.get(bar)).text
        group = (await client.get(links(of_bin, r"/runs/1/groups/[^\"]+")[0])).text
        trajectory_page = (await client.get(links(group, r"/runs/1/trajectories/\d+[^\"]*")[0])).text
        members = (await client.get("/api/v1/runs/1/groups/train:2")).json()["members"]
        spread = (await client.get("/runs/1/rewards.json")).json()
        about = (await client.get("/api/v1/runs/1")).json()

    assert all(parsed(page).has(RECORD_NOTE) for page in (run, of_bin, group, trajectory_page))
    assert {link.children[0] for link in parsed(of_bin).all("a.member-reward")} == {"0.00"}
    assert "answer 3.1" in of_bin
    assert "answer 3.0" not in of_bin
    assert parsed(trajectory_page).one("header.page-head").all("p")[0].numbers[-1] == 3, "the step that trained on it"
    assert [member["completion_text"] for member in members] == ["answer 2.0", "answer 2.1", ""]
    assert {member["node_name"] for member in members} == {"node-a"}, "as the last report calls the node n0"
    assert sum(row["trajectories"] for row in spread) == 6
    assert "folder" not in about


@pytest.mark.long
async def test_recorded_evaluations_of_an_ended_run_are_paged(fake: FakeControlPlane, tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "run")
    async with ended(fake, tmp_path / "web", folder) as client:
        run = (await client.get("/runs/1")).text
        older = (await client.get("/runs/1?rounds_before=2")).text

    rows = r'<th scope="row">(\d+)</th>'
    assert re.findall(rows, run.partition('id="evaluations"')[2]) == ["2", "1"]
    assert re.findall(rows, older.partition('id="evaluations"')[2]) == ["1"]
    assert parsed(run.partition('id="evaluations"')[2]).has(RECORD_NOTE)


@pytest.mark.long
async def test_texts_of_a_run_folder_are_escaped(fake: FakeControlPlane, tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "run", text=HOSTILE)
    async with ended(fake, tmp_path / "web", folder) as client:
        listed = (await client.get(PAGE)).text
        addresses = [
            links(listed, r"/runs/1/groups/[^\"]+")[0],
            links(listed, r"/runs/1/trajectories/\d+[^\"]*")[0],
        ]
        pages = [listed, *[(await client.get(address)).text for address in addresses]]

    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "{{7*7}}" in page


async def test_a_damaged_missing_or_reused_run_folder_has_an_error_code(fake: FakeControlPlane, tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "run")
    file = folder / "dataflow" / "history.sqlite"
    async with ended(fake, tmp_path / "web", folder) as client:
        file.write_bytes(file.read_bytes()[:5000])
        answers = {"archive.unreadable": await client.get(PAGE)}
        refused = (await client.get(f"{PAGE}/1")).status_code
        file.unlink()
        answers["samples.no_history"] = await client.get(PAGE)
        run_folder(folder, run="reverse-0002")
        answers["samples.run_dir_reused"] = await client.get(PAGE)
        (folder / "run.json").unlink()
        answers["samples.run_dir_unreadable"] = await client.get(PAGE)
        run = await client.get("/runs/1")

    for code, answer in answers.items():
        assert answer.status_code == 200
        assert parsed(answer).one(".empty[data-code]")["data-code"] == code
    assert refused == 502
    assert len(parsed(run).all(".empty[data-state=unavailable]")) == 2, "evaluations and trajectories"
