"""Part of the table of threats: what one sender sends in one way, and what must come out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.mark import ParameterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Threats:
    """What is sent in one way."""

    sender: str
    """`peer`, `policy` or `file`."""
    way: str
    """How it is sent."""
    outcome: str
    """What must come out, whichever of them is sent."""
    run_by: str
    """Test that runs each of them against the real part: path and name."""
    sends: Mapping[str, Any]
    """What is sent, by a name in few words; a tuple stands for several parameters of the test."""

    def cases(self) -> list[ParameterSet]:
        """Returns the parameters of the test."""
        return [
            pytest.param(*(sent if isinstance(sent, tuple) else (sent,)), id=name) for name, sent in self.sends.items()
        ]
