"""Redaction of node texts: each pattern scans a text in linear time."""

import pytest

from maintainer.agent.tools.views import redacted_texts

LONG = 200_000
"""Text length: a linear scan takes milliseconds, a quadratic one many minutes. Characters."""


@pytest.mark.parametrize(
    "piece", ["a-", "-", "a", "'", '"', "`", "/", "/a", "a/", ".", "1.", "\N{COMBINING ACUTE ACCENT}-", "://"]
)
def test_each_pattern_scans_a_text_in_linear_time(piece: str) -> None:
    hostile = piece * (LONG // len(piece))
    assert redacted_texts._VARIABLE_PARTS.sub("#", f"{hostile} node-17").endswith("#")
    for _, pattern in redacted_texts._PATTERNS:
        pattern.search(hostile)


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("node gpu-7 lost", "node # lost"),
        ("7 of 12 nodes", "# of # nodes"),
        ("a-b-c is plain", "a-b-c is plain"),
        ("took 3.5 s", "took # s"),
        ("at /var/log/node.log", "at #"),
        ("see http://h:1/x?y", "see #"),
    ],
)
def test_details_of_single_nodes_are_removed(text: str, template: str) -> None:
    assert redacted_texts._VARIABLE_PARTS.sub("#", text) == template
