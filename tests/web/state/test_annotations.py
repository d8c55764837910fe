"""Annotations of charts: what becomes one, its number, its page, and how long it is retained."""

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.plans import Role
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.report import Event
from web.state.annotations import RETAINED_ANNOTATIONS, AnnotationKind, AnnotationLog, annotation_json


def decision(kind: RecordKind, ordinal: int = 1, *, at: float = 5.0) -> Decision:
    return Decision(kind=kind, subject="eu", actor="ada", reason="test", ordinal=ordinal, at=at, role=Role.ADMIN)


def event(kind: RecordKind, ordinal: int, *, at: float = 1.0) -> Event:
    return Event(kind=kind, subject="n1", ordinal=ordinal, at=at, values={"text": "it happened"})


def test_decisions_of_the_fleet_service_are_annotations_with_their_pages() -> None:
    log = AnnotationLog()
    kinds = (RecordKind.APPLY, RecordKind.KILL_SWITCH, RecordKind.HOLD, RecordKind.FAULT, RecordKind.NOTE)
    log.add_decisions([decision(kind, number) for number, kind in enumerate(kinds)])

    assert [(note.kind, note.path) for note in log.annotations] == [
        (AnnotationKind.DECISION, "/decisions/fleet-0"),
        (AnnotationKind.DECISION, "/decisions/fleet-1"),
        (AnnotationKind.DECISION, "/decisions/fleet-2"),
        (AnnotationKind.LOSS, "/decisions/fleet-3"),
    ]


def test_launches_losses_evaluations_and_checkpoints_that_are_set_aside_are_annotations() -> None:
    log = AnnotationLog()
    kinds = (
        RecordKind.NODE_JOINED,
        RecordKind.NODE_LOST,
        RecordKind.NODE_DRAINED,
        RecordKind.EVALUATION_DONE,
        RecordKind.CHECKPOINT_SET_ASIDE,
        RecordKind.LOAD_CHANGED,
        RecordKind.JOIN_TOKEN_USED,
    )
    log.add_events([event(kind, ordinal) for ordinal, kind in enumerate(kinds)])

    assert [note.kind.value for note in log.annotations] == [
        "node",
        "loss",
        "decision",
        "evaluation",
        "loss",
        "decision",
    ]
    assert log.annotations[0].text == "Node joined: n1. It happened"


def test_each_is_numbered_once_in_the_order_in_which_it_arrives() -> None:
    log = AnnotationLog()
    log.add_events([event(RecordKind.NODE_LOST, 7, at=7.0)])
    log.add_decisions([decision(RecordKind.APPLY, 7, at=3.0), decision(RecordKind.APPLY, 6, at=2.0)])
    log.add_events([event(RecordKind.NODE_LOST, 7, at=7.0), event(RecordKind.NODE_LOST, 1, at=1.0)])

    sent = [annotation_json(note) for note in log.annotations]
    assert [row[0] for row in sent] == [1, 2, 3, 4]
    assert [row[4] for row in sent] == ["/events/7", "/decisions/fleet-6", "/decisions/fleet-7", "/events/1"]


def test_many_of_one_kind_do_not_displace_those_of_others() -> None:
    log = AnnotationLog()
    log.add_decisions([decision(RecordKind.KILL_SWITCH)])
    log.add_events([event(RecordKind.NODE_JOINED, ordinal) for ordinal in range(RETAINED_ANNOTATIONS + 50)])

    assert len(log.annotations) == RETAINED_ANNOTATIONS + 1
    assert log.annotations[0].path == "/decisions/fleet-1"
