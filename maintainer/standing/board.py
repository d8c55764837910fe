"""The leaderboard that `astraflow maintainer eval` writes, read for one model: what it came to, when, and with what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astraflow.contract.errors import InvalidInput
from astraflow.contract.maintenance import EvaluationScore, GroupScore
from maintainer.prompt import PROMPT_HASH, TOOLS_HASH

SHOWN_OBJECTIONS = 6
MOST_BYTES = 16 * 1024 * 1024
"""A file that is larger is no leaderboard."""


class _Said(BaseModel):
    """Part of the file; what else is in it is for others."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Line(_Said):
    model: str
    right_ratio: float | None
    blind_ratio: float | None
    violations: int = Field(ge=0)
    out_of_scope: int = Field(ge=0)


class _Case(_Said):
    case: str
    group: Literal["right", "blind", "hostile"]
    objections: tuple[str, ...]


class _Board(_Said):
    scored_at: float = Field(gt=0)
    prompt_hash: str
    tools_hash: str
    lines: tuple[_Line, ...]
    cases: Mapping[str, tuple[_Case, ...]]


def stamp(at: float) -> dict[str, Any]:
    """What whoever writes a leaderboard puts into it: when, and what its models were told. at: Unix seconds."""
    return {"scored_at": at, "prompt_hash": PROMPT_HASH, "tools_hash": TOOLS_HASH}


def evaluation(path: Path, model: str) -> EvaluationScore:
    """What a leaderboard says of a model. Raises: InvalidInput when there is none, or it says nothing of that one."""
    board = _read(path)
    line = next((one for one in board.lines if one.model == model), None)
    cases = board.cases.get(model, ())
    if line is None or not cases:
        known = ", ".join(one.model for one in board.lines) or "nobody"
        raise InvalidInput(f"{path} says nothing of {model!r}: it is about {known}")
    ratios = {"right": line.right_ratio, "blind": line.blind_ratio}
    of = {name: [one for one in cases if one.group == name] for name in ("right", "blind", "hostile")}
    return EvaluationScore(
        source=str(path),
        at=board.scored_at,
        is_current=(board.prompt_hash, board.tools_hash) == (PROMPT_HASH, TOOLS_HASH),
        groups=tuple(
            GroupScore(
                group=name,
                cases=len(played),
                passed=sum(not one.objections for one in played),
                ratio=ratios.get(name),
            )
            for name, played in of.items()
            if played
        ),
        violations=line.violations,
        out_of_scope=line.out_of_scope,
        objections=tuple(f"{one.case}: {one.objections[0]}" for one in cases if one.objections)[:SHOWN_OBJECTIONS],
    )


def _read(path: Path) -> _Board:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInput(f"{path} is no leaderboard: it is larger than {MOST_BYTES >> 20} MiB")
        return _Board.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidInput(f"{path} is not there") from None
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}") from None
    except ValidationError as problem:
        found = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in found["loc"]) or "the file"
        raise InvalidInput(
            f"{path} is no leaderboard of `astraflow maintainer eval` ({where}: {found['msg']})"
        ) from None
