"""The live feed's messages: what changed since the last second, or everything at once. Encoded once for all browsers.

`{"kind": "frame" | "snapshot" | "waiting" | "beat", ...}`; the keys are those of `Frame` in `static/js/live.js`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from astraflow.contract.reports import Report
from web.feed.pins import pin_json
from web.feed.report_json import plain
from web.feed.state import RunState
from web.history.points import Point, point_json
from web.present.cells import Cell, live_cells


class FrameMaker:
    """Remembers what browsers have been told, and says the rest.

    render_regions: id -> HTML of the small parts of pages that are replaced whole, from a report and its texts.
    more_cells: texts by key that come from elsewhere than the report.
    build: names the release of the pages; a browser that shows another one loads anew.
    """

    def __init__(
        self,
        state: RunState,
        *,
        render_regions: Callable[[Report, Mapping[str, Cell]], dict[str, str]],
        build: str,
        more_cells: Callable[[], dict[str, Cell]] = dict,
    ) -> None:
        self._state = state
        self._more_cells = more_cells
        self._newest_pin = -1
        self._render_regions = render_regions
        self._build = build
        self._cells: dict[str, Cell] = {}
        self._regions: dict[str, str] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._latest: tuple[int, Report | None, str] = (-1, None, "")
        """The snapshot that was asked for last: after which sequence, of which report."""

    @property
    def cells(self) -> Mapping[str, Cell]:
        """The texts as of the newest report."""
        return self._cells

    def frame(self, report: Report, points: Sequence[Point]) -> str:
        """What this report changes."""
        cells = live_cells(report, self._state.series) | self._more_cells()
        regions = self._render_regions(report, cells)
        lists = _lists(report)
        text = _encoded(
            kind="frame",
            run=report.run,
            seq=report.sequence,
            age=0.0,
            cells=_packed({key: cell for key, cell in cells.items() if self._cells.get(key) != cell}),
            html={key: html for key, html in regions.items() if self._regions.get(key) != html},
            changed=[name for name, members in lists.items() if self._lists.get(name) != members],
            points=[point_json(point) for point in points],
            pins=self._fresh_pins(),
        )
        self._cells, self._regions, self._lists = cells, regions, lists
        return text

    def snapshot(self, after: int) -> str:
        """Everything, and the points after a sequence.

        When this process was away, all browsers come back at once and ask the same: it is encoded once, too.
        """
        report = self._state.report
        if report is None:
            return _encoded(kind="waiting", build=self._build, **self._feed())
        if self._state.is_stale:  # no frame says soon how old it has become
            return self._everything(report, after)
        known_after, known_report, _ = self._latest
        if known_after != after or known_report is not report:
            self._latest = (after, report, self._everything(report, after))
        return self._latest[2]

    def _everything(self, report: Report, after: int) -> str:
        return _encoded(
            kind="snapshot",
            run=report.run,
            seq=report.sequence,
            build=self._build,
            cells=_packed(self._cells),
            html=self._regions,
            changed=list(self._lists),
            points=[point_json(point) for point in self._state.series.after(after)],
            pins=[pin_json(pin) for pin in self._state.pinned.pins],
            **self._feed(),
        )

    def beat(self) -> str:
        """A sign of life of this process, and how the feed from dataflow is doing."""
        return _encoded(kind="beat", **self._feed())

    def _fresh_pins(self) -> list[list[object]]:
        fresh = [pin for pin in self._state.pinned.pins if pin.ordinal > self._newest_pin]
        self._newest_pin = max([self._newest_pin, *(pin.ordinal for pin in fresh)])
        return [pin_json(pin) for pin in fresh]

    def _feed(self) -> dict[str, Any]:
        age_s = self._state.age_s
        return {
            "age": None if age_s is None else round(age_s, 2),
            "feed": self._state.feed.state.value,
            "problem": self._state.feed.problem,
            "next": None if (next_s := self._state.next_try_s) is None else round(next_s, 1),
        }


def _lists(report: Report) -> dict[str, tuple[str, ...]]:
    """Members of the page's lists: when they change, pages fetch those lists again."""
    return {"ledger": tuple(_reasons(report))}


def _reasons(report: Report) -> Iterable[str]:
    for flow in report.flows:
        yield from (f"{flow.id} {flow.is_paused} {reason}" for reason in sorted({*flow.dropped, *flow.episodes}))
    for stream in report.streams:
        yield from (f"{stream.policy} {reason}" for reason in sorted(stream.dropped))


def _packed(cells: Mapping[str, Cell]) -> dict[str, list[str]]:
    return {key: [cell.text, cell.tone] for key, cell in cells.items()}


def _encoded(**message: Any) -> str:
    try:
        return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a number that is not finite: no browser reads those
        return json.dumps(plain(message), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
