"""Search tools: limits of what the policy sees, and an expert that answers every generated question."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.generated.facts import FactOptions
from astraflow.runtime.http.json_service import ServiceAddress
from astraflow.search.corpus import fact_documents
from astraflow.search.index import build_index
from astraflow.search.service import serving_search
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

PROMPT = Prompt(id=PromptId("p"), fields={})
FACTS = {"entities": 3000}


@asynccontextmanager
async def tools_of(spec: dict[str, Any]) -> AsyncIterator[dict[str, Tool]]:
    source: Any = tool_sources.build({"kind": "search", **spec})
    await source.start()
    try:
        async with source.open(PROMPT, 0) as tools:
            yield {tool.name: tool for tool in tools}
    finally:
        await source.close()


async def answer(question: str, tools: dict[str, Tool]) -> str:
    """Answers a question with two hops, as a policy that reads could."""

    async def fact(subject: str, pattern: str) -> str:
        result_text = await tools["search"].call({"query": subject})
        url = re.search(rf"\] {subject}\nURL: (\S+)", result_text)
        assert url, result_text
        page = await tools["access"].call({"url": url[1]})
        return re.search(pattern, page)[1]  # type: ignore[index]  # every page states its facts

    person = re.search(r"([A-Z]\w+ [A-Z]\w+) (?:was born|works)", question)[1]  # type: ignore[index]
    if "company" in question:
        return await fact(await fact(person, r"works for (\w+)"), r"based in (\w+)")
    town = await fact(person, r"born in (\w+)")
    return await fact(town, r"town in (\w+)" if "country" in question else r"river (\w+)")


@pytest.mark.long
async def test_an_expert_answers_every_question_about_generated_facts() -> None:
    questions = datasets.build({"kind": "facts", "size": 300, "facts": FACTS}, 7)
    async with tools_of({"facts": FACTS}) as tools:
        for index in range(questions.size):
            fields = questions.prompt(index).fields
            assert await answer(str(fields["question"]), tools) == fields["answer"]


async def test_a_service_gives_the_same_texts_as_an_index_in_the_process() -> None:
    index = build_index(fact_documents(FactOptions(entities=300)))
    async with (
        serving_search(index, ServiceAddress()) as url,
        tools_of({"url": url}) as remote,
        tools_of({"facts": {"entities": 300}}) as local,
    ):
        for name, arguments in (
            ("search", {"query": "Which river flows through a town"}),
            ("access", {"url": "https://facts.example/town/4"}),
        ):
            assert await remote[name].call(arguments) == await local[name].call(arguments)


def corpus(path: Path, *texts: str) -> str:
    rows = [{"title": f"T{n}", "url": f"u{n}", "text": text} for n, text in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


async def test_documents_and_pages_are_cut_and_a_piece_is_shown_once(tmp_path: Path) -> None:
    text = "".join(f"word{n:05} " for n in range(40_000))
    path = corpus(tmp_path / "c.jsonl", text, *[f"word00001 {n}" for n in range(9)])
    async with tools_of({"corpus": path}) as tools:
        result_text = await tools["search"].call({"query": "word00001"})
        assert result_text.count("URL: ") == 5
        assert max(len(part) for part in result_text.split("URL: u")) <= 5000 + 40
        first = await tools["access"].call({"url": "u0"})
        assert first.endswith(text[:25_000]) and "(piece 1 of 10)" in first
        again = await tools["access"].call({"url": "u0", "piece": 1})
        assert text[:100] in again and text[:101] not in again
        assert text[225_000:250_000] in await tools["access"].call({"url": "u0", "piece": 10})
        with raises_code(ToolError, "search.unknown_piece"):
            await tools["access"].call({"url": "u0", "piece": 11})


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("search", {}, "tool.invalid_arguments"),
        ("search", {"query": "  "}, "tool.invalid_arguments"),
        ("access", {"url": 3}, "tool.invalid_arguments"),
        ("access", {"url": "u0", "piece": "2"}, "tool.invalid_arguments"),
        ("access", {"url": "https://none"}, "search.unknown_page"),
        ("access", {"url": "x" * 1_000_000}, "search.unknown_page"),
    ],
)
async def test_wrong_calls_are_errors_that_the_policy_sees(
    name: str, arguments: dict[str, Any], code: str, tmp_path: Path
) -> None:
    async with tools_of({"corpus": corpus(tmp_path / "c.jsonl", "text")}) as tools:
        with pytest.raises(ToolError) as caught:
            await tools[name].call(arguments)
        assert caught.value.code == code and len(str(caught.value)) < 500
        assert await tools["search"].call({"query": "nothing like it"}) == "No document matches."


async def test_a_service_that_ended_fails_the_rollout() -> None:
    index = build_index(fact_documents(FactOptions(entities=30)))
    source: Any
    async with serving_search(index, ServiceAddress()) as url:
        source = tool_sources.build({"kind": "search", "url": url, "has_access": False})
        await source.start()
    async with source.open(PROMPT, 0) as tools:
        assert [tool.name for tool in tools] == ["search"]
        with raises_code(RolloutFailed, "search.service_failed") as caught:
            await tools[0].call({"query": "x"})
    assert caught.value.boundary is Boundary.ENVIRONMENT
    await source.close()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"url": "http://x", "facts": {}},
        {"url": "ftp://x"},
        {"url": "http://x", "embedder": {"kind": "huggingface", "path": "e"}},
    ],
)
def test_a_search_has_one_place(spec: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        tool_sources.build({"kind": "search", **spec})
