import doctest
from collections.abc import Sequence

import pytest
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import base
from astraflow.runtime.config.base import Config
from tests.errors import raises_code


class Wheel(Config):
    size_mm: int = 100
    kind: str = "wide"


class Cart(Config):
    wheels: dict[str, Wheel] = Field(default_factory=dict)
    spares: tuple[Wheel, ...] = ()
    lead: Wheel | None = None
    axle: Wheel = Wheel()
    load_kg: float


def test_doctests_hold() -> None:
    assert doctest.testmod(base).failed == 0


@pytest.mark.parametrize(
    "values",
    [
        {"wheels": {"left": {"size_m": 3}}},
        {"spares": [{}, {"size_m": 3}]},
        {"lead": {"size_m": 3}},
        {"axle": {"size_m": 3}},
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(values: dict[str, object]) -> None:
    with raises_code(InvalidInput, "config.invalid", "size_m:", "'size_mm'"):
        Cart.parse({"load_kg": 1, **values}, where="cart")


def test_every_invalid_field_has_a_line() -> None:
    with pytest.raises(InvalidInput) as refused:
        Cart.parse({"axle": {"size_mm": "big"}, "colour": "red"}, where="cart")
    lines = str(refused.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["cart.axle.size_mm", "cart.load_kg", "cart.colour"]
    assert "(found 'big')" in lines[0]
    assert "missing" in lines[1]


def test_errors_name_the_file_of_each_value() -> None:
    def origin(path: Sequence[str]) -> str:
        return "base.toml" if path[0] == "axle" else "top.toml"

    with pytest.raises(InvalidInput) as refused:
        Cart.parse({"axle": {"size": 3}, "load_kg": "x"}, where="", origin=origin)
    assert [line.split(": ")[0:2] for line in str(refused.value).splitlines()] == [
        ["base.toml", "axle.size"],
        ["top.toml", "load_kg"],
    ]
