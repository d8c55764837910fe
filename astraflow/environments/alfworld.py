"""Household games of ALFWorld (arXiv:2010.03768), played by its own engine (packages `alfworld` and `textworld`).

The engine keeps state in module variables and is not thread-safe, and a step takes milliseconds: run it in worker
processes, with `{kind = "process", of = {kind = "alfworld"}}`.
"""

import ast
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.base import QUESTION
from astraflow.datasets.worlds.alfworld_games import HouseholdGame
from astraflow.environments import environments
from astraflow.environments.alfworld_problems import problem_of
from astraflow.environments.base import Environment, EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_HEADER = re.compile(r"\A-=.*?=-\s*", re.DOTALL)
_GOAL = "UNKNOWN GOAL."
"""Placeholder of the goal in the grammar of ALFWorld."""

_PUT = re.compile(r"(?:put|place|move) (.+?) (?:in/on|in|on|into|onto|to) (.+)")
_ACTION = re.compile(
    "(clean|close|cool|examine|go|heat|move|open|slice|take|use) .+|help|inventory|look",
)
_MAX_ACTION_CHARS = 200
_TRANSLATED_GAMES = 64
"""Games whose translation is kept: as the episodes of a group play the same game, most begin with a translated one."""
_GAME = TypeAdapter(HouseholdGame)


class AlfworldOptions(Config):
    """Location of the published games."""

    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder that `alfworld-download` filled, on each node; empty when all games are generated."""


@environments.register("alfworld", options=AlfworldOptions)
class AlfworldFactory:
    """Plays the games of the dataset `alfworld`. Actions are the commands of the engine, such as `go to fridge 1`,
    `take apple 1 from fridge 1` or `move apple 1 to countertop 1` (also `put apple 1 in/on countertop 1`, as in older
    data). The reward is 1 when the goal is reached."""

    def __init__(self, options: AlfworldOptions) -> None:
        self._options = options
        self.limits = EnvironmentLimits(begin_s=120.0, act_s=30.0)

    def make(self) -> Environment:
        """Returns a new game."""
        return AlfworldGame(self._options)

    async def check(self) -> None:
        """Checks that the engine is installed and the folder of games exists. Raises: InvalidInput."""
        _engine()
        if self._options.path and not _root(self._options.path).is_dir():
            raise InvalidInput(
                f"cannot play ALFWorld: {self._options.path!r} is no folder on this machine; run ALFWORLD_DATA=FOLDER "
                "alfworld-download here, and set path to this folder",
                code="environment.no_folder",
            )


class AlfworldGame:
    """One game. The observations list all actions that are possible, in alphabetical order."""

    def __init__(self, options: AlfworldOptions) -> None:
        self._options = options
        self._state: Any = None
        self._entities: dict[str, Any] = {}
        self._actions: Mapping[str, Any] = {}
        self._is_won = False

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Loads the game of the prompt; the seed changes nothing. Raises: InvalidInput."""
        del seed
        problem = self._problem(prompt)
        engine = _engine()
        self._state = engine.new_state(problem)
        self._entities = engine.named_entities(self._state)
        self._actions = engine.actions(self._state, self._entities)
        text = _HEADER.sub("", engine.text("#intro#", self._state, self._entities, {}))
        goal = str(prompt.fields[QUESTION]).strip().rstrip(".")
        return Observation(text=text.replace(_GOAL, f"{goal}."), actions=tuple(self._actions))

    async def act(self, action: str) -> Observation:
        """Performs an action. Impossible ones are answered with "Nothing happens."; the state does not change."""
        if self._state is None:
            raise InvalidInput("cannot act: the game has not begun; call begin first", code="environment.not_begun")
        command = normalized(action)
        if self._is_won or command not in self._actions:
            return self._refusal(command)
        engine = _engine()
        performed = self._actions[command]
        self._state.apply(performed)
        text = engine.text(performed.feedback_rule, self._state, self._entities, performed.mapping)
        self._is_won = bool(self._state.check_goal())
        self._actions = engine.actions(self._state, self._entities)
        return Observation(
            text=text,
            actions=tuple(self._actions),
            reward=float(self._is_won),
            ending=Ending.WON if self._is_won else None,
        )

    async def close(self) -> None:
        """Gives the game's planner library back."""
        if self._state is not None:
            _engine().release(self._state)
        self._state = None

    def _refusal(self, command: str) -> Observation:
        if self._is_won:
            return Observation(text="The game is over.", ending=Ending.WON)
        is_readable = _ACTION.fullmatch(command) is not None
        text = "Nothing happens." if is_readable else "Cannot read the action: use one of the possible actions."
        return Observation(text=text, actions=tuple(self._actions), is_malformed=not is_readable)

    def _problem(self, prompt: Prompt) -> str:
        """Returns the planning problem of a prompt's game. Raises: InvalidInput."""
        game = prompt.fields.get("game")
        try:
            if isinstance(game, str) and self._options.path:
                return _published_problem(_root(self._options.path), game)
            return problem_of(_GAME.validate_python(game))
        except (OSError, ValueError, LookupError) as problem:
            cause = "it has no game" if isinstance(problem, ValidationError) else str(problem)
            raise InvalidInput(
                f"cannot begin a game of ALFWorld for prompt {str(prompt.id)!r}: {cause}; use the dataset 'alfworld', "
                "and set path for published games",
                code="environment.wrong_prompt",
            ) from problem


def normalized(action: str) -> str:
    """Returns an action as the engine spells it.

    >>> normalized(" > Put apple 1 in/on  fridge 1.")
    'move apple 1 to fridge 1'
    """
    if len(action) > _MAX_ACTION_CHARS:
        return ""
    command = " ".join(action.lower().split()).lstrip("> ").rstrip(". ")
    match = _PUT.fullmatch(command)
    return f"move {match[1]} to {match[2]}" if match else command


