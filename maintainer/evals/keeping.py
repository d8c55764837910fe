"""What of an evaluation is done: a line of JSON for each play, so that one that was stopped goes on where it was."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

import maintainer
from astraflow.contract.errors import InvalidInput
from astraflow.scaling import sizer
from maintainer.evals.case import Case
from maintainer.evals.scoring import Duel, Played

T = TypeVar("T")

_DUEL, _PLAYED = TypeAdapter(Duel), TypeAdapter(Played)


@cache
def code() -> str:
    """A short hash of all that a score depends on: the maintainer with its fleet service, the rule, the simulator."""
    made = hashlib.blake2b(digest_size=8)
    for module in (maintainer, sizer):
        for path in sorted(Path(str(module.__file__)).parent.rglob("*.py")):
            made.update(path.read_bytes())
    return made.hexdigest()


class Kept:
    """A file of plays. Those of other code are of no use, and are left where they are."""

    def __init__(self, path: Path) -> None:
        """Raises: InvalidInput for a file that cannot be read, or that is none of ours."""
        self.path = path
        self._known: dict[str, Mapping[str, Any]] = {}
        for number, line in enumerate(self._lines(), start=1):
            try:
                said = json.loads(line)
                self._known[said["key"]] = said["play"]
            except (ValueError, TypeError, KeyError):
                raise InvalidInput(
                    f"{path}, line {number} is no play of an evaluation: take the file away to begin anew"
                ) from None

    def rule(self, case: Case) -> Played | None:
        """The rule alone."""
        return self._found(_PLAYED, _key(case, {}))

    def duel(self, case: Case, model: Mapping[str, Any]) -> Duel | None:
        """A model's. model: what it is built from."""
        return self._found(_DUEL, _key(case, model))

    def keep_rule(self, case: Case, play: Played) -> None:
        """Durable once it returns."""
        self._add(_key(case, {}), asdict(play))

    def keep_duel(self, case: Case, model: Mapping[str, Any], play: Duel) -> None:
        """Durable once it returns."""
        self._add(_key(case, model), asdict(play) | {"group": play.group.value})

    def forget(self) -> None:
        """All is written elsewhere."""
        self.path.unlink(missing_ok=True)

    def _lines(self) -> list[str]:
        """Whole ones: a line that was being written when the process ended is none."""
        try:
            return self.path.read_text(encoding="utf-8").split("\n")[:-1]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as problem:
            raise InvalidInput(f"what is kept of an evaluation, {self.path}, cannot be read: {problem}") from None

    def _found(self, kind: TypeAdapter[T], key: str) -> T | None:
        try:
            return kind.validate_python(self._known[key]) if key in self._known else None
        except ValidationError:
            raise InvalidInput(f"{self.path} holds a play that is none: take the file away to begin anew") from None

    def _add(self, key: str, play: Mapping[str, Any]) -> None:
        self._known[key] = play
        line = json.dumps({"key": key, "play": play}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise InvalidInput(f"{self.path} cannot be written: {problem.strerror}") from None


def _key(case: Case, model: Mapping[str, Any]) -> str:
    said = f"{code()} {case!r} {json.dumps(model, sort_keys=True)}"
    return hashlib.blake2b(said.encode(), digest_size=12).hexdigest()
