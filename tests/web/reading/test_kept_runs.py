"""A run that ended, on the pages: what it sampled and evaluated is read in its folder, and said to be a record."""

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
from tests.fakes.kept_run import archive_of, fill, run_folder
from tests.fakes.web import running_web

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"
PAGE = "/runs/1/trajectories"


@asynccontextmanager
async def ended(fake: FakeControlPlane, directory: Path, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at the page of a run that was recorded, and of which nothing is heard any more."""
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


def kept_folder(path: Path, *, text: str = "answer") -> Path:
    folder = run_folder(path)
    archive = archive_of(folder)
    fill(archive, text=text, rounds=(make.round_report(1), make.round_report(2)))
    archive.close()
    return folder


def links(page: str, pattern: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(f'href="({pattern})"', page)]


async def test_after_the_end_a_bar_leads_to_its_groups_and_they_to_conversations(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    folder = kept_folder(tmp_path / "run")
    async with ended(fake, tmp_path / "web", folder) as client:
        run = (await client.get("/runs/1")).text
        bar = next(one for one in links(run, r"/runs/1/trajectories\?[^\"]+") if "min_reward=0.0&max" in one)
        of_bin = (await client.get(bar)).text
        group = (await client.get(links(of_bin, r"/runs/1/groups/[^\"]+")[0])).text
        one = (await client.get(links(group, r"/runs/1/trajectories/\d+[^\"]*")[0])).text
        members = (await client.get("/api/v1/runs/1/groups/train:2")).json()["members"]
        spread = (await client.get("/runs/1/rewards.json")).json()
        about = (await client.get("/api/v1/runs/1")).json()

    recorded = "Recorded; the run ended at "
    assert all(recorded in page for page in (run, of_bin, group, one))
    assert set(re.findall(r'member-reward" data-tone="\w*" href="[^"]+">([^<]+)<', of_bin)) == {"0.00"}
    assert "answer 3.1" in of_bin
    assert "answer 3.0" not in of_bin
    assert "was trained on in step 3" in one
    assert [member["completion_text"] for member in members] == ["answer 2.0", "answer 2.1", ""]
    assert {member["node_name"] for member in members} == {"node-a"}, "as the last report calls the node n0"
    assert sum(row["trajectories"] for row in spread) == 6
    assert "folder" not in about


async def test_after_the_end_evaluations_are_there_and_paged(fake: FakeControlPlane, tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "run")
    async with ended(fake, tmp_path / "web", folder) as client:
        run = (await client.get("/runs/1")).text
        older = (await client.get("/runs/1?rounds_before=2")).text

    rows = r'<th scope="row">(\d+)</th>'
    assert re.findall(rows, run.partition('id="evaluations"')[2]) == ["2", "1"]
    assert re.findall(rows, older.partition('id="evaluations"')[2]) == ["1"]
    assert "Recorded; the run ended at" in run.partition('id="evaluations"')[2]


async def test_what_a_folder_holds_is_text_on_every_page(fake: FakeControlPlane, tmp_path: Path) -> None:
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


async def test_a_folder_that_is_torn_gone_or_anothers_says_so(fake: FakeControlPlane, tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "run")
    file = folder / "dataflow" / "history.sqlite"
    async with ended(fake, tmp_path / "web", folder) as client:
        file.write_bytes(file.read_bytes()[:5000])
        said = {"cannot read": await client.get(PAGE)}
        refused = (await client.get(f"{PAGE}/1")).status_code
        file.unlink()
        said["has no dataflow/history.sqlite"] = await client.get(PAGE)
        run_folder(folder, run="reverse-0002")
        said["holds another run now: reverse-0002"] = await client.get(PAGE)
        (folder / "run.json").unlink()
        said["run directory is gone"] = await client.get(PAGE)
        run = await client.get("/runs/1")

    for words, answer in said.items():
        assert answer.status_code == 200
        assert words in html.unescape(answer.text), words
        assert "There are no trajectories to look at" in answer.text
    assert refused == 502
    assert "There are no evaluations to look at" in run.text
    assert "No trajectory of this run can be looked at" in run.text