def _root(path: str) -> Path:
    folder = Path(path).expanduser()
    return folder / "json_2.1.1" if (folder / "json_2.1.1").is_dir() else folder


def _published_problem(root: Path, game: str) -> str:
    """Returns the problem in a published file. Its grammar, which the engine would evaluate, is not used."""
    path = (root / game).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{game!r} is outside of {str(root)!r}")
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict) or not isinstance(content.get("pddl_problem"), str):
        raise ValueError(f"{str(path)!r} has no pddl_problem")
    return str(content["pddl_problem"])


class _Engine:
    """ALFWorld's domain and grammar, and the planner library that holds the state of games."""

    def __init__(self) -> None:
        data = Path(str(find_spec("alfworld").origin)).parent / "data"  # type: ignore[union-attr]  # the module was imported, so it has a spec
        logic = import_module("textworld.envs.pddl.logic")
        self._entity = import_module("textworld.generator.game").EntityInfo
        self._demangler = import_module("alfworld.agents.utils.misc").Demangler
        self._new_state = logic.PddlState
        self._load_library = import_module("fast_downward").load_lib
        self._free_libraries: list[Any] = []
        _accelerate(logic, import_module("textworld.envs.pddl.textgen"), import_module("textworld.logic").Rule)
        self._logic = logic.GameLogic((data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text())

    def new_state(self, problem: str) -> Any:
        """Returns the state at the begin of a game. Each game that is played at the same time has a copy of the planner
        library, which keeps its state."""
        library = self._free_libraries.pop() if self._free_libraries else self._load_library()
        return self._new_state(library, problem, self._logic)

    def release(self, state: Any) -> None:
        """Keeps the library of a state for another game; unloading it crashes the process at its exit."""
        self._free_libraries.append(state.downward_lib)

    def named_entities(self, state: Any) -> dict[str, Any]:
        """Returns the agent, places, receptacles and objects by id, named as in ALFWorld, such as `cabinet 2`."""
        entities = {
            variable.name: self._entity(variable.name, variable.type)
            for fact in state.facts
            for variable in fact.arguments
        }
        names = self._demangler(game_infos=entities)
        for entity in entities.values():
            entity.name = names.demangle_alfred_name(entity.id)
            entity.definite, entity.indefinite = "the", "a"
        return entities

    def actions(self, state: Any, entities: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the possible actions by their command, sorted.

        The engine derives each command by its grammar, which parses it again each time; this takes most of the time of
        a step. The commands are templates with names, but for `go to`, whose grammar gives the same.
        """
        commands = {}
        for action in state.all_applicable_actions():
            template = "go to {r}" if action.name == "gotolocation" else action.command_template
            names = {placeholder.name: entities[variable.name].name for placeholder, variable in action.mapping.items()}
            commands[template.format(**names)] = action
        return dict(sorted(commands.items()))

    def text(self, rule: str, state: Any, entities: Mapping[str, Any], mapping: Mapping[Any, Any]) -> str:
        """Returns the text that the grammar derives from a rule."""
        context = {
            "state": state,
            "facts": list(state.facts),
            "variables": {placeholder.name: entities[variable.name] for placeholder, variable in mapping.items()},
            "mapping": mapping,
            "entity_infos": entities,
        }
        return str(self._logic.grammar.derive(rule, context))


def _accelerate(logic: Any, grammar: Any, rules: Any) -> None:
    """Replaces functions of TextWorld by faster ones with the same results: an episode takes a sixth of the time.

    Games are translated and texts are parsed once instead of each time. The context of a symbol is copied without its
    entities, which are never changed. Expressions in texts are computed without `eval`, which finds no variables there
    since Python 3.13.
    """
    translate, parse = logic.fast_downward.pddl2sas, grammar._parse_and_convert
    translated = lru_cache(maxsize=_TRANSLATED_GAMES)(lambda domain, problem: translate(domain, problem, verbose=False))
    parsed = cache(lambda text, rule: parse(text, rule_name=rule))
    # The second translation, optimized, is of the planner, which has no use here.
    logic.fast_downward.pddl2sas = lambda domain, problem, **_options: translated(domain, problem)
    grammar._parse_and_convert = lambda text, rule_name, **_options: deepcopy(parsed(text, rule_name))
    grammar.copy_context = lambda context: {
        **context,
        "variables": dict(context["variables"]),
        "mapping": dict(context["mapping"]),
    }
    rules.parse_conjunctive_query = staticmethod(cache(rules.parse_conjunctive_query))
    grammar.EvalSymbol.derive = lambda symbol, context=None: [
        grammar.TerminalSymbol(_value(_parsed(symbol.expression), (context or symbol.context)["variables"]))
    ]


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def _value(expression: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Returns the value of an expression of the grammar: variables, their attributes, strings, `+` and `or`.

    Raises: ValueError for any other expression.
    """
    match expression:
        case ast.Name(id=name):
            return variables[name]
        case ast.Attribute(value=value, attr=attribute):
            return getattr(_value(value, variables), attribute)
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, variables) + _value(right, variables)
        case ast.BoolOp(op=ast.Or(), values=[first, second]):
            return _value(first, variables) or _value(second, variables)
    raise ValueError(f"cannot derive a text of ALFWorld: unknown expression {ast.unparse(expression)!r} in its grammar")


@cache
def _engine() -> _Engine:
    """Returns the engine of this process. Raises: InvalidInput when it is not installed."""
    try:
        return _Engine()
    except (ModuleNotFoundError, AttributeError) as problem:
        raise InvalidInput(
            f"cannot play ALFWorld: {problem}; install it with pip install 'astraflow[alfworld]'",
            code="environment.missing_package",
        ) from problem
