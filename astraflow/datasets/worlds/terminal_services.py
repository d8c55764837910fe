"""Services beside the container of a terminal task, in the part of Compose's format that a task needs.

A service has an image or a build folder below `environment`, variables, a command, a health check, and services that
start before it. Ports, volumes, devices and rights of the host are refused by their names.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.runtime.config.base import is_image_name
from astraflow.runtime.imports import needs_extra

MAIN = "main"
"""Name of the policy's own container."""
_OWN_KEYS = frozenset({"build", "command", "depends_on", "entrypoint", "environment", "expose", "healthcheck", "image"})
_MAIN_KEYS = frozenset({"depends_on", "environment"})
_SECONDS = {"s": 1.0, "m": 60.0, "ms": 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalService:
    """Container beside that of the policy, which reaches it by its name."""

    name: str
    image: str
    """Image; empty to build it from `folder`."""
    folder: str
    """Folder of the task from which the image is built; empty for an image."""
    variables: Mapping[str, str]
    entrypoint: tuple[str, ...]
    """Program and first arguments instead of the image's; empty: those of the image."""
    command: tuple[str, ...]
    """Arguments instead of the image's; empty: those of the image."""
    health: tuple[str, ...]
    """Command that succeeds once the service works; empty: it works once it runs."""
    start_s: float
    """Time in which the health check has to succeed. Seconds."""


def services_of(text: str) -> tuple[tuple[TerminalService, ...], Mapping[str, str]]:
    """Returns the services of a Compose file in the order of their starts, and variables of the policy's container.

    Raises: ValueError, which names what is not supported.
    """
    with needs_extra("sandbox", to="read the services of a terminal task"):
        import yaml
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ValueError(f"docker-compose.yaml is no YAML: {problem}") from None
    tables = _mapping(content, "docker-compose.yaml").get("services")
    named = {
        str(name): _mapping(table or {}, f"service {name}") for name, table in _mapping(tables, "services").items()
    }
    _check_keys("docker-compose.yaml", _mapping(content, ""), frozenset({"name", "services", "version"}))
    main = named.pop(MAIN, {})
    _check_keys(f"service {MAIN}", main, _MAIN_KEYS)
    services = {name: _service(name, table) for name, table in named.items()}
    order = _ordered({name: [*_names(table.get("depends_on", []))] for name, table in named.items()})
    return tuple(services[name] for name in order), _variables(main.get("environment", {}), MAIN)


def _service(name: str, table: Mapping[str, Any]) -> TerminalService:
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise ValueError(f"{name!r} is no name of a service")
    _check_keys(f"service {name}", table, _OWN_KEYS)
    build = table.get("build", "")
    folder = str(_mapping(build, f"build of {name}").get("context", "") if isinstance(build, Mapping) else build)
    if isinstance(build, Mapping):
        _check_keys(f"build of {name}", build, frozenset({"context"}))
    image = "" if folder else str(table.get("image", ""))
    if not folder and not is_image_name(image):
        raise ValueError(f"service {name} has neither a build folder nor the name of an image, but {image!r}")
    if ".." in folder.split("/") or folder.startswith("/"):
        raise ValueError(f"the build folder {folder!r} of service {name} is not below the environment")
    health, start_s = _health(name, table.get("healthcheck"))
    return TerminalService(
        name=name,
        image=image,
        folder=f"environment/{folder}".rstrip("./").rstrip("/") if folder else "",
        variables=_variables(table.get("environment", {}), name),
        entrypoint=_words(table.get("entrypoint"), f"entrypoint of {name}"),
        command=_words(table.get("command"), f"command of {name}"),
        health=health,
        start_s=start_s,
    )


def _health(name: str, check: object) -> tuple[tuple[str, ...], float]:
    """Returns the command of a health check, and the time in which it has to succeed."""
    if check is None:
        return (), 0.0
    table = _mapping(check, f"healthcheck of {name}")
    _check_keys(f"healthcheck of {name}", table, frozenset({"interval", "retries", "start_period", "test", "timeout"}))
    test = table.get("test")
    words = ("sh", "-c", test) if isinstance(test, str) else _words(test, f"healthcheck of {name}")
    if words[:1] == ("CMD-SHELL",):
        words = ("sh", "-c", *words[1:])
    retries = table.get("retries", 3)
    if not words or isinstance(retries, bool) or not isinstance(retries, int) or not 0 < retries <= 1000:
        raise ValueError(f"the health check of {name} has no test, or {retries!r} retries")
    waits_s = _seconds(table.get("interval", "30s")) * retries + _seconds(table.get("start_period", "0s"))
    return tuple(words[1:] if words[0] == "CMD" else words), min(600.0, waits_s)


def _seconds(value: object) -> float:
    """Returns a duration.

    >>> _seconds("1m30s"), _seconds("500ms")
    (90.0, 0.5)
    """
    text, total = str(value), 0.0
    while text:
        digits = text[: len(text) - len(text.lstrip("0123456789."))]
        unit = text[len(digits) :][: 2 if text[len(digits) :].startswith("ms") else 1]
        if not digits or unit not in _SECONDS:
            raise ValueError(f"{value!r} is no duration such as '5s'")
        total += float(digits) * _SECONDS[unit]
        text = text[len(digits) + len(unit) :]
    return total


def _ordered(needed: Mapping[str, list[str]]) -> list[str]:
    """Returns the names, each after those that it needs. Raises: ValueError for a circle or an unknown name."""
    order: list[str] = []
    while len(order) < len(needed):
        ready = [name for name in needed if name not in order and set(needed[name]) <= set(order)]
        if not ready:
            raise ValueError(f"the services {', '.join(sorted(set(needed) - set(order)))} depend on others in a circle")
        order += ready
    return order


def _variables(values: object, name: str) -> dict[str, str]:
    """Returns variables of a mapping or of a list with `NAME=value`."""
    if isinstance(values, list):
        values = dict(str(item).partition("=")[::2] for item in values)
    variables = {str(key): str(value) for key, value in _mapping(values, f"environment of {name}").items()}
    if any(not key.isidentifier() or "${" in value for key, value in variables.items()):
        raise ValueError(
            f"the environment of {name} has a name that is none, or takes a value of this machine (${{...}})"
        )
    return variables


def _words(value: object, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if not isinstance(value, list) or not all(isinstance(word, str | int | float) for word in value):
        raise ValueError(f"{what} is no list of words")
    return tuple(map(str, value))


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list | dict) else []


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no table")
    return value


def _check_keys(what: str, table: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(map(str, table)) - known)
    if unknown:
        raise ValueError(f"{what} has {', '.join(unknown)}, which are not supported")
