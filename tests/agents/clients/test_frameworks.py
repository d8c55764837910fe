"""Agent frameworks and LiteLLM, as released: the agents in `programs/` know the variables of the environment only."""

import pytest

from tests.agents.clients.environments import HERE, PYTHON
from tests.agents.clients.sessions import client_session
from tests.fakes.deciding_policy import DecidingPolicy, Step, hermes_call, in_steps

pytestmark = [pytest.mark.anyio, pytest.mark.clients]

OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else LiteLLM asks the internet for prices at its start
TEXT = "one two three four five"
COUNTS = in_steps(
    hermes_call("count_words", text=TEXT),
    Step("count=5", "It has 5 words."),
)


async def answer(program: str, route: str, dialect: str) -> str:
    """Returns what an agent prints; checks its trajectory of two turns."""
    async with client_session(DecidingPolicy(COUNTS)) as session:
        printed = await session.run(PYTHON.program("python"), str(HERE / "programs" / program), route, **OFFLINE)
        (trajectory,) = session.trajectories(turns=[2])
        assert {call.dialect for call in trajectory.calls} == {dialect}
        return printed


@pytest.mark.parametrize(
    ("route", "dialect"),
    [
        ("openai", "chat"),
        ("openai-stream", "chat"),
        ("responses", "responses"),
        ("anthropic", "messages"),
        ("anthropic-stream", "messages"),
    ],
)
async def test_litellm(route: str, dialect: str) -> None:
    assert "It has 5 words." in await answer("litellm_agent.py", route, dialect)


@pytest.mark.parametrize(
    ("route", "dialect"), [("chat", "chat"), ("chat-stream", "chat"), ("responses-stream", "responses")]
)
async def test_langgraph(route: str, dialect: str) -> None:
    assert "It has 5 words." in await answer("langgraph_agent.py", route, dialect)


@pytest.mark.parametrize(
    ("route", "dialect"),
    [("responses", "responses"), ("responses-stream", "responses"), ("chat_completions-stream", "chat")],
)
async def test_openai_agents(route: str, dialect: str) -> None:
    assert "It has 5 words." in await answer("openai_agents_agent.py", route, dialect)


@pytest.mark.parametrize("route", ["whole", "stream"])
async def test_smolagents(route: str) -> None:
    decide = in_steps(
        hermes_call("count_words", text=TEXT), Step("count=5", hermes_call("final_answer", answer="It has 5 words."))
    )
    async with client_session(DecidingPolicy(decide)) as session:
        program = str(HERE / "programs" / "smolagents_agent.py")
        printed = await session.run(PYTHON.program("python"), program, route)
        assert "answer: It has 5 words." in printed
        session.trajectories(turns=[2])
