"""Messages to browsers: the changes of a second, or the whole state. A message is encoded once for all browsers.

`{"kind": "frame" | "snapshot" | "waiting" | "heartbeat", ...}`; the keys are those of `Frame` in `static/js/live.js`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.reports.report import Report
from web.components.live_texts import LiveText, build_live_texts
from web.history.points import Point, point_json
from web.history.report_json import json_value
from web.state.annotations import annotation_json
from web.state.run_state import RunState


class FrameBuilder:
    """Remembers what was sent to browsers, and encodes the changes.

    render_regions: renders the page regions that are replaced whole, as HTML by id, from a report and its texts.
    extra_texts: returns texts by key that do not come from the report.
    fleet_status: returns the current status of the fleet service; None without one.
    build: id of the page release; a browser with another release reloads.
    """

    def __init__(
        self,
        state: RunState,
        *,
        render_regions: Callable[[Report, Mapping[str, LiveText]], dict[str, str]],
        build: str,
        extra_texts: Callable[[], dict[str, LiveText]] = dict,
        fleet_status: Callable[[], FleetStatus | None] = lambda: None,
    ) -> None:
        self._state = state
        self._extra_texts = extra_texts
        self._fleet_status = fleet_status
        self._newest_annotation = -1
        self._render_regions = render_regions
        self._build = build
        self._texts: dict[str, LiveText] = {}
        self._regions: dict[str, str] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._latest: tuple[int, Report | None, str] = (-1, None, "")
        """Cached snapshot: sequence it starts after, report, and text."""

    @property
    def live_texts(self) -> Mapping[str, LiveText]:
        """Live texts of the newest report."""
        return self._texts

    def frame(self, report: Report, points: Sequence[Point]) -> str:
        """Returns the message with the changes of this report."""
        live_texts = build_live_texts(report, self._state.series, self._fleet_status()) | self._extra_texts()
        regions = self._render_regions(report, live_texts)
        lists = _lists(report)
        text = _encoded(
            kind="frame",
            run=report.run,
            seq=report.sequence,
            age=0.0,
            live_texts=_packed(
                {key: live_text for key, live_text in live_texts.items() if self._texts.get(key) != live_text}
            ),
            html={key: html for key, html in regions.items() if self._regions.get(key) != html},
            changed=[name for name, members in lists.items() if self._lists.get(name) != members],
            points=[point_json(point) for point in points],
            annotations=self._new_annotations(),
        )
        self._texts, self._regions, self._lists = live_texts, regions, lists
        return text

    def snapshot(self, after: int) -> str:
        """Returns the message with everything, and with the points after a sequence.

        After an outage all browsers reconnect with the same request, so the snapshot is cached.
        """
        report = self._state.report
        if report is None:
            return _encoded(kind="waiting", build=self._build, **self._connection_fields())
        if self._state.is_stale:  # the age must be current, since no frame follows soon
            return self._full_snapshot(report, after)
        cached_after, cached_report, _ = self._latest
        if cached_after != after or cached_report is not report:
            self._latest = (after, report, self._full_snapshot(report, after))
        return self._latest[2]

    def _full_snapshot(self, report: Report, after: int) -> str:
        return _encoded(
            kind="snapshot",
            run=report.run,
            seq=report.sequence,
            build=self._build,
            live_texts=_packed(self._texts),
            html=self._regions,
            changed=list(self._lists),
            points=[point_json(point) for point in self._state.series.after(after)],
            annotations=[annotation_json(annotation) for annotation in self._state.annotation_log.annotations],
            **self._connection_fields(),
        )

    def heartbeat(self) -> str:
        """Returns the message that this process is alive, with the state of the connection to dataflow."""
        return _encoded(kind="heartbeat", **self._connection_fields())

    def _new_annotations(self) -> list[list[object]]:
        new = [
            annotation
            for annotation in self._state.annotation_log.annotations
            if annotation.number > self._newest_annotation
        ]
        self._newest_annotation = max([self._newest_annotation, *(annotation.number for annotation in new)])
        return [annotation_json(annotation) for annotation in new]

    def _connection_fields(self) -> dict[str, Any]:
        age_s = self._state.age_s
        return {
            "age": None if age_s is None else round(age_s, 2),
            "feed": self._state.connection.state.value,
            "problem": self._state.connection.problem,
            "next": None if (next_s := self._state.next_try_s) is None else round(next_s, 1),
        }


def _lists(report: Report) -> dict[str, tuple[str, ...]]:
    """Returns the members of the page's lists by name; when they change, pages fetch those lists again."""
    return {
        "ledger": tuple(_reasons(report)),
        "training": tuple(f"{stream.policy} {stream.training.steps}" for stream in report.streams),
    }


def _reasons(report: Report) -> Iterable[str]:
    for flow in report.flows:
        yield from (f"{flow.id} {flow.is_paused} {reason}" for reason in sorted({*flow.dropped, *flow.episodes}))
    for stream in report.streams:
        yield from (f"{stream.policy} {reason}" for reason in sorted(stream.groups.dropped))


def _packed(live_texts: Mapping[str, LiveText]) -> dict[str, list[str]]:
    return {key: [live_text.text, live_text.tone] for key, live_text in live_texts.items()}


def _encoded(**message: Any) -> str:
    try:
        return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a number that is not finite, which browsers cannot parse
        return json.dumps(json_value(message), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
