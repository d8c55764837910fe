"""Events of a run: counts for routine events, one line for each cause, and filters in the address."""

import csv
import html
import io
from dataclasses import replace

import pytest

from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record
from astraflow.contract.reports.report import Event
from astraflow.contract.values import Value
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import hostile_record, text_record
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from web.components.events import EVENT_TOPICS, KINDS, event_rows, single_event_rows
from web.runs.annotation_groups import annotation_groups
from web.state.annotations import annotation_of

MINTED, USED = RecordKind.JOIN_TOKEN_MINTED, RecordKind.JOIN_TOKEN_USED
HOSTILE = "<script>alert(1)</script>'\"&{{7*7}}"


def happened(*kinds: RecordKind, at: float = 1000.0, **values: Value) -> list[Event]:
    """Returns events of these kinds, newest first, one second apart."""
    return [
        Event(ordinal=90 - index, at=at - index, kind=kind, subject=f"n{index}", values=values or {"text": "it did"})
        for index, kind in enumerate(kinds)
    ]


def moved(*, at: float = 1000.0, wait_share: float) -> Event:
    """Returns a moved target whose cause has this figure."""
    values: dict[str, Value] = {"before": 2, "target": 3, "policy": "solver", "wait_share": wait_share}
    kind = RecordKind.TARGET_MOVED
    return Event(ordinal=round(at), at=at, kind=kind, subject=f"n{at:g}", cause="plain_rule", values=values)


def test_routine_events_between_two_important_ones_are_counted_per_kind() -> None:
    events = happened(
        *(USED, RecordKind.NODE_JOINED, USED, MINTED),
        RecordKind.TARGET_MOVED,
        *(MINTED, MINTED),
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
    (event,) = happened(RecordKind.NODE_JOINED, text="joined pool eu")
    repeats = replace(event, repeats=3)
    (row,) = event_rows([repeats, *happened(RecordKind.NODE_JOINED)])
    assert (row.title, row.parts) == ("5 nodes joined", (("n0", "Joined pool eu"),))
    (single_row,) = single_event_rows([repeats])
    assert single_row.parts == (("n0", "4 times within a minute; latest: Joined pool eu"),)


def test_targets_moved_in_one_tick_for_one_cause_share_a_line() -> None:
    alike = [moved(at=at, wait_share=0.25) for at in (1000.0, 999.0)]
    rows = event_rows([*alike, moved(at=998.0, wait_share=0.5), moved(at=900.0, wait_share=0.5)])
    other = "2 to 3 nodes, because the trainer of solver waits 50% of the time"
    assert [(row.parts, row.cause) for row in rows] == [
        (
            (("n1000", "2 to 3 nodes"), ("n999", "2 to 3 nodes")),
            "The trainer of solver waits 25% of the time",
        ),
        ((("n998", other),), ""),
        ((("n900", other),), ""),
    ]


def test_nodes_lost_in_one_tick_share_a_line_except_in_the_plain_list() -> None:
    lost = happened(*[RecordKind.NODE_LOST] * 3)
    alone = happened(RecordKind.NODE_LOST, at=900.0)
    assert [row.title for row in event_rows([*lost, *alone])] == ["3 nodes lost", "Node lost"]
    assert [row.title for row in single_event_rows(lost)] == ["Node lost"] * 3


def test_every_event_is_in_one_line() -> None:
    events = happened(*(kind for _ in range(3) for kind in KINDS.values()))
    assert sum(row.count for row in event_rows(events)) == len(events)
    assert all(kinds for _, kinds in EVENT_TOPICS.values())


def test_annotations_of_one_tick_share_their_cause_and_losses_share_a_line() -> None:
    decisions = [moved(at=at, wait_share=0.25) for at in (100.0, 99.0)]
    losses = happened(*[RecordKind.NODE_LOST] * 3, at=98.0, silent_s=9.0)
    annotations = [annotation for event in (*decisions, *losses) if (annotation := annotation_of(event)) is not None]
    first, second = annotation_groups(annotations)
    assert first.parts == (
        ("/events/100", "Target moved: n100. 2 to 3 nodes"),
        ("/events/99", "Target moved: n99. 2 to 3 nodes"),
    )
    assert (first.cause, first.more) == ("The trainer of solver waits 25% of the time", 0)
    assert (second.parts, second.more) == (
        (("/events/90", "Node lost: n0. No heartbeat for 9 s; its tasks are requeued"),),
        2,
    )


@pytest.mark.anyio
async def test_the_event_list_is_filtered_by_its_address_and_downloaded(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    for number in range(3):
        minted = Record(kind=MINTED, subject=f"t{number}", actor="fleet", values={"grant": "for a node"})
        fake.synthetic_run.act(140 + number, minted)
    fake.synthetic_run.act(145, hostile_record(HOSTILE))
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
    issued = f"3 {MINTED.routine}"
    (counted,) = (link for link in parsed(everything).all(".event-kind") if link.text == issued)
    assert counted["href"].startswith("/events?kind=join_token_minted&before=")
    assert parsed(tokens).texts(".event-kind") == [MINTED.label] * 3
    assert "selected" in parsed(tokens).one("option[value=join_token_minted]").attributes
    assert parsed(problems).texts(".event-kind") == ["Node lost", "Node lost", "Leases expired"]
    assert parsed(none).has(".empty")
    assert not parsed(none).has(".event")
    assert odd.status_code == 200
    assert [row["subject"] for row in rows] == ["t1"]
    assert {row["kind"] for row in sheet} == {"node_lost", "leases_expired"}
    assert issued in parsed(overview).texts(".event-kind")
    assert "/events?about=problems" in parsed(overview).links()
    for page in (everything, problems, overview):
        assert "<script>alert" not in page


@pytest.mark.anyio
async def test_event_pages_lead_back_to_the_newest(web: RunningWeb, fake: FakeControlPlane) -> None:
    for number in range(120):
        fake.synthetic_run.act(140, text_record(RecordKind.PUSH_REFUSED, f"n{number}", "it never held that task"))
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
