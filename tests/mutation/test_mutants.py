"""Mutants of a small module: which changes are made, and that the changed code runs."""

from pathlib import Path
from types import FunctionType

from tests.mutation.__main__ import EQUIVALENTS
from tests.mutation.mutants import Mutant, mutants_of

SOURCE = '''
def grown(value: int, *, by: int = 1) -> int:
    """Returns a larger value."""
    if value < 3 and by:
        raise ValueError("too small to grow", "value.small")
    log.info("grown")
    return value + by


def _limit() -> int:
    return 3 + 4


LIMIT = _limit()
'''


def mutants(folder: Path) -> list[Mutant]:
    path = folder / "module.py"
    path.write_text(SOURCE)
    return mutants_of(path)


def test_operators_constants_and_statements_change_one_by_one(tmp_path: Path) -> None:
    changed = [mutant.diff().splitlines()[1] for mutant in mutants(tmp_path)]

    assert sorted(changed) == sorted(
        [
            "+ if value < 3 or by:",
            "+ if value <= 3 and by:",
            "+ if value < 4 and by:",
            "+ pass",
            "+ raise ValueError('too small to grow', 'Xvalue.small')",
            "+ return value - by",
        ]
    )


def test_a_mutant_is_the_code_with_its_change_alone(tmp_path: Path) -> None:
    results = []
    for mutant in mutants(tmp_path):
        function = FunctionType(mutant.codes()["grown", 2], {"ValueError": KeyError, "log": _Log()})
        try:
            results.append(function(3, by=2))
        except KeyError:
            results.append(0)

    assert sorted(results) == [0, 0, 0, 1, 5, 5]


class _Log:
    def info(self, event: str) -> None:
        """Ignores the event."""


def test_accepted_equivalents_are_mutants_of_the_present_code_with_a_reason() -> None:
    lines = [line.partition("  # ") for line in EQUIVALENTS.read_text().splitlines()]
    keys = {mutant.key for path in {key.partition(":")[0] for key, _, _ in lines} for mutant in mutants_of(Path(path))}

    assert [key for key, _, _ in lines if key not in keys] == []
    assert all(reason for _, _, reason in lines)
