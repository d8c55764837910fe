"""Planning problems (PDDL) of generated household games, in ALFWorld's domain."""

from importlib import import_module

from astraflow.datasets.worlds.alfworld_games import (
    LAMP,
    LOOK,
    OPENABLE,
    TASK_TYPES,
    HouseholdGame,
    changes,
    may_hold,
    numbered,
)

_STATES = {
    "pick_clean_then_place_in_recep": "cleanable",
    "pick_cool_then_place_in_recep": "coolable",
    "pick_heat_then_place_in_recep": "heatable",
}
_NAMED_RECEPTACLES = ("SinkBasin", "Microwave", "Fridge")
_NAMED_OBJECTS = ("Knife", "ButterKnife")
"""Types that the domain names, so that each problem must declare them."""


def problem_of(game: HouseholdGame) -> str:
    """Returns the problem of a game. Raises: ValueError when the game contradicts itself."""
    _check(game)
    goals = import_module("alfworld.gen.goal_library").gdict
    goal = goals[game.task_type]["pddl"].format(obj=game.target, recep=game.destination, toggle=LAMP)
    objects, facts = _declarations(game), _facts(game)
    return (
        f"(define (problem generated) (:domain alfred)\n(:objects\n{chr(10).join(objects)}\n)\n"
        f"(:init\n{chr(10).join(facts)}\n)\n{goal.replace('#', '-')}"
    )


def _check(game: HouseholdGame) -> None:
    if game.task_type not in TASK_TYPES:
        raise ValueError(f"the task type {game.task_type!r} is unknown")
    if not all(item.place < len(game.receptacles) for item in game.objects):
        raise ValueError("an object is in a receptacle that does not exist")
    if (game.destination == "") != (game.task_type == LOOK):
        raise ValueError("its goal has no receptacle")


def _declarations(game: HouseholdGame) -> list[str]:
    receptacle_types = sorted({*game.receptacles, *_NAMED_RECEPTACLES})
    object_types = sorted({*(item.type for item in game.objects), game.target, *_NAMED_OBJECTS})
    return [
        "agent1 - agent",
        "loc_start - location",
        *(f"loc_{number} - location" for number in range(len(game.receptacles))),
        *(f"{name} - receptacle" for name in _receptacle_ids(game)),
        *(f"{name} - object" for name in _object_ids(game)),
        *(f"{name}Type - rtype" for name in receptacle_types),
        *(f"{name}Type - otype" for name in object_types),
    ]


def _facts(game: HouseholdGame) -> list[str]:
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_start)"]
    receptacles = _receptacle_ids(game)
    for number, (name, kind) in enumerate(zip(receptacles, game.receptacles, strict=True)):
        facts += [f"(receptacleAtLocation {name} loc_{number})", f"(receptacleType {name} {kind}Type)"]
        facts += [f"(openable {name})"] if kind in OPENABLE else []
    for name, item in zip(_object_ids(game), game.objects, strict=True):
        facts += [
            f"(objectType {name} {item.type}Type)",
            f"(inReceptacle {name} {receptacles[item.place]})",
            f"(objectAtLocation {name} loc_{item.place})",
            f"({'toggleable' if item.type == LAMP else 'pickupable'} {name})",
            *(f"({_STATES[task_type]} {name})" for task_type in sorted(changes(item.type))),
        ]
    return facts + [
        f"(canContain {receptacle}Type {item}Type)"
        for receptacle in sorted(set(game.receptacles))
        for item in sorted({placed.type for placed in game.objects})
        if may_hold(receptacle, item)
    ]


def _receptacle_ids(game: HouseholdGame) -> list[str]:
    return [_identifier(name) for name in numbered(game.receptacles)]


def _object_ids(game: HouseholdGame) -> list[str]:
    return [_identifier(name) for name in numbered([item.type for item in game.objects])]


def _identifier(name: str) -> str:
    """Returns the id that ALFWorld shows as `name`: it numbers the ids of a type in reverse alphabetical order, and
    names the basin of a sink after both.

    >>> _identifier("cabinet 2"), _identifier("sinkbasin 1")
    ('cabinet_bar_97', 'sink_bar_98_bar_sinkbasin')
    """
    kind, number = name.split()
    whole = kind.removesuffix("basin")
    return f"{whole}_bar_{99 - int(number):02d}" + (f"_bar_{kind}" if whole != kind else "")
