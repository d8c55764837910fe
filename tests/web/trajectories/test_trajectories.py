"""Pages from the reward distribution down to one conversation: every step has an address."""

import asyncio
import html
import json
import math
import re
from dataclasses import replace

import httpx
import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from web.components.formats import duration
from web.trajectories.conversations import conversation

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"
PAGE = "/runs/1/trajectories"


async def recorded(web: RunningWeb, client: httpx.AsyncClient) -> None:
    """Waits until the run is recorded and known to be the one that the process follows."""
    await web.until_live(client, sequence=150)
    for _ in range(200):
        if (await client.get(PAGE)).status_code == 200:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the run was not recorded")


async def test_bars_link_to_groups_groups_to_members_and_members_to_conversations(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        page = (await client.get("/runs/1")).text
        wrong = next(bar for bar in bars(page) if "min_reward=0.0&max_reward=0.0" in bar)
        of_bin = (await client.get(wrong)).text
        group = (await client.get(link_to(of_bin, r"/runs/1/groups/[^\"]+"))).text
        trajectory_page = (await client.get(link_to(of_bin, r"/runs/1/trajectories/\d+[^\"]*"))).text

    assert rewards(of_bin) == {"0.00"}
    assert parsed(of_bin).one("a.bar[aria-current=true]")["title"].startswith("0:"), "the shown bar is marked"
    assert len(parsed(group).all("a.member-reward")) == 8
    assert parsed(group).one("a[download]")["href"].startswith("/api/v1/runs/1/groups/train%3A")
    trajectory = parsed(trajectory_page)
    assert trajectory.one("a[rel=next]")["data-key"] == "j"
    assert trajectory.one(".facts.roomy").facts()["Staleness"].startswith("0 versions")
    assert trajectory.one("nav.crumbs").links()[:2] == ["/runs", "/runs/1"]


async def test_links_of_problems_lead_to_the_trajectories_of_the_live_run_with_their_filter(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        answer = await client.get("/trajectories?outcome=informative", follow_redirects=True)
    assert (answer.status_code, answer.url.path, answer.url.query) == (200, PAGE, b"outcome=informative")


async def test_escape_leads_from_a_filtered_trajectory_to_its_list_and_from_a_group_member_to_the_group(
    web: RunningWeb,
) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        listed = (await client.get(f"{PAGE}?max_reward=0.5")).text
        filtered = parsed((await client.get(link_to(listed, r"/runs/1/trajectories/\d+[^\"]*"))).text)
        group_page = (await client.get(link_to(listed, r"/runs/1/groups/[^\"]+"))).text
        member = parsed((await client.get(parsed(group_page).all("a.member-reward")[0]["href"])).text)

    assert filtered.one("[data-key=Escape]")["href"] == f"{PAGE}?max_reward=0.5"
    assert parsed(group_page).one("[data-key=Escape]")["href"].startswith(f"{PAGE}?policy=solver&max_reward=0.5")
    assert member.one("[data-key=Escape]")["href"].startswith("/runs/1/groups/train%3A")


@pytest.mark.long
async def test_older_and_newer_stay_within_the_filter(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        listed = (await client.get(f"{PAGE}?max_reward=0&ending=whole")).text
        first = (await client.get(link_to(listed, r"/runs/1/trajectories/\d+[^\"]*"))).text
        older = (await client.get(link(first, "next"))).text
        back = (await client.get(link(older, "prev"))).text

    assert "0.00</span></h1>" in older
    assert heading(back) == heading(first) != heading(older)


@pytest.mark.long
async def test_turns_have_their_tokens_and_versions_also_across_a_weight_update(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.synthetic_run.tool = "the tool says: afdb\n"
    async with web.logged_in() as client:
        await recorded(web, client)
        members = (await client.get("/api/v1/runs/1/groups/train:42")).json()["members"]
        page = (await client.get(f"{PAGE}/{members[5]['ordinal']}")).text

    turns = parsed(page).all(".turn")
    heads = [turn.one(".turn-head").one("span").text for turn in turns]
    version = members[5]["spans"][1]["version"]
    assert ["data-model" in turn for turn in turns] == [False, True, False, True]
    assert heads[1] == f"8 tokens · v{version}"
    assert heads[3] == f"5 tokens · v{version}, v{version + 1}"
    assert turns[3].texts(".piece-head") == [f"v{version}, 3 tokens", f"v{version + 1}, 2 tokens"]
    assert turns[2].one("pre").text == fake.synthetic_run.tool.strip()


@pytest.mark.parametrize(
    ("span_s", "durations"),
    [
        ((0.0, 1.5, 20.0, 0.04), ["", duration(1.5), duration(20.0), duration(0.04)]),
        ((), ["", "", "", ""]),
        ((1.0, 2.0), ["", "", "", ""]),
        ((math.nan, math.inf, -1.0, 3.0), ["", "", "", duration(3.0)]),
    ],
)
def test_each_turn_has_its_duration_where_it_is_known(span_s: tuple[float, ...], durations: list[str]) -> None:
    synthetic_run = SyntheticRun(tool="the tool says: afdb\n")
    sample = next(sample for sample in synthetic_run.samples(150) if len(sample.spans) == 4)
    assert [turn.duration for turn in conversation(replace(sample, span_s=span_s), {}).turns] == durations


@pytest.mark.long
async def test_a_conversation_shows_the_duration_of_its_turns(web: RunningWeb, fake: FakeControlPlane) -> None:
    samples = fake.synthetic_run.samples
    fake.synthetic_run.samples = lambda sequence: [  # type: ignore[method-assign]
        replace(sample, span_s=tuple(2.5 for _ in sample.spans)) for sample in samples(sequence)
    ]
    async with web.logged_in() as client:
        await recorded(web, client)
        (member, *_) = (await client.get("/api/v1/runs/1/groups/train:42")).json()["members"]
        page = (await client.get(f"{PAGE}/{member['ordinal']}")).text

    assert member["span_s"] == [2.5] * len(member["spans"])
    turns = parsed(page).all(".turn")
    durations = [turn.one(".turn-head").text.rpartition(" · ")[2] for turn in turns]
    assert durations == [duration(2.5).replace("\u202f", " ")] * len(turns)


@pytest.mark.long
async def test_texts_of_a_run_stay_text_on_every_page(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.synthetic_run.prompt = fake.synthetic_run.tool = HOSTILE
    async with web.logged_in() as client:
        await recorded(web, client)
        listed = (await client.get(PAGE)).text
        pages = [
            listed,
            (await client.get(link_to(listed, r"/runs/1/groups/[^\"]+"))).text,
            (await client.get(link_to(listed, r"/runs/1/trajectories/\d+[^\"]*"))).text,
        ]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "{{7*7}}" in page


async def test_without_samples_the_pages_show_the_setting_that_adds_them(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.synthetic_run.samples = lambda sequence: []  # type: ignore[method-assign]
    async with web.logged_in() as client:
        await recorded(web, client)
        for path in ("/runs/1", PAGE):
            empty = parsed(await client.get(path)).one("#samples").one(".empty")
            assert empty.commands() == [["astraflow", "run", "reverse", "--set", "nodes.text_share=1"]]
        assert (await client.get(f"{PAGE}/1")).status_code == 404
        assert (await client.get("/runs/1/groups/train:1")).status_code == 404


@pytest.mark.long
async def test_samples_of_a_disconnected_run_without_a_directory_are_unavailable(
    web: RunningWeb,
) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        web.clock.push(60)
        listed = await client.get(PAGE)
        page = await client.get(f"{PAGE}/1")
        answer = await client.get("/api/v1/runs/1/trajectories")

    code = "samples.run_dir_unknown"
    assert parsed(listed).one("#samples").one(".empty")["data-code"] == code
    assert page.status_code == answer.status_code == 503
    assert (parsed(page).one("main")["data-code"], answer.json()["code"]) == (code, code)


@pytest.mark.long
async def test_the_files_of_the_histogram_and_of_a_group_have_the_shown_values(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        rows = json.loads((await client.get("/runs/1/rewards.json?step=109")).text)
        lines = (await client.get("/runs/1/rewards.csv?step=109")).text.splitlines()
        group = await client.get("/api/v1/runs/1/groups/train:42?policy=solver")

    assert sum(row["trajectories"] for row in rows) == 8
    assert lines[0] == "from,to_before,trajectories,groups"
    assert len(lines) == len(rows) + 1
    assert group.headers["content-disposition"].startswith("attachment")
    members = group.json()["members"]
    assert len(members) == 8
    assert members[0]["node_name"] == "node-a"
    assert (members[0]["step"], "109" in members[0]["why"]) == (109, True)


async def test_trajectories_are_filtered_by_step_and_paged_by_whole_groups(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        of_step = (await client.get("/runs/1/trajectories?step=109")).text
        first = (await client.get("/runs/1/trajectories")).text
        older = re.search(r'href="(/runs/1/trajectories\?[^"]*before=\d+)', first)
        assert older is not None
        second = (await client.get(older[1].replace("&amp;", "&"))).text

    assert groups(of_step) == ["train:42"]
    pages = [groups(page) for page in (first, second)]
    assert not set(pages[0]) & set(pages[1])
    assert all(len(re.findall("member-reward", page)) % 8 == 0 for page in (first, second))


@pytest.mark.long
async def test_trajectories_are_paged_both_ways(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        first = (await client.get("/runs/1/trajectories")).text
        second = (await client.get(link(first, "next"))).text
        third = (await client.get(link(second, "next"))).text
        back = (await client.get(link(third, "prev"))).text

    assert 'rel="prev"' not in first
    assert groups(back) == groups(second) != groups(first)
    assert not set(groups(third)) & set(groups(second))


@pytest.mark.long
async def test_trajectories_are_filtered_and_the_filter_stays_in_links_and_fields(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        right = (await client.get(f"{PAGE}?min_reward=1&max_reward=1&text=AFDB&ending=whole&outcome=trained")).text
        second = (await client.get(link(right, "next"))).text
        none = (await client.get("/runs/1/trajectories?text=nowhere")).text
        odd = await client.get(f"{PAGE}?min_reward=nan&step=-1&before=99999999999999999999&ending=x&policy=unknown")

    for page in (right, second):
        assert rewards(page) == {"1.00"}
        form = parsed(page).one("form.filters")
        assert (form.fields()["min_reward"], form.fields()["text"]) == ("1.0", "AFDB")
        assert "selected" in form.one("option[value=whole]").attributes
    assert parsed(none).one("#samples").has(".empty")
    assert not groups(none)
    assert odd.status_code == 200
    assert groups(odd.text)


async def test_failed_members_are_marked_in_their_group_and_filtered_by_ending(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.synthetic_run.failing_member = 3
    async with web.logged_in() as client:
        await recorded(web, client)
        of_step = (await client.get(f"{PAGE}?step=109")).text
        of_group = (await client.get("/runs/1/groups/train:42")).text
        failed = (await client.get(f"{PAGE}?ending=failed&step=109")).text

    assert groups(of_group) == groups(of_step) == ["train:42"]
    assert "1 failed" in parsed(of_step).one(".group-score").text
    member = next(row for row in parsed(of_group).rows() if "failed at engine" in row[1])
    assert member[1].endswith("out of memory")
    assert "turns 2" in of_group
    assert len(parsed(failed).all("a.member-reward")) == 1


def bars(page: str) -> list[str]:
    return [html.unescape(address) for address in re.findall(r'class="bar" href="([^"]+)"', page)]


def heading(page: str) -> str:
    return page.partition("<title>")[2].partition("</title>")[0]


def rewards(page: str) -> set[str]:
    """Returns the rewards of the listed members."""
    return {link.text.partition(":")[0] for link in parsed(page).all("a.member-reward")}


def groups(page: str) -> list[str]:
    return re.findall(r'aria-label="Group (train:\d+)"', page)


def link(page: str, relation: str) -> str:
    match = re.search(rf'rel="{relation}"[^>]* href="([^"#]+)', page)
    assert match is not None, f"no link to the {relation} page"
    return html.unescape(match[1])


def link_to(page: str, pattern: str) -> str:
    """Returns the first link of a page that matches the pattern."""
    match = re.search(rf'href="({pattern})"', page)
    assert match is not None, f"no link like {pattern}"
    return html.unescape(match[1])
