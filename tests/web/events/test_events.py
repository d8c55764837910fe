"""Events of a run: counts for routine events, one line for each cause, and filters in the address."""

import csv
import html
import io
from dataclasses import replace

import pytest

from astraflow.contract.reports.report import Event
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from web.components.events import EVENT_TOPICS, KINDS, ROUTINE_KINDS, event_rows, kind_label, single_event_rows
from web.runs.annotation_groups import annotation_groups
from web.state.annotations import Annotation, AnnotationKind

HOSTILE = "<script>alert(1)</script>'\"&{{7*7}}"


def happened(*kinds: str, at: float = 1000.0, message: str = "it did") -> list[Event]:
    """Returns events of these kinds, newest first, one second apart."""
    return [
        Event(ordinal=90 - index, at=at - index, kind=kind, subject=f"n{index}", message=message)
        for index, kind in enumerate(kinds)
    ]


def test_routine_events_between_two_important_ones_are_counted_per_kind() -> None:
    events = happened(
        *("join_token_used", "node_joined", "join_token_used", "join_token_minted"),
        "target_moved",
        *("join_token_minted", "join_token_minted"),
    )
    rows = event_rows(events)
    assert [(row.title, row.count) for row in rows] == [
        ("2 join tokens used", 2),
        ("Node joined", 1),
        ("Join token issued", 1),
        ("Target moved", 1),
        ("2 join tokens issued", 2),
    ]
    assert rows[0].href == "/events?kind=join_token_used&before=91"
    assert rows[1].href == "/events/89"
    assert rows[0].parts == (("n0", "It did"),), "the line shows the newest of them"


def test_a_folded_event_counts_all_its_events_and_shows_the_last() -> None:
    (event,) = happened("node_joined", message="joined pool eu")
    repeats = replace(event, repeats=3)
    (row,) = event_rows([repeats, *happened("node_joined")])
    assert (row.title, row.parts) == ("5 nodes joined", (("n0", "Joined pool eu"),))
    (single_row,) = single_event_rows([repeats])
    assert single_row.parts == (("n0", "4 times within a minute; latest: Joined pool eu"),)


def test_targets_moved_in_one_tick_for_one_cause_share_a_line() -> None:
    moved = happened("target_moved", "target_moved", message="2 to 3 nodes, because it waits.")
    other_cause = "2 to 3 nodes, because it is dear."
    other = happened("target_moved", at=998.0, message=other_cause)
    late = happened("target_moved", at=900.0, message=other_cause)
    rows = event_rows([*moved, *other, *late])
    assert [(row.parts, row.cause) for row in rows] == [
        ((("n0", "2 to 3 nodes"), ("n1", "2 to 3 nodes")), "It waits."),
        ((("n0", other_cause),), ""),
        ((("n0", other_cause),), ""),
    ]


def test_nodes_lost_in_one_tick_share_a_line_except_in_the_plain_list() -> None:
    lost = happened("node_lost", "node_lost", "node_lost")
    alone = happened("node_lost", at=900.0)
    assert [row.title for row in event_rows([*lost, *alone])] == ["3 nodes lost", "Node lost"]
    assert [row.title for row in single_event_rows(lost)] == ["Node lost"] * 3


def test_every_event_is_in_one_line() -> None:
    events = happened(*(kind for _ in range(3) for kind in (*KINDS, "of_a_plug_in")))
    assert sum(row.count for row in event_rows(events)) == len(events)
    assert all(kinds for _, kinds in EVENT_TOPICS.values())


def test_annotations_of_one_tick_share_their_cause_and_losses_share_a_line() -> None:
    def pin(ordinal: int, kind: AnnotationKind, text: str) -> Annotation:
        return Annotation(ordinal=ordinal, at=100.0 - ordinal, kind=kind, text=text)

    targets = [f"Target moved: {pool}. 2 to 3 nodes" for pool in ("eu", "us")]
    decisions = [pin(n, AnnotationKind.DECISION, f"{text}, because it waits.") for n, text in enumerate(targets)]
    lost = [f"Node lost: n{ordinal}. No heartbeat" for ordinal in (2, 3, 4)]
    losses = [pin(ordinal, AnnotationKind.LOSS, text) for ordinal, text in enumerate(lost, 2)]
    first, second = annotation_groups([*decisions, *losses])
    assert first.parts == ((0, targets[0]), (1, targets[1]))
    assert (first.cause, first.more) == ("It waits.", 0)
    assert (second.parts, second.more) == (((2, lost[0]),), 2)


@pytest.mark.anyio
async def test_the_event_list_is_filtered_by_its_address_and_downloaded(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    for number in range(3):
        fake.synthetic_run.act(140 + number, "join_token_minted", f"t{number}", "for a node, by fleet: one is launched")
    fake.synthetic_run.act(145, "node_lost", HOSTILE, HOSTILE)
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        everything = (await client.get("/events")).text
        tokens = (await client.get("/events?kind=join_token_minted")).text
        problems = (await client.get("/events?about=problems")).text
        none = (await client.get("/events?text=nowhere-at-all")).text
        odd = await client.get("/events?about=moon&before=x&kind=%00")
        rows = (await client.get("/events.json?kind=join_token_minted&text=T1")).json()
        sheet = list(csv.DictReader(io.StringIO((await client.get("/events.csv?about=problems")).text)))
        overview = (await client.get("/")).text
    issued = f"3 {ROUTINE_KINDS['join_token_minted']}"
    (counted,) = (link for link in parsed(everything).all(".event-kind") if link.text == issued)
    assert counted["href"].startswith("/events?kind=join_token_minted&before=")
    assert parsed(tokens).texts(".event-kind") == [kind_label("join_token_minted")] * 3
    assert "selected" in parsed(tokens).one("option[value=join_token_minted]").attributes
    assert parsed(problems).texts(".event-kind") == [kind_label("node_lost")] * 2
    assert parsed(none).has(".empty")
    assert not parsed(none).has(".event")
    assert odd.status_code == 200
    assert [row["subject"] for row in rows] == ["t1"]
    assert {row["kind"] for row in sheet} == {"node_lost"}
    assert issued in parsed(overview).texts(".event-kind")
    assert "/events?about=problems" in parsed(overview).links()
    for page in (everything, problems, overview):
        assert "<script>alert" not in page


@pytest.mark.anyio
async def test_event_pages_lead_back_to_the_newest(web: RunningWeb, fake: FakeControlPlane) -> None:
    for number in range(120):
        fake.synthetic_run.act(140, "push_refused", f"n{number}", "it never held that task")
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
