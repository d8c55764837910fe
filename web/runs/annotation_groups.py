"""Annotations of a run as a list. Decisions of one tick with one cause share a line, and so do losses of one tick."""

from collections.abc import Iterable
from dataclasses import dataclass

from web.components.events import SAME_TICK_S
from web.state.annotations import Annotation, AnnotationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationGroup:
    """One line of the list."""

    at: float
    kind: AnnotationKind
    parts: tuple[tuple[str, str], ...]
    """Path and message of each event."""
    cause: str
    """Cause that all events of the line share; empty where the messages name none."""
    more: int
    """Number of further events of this kind in the same tick that the line does not list."""


def annotation_groups(annotations: Iterable[Annotation]) -> tuple[AnnotationGroup, ...]:
    """Returns the lines, in the order of the annotations."""
    groups: list[list[Annotation]] = []
    for annotation in annotations:
        if groups and _can_merge(groups[-1][0], annotation):
            groups[-1].append(annotation)
        else:
            groups.append([annotation])
    return tuple(_group(group) for group in groups)


def _group(annotations: list[Annotation]) -> AnnotationGroup:
    first = annotations[0]
    listed = annotations if first.kind is AnnotationKind.DECISION else annotations[:1]
    return AnnotationGroup(
        at=first.at,
        kind=first.kind,
        parts=tuple((annotation.path, annotation.summary) for annotation in listed),
        cause=first.cause,
        more=len(annotations) - len(listed),
    )


def _can_merge(first: Annotation, other: Annotation) -> bool:
    if first.kind is not other.kind or abs(first.at - other.at) > SAME_TICK_S:
        return False
    return first.kind is AnnotationKind.LOSS or (bool(first.cause) and first.cause == other.cause)
