"""From how rewards are spread down to one conversation: every step has its address."""

import asyncio
import html
import json
import math
import re
from dataclasses import replace

import httpx
import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb
from tests.fakes.world import World
from web.present.conversations import conversation
from web.present.formats import duration

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"
PAGE = "/runs/1/trajectories"


async def recorded(web: RunningWeb, client: httpx.AsyncClient) -> None:
    """Wait until the run has a record."""
    await web.until_live(client, sequence=150)
    for _ in range(200):
        if (await client.get("/runs/1")).status_code == 200:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the run was not recorded")


async def test_a_bar_leads_to_its_groups_a_group_to_its_members_and_each_to_its_conversation(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        page = (await client.get("/runs/1")).text
        wrong = next(bar for bar in bars(page) if "min_reward=0.0&max_reward=0.0" in bar)
        of_bin = (await client.get(wrong)).text
        group = (await client.get(link_to(of_bin, r"/runs/1/groups/[^\"]+"))).text
        one = (await client.get(link_to(of_bin, r"/runs/1/trajectories/\d+[^\"]*"))).text

    assert set(re.findall(r'member-reward" data-tone="\w*" href="[^"]+">([^<]+)<', of_bin)) == {"0.00"}
    assert re.search(r'aria-current="true" title="0:', of_bin), "the bar that is shown is marked"
    assert len(re.findall(r"row-link member-reward", group)) == 8
    assert 'download href="/api/v1/runs/1/groups/train%3A' in group
    assert 'rel="next" data-key="j"' in one
    assert "was trained on in step" in one
    assert re.search(r"<dt>Staleness</dt><dd><bdi>0 versions</bdi>", one)
    trail = re.search(r'<nav class="crumbs".*?</nav>', one, re.DOTALL)
    assert trail is not None
    assert re.findall(r'href="([^"]+)"', trail[0])[:3] == ["/runs", "/runs/1", PAGE]


async def test_older_and_newer_go_on_within_the_filter(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        listed = (await client.get(f"{PAGE}?max_reward=0&ending=whole")).text
        first = (await client.get(link_to(listed, r"/runs/1/trajectories/\d+[^\"]*"))).text
        older = (await client.get(link(first, "next"))).text
        back = (await client.get(link(older, "prev"))).text

    assert "0.00</span></h1>" in older
    assert heading(back) == heading(first) != heading(older)


async def test_a_conversation_has_turns_with_their_tokens_and_versions_also_across_a_refresh(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.world.tool = "the tool says: afdb\n"
    async with web.logged_in() as client:
        await recorded(web, client)
        members = (await client.get("/api/v1/runs/1/groups/train:42")).json()["members"]
        one = (await client.get(f"{PAGE}/{members[5]['ordinal']}")).text

    heads = re.findall(r'class="turn-head"><strong>([^<]+)</strong> <span class="muted">([^<]+)<', one)
    version = members[5]["spans"][1]["version"]
    assert [who for who, _ in heads] == ["Prompt", "The policy wrote", "The policy read", "The policy wrote"]
    assert heads[1][1] == f"8 tokens · v{version}"
    assert heads[3][1] == f"5 tokens · v{version}, v{version + 1}"
    assert re.findall(r'piece-head muted">([^<]+)<', one) == [f"v{version}, 3 tokens", f"v{version + 1}, 2 tokens"]
    assert "the tool says: afdb" in one


@pytest.mark.parametrize(
    ("span_s", "told"),
    [
        ((0.0, 1.5, 20.0, 0.04), ["", duration(1.5), duration(20.0), duration(0.04)]),
        ((), ["", "", "", ""]),
        ((1.0, 2.0), ["", "", "", ""]),
        ((math.nan, math.inf, -1.0, 3.0), ["", "", "", duration(3.0)]),
    ],
)
def test_each_turn_tells_what_it_took_where_that_is_known(span_s: tuple[float, ...], told: list[str]) -> None:
    world = World(tool="the tool says: afdb\n")
    sample = next(one for one in world.samples(150) if len(one.spans) == 4)
    assert [turn.took for turn in conversation(replace(sample, span_s=span_s), {}).turns] == told


async def test_a_conversation_shows_what_its_turns_took(web: RunningWeb, fake: FakeControlPlane) -> None:
    samples = fake.world.samples
    fake.world.samples = lambda sequence: [  # type: ignore[method-assign]
        replace(one, span_s=tuple(2.5 for _ in one.spans)) for one in samples(sequence)
    ]
    async with web.logged_in() as client:
        await recorded(web, client)
        (member, *_) = (await client.get("/api/v1/runs/1/groups/train:42")).json()["members"]
        one = (await client.get(f"{PAGE}/{member['ordinal']}")).text

    assert member["span_s"] == [2.5] * len(member["spans"])
    assert re.findall(r'class="turn-head">.*?· ([^·<]+)</span>', one) == [duration(2.5)] * 2


async def test_what_a_run_says_is_text_on_every_page(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.prompt = fake.world.tool = HOSTILE
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


async def test_without_samples_it_says_how_to_have_more(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.samples = lambda sequence: []  # type: ignore[method-assign]
    async with web.logged_in() as client:
        await recorded(web, client)
        for path in ("/runs/1", PAGE):
            page = (await client.get(path)).text
            assert "No trajectory was sampled yet" in page
            assert "astraflow run reverse --set nodes.text_share=1" in page
        assert (await client.get(f"{PAGE}/1")).status_code == 404
        assert (await client.get("/runs/1/groups/train:1")).status_code == 404


async def test_a_run_that_is_away_without_a_known_folder_says_where_its_trajectories_are(
    web: RunningWeb,
) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        web.clock.push(60)
        listed = await client.get(PAGE)
        one = await client.get(f"{PAGE}/1")
        answer = await client.get("/api/v1/runs/1/trajectories")

    assert "There are no trajectories to look at" in listed.text
    assert "`astraflow view RUN_DIR`" in html.unescape(listed.text)
    assert one.status_code == answer.status_code == 503
    assert "is not connected" in html.unescape(one.text)
    assert "is not connected" in answer.json()["detail"]


async def test_the_spread_and_a_group_are_taken_away_as_they_are_shown(web: RunningWeb) -> None:
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
    assert members[0]["why"] == "Its group was trained on in step 109."


async def test_trajectories_are_filtered_by_step_and_paged_without_tearing_a_group(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        of_step = (await client.get("/runs/1/trajectories?step=109")).text
        first = (await client.get("/runs/1/trajectories")).text
        older = re.search(r'href="(/runs/1/trajectories\?[^"]*before=\d+)', first)
        assert older is not None
        second = (await client.get(older[1].replace("&amp;", "&"))).text

    assert re.findall(r'aria-label="Group (train:\d+)"', of_step) == ["train:42"]
    pages = [re.findall(r'aria-label="Group (train:\d+)"', page) for page in (first, second)]
    assert not set(pages[0]) & set(pages[1])
    assert all(len(re.findall("member-reward", page)) % 8 == 0 for page in (first, second))


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


async def test_trajectories_are_filtered_and_the_filter_stays_in_links_and_fields(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        right = (await client.get(f"{PAGE}?min_reward=1&max_reward=1&text=AFDB&ending=whole&fate=trained")).text
        second = (await client.get(link(right, "next"))).text
        none = (await client.get("/runs/1/trajectories?text=nowhere")).text
        odd = await client.get(f"{PAGE}?min_reward=nan&step=-1&before=99999999999999999999&ending=x&policy=nobody")

    for page in (right, second):
        assert set(re.findall(r'class="row-link member-reward" data-tone="\w*" href="[^"]+">([^<]+)<', page)) == {
            "1.00"
        }
        assert 'name="min_reward" type="number" step="any" value="1.0"' in page
        assert 'value="AFDB"' in page
        assert '<option value="whole" selected>' in page
    assert "No sampled trajectory is like that" in none
    assert odd.status_code == 200
    assert groups(odd.text)


async def test_a_step_leads_to_its_groups_and_failed_members_are_told(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.failing_member = 3
    async with web.logged_in() as client:
        await recorded(web, client)
        of_step = (await client.get(f"{PAGE}?step=109")).text
        of_group = (await client.get("/runs/1/groups/train:42")).text
        failed = (await client.get(f"{PAGE}?ending=failed&step=109")).text

    assert groups(of_group) == groups(of_step) == ["train:42"]
    assert "1 failed" in of_step
    assert "failed at engine: out of memory" in of_group
    assert "turns 2" in of_group
    assert "all 1 failed" in failed


def bars(page: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r'class="bar" href="([^"]+)"', page)]


def heading(page: str) -> str:
    return page.partition("<title>")[2].partition("</title>")[0]


def groups(page: str) -> list[str]:
    return re.findall(r'aria-label="Group (train:\d+)"', page)


def link(page: str, relation: str) -> str:
    found = re.search(rf'rel="{relation}"[^>]* href="([^"#]+)', page)
    assert found is not None, f"no link to the {relation} page"
    return html.unescape(found[1])


def link_to(page: str, pattern: str) -> str:
    """The first address of a page that looks like that."""
    found = re.search(rf'href="({pattern})"', page)
    assert found is not None, f"no link like {pattern}"
    return html.unescape(found[1])
