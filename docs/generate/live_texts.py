"""Page of the live texts of the web page, from the texts of a simulated run."""

import re
from collections.abc import Iterator

from docs.generate.page import Page, table
from tests.fakes.synthetic_run import SyntheticRun
from web.components.live_texts import LiveText, build_live_texts
from web.history.points import Series
from web.live.node_texts import build_node_texts
from web.state.node_table import NodeTable

_SECOND = 150
"""Time of the report in the simulated run; the series holds every second before it."""


def example_texts() -> dict[str, LiveText]:
    """Returns the live texts of the simulated run by key, those of one node included. Names in keys are capitals:
    `policy/POLICY/steps`."""
    run, series = SyntheticRun(), Series()
    for second in range(1, _SECOND + 1):
        series.add(run.report(second))
    report = run.report(_SECOND)
    texts = build_live_texts(report, series)
    [row, *_] = NodeTable(report).rows
    texts |= {key: LiveText(text=text, tone=tone) for key, (text, tone) in build_node_texts(row, report.at).items()}
    return {re.sub(r"^(policy|flow|pool|node)/[^/]+", _capitals, key): text for key, text in texts.items()}


def _capitals(matched: re.Match[str]) -> str:
    return f"{matched[1]}/{matched[1].upper()}"


def _body() -> Iterator[str]:
    rows = ((f"`{key}`", text.text, text.tone) for key, text in sorted(example_texts().items()))
    return iter(table(("key", "example", "tone"), rows))


PAGE = Page(name="live-texts", body=_body)
