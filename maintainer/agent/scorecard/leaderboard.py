"""Reads the leaderboard of `astraflow maintainer eval` for one model: score, date and prompt hashes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import GroupScore, MaintainerScore
from maintainer.agent.prompt import PROMPT_HASH, TOOLS_HASH

MAX_SHOWN_OBJECTIONS = 6
MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a leaderboard file."""


class _FilePart(BaseModel):
    """Part of the file; other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _ModelLine(_FilePart):
    model: str
    right_ratio: float | None
    blind_ratio: float | None
    violations: int = Field(ge=0)
    out_of_scope: int = Field(ge=0)


class _Case(_FilePart):
    case: str
    group: Literal["right", "blind", "hostile"]
    objections: tuple[str, ...]


class _Leaderboard(_FilePart):
    scored_at: float = Field(gt=0)
    prompt_hash: str
    tools_hash: str
    lines: tuple[_ModelLine, ...]
    cases: Mapping[str, tuple[_Case, ...]]


def leaderboard_stamp(at: float) -> dict[str, Any]:
    """Fields of a new leaderboard: date and prompt hashes. at: Unix seconds."""
    return {"scored_at": at, "prompt_hash": PROMPT_HASH, "tools_hash": TOOLS_HASH}


def evaluation(path: Path, model: str) -> MaintainerScore:
    """Score of a model. Raises: InvalidInput if the file is missing or has no row for the model."""
    leaderboard = _read(path)
    line = next((row for row in leaderboard.lines if row.model == model), None)
    cases = leaderboard.cases.get(model, ())
    if line is None or not cases:
        models = ", ".join(row.model for row in leaderboard.lines) or "no model"
        raise InvalidInput(
            f"cannot read the score of {model!r}: {str(path)!r} has no such row, it holds {models}; evaluate the model",
            code="leaderboard.unknown_model",
        )
    ratios = {"right": line.right_ratio, "blind": line.blind_ratio}
    cases_by_group = {name: [case for case in cases if case.group == name] for name in ("right", "blind", "hostile")}
    return MaintainerScore(
        source=str(path),
        at=leaderboard.scored_at,
        is_current=(leaderboard.prompt_hash, leaderboard.tools_hash) == (PROMPT_HASH, TOOLS_HASH),
        groups=tuple(
            GroupScore(
                group=name,
                cases=len(group_cases),
                passed=sum(not case.objections for case in group_cases),
                ratio=ratios.get(name),
            )
            for name, group_cases in cases_by_group.items()
            if group_cases
        ),
        violations=line.violations,
        out_of_scope=line.out_of_scope,
        objections=tuple(f"{case.case}: {case.objections[0]}" for case in cases if case.objections)[
            :MAX_SHOWN_OBJECTIONS
        ],
    )


def _read(path: Path) -> _Leaderboard:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidInput(
                f"cannot read the leaderboard {str(path)!r}: larger than {MAX_BYTES >> 20} MiB; use another file",
                code="leaderboard.invalid",
            )
        return _Leaderboard.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidInput(
            f"cannot read the leaderboard {str(path)!r}: the file does not exist; run astraflow maintainer eval",
            code="leaderboard.not_found",
        ) from None
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the leaderboard {str(path)!r}: {problem.strerror}; check its permissions",
            code="leaderboard.unreadable",
        ) from None
    except ValidationError as problem:
        first_error = problem.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in first_error["loc"]) or "the file"
        raise InvalidInput(
            f"cannot read the leaderboard {str(path)!r}: {location}: {first_error['msg']}; write it with astraflow "
            "maintainer eval",
            code="leaderboard.invalid",
        ) from None
