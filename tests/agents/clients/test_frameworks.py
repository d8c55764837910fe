"""Agent frameworks and LiteLLM, as released: the agents in `programs/` know the variables of the environment only."""

import shutil
from collections.abc import Sequence

import pytest

from tests.agents.clients.environments import (
    HERE,
    INSTRUCTOR,
    NODE_FRAMEWORKS,
    PYDANTIC_AI,
    PYTHON,
    ClientEnvironment,
)
from tests.agents.clients.sessions import client_session
from tests.fakes.deciding_policy import Decide, DecidingPolicy, Step, hermes_call, in_steps

pytestmark = [pytest.mark.anyio, pytest.mark.clients]

OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else LiteLLM asks the internet for prices at its start
TEXT = "one two three four five"
COUNTS = in_steps(
    hermes_call("count_words", text=TEXT),
    Step("count=5", "It has 5 words."),
)


TWO_QUESTIONS = in_steps(
    "I count.\n" + hermes_call("count_words", text=TEXT),
    Step("count=5", "It has 5 words."),
    Step("Is this sure?", "It is sure."),
)


async def answer(
    program: str,
    route: str,
    dialect: str,
    decide: Decide = COUNTS,
    *,
    turns: Sequence[int] = (2,),
    environment: ClientEnvironment = PYTHON,
) -> str:
    """Returns what an agent prints; checks the turns of its trajectories."""
    source = HERE / "programs" / program
    command = [environment.program("python"), str(source), route]
    if source.suffix == ".mjs":  # Node.js looks for packages beside the program
        command = [environment.program("node"), str(shutil.copy(source, environment.folder)), route]
    async with client_session(DecidingPolicy(decide)) as session:
        printed = await session.run(*command, variables=OFFLINE)
        trajectories = session.trajectories(turns=turns)
        assert {call.dialect for trajectory in trajectories for call in trajectory.calls} == {dialect}
        return printed


@pytest.mark.parametrize(
    ("route", "dialect"),
    [
        ("openai", "chat"),
        ("openai-stream", "chat"),
        ("responses", "responses"),
        ("anthropic", "messages"),
    ],
)
async def test_litellm(route: str, dialect: str) -> None:
    assert "It has 5 words." in await answer("litellm_agent.py", route, dialect)


async def test_litellm_begins_a_branch_when_it_writes_into_a_reply_without_text() -> None:
    """LiteLLM sends "[System: Empty message content sanitised to satisfy protocol]" to Anthropic's API in such
    replies."""
    assert "It has 5 words." in await answer("litellm_agent.py", "anthropic-stream", "messages", turns=(1, 1))


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


DIALECTS = {"chat": "chat", "chat_completions": "chat", "responses": "responses", "anthropic": "messages"}


OF_OPENAI = ("responses", "responses-stream")
OF_ANTHROPIC = ("anthropic", "anthropic-stream")


@pytest.mark.parametrize(
    ("environment", "program", "route"),
    [
        *((NODE_FRAMEWORKS, "vercel_agent.mjs", route) for route in ("chat", "chat-stream", *OF_OPENAI, *OF_ANTHROPIC)),
        *(
            (NODE_FRAMEWORKS, "openai_agents_agent.mjs", route)
            for route in ("chat_completions", "chat_completions-stream", *OF_OPENAI)
        ),
        # A stream of its chat completions fetches a tokenizer from the internet, and waits minutes without one.
        *((NODE_FRAMEWORKS, "langchain_agent.mjs", route) for route in ("chat", *OF_OPENAI, *OF_ANTHROPIC)),
        *((PYDANTIC_AI, "pydantic_ai_agent.py", route) for route in ("chat", "chat-stream", *OF_OPENAI, *OF_ANTHROPIC)),
    ],
)
async def test_a_second_question_continues_the_first_conversation(
    environment: ClientEnvironment, program: str, route: str
) -> None:
    dialect = DIALECTS[route.removesuffix("-stream")]
    printed = await answer(program, route, dialect, TWO_QUESTIONS, turns=(3,), environment=environment)
    assert "answer: It has 5 words.\nanswer: It is sure." in printed


@pytest.mark.parametrize("api", ["chat", "anthropic"])
async def test_instructor_repeats_a_question_whose_answer_has_another_type(api: str) -> None:
    decide = in_steps(hermes_call("Count", words="many"), Step("validation error", hermes_call("Count", words=5)))
    printed = await answer("instructor_agent.py", api, DIALECTS[api], decide, environment=INSTRUCTOR)
    assert "answer: It has 5 words." in printed


@pytest.mark.parametrize("route", ["whole", "stream"])
async def test_smolagents(route: str) -> None:
    """smolagents sends calls back as text ("Calling tools: ..."), so each of its calls is a trajectory."""
    final = hermes_call("final_answer", answer="It has 5 words.")
    decide = in_steps(hermes_call("count_words", text=TEXT), Step("count=5", final))
    assert "answer: It has 5 words." in await answer("smolagents_agent.py", route, "chat", decide, turns=(1, 1))
