"""Generator of household games in the manner of ALFWorld: a room, its receptacles and objects, and a goal.

The games use the types of receptacles and objects that ALFWorld's engine knows. The environment `alfworld` turns a game
into a planning problem of ALFWorld's own domain.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

TypeName = Annotated[str, Field(pattern="^[A-Za-z]{1,30}$")]
"""Type of a receptacle or object."""

LOOK, PLACE, CLEAN, COOL, HEAT, TWO = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
TASK_TYPES = (LOOK, PLACE, CLEAN, COOL, HEAT, TWO)
"""Types of games, as the published data names them."""

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
"""Receptacles that must be opened."""

LAMP = "DeskLamp"
"""Object that lights; it cannot be carried."""

_SURFACES = {
    "food": ("CounterTop", "DiningTable", "Fridge", "Microwave", "GarbageCan", "SinkBasin", "SideTable"),
    "dish": ("CounterTop", "DiningTable", "Cabinet", "Fridge", "SinkBasin", "Shelf"),
    "cutlery": ("CounterTop", "DiningTable", "Drawer", "SinkBasin"),
    "pan": ("CounterTop", "StoveBurner", "Cabinet", "Fridge", "SinkBasin"),
    "small": ("Desk", "SideTable", "Drawer", "Shelf", "Dresser", "CoffeeTable", "Safe", "Sofa", "ArmChair", "Bed"),
    "large": ("Desk", "Bed", "Sofa", "ArmChair", "SideTable", "CoffeeTable", "Dresser"),
    "bath": ("CounterTop", "Cabinet", "Drawer", "Toilet", "BathtubBasin", "SinkBasin", "Shelf", "GarbageCan"),
}
"""Receptacles that hold the objects of each kind."""

_OBJECTS = {
    "Apple": ("food", {CLEAN, COOL, HEAT}),
    "Bread": ("food", {COOL, HEAT}),
    "Egg": ("food", {CLEAN, COOL, HEAT}),
    "Lettuce": ("food", {CLEAN, COOL}),
    "Potato": ("food", {CLEAN, COOL, HEAT}),
    "Tomato": ("food", {CLEAN, COOL, HEAT}),
    "Cup": ("dish", {CLEAN, COOL, HEAT}),
    "Mug": ("dish", {CLEAN, COOL, HEAT}),
    "Plate": ("dish", {CLEAN, COOL, HEAT}),
    "Bowl": ("dish", {CLEAN, COOL}),
    "Fork": ("cutlery", {CLEAN}),
    "Ladle": ("cutlery", {CLEAN}),
    "Spoon": ("cutlery", {CLEAN}),
    "Spatula": ("cutlery", {CLEAN}),
    "Pan": ("pan", {CLEAN, COOL}),
    "Pot": ("pan", {CLEAN, COOL}),
    "AlarmClock": ("small", set()),
    "CD": ("small", set()),
    "CellPhone": ("small", set()),
    "CreditCard": ("small", set()),
    "KeyChain": ("small", set()),
    "Pen": ("small", set()),
    "Pencil": ("small", set()),
    "RemoteControl": ("small", set()),
    "Vase": ("small", set()),
    "Watch": ("small", set()),
    "Book": ("large", set()),
    "Laptop": ("large", set()),
    "Newspaper": ("large", set()),
    "Pillow": ("large", set()),
    "Candle": ("bath", set()),
    "Cloth": ("bath", {CLEAN}),
    "SoapBar": ("bath", {CLEAN}),
    "SoapBottle": ("bath", set()),
    "SprayBottle": ("bath", set()),
    "ToiletPaper": ("bath", set()),
}
"""Kind of each object, and the task types that change its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedObject:
    """Object at the begin of a game."""

    type: TypeName
    place: Annotated[int, Field(ge=0)]
    """Number of its receptacle, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseholdGame:
    """A room and a goal."""

    room: str
    """Kind of room, such as `kitchen`."""
    receptacles: tuple[TypeName, ...]
    """Types of the receptacles."""
    objects: tuple[PlacedObject, ...]
    task_type: str
    """One of `TASK_TYPES`."""
    target: TypeName
    """Type of the object that the goal names."""
    destination: TypeName | Literal[""]
    """Type of the receptacle that the goal names; empty when there is none."""

    @property
    def goal(self) -> str:
        """The goal as text."""
        return _GOALS[self.task_type].format(object=self.target.lower(), receptacle=self.destination.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Kind of room."""

    fixed: tuple[str, ...]
    """Receptacles that each such room has once."""
    repeated: tuple[str, ...]
    """Receptacles that it has any number of times."""
    kinds: tuple[str, ...]
    """Kinds of its objects."""
    task_types: tuple[str, ...]


