import sys
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config
from astraflow.runtime.plugins import Registry


class Options(Config):
    size_mm: int = 1


class Wheel:
    def __init__(self, options: Options, colour: str = "") -> None:
        self.size_mm = options.size_mm
        self.colour = colour


def wheels(folder: Path, **modules: str) -> Registry[Wheel]:
    """A registry whose built-in kinds are modules with that source."""
    for kind, source in modules.items():
        (folder / f"made_up_{kind}.py").write_text(source)
    registry = Registry[Wheel]("wheel", {kind: f"made_up_{kind}" for kind in modules}, heavy=("broad",))
    registry.register("plain", options=Options)(Wheel)
    return registry


def test_a_spec_becomes_what_it_asks_for(tmp_path: Path) -> None:
    wheel = wheels(tmp_path).build({"kind": "plain", "size_mm": 7}, colour="red")
    assert (wheel.size_mm, wheel.colour) == (7, "red")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "plian"}, "no wheel is called 'plian'; did you mean 'plain'"),
        ({"size_mm": 1}, "a wheel needs a 'kind'; known: plain"),
        ({"kind": "plain", "size": 1}, r"wheel plain\.size: unknown key; did you mean 'size_mm'"),
    ],
)
def test_a_wrong_spec_is_answered_with_what_is_known(tmp_path: Path, spec: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wheels(tmp_path).check(spec)


def test_a_kind_that_lacks_a_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    registry = wheels(tmp_path, broad="import a_package_nobody_has")
    with pytest.raises(InvalidInput, match="the wheel 'broad' needs the package 'a_package_nobody_has', which is not"):
        registry.build({"kind": "broad"})


def test_a_heavy_kind_is_told_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    registry = wheels(tmp_path, broad="", slim="")
    assert [registry.is_heavy(kind) for kind in ("broad", "slim", "plain", "unheard")] == [True, False, False, False]
    assert "made_up_broad" not in sys.modules
