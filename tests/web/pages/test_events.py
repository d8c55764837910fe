"""What happened in a run: routine as counts, one ground once, filters in the address."""

import csv
import html
import io
from dataclasses import replace

import pytest

from astraflow.contract.reports import Event
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb
from web.feed.pins import Pin, PinKind
from web.present.events import ABOUT, KINDS, event_rows, plain_rows
from web.present.moments import moments_of

HOSTILE = "<script>alert(1)</script>'\"&{{7*7}}"


def happened(*kinds: str, at: float = 1000.0, message: str = "it did") -> list[Event]:
    """Newest first, a second apart."""
    return [
        Event(ordinal=90 - place, at=at - place, kind=kind, subject=f"n{place}", message=message)
        for place, kind in enumerate(kinds)
    ]


def test_routine_between_two_events_that_matter_is_a_line_for_each_kind_with_its_count() -> None:
    events = happened(
        *("join_token_used", "node_joined", "join_token_used", "join_token_minted"),
        "target_moved",
        *("join_token_minted", "join_token_minted"),
    )
    rows = event_rows(events)
    assert [(row.title, row.count) for row in rows] == [
        ("2 join tokens used", 2),
        ("Node joined", 1),
        ("Join token handed out", 1),
        ("Target moved", 1),
        ("2 join tokens handed out", 2),
    ]
    assert rows[0].href == "/events?kind=join_token_used&before=91"
    assert rows[1].href == "/events/89"
    assert rows[0].parts == (("n0", "It did"),), "the newest of them is told"


def test_an_event_that_stands_for_many_counts_as_many_and_tells_the_last_of_them() -> None:
    (folded,) = happened("node_joined", message="4 more within a minute; the last: n0, pool eu")
    (row,) = event_rows([replace(folded, folded=3), *happened("node_joined")])
    assert (row.title, row.parts) == ("5 nodes joined", (("n0", "n0, pool eu"),))


def test_pools_that_one_ground_moved_at_one_moment_are_one_line_that_says_it_once() -> None:
    moved = happened("target_moved", "target_moved", message="2 to 3 nodes, because it waits.")
    other = happened("target_moved", at=998.0, message="2 to 3 nodes, because it is dear.")
    late = happened("target_moved", at=900.0, message="2 to 3 nodes, because it is dear.")
    rows = event_rows([*moved, *other, *late])
    assert [(row.parts, row.ground) for row in rows] == [
        ((("n0", "2 to 3 nodes"), ("n1", "2 to 3 nodes")), "It waits."),
        ((("n0", "2 to 3 nodes, because it is dear."),), ""),
        ((("n0", "2 to 3 nodes, because it is dear."),), ""),
    ]


def test_nodes_that_are_lost_together_are_one_line_and_each_is_in_the_plain_list() -> None:
    lost = happened("node_lost", "node_lost", "node_lost")
    alone = happened("node_lost", at=900.0)
    assert [row.title for row in event_rows([*lost, *alone])] == ["3 nodes lost", "Node lost"]
    assert [row.title for row in plain_rows(lost)] == ["Node lost"] * 3


def test_every_event_is_in_one_line() -> None:
    events = happened(*(kind for _ in range(3) for kind in (*KINDS, "of_a_plug_in")))
    assert sum(row.count for row in event_rows(events)) == len(events)
    assert all(kinds for _, kinds in ABOUT.values())


def test_the_list_of_a_run_says_one_ground_once_and_losses_of_one_moment_in_a_line() -> None:
    def pin(ordinal: int, kind: PinKind, text: str) -> Pin:
        return Pin(ordinal=ordinal, at=100.0 - ordinal, kind=kind, text=text)

    texts = [f"Target moved: {pool}. 2 to 3 nodes, because it waits." for pool in ("eu", "us")]
    decisions = [pin(ordinal, PinKind.DECISION, text) for ordinal, text in enumerate(texts)]
    losses = [pin(ordinal, PinKind.LOSS, f"Node lost: n{ordinal}. No beat") for ordinal in (2, 3, 4)]
    first, second = moments_of([*decisions, *losses])
    assert first.parts == ((0, "Target moved: eu. 2 to 3 nodes"), (1, "Target moved: us. 2 to 3 nodes"))
    assert (first.ground, first.more) == ("It waits.", 0)
    assert (second.parts, second.more) == (((2, "Node lost: n2. No beat"),), 2)


@pytest.mark.anyio
async def test_the_page_of_events_is_filtered_by_its_address_and_taken_away(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    for number in range(3):
        fake.world.act(140 + number, "join_token_minted", f"t{number}", "for a node, by fleet: one is launched")
    fake.world.act(145, "node_lost", HOSTILE, HOSTILE)
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        everything = (await client.get("/events")).text
        tokens = (await client.get("/events?kind=join_token_minted")).text
        troubles = (await client.get("/events?about=troubles")).text
        none = (await client.get("/events?text=nowhere-at-all")).text
        odd = await client.get("/events?about=moon&before=x&kind=%00")
        rows = (await client.get("/events.json?kind=join_token_minted&text=T1")).json()
        sheet = list(csv.DictReader(io.StringIO((await client.get("/events.csv?about=troubles")).text)))
        overview = (await client.get("/")).text
    assert "3 join tokens handed out" in everything
    assert html.escape("/events?kind=join_token_minted&before=") in everything
    assert tokens.count(">Join token handed out</a>") == 3
    assert '<option value="join_token_minted" selected>' in tokens
    assert ">Node lost</a>" in troubles
    assert "oin token handed out</a>" not in troubles
    assert "No event fits the filter" in none
    assert odd.status_code == 200
    assert [row["subject"] for row in rows] == ["t1"]
    assert {row["kind"] for row in sheet} == {"node_lost"}
    assert "3 join tokens handed out" in overview
    assert 'href="/events?about=troubles"' in overview
    for page in (everything, troubles, overview):
        assert "<script>alert" not in page


@pytest.mark.anyio
async def test_pages_of_events_go_back_to_the_first(web: RunningWeb, fake: FakeControlPlane) -> None:
    for number in range(120):
        fake.world.act(140, "push_refused", f"n{number}", "it never held that task")
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        first = (await client.get("/events?kind=push_refused")).text
        older = first.partition('" rel="next"')[0].rpartition('href="')[2]
        second = (await client.get(html.unescape(older))).text
    assert first.count(">Push refused</a>") == 100
    assert second.count(">Push refused</a>") == 20
    assert 'rel="next"' not in second
    assert ">Newest</a>" in second
