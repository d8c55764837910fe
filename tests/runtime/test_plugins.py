"""Plugins by kind: loaded late, checked early; errors for unknown kinds list the known ones."""

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Protocol

import pytest
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime import plugins
from astraflow.runtime.config.base import Config
from astraflow.runtime.plugins import Registry, import_plugins
from tests.errors import raises_code


class Greeter(Protocol):
    def greet(self) -> str: ...


class HelloOptions(Config):
    name: str = "world"
    times: int = 1


MODULE = """
from tests.runtime.test_plugins import HelloOptions, Loud, current
current().register("{kind}", options=HelloOptions)(Loud)
"""

_registries: list[Registry[Greeter]] = []


def current() -> Registry[Greeter]:
    """Registry of the running test, for modules that register themselves."""
    return _registries[-1]


class Loud:
    def __init__(self, options: HelloOptions) -> None:
        self._options = options

    def greet(self) -> str:
        return self._options.name.upper()


class Hello:
    def __init__(self, options: HelloOptions, greeting: str = "hello", *, mark: str = "") -> None:
        self._options = options
        self._text = f"{greeting} {options.name}{mark}"

    def greet(self) -> str:
        return " ".join([self._text] * self._options.times)


@pytest.fixture
def registry() -> Registry[Greeter]:
    greeters: Registry[Greeter] = Registry("greeter", built_in={})
    greeters.register("hello", options=HelloOptions)(Hello)
    return greeters


def test_a_plugin_receives_its_options_and_the_arguments_of_the_slot(registry: Registry[Greeter]) -> None:
    assert registry.build({"kind": "hello"}).greet() == "hello world"
    assert registry.build({"kind": "hello", "name": "you", "times": 2}, "hi", mark="!").greet() == "hi you! hi you!"


def test_registering_returns_the_class(registry: Registry[Greeter]) -> None:
    assert registry.register("again", options=HelloOptions)(Hello) is Hello


def test_an_unknown_kind_is_refused_with_the_nearest(registry: Registry[Greeter]) -> None:
    with raises_code(InvalidInput, "plugin.unknown_kind", "greeter 'helo'", "'hello'"):
        registry.build({"kind": "helo"})
    with raises_code(InvalidInput, "plugin.unknown_kind", "greeter 'zzz'", "hello"):
        registry.build({"kind": "zzz"})


@pytest.mark.parametrize("spec", [{}, {"kind": None}, {"kind": 7}, {"name": "you"}])
def test_a_spec_without_a_kind_is_refused_with_the_known_ones(
    registry: Registry[Greeter], spec: dict[str, object]
) -> None:
    with raises_code(InvalidInput, "plugin.missing_kind"):
        registry.build(spec)


def test_an_invalid_option_is_refused_with_its_key(registry: Registry[Greeter]) -> None:
    with raises_code(InvalidInput, "config.invalid", "greeter hello.tims:", "'times'"):
        registry.build({"kind": "hello", "tims": 2})
    with raises_code(InvalidInput, "config.invalid", "greeter hello.times:", "'often'"):
        registry.build({"kind": "hello", "times": "often"})


def test_a_spec_can_be_checked_without_building(registry: Registry[Greeter]) -> None:
    assert registry.check({"kind": "hello", "times": 3}) == HelloOptions(times=3)
    with raises_code(InvalidInput, "config.invalid", "times"):
        registry.check({"kind": "hello", "times": "often"})


def test_a_built_in_plugin_is_imported_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greeters_loud.py").write_text(MODULE.format(kind="loud"))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry: Registry[Greeter] = Registry("greeter", built_in={"loud": "greeters_loud"})
    monkeypatch.setattr(sys.modules[__name__], "_registries", [registry])
    assert registry.kinds() == ["loud"]
    assert "greeters_loud" not in sys.modules
    assert registry.build({"kind": "loud"}).greet() == "WORLD"
    monkeypatch.delitem(sys.modules, "greeters_loud")