_ROOMS = {
    "kitchen": _Room(
        fixed=("Fridge", "Microwave", "SinkBasin", "CounterTop", "GarbageCan"),
        repeated=("Cabinet", "CounterTop", "DiningTable", "Drawer", "Shelf", "SideTable", "StoveBurner"),
        kinds=("food", "dish", "cutlery", "pan"),
        task_types=(PLACE, TWO, CLEAN, COOL, HEAT),
    ),
    "bedroom": _Room(
        fixed=("Desk", "Bed", "SideTable"),
        repeated=("Drawer", "Dresser", "Shelf", "SideTable", "Safe"),
        kinds=("small", "large"),
        task_types=(PLACE, TWO, LOOK),
    ),
    "living room": _Room(
        fixed=("Sofa", "CoffeeTable", "SideTable", "Desk"),
        repeated=("ArmChair", "Drawer", "Shelf", "SideTable", "Safe"),
        kinds=("small", "large"),
        task_types=(PLACE, TWO, LOOK),
    ),
    "bathroom": _Room(
        fixed=("SinkBasin", "CounterTop", "Toilet", "GarbageCan", "BathtubBasin"),
        repeated=("Cabinet", "Drawer", "Shelf"),
        kinds=("bath",),
        task_types=(PLACE, TWO, CLEAN),
    ),
}

_APPLIANCES = {CLEAN: "SinkBasin", COOL: "Fridge", HEAT: "Microwave"}
_GOALS = {
    LOOK: "look at {object} under the desklamp",
    PLACE: "put some {object} on {receptacle}",
    CLEAN: "put a clean {object} in {receptacle}",
    COOL: "put a cool {object} in {receptacle}",
    HEAT: "put a hot {object} in {receptacle}",
    TWO: "put two {object} in {receptacle}",
}


def may_hold(receptacle: str, item: str) -> bool:
    """Returns whether objects of a type can be put into receptacles of a type. The lamp stands on a desk or table."""
    if item == LAMP:
        return receptacle in ("Desk", "SideTable")
    return receptacle in _SURFACES[_OBJECTS[item][0]]


def changes(item: str) -> frozenset[str]:
    """Returns the task types that change the state of an object, such as heating."""
    return frozenset() if item == LAMP else frozenset(_OBJECTS[item][1])


def generate_game(rng: random.Random, task_type: str, *, receptacles: int, objects: int) -> HouseholdGame:
    """Returns a game of a task type that `plan` wins. receptacles, objects: counts, the lamp not included."""
    room_name = rng.choice([name for name, room in _ROOMS.items() if task_type in room.task_types])
    room = _ROOMS[room_name]
    types = [*room.fixed, *(rng.choice(room.repeated) for _ in range(receptacles - len(room.fixed)))]
    if receptacles < len(types):
        types = _reduced(rng, room, types, task_type, receptacles)
    target, destination = _draw_goal(rng, room, types, task_type)
    items = [target] * (2 if task_type == TWO else 1)
    others = [
        item
        for item, (kind, _) in _OBJECTS.items()
        if kind in room.kinds and item != target and any(may_hold(name, item) for name in types)
    ]
    items += [rng.choice(others) for _ in range(objects - len(items))]
    items += [LAMP] if task_type == LOOK else []
    placed = [
        PlacedObject(type=item, place=_draw_place(rng, types, item, avoid=destination if item == target else ""))
        for item in items
    ]
    rng.shuffle(placed)
    return HouseholdGame(
        room=room_name,
        receptacles=tuple(types),
        objects=tuple(placed),
        task_type=task_type,
        target=target,
        destination=destination,
    )


