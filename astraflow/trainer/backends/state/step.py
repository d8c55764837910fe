"""State of a backend in addition to its tensors: the count of updates and the text of the probe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from astraflow.contract.errors import CorruptData
from astraflow.trainer.backends.probe import ProbeText
from astraflow.trainer.backends.state.files import read_numbers

STATE = "state.json"

_FORMAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """Numbers of a checkpoint, in `state.json`."""

    updates: int
    """Optimizer steps of the policy since the run began."""
    critic_updates: int
    """Optimizer steps of the critic since the run began; 0 without a critic."""
    probe_text: ProbeText

    def numbers(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {
            "format": _FORMAT,
            "updates": self.updates,
            "critic_updates": self.critic_updates,
            "probe": [sequence.tolist() for sequence in self.probe_text.sequences],
            "scored_from": list(self.probe_text.scored_from),
        }

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads what `numbers` returned. Raises: CorruptData, naming the file."""
        path = folder / STATE
        numbers = read_numbers(path)
        try:
            if numbers["format"] != _FORMAT:
                raise ValueError(f"format is {numbers['format']!r}, this release reads {_FORMAT}")
            return cls(
                updates=int(numbers["updates"]),
                critic_updates=int(numbers["critic_updates"]),
                probe_text=ProbeText.from_lists(numbers["probe"], numbers["scored_from"]),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise CorruptData(
                f"cannot restore {str(path)!r}: {problem!r}; use another checkpoint",
                code="checkpoint.unreadable_state",
            ) from problem
