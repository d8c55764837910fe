"""Part of the table of threats: what one sender sends in one way, and what must come out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.mark import ParameterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Threats:
    """Inputs that one sender sends in the same way, with the same required outcome."""

    sender: str
    """`peer`, `policy` or `file`."""
    way: str
    """Way in which the inputs reach the system, such as `a push` or `an archive`."""
    outcome: str
    """Required outcome of each input."""
    run_by: str
    """Path and name of the test that sends each input to the real part."""
    sends: Mapping[str, Any]
    """Inputs by a short name; a tuple has several parameters of the test."""

    def cases(self) -> list[ParameterSet]:
        """Returns the parameters of the test."""
        return [
            pytest.param(*(sent if isinstance(sent, tuple) else (sent,)), id=name) for name, sent in self.sends.items()
        ]