def test_third_parties_register_through_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry[Greeter]
) -> None:
    (tmp_path / "their_greeters.py").write_text(MODULE.format(kind="theirs"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys.modules[__name__], "_registries", [registry])
    entry = EntryPoint(name="theirs", value="their_greeters", group="astraflow.greeters")
    other = EntryPoint(name="elsewhere", value="their_greeters", group="astraflow.parsers")
    monkeypatch.setattr(
        plugins, "_entry_points", lambda search_path: {"astraflow.greeters": [entry], "astraflow.parsers": [other]}
    )
    assert registry.kinds() == ["hello", "theirs"]
    assert registry.build({"kind": "theirs"}).greet() == "WORLD"
    monkeypatch.delitem(sys.modules, "their_greeters")


def test_summaries_are_first_sentences_and_import_no_installed_plugin(
    monkeypatch: pytest.MonkeyPatch, registry: Registry[Greeter]
) -> None:
    class Polite(Hello):
        """Greets e.g. politely,
        twice. And waits."""

    registry.register("polite", options=HelloOptions)(Polite)
    entry = EntryPoint(name="theirs", value="their_missing_module", group="astraflow.greeters")
    monkeypatch.setattr(plugins, "_entry_points", lambda search_path: {"astraflow.greeters": [entry]})
    assert registry.summaries() == {"hello": "", "polite": "Greets e.g. politely, twice", "theirs": ""}


def test_an_entry_point_that_registers_nothing_is_an_unknown_kind(
    monkeypatch: pytest.MonkeyPatch, registry: Registry[Greeter]
) -> None:
    entry = EntryPoint(name="empty", value="json", group="astraflow.greeters")
    monkeypatch.setattr(plugins, "_entry_points", lambda search_path: {"astraflow.greeters": [entry]})
    with raises_code(InvalidInput, "plugin.unknown_kind", "greeter 'empty'"):
        registry.build({"kind": "empty"})


FILE_PLUGIN = MODULE.format(kind="filed")


def own_plugins(monkeypatch: pytest.MonkeyPatch, *targets: object) -> None:
    monkeypatch.setenv("ASTRAFLOW_PLUGINS", os.pathsep.join(map(str, targets)))


def test_files_of_the_environment_register_plugins(
    registry: Registry[Greeter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _registries.append(registry)
    file = tmp_path / "plugin_of_a_file.py"
    file.write_text(FILE_PLUGIN)
    own_plugins(monkeypatch, file)

    assert registry.kinds() == ["filed", "hello"]
    assert registry.build({"kind": "filed", "name": "ada"}).greet() == "ADA"


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ("\nimport no.such.module", "(broken_plugin.py, line 2); install the package"),
        ("def", "(broken_plugin.py, line 1); correct the module"),
        ("\n\n1 / 0", "(broken_plugin.py, line 3); correct the module"),
        (None, "give a Python file"),
    ],
    ids=["import", "syntax", "defect", "missing"],
)
def test_files_that_do_not_import_are_refused(
    registry: Registry[Greeter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, quoted: str
) -> None:
    file = tmp_path / "broken_plugin.py"
    if content is not None:
        file.write_text(content)
    own_plugins(monkeypatch, file)

    with raises_code(InvalidInput, "plugin.not_importable", quoted):
        registry.build({"kind": "filed"})
    assert "broken_plugin" not in sys.modules


def test_a_file_that_registers_nothing_of_the_name_is_named(
    registry: Registry[Greeter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plugin_without_decorator.py"
    file.write_text("class Filed: ...")
    own_plugins(monkeypatch, file)
    with raises_code(InvalidInput, "plugin.unknown_kind", str(file)):
        registry.build({"kind": "filed"})


def test_a_class_with_other_parameters_is_refused_and_its_own_type_errors_are_not_hidden(
    registry: Registry[Greeter],
) -> None:
    class Bare:
        pass

    class Broken:
        def __init__(self, options: HelloOptions) -> None:
            raise TypeError("own defect")

    for name, plugin in (("bare", Bare), ("broken", Broken)):
        registry.register(name, options=HelloOptions)(plugin)
    with raises_code(InvalidInput, "plugin.wrong_parameters", "'bare'"):
        registry.build({"kind": "bare"})
    with pytest.raises(TypeError, match="own defect"):
        registry.build({"kind": "broken"})


def test_a_file_with_the_name_of_another_module_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text("")
    with raises_code(InvalidInput, "plugin.not_importable"):
        import_plugins(str(file))


def test_plugins_in_options_are_found_with_their_path(registry: Registry[Greeter]) -> None:
    class Named(Config):
        name: str = ""

    class Holding(Config):
        one: Annotated[dict[str, Any], registry] = Field(default_factory=dict)
        many: Annotated[tuple[dict[str, Any], ...], registry] = ()
        other: dict[str, Any] = Field(default_factory=dict)

    registry.register("named", options=Named)(type("Named", (), {}))
    registry.register("holding", options=Holding)(type("Holding", (), {}))
    named = {"kind": "named"}
    inner = {"kind": "holding", "many": [named, "text", named]}

    nested_plugins = list(registry.nested({"kind": "holding", "one": inner, "many": named, "other": named}))

    assert nested_plugins == [
        (("one",), registry, inner),
        (("one", "many", "0"), registry, named),
        (("one", "many", "2"), registry, named),
        (("many",), registry, named),
    ]
    assert list(registry.nested({"kind": "unknown", "one": named})) == []