def _reduced(rng: random.Random, room: _Room, types: Sequence[str], task_type: str, count: int) -> list[str]:
    """Returns `count` of the receptacles, among which some game of the task type is possible."""
    choices = [
        [types[index] for index in chosen]
        for chosen in combinations(range(len(types)), count)
        if _goals(room, [types[index] for index in chosen], task_type)
    ]
    return rng.choice(choices)


def numbered(types: Sequence[str]) -> list[str]:
    """Returns the names of receptacles or objects in a game.

    >>> numbered(["Cabinet", "Fridge", "Cabinet"])
    ['cabinet 1', 'fridge 1', 'cabinet 2']
    """
    counts: Counter[str] = Counter()
    names = []
    for name in types:
        counts[name] += 1
        names.append(f"{name.lower()} {counts[name]}")
    return names


def plan(game: HouseholdGame) -> list[str]:
    """Returns actions that win the game, without a search for the objects."""
    places = numbered(game.receptacles)
    items = numbered([item.type for item in game.objects])
    targets = [index for index, item in enumerate(game.objects) if item.type == game.target]
    actions: list[str] = []
    for index in targets[: 2 if game.task_type == TWO else 1]:
        start = game.objects[index].place
        actions += [*_visit(game, start, actions), f"take {items[index]} from {places[start]}"]
        if game.task_type == LOOK:
            lamp = next(index for index, item in enumerate(game.objects) if item.type == LAMP)
            return [*actions, *_visit(game, game.objects[lamp].place, actions), f"use {items[lamp]}"]
        if game.task_type in _APPLIANCES:
            appliance = places[game.receptacles.index(_APPLIANCES[game.task_type])]
            verb = game.task_type.split("_")[1]
            actions += [*_walk(appliance, actions), f"{verb} {items[index]} with {appliance}"]
        end = game.receptacles.index(game.destination)
        actions += [*_visit(game, end, actions), f"move {items[index]} to {places[end]}"]
    return actions


def _visit(game: HouseholdGame, receptacle: int, before: Sequence[str]) -> list[str]:
    """Returns the actions that go to a receptacle and open it, unless it was opened before."""
    name = numbered(game.receptacles)[receptacle]
    is_closed = game.receptacles[receptacle] in OPENABLE and f"open {name}" not in before
    return [*_walk(name, before), *([f"open {name}"] if is_closed else [])]


def _walk(name: str, before: Sequence[str]) -> list[str]:
    """Returns the action that goes to a receptacle, unless the last walk led there."""
    last = next((action for action in reversed(before) if action.startswith("go to ")), "")
    return [] if last == f"go to {name}" else [f"go to {name}"]


def _draw_goal(rng: random.Random, room: _Room, types: Sequence[str], task_type: str) -> tuple[str, str]:
    """Returns an object and its destination, such that the object has another place to start from."""
    return rng.choice(_goals(room, types, task_type))


def _goals(room: _Room, types: Sequence[str], task_type: str) -> list[tuple[str, str]]:
    """Returns all goals of a task type in a room with these receptacles."""
    appliance = _APPLIANCES.get(task_type)
    if appliance not in (None, *types) or (task_type == LOOK and not any(may_hold(name, LAMP) for name in types)):
        return []
    return [
        (item, destination)
        for item, (kind, states) in _OBJECTS.items()
        if kind in room.kinds and (appliance is None or task_type in states)
        for destination in ([""] if task_type == LOOK else sorted(set(types)))
        if (task_type == LOOK or may_hold(destination, item)) and destination != appliance
        if any(may_hold(other, item) for other in types if other != destination)
    ]


def _draw_place(rng: random.Random, types: Sequence[str], item: str, *, avoid: str) -> int:
    return rng.choice([index for index, name in enumerate(types) if name != avoid and may_hold(name, item)])
