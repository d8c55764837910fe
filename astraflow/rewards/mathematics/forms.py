"""Forms of mathematical answers: what a text says before anything is computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from astraflow.rewards.mathematics.algebra.expressions import Expression
from astraflow.rewards.mathematics.units import Unit


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words, or a text in no other form: equal only word by word."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """An expression, with a unit if the text has one."""

    expression: Expression
    unit: Unit | None = None


class Grouping(Enum):
    """Meaning of the brackets around items."""

    LIST = "list"
    """No brackets: in any order."""
    SET = "set"
    TUPLE = "tuple"
    """Parentheses, also of an open interval."""
    INTERVAL = "interval"
    """Square or mixed brackets."""
    VECTOR = "vector"
    """Angle brackets."""


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers in one."""

    grouping: Grouping
    items: tuple["Form", ...]
    brackets: str = ""
    """Opening and closing bracket of an interval or a tuple."""

    @property
    def goes_on(self) -> bool:
        """True if dots are among the items, which then have an order."""
        return any(isinstance(item, Phrase) and "ldots" in item.words for item in self.items)


@dataclass(frozen=True, slots=True)
class Chain:
    """Relations such as `x = 3` or `0 < x < 1`."""

    sides: tuple["Form", ...]
    operators: tuple[str, ...]
    names: tuple[str, ...]
    """For each side the text of a name such as `f(x)`, empty for a side that is none."""


@dataclass(frozen=True, slots=True)
class Union:
    """A union of intervals and sets, or inequalities with "or" between them."""

    parts: tuple["Form", ...]


@dataclass(frozen=True, slots=True)
class Intersection:
    """Inequalities that all hold."""

    parts: tuple["Form", ...]
    is_listed: bool = False
    """True with commas between them: they may also be alternatives, which exclude each other."""


@dataclass(frozen=True, slots=True)
class Reals:
    """The real numbers without some of them."""

    removed: "Form | None" = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio such as 3:4, or a time of day such as 10:30."""

    parts: tuple["Form", ...]
    unit: Unit | None = None
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class Congruence:
    """`left = right` modulo a number; a text without a left side has the name of it missing."""

    left: "Form | None"
    right: "Form"
    modulus: "Form"


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix, or the cases of a function."""

    rows: tuple[tuple["Form", ...], ...]
    is_matrix: bool


@dataclass(frozen=True, slots=True)
class Permutation:
    """A product of disjoint cycles."""

    images: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a base."""

    digits: str
    base: int


Form: TypeAlias = (
    Phrase | Quantity | Items | Chain | Union | Intersection | Reals | Ratio | Congruence | Table | Permutation | Based
)
