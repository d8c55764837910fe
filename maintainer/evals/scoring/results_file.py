"""Results file of an evaluation: a line of JSON per run, so that a stopped evaluation continues."""

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
from astraflow.scaling.rule import sizer
from maintainer.evals.cases import Case
from maintainer.evals.scoring.scoring import CaseResult, PairedResult

T = TypeVar("T")

_PAIRED_RESULT, _CASE_RESULT = TypeAdapter(PairedResult), TypeAdapter(CaseResult)


@cache
def code_hash() -> str:
    """Short hash of the code that a score depends on: maintainer, fleet service, rule and simulator."""
    digest = hashlib.blake2b(digest_size=8)
    for module in (maintainer, sizer):
        for path in sorted(Path(str(module.__file__)).parent.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class ResultsFile:
    """File of results. Results of other code versions are ignored and remain in the file."""

    def __init__(self, path: Path) -> None:
        """Raises: InvalidInput for an unreadable or invalid file."""
        self.path = path
        self._known: dict[str, Mapping[str, Any]] = {}
        for number, line in enumerate(self._lines(), start=1):
            try:
                record = json.loads(line)
                self._known[record["key"]] = record["play"]
            except (ValueError, TypeError, KeyError):
                raise InvalidInput(
                    f"cannot read the results {str(path)!r}: invalid line {number}; move the file away to start over",
                    code="evaluation.invalid_results",
                ) from None

    def rule(self, case: Case) -> CaseResult | None:
        """Stored result of the rule alone; None without one."""
        return self._find(_CASE_RESULT, _key(case, {}))

    def pair(self, case: Case, model: Mapping[str, Any]) -> PairedResult | None:
        """Stored result of a model; None without one. model: its options."""
        return self._find(_PAIRED_RESULT, _key(case, model))

    def add_rule(self, case: Case, play: CaseResult) -> None:
        """Appends the rule's result; durable on return."""
        self._add(_key(case, {}), asdict(play))

    def add_pair(self, case: Case, model: Mapping[str, Any], play: PairedResult) -> None:
        """Appends a model's result; durable on return."""
        self._add(_key(case, model), asdict(play) | {"group": play.group.value})

    def delete(self) -> None:
        """Deletes the file once the leaderboard is written."""
        self.path.unlink(missing_ok=True)

    def _lines(self) -> list[str]:
        """Complete lines; an interrupted last line is ignored."""
        try:
            return self.path.read_text(encoding="utf-8").split("\n")[:-1]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as problem:
            raise InvalidInput(
                f"cannot read the results {str(self.path)!r}: {problem}; check the file and its permissions",
                code="evaluation.results_unreadable",
            ) from None

    def _find(self, kind: TypeAdapter[T], key: str) -> T | None:
        try:
            return kind.validate_python(self._known[key]) if key in self._known else None
        except ValidationError:
            raise InvalidInput(
                f"cannot read the results {str(self.path)!r}: a result is invalid; move the file away to start over",
                code="evaluation.invalid_results",
            ) from None

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
            raise InvalidInput(
                f"cannot write the results {str(self.path)!r}: {problem.strerror}; check the path and free disk space",
                code="evaluation.results_unwritable",
            ) from None


def _key(case: Case, model: Mapping[str, Any]) -> str:
    identity = f"{code_hash()} {case!r} {json.dumps(model, sort_keys=True)}"
    return hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
