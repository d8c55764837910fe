"""The answers of the simulated servers have the keys and types of recorded answers of the real ones."""

import asyncio
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engines.answers import Answers, file_name, record, record_adapters, recording, shape
from tests.engines.test_simulated_servers import adapters, begun, delta_to, server, version
from tests.fakes.engine_server.environment import FakeEnvironment

RECORDED = Path(__file__).parent / "recorded"
FILES = sorted(RECORDED.glob("*.json"))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def answers(kind: str) -> Answers:
        with pytest.MonkeyPatch.context() as changed, recording() as recorder:
            changed.setenv("ASTRAFLOW_HOME", str(tmp_path_factory.mktemp("home")))
            FakeEnvironment(kind)
            quiet = {"probe_every_s": 600, "stall_s": 600}
            asyncio.run(record(server(kind, **quiet), recorder, version, delta_to, begun=begun))
            return asyncio.run(record_adapters(server(kind, lora=True, **quiet), recorder, adapters))

    return answers


def test_every_route_of_both_engines_is_recorded(simulated: Any) -> None:
    routes = {file_name(kind, route) for kind in ("sglang", "vllm") for route in simulated(kind)}

    assert routes == {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_answers_have_the_recorded_shape(path: Path, simulated: Any) -> None:
    recorded = json.loads(path.read_text())
    answers = simulated(path.name.partition("_")[0])[recorded["route"]]

    assert set(answers) == set(recorded["answers"])
    for step, answer in recorded["answers"].items():
        if recorded["route"] == "GET /metrics":
            assert series(answers[step]) == series(answer)
        elif recorded["route"].startswith("GET"):
            assert shape(json.loads(answers[step])) == shape(json.loads(answer))
        else:
            assert shape(answers[step]) == shape(answer), step


def series(text: str) -> set[str]:
    """Returns the names of time series."""
    return set(re.findall(r"^[a-z:_]+", text, re.MULTILINE))
