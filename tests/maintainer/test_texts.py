"""Texts of nodes as a maintainer is told of them: each pattern looks through them once."""

import pytest

from maintainer import texts

LONG = 200_000
"""Characters: looked through once they take milliseconds, and once for each place in them many minutes."""


@pytest.mark.parametrize(
    "piece", ["a-", "-", "a", "'", '"', "`", "/", "/a", "a/", ".", "1.", "\N{COMBINING ACUTE ACCENT}-", "://"]
)
def test_a_pattern_looks_through_a_text_once(piece: str) -> None:
    hostile = piece * (LONG // len(piece))
    assert texts._VARIABLE.sub("#", f"{hostile} node-17").endswith("#")
    for _, pattern in texts._PATTERNS:
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
def test_what_differs_from_node_to_node_is_left_out(text: str, template: str) -> None:
    assert texts._VARIABLE.sub("#", text) == template
