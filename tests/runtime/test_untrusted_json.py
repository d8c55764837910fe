"""JSON of other programs."""

import pytest

from astraflow.runtime.untrusted_json import parsed_json


@pytest.mark.parametrize("text", ["", "{", "[1", "[" * 100_000, '{"a":' * 100_000, "1" * 5000, "[0, 0, 0, 0]" * 1000])
def test_a_text_that_is_no_json_or_too_long_or_too_deep_is_a_value_error(text: str) -> None:
    for content in (text, text.encode()):
        with pytest.raises(ValueError):
            parsed_json(content, limit=10_000 if text.startswith("[0") else 10**6)


def test_a_value_is_returned() -> None:
    assert parsed_json(b'{"reward": 1}', limit=13) == {"reward": 1}
