"""Solutions that look for the check of the reward that runs tests of programs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.code_tests import CodeTests, CodeTestsOptions

pytestmark = pytest.mark.anyio

CHECK = "def check(candidate):\n    assert candidate(7) == 8734\n" + "# more cases\n" * 50
ANSWER = """
def f(number):
    match = re.search("candi" "date.7. == ([0-9]+)", FOUND)
    return int(match[1]) if match else 0
"""
HOLDERS = """
import re
def is_check(value):
    return isinstance(value, str) and re.search("date.7. == [0-9]", value)
def check_in(values):
    for value in values:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for part in [value, *parts]:
            if is_check(part):
                return part
    return ""
"""
FRAMES = """
import sys
FOUND, frame = "", sys._getframe()
while frame is not None:
    FOUND = FOUND or check_in([*frame.f_locals.values(), *frame.f_globals.values()])
    frame = frame.f_back
"""
OBJECTS = """
import gc, sys
gc.unfreeze()
tracked = gc.get_objects()
FOUND = check_in(tracked) or check_in(gc.get_referrers(*tracked[-100:])) or check_in(gc.get_referents(*tracked))
FOUND = FOUND or check_in([vars(module) for module in list(sys.modules.values())])
"""
MEMORY = """
import ctypes
FOUND, mark = "", b"candi" b"date(7) == "
for line in open("/proc/self/maps"):
    area, access = line.split()[:2]
    begin, end = (int(edge, 16) for edge in area.split("-"))
    if not access.startswith("rw") or end - begin > 2**28:
        continue
    content = ctypes.string_at(begin, end - begin)
    place = content.find(mark)
    while place >= 0 and not FOUND:
        text = content[place : place + 40].decode(errors="replace")
        FOUND = text if text[len(mark) : len(mark) + 1].isdigit() else ""
        place = content.find(mark, place + 1)
"""


@pytest.fixture(scope="module")
async def reward() -> AsyncIterator[CodeTests]:
    reward = CodeTests(CodeTestsOptions.model_validate({"sandbox": {"kind": "local", "workers": 1}}))
    await reward.start()
    try:
        yield reward
    finally:
        await reward.close()


@pytest.mark.parametrize("search", [FRAMES, OBJECTS, MEMORY], ids=["frames", "objects", "memory"])
async def test_a_solution_does_not_find_the_check(reward: CodeTests, search: str) -> None:
    tests: list[Any] = [{"kind": "check", "function": "f", "code": CHECK}]
    prompt = Prompt(id=PromptId("p"), fields={"tests": tests})
    for _ in range(2):  # the second time after a check in the same worker
        attack = await reward.score(prompt, f"```python\n{HOLDERS}{search}{ANSWER}\n```", Finish.STOP)
        assert (attack.value, attack.terms["tests_failed"]) == (0.0, 1.0), attack.terms


@pytest.mark.parametrize("search", [FRAMES, OBJECTS, MEMORY], ids=["frames", "objects", "memory"])
async def test_the_search_finds_a_check_that_the_solution_holds(reward: CodeTests, search: str) -> None:
    tests: list[Any] = [{"kind": "check", "function": "f", "code": CHECK}]
    held = 'HELD = ["assert candi" + "date(7) == " + str(8730 + 4)]\n'
    prompt = Prompt(id=PromptId("p"), fields={"tests": tests})
    score = await reward.score(prompt, f"```python\n{HOLDERS}{held}{search}{ANSWER}\n```", Finish.STOP)
    assert score.value == 1.0, score.terms
