"""Places of launches, which outlive the configuration of their provider."""

import os
from pathlib import Path

import pytest

from maintainer.fleet.providers.base import (
    Handle,
    Instance,
    InvalidError,
    RetryError,
    State,
    UnknownError,
    unread_places,
)
from maintainer.fleet.providers.places import SETTLED_S, LaunchPlaces


def instance(launch_id: str) -> Instance:
    return Instance(handle=Handle(provider="x", id=launch_id, launch_id=launch_id), tags=None, state=State.RUNNING)


@pytest.mark.parametrize("name", ["eu-west-1", "a57f10e0 at https://sky.example:46580/x?y=1", "team/a", "ü 名"])
def test_another_process_knows_the_place_of_a_launch_until_its_end(tmp_path: Path, name: str) -> None:
    LaunchPlaces(tmp_path).remember("01A", name)
    places = LaunchPlaces(tmp_path)
    assert places.of("01A") == {name}
    assert places.of("01") == places.of("*") == frozenset()
    assert places.elsewhere({"other"}) == {"01A": name}
    assert places.elsewhere({"other", name}) == {}
    places.end("01A", {name})
    assert places.of("01A") == frozenset()


def test_a_launch_in_a_place_that_was_not_read_is_not_forgotten(tmp_path: Path) -> None:
    places = LaunchPlaces(tmp_path)
    places.remember("01A", "eu")
    places.remember("01A", "us")  # a repeated launch with another default region
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.place_removed"):
        places.end("01A", {"eu"})
    assert places.of("01A") == {"eu", "us"}
    places.end("01A", {"eu", "us"})
    places.end("01A", {"eu"})


def test_a_list_is_partial_without_silent_and_removed_places(tmp_path: Path) -> None:
    places, silent = LaunchPlaces(tmp_path), RetryError("no answer")
    places.remember("01A", "eu")
    assert places.listed({"eu": [instance("01A")], "us": []}) == (instance("01A"),)
    partial_list = places.listed({"us": silent, "asia": [instance("01B")]}, handles="{}/")
    assert partial_list == (instance("01B"),)
    assert unread_places(partial_list).keys() == {"us/", "01A"}
    with pytest.raises(RetryError):
        places.listed({"eu": silent, "us": silent})


def test_launches_that_ended_by_themselves_are_forgotten_after_an_hour(tmp_path: Path) -> None:
    places = LaunchPlaces(tmp_path)
    for launch_id in ("01OLD", "01LISTED", "01SILENT", "01NEW"):
        places.remember(launch_id, "us" if launch_id == "01SILENT" else "eu")
    for path in tmp_path.glob("places/*/*"):
        if path.name != "01NEW":
            os.utime(path, (path.stat().st_mtime - SETTLED_S - 1.0,) * 2)
    places.listed({"eu": [instance("01LISTED")], "us": RetryError("no answer")})
    known = [launch_id for launch_id in ("01OLD", "01LISTED", "01SILENT", "01NEW") if places.of(launch_id)]
    assert known == ["01LISTED", "01SILENT", "01NEW"]


def test_an_unusable_directory_stops_a_launch(tmp_path: Path) -> None:
    (tmp_path / "places").touch()
    with pytest.raises(UnknownError, check=lambda problem: problem.code == "provider.folder_unusable"):
        LaunchPlaces(tmp_path).remember("01A", "eu")
