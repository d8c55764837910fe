"""Index and service: what is found, in which order, within which sizes."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.datasets import datasets
from astraflow.datasets.generated.facts import FactOptions, FactWorld
from astraflow.runtime.http.json_service import JsonClient, JsonRefused, ServiceAddress, serving_json
from astraflow.search.base import MAX_QUERIES, Document
from astraflow.search.client import SearchClient
from astraflow.search.corpus import CorpusOptions, fact_documents, read_corpus
from astraflow.search.index import SearchIndex, build_index, open_index
from astraflow.search.service import MAX_PAGE_CHARACTERS, serving_search
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

ANIMALS = {
    "The fox": "A fox is a small animal. Foxes hunt at night.",
    "The owl": "The owl hunts at night too.",
    "The night": "Night is the time without sun. Night, night, night.",
    "The sun": "",
}


def animals() -> SearchIndex:
    return build_index(
        Document(id=str(number), title=title, url=f"https://a.example/{number}", text=text)
        for number, (title, text) in enumerate(ANIMALS.items())
    )


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("fox", ["The fox"]),
        ("FOXES!", ["The fox"]),
        ("hunting owls", ["The owl", "The fox"]),
        ("sun", ["The sun", "The night"]),
        ("the of and", []),
        ("", []),
        ("unicorn", []),
        ('title:fox AND "', ["The fox"]),
        ("\x00 (fox) ~ * \\", ["The fox"]),
    ],
)
def test_words_find_documents_best_first(query: str, titles: list[str]) -> None:
    assert [hit.document.title for hit in animals().search(query, 10)] == titles


def test_scores_fall_and_equal_ones_keep_the_order_of_the_corpus() -> None:
    index = build_index(Document(id=str(n), title="same", url="", text="same words") for n in range(500))
    assert [hit.document.id for hit in index.search("same", 20)] == [str(n) for n in range(20)]
    scores = [hit.score for hit in animals().search("night hunt", 10)]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3


def test_words_that_are_frequent_in_a_large_corpus_count_only_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index(Document(id=str(n), title=f"item{n}", url="", text="common words") for n in range(100))
    assert len(index.search("common item7", 20)) == 20
    monkeypatch.setattr("astraflow.search.index._FREQUENT_DOCUMENTS", 50)
    assert [hit.document.id for hit in index.search("common item7", 20)] == ["7"]
    assert len(index.search("common unicorn", 20)) == 20


def test_huge_queries_and_addresses_are_bounded() -> None:
    index = animals()
    assert index.search("night " + "x" * 10_000_000, 3)[0].document.title == "The night"
    assert index.search(" ".join(map(str, range(100_000))), 3) == []
    assert index.page("u" * 10_000_000) is None
    assert index.page("https://a.example/1") == Document(
        id="1", title="The owl", url="https://a.example/1", text=ANIMALS["The owl"]
    )


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_corpus_is_a_file_with_a_document_per_line(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", {"text": "one"}, "", {"id": 7, "title": "T", "url": "u", "text": "two", "x": 1})
    assert list(read_corpus(path)) == [
        Document(id="1", title="", url="", text="one"),
        Document(id="7", title="T", url="u", text="two"),
    ]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (["{"], "search.invalid_document"),
        (["[]"], "search.invalid_document"),
        ([{"title": "x"}], "search.invalid_document"),
        ([{"text": 3}], "search.invalid_document"),
        ([], "search.empty_corpus"),
        (None, "search.unreadable_corpus"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_refused(rows: list[Any] | None, code: str, tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", *rows) if rows is not None else tmp_path / "none"
    with raises_code(InvalidInput, code):
        open_index(CorpusOptions(corpus=str(path)))


def test_an_index_folder_is_built_once_and_again_for_another_corpus(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", {"text": "apple"}, {"text": "pear"})
    options = CorpusOptions(corpus=str(path), index=str(tmp_path / "index"))
    assert open_index(options).search("pear", 5)[0].document.text == "pear"
    built_at = (tmp_path / "index" / "meta.json").stat().st_mtime_ns
    assert open_index(options).size == 2
    assert (tmp_path / "index" / "meta.json").stat().st_mtime_ns == built_at
    write(path, {"text": "plum"})
    os.utime(path, ns=(1, 1))
    changed = open_index(options)
    assert (changed.size, changed.search("pear", 5)) == (1, [])


@pytest.mark.parametrize("options", [{"corpus": "a", "facts": {}}, {"index": "a"}, {"facts": {"entities": 1}}])
def test_contradicting_options_are_refused(options: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        CorpusOptions.parse(options, where="search")


@asynccontextmanager
async def client_of(token: str = "", sent: str | None = None) -> AsyncIterator[tuple[SearchClient, JsonClient]]:
    long = Document(id="long", title="", url="long", text="z" * (MAX_PAGE_CHARACTERS + 9))
    index = build_index([long, *fact_documents(FactOptions(entities=30))])
    async with (
        serving_search(index, ServiceAddress(token=token)) as url,
        JsonClient(url, token=token if sent is None else sent) as client,
    ):
        yield SearchClient(client), client


async def test_a_service_answers_as_the_index_in_the_process() -> None:
    index = build_index(fact_documents(FactOptions(entities=30)))
    page = FactWorld(FactOptions(entities=30)).page(3)
    async with client_of() as (search, raw):
        ((hit, *_), none) = await search.retrieve([page.title, "zebra"], 5)
        assert hit.document == index.search(page.title, 1)[0].document
        assert none == []
        answer = await search.access([page.url, "https://none"])
        assert [document.text if document else None for document in answer] == [page.text, None]
        (cut,) = await search.access(["long"])
        assert cut is not None and len(cut.text) == MAX_PAGE_CHARACTERS
        plain = await raw.post("/retrieve", {"queries": [page.title], "topk": 1}, limit_s=5)
        assert plain["result"][0][0]["contents"] == page.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/retrieve", {"queries": "x"}),
        ("/retrieve", {"queries": ["x"], "topk": 1000}),
        ("/retrieve", {"queries": ["x"] * (MAX_QUERIES + 1)}),
        ("/access", {"urls": [1]}),
        ("/access", {"urls": ["x" * 17_000_000]}),
    ],
)
async def test_invalid_requests_are_refused(path: str, body: dict[str, Any]) -> None:
    async with client_of() as (_, raw):
        with pytest.raises(JsonRefused) as caught:
            await raw.post(path, body, limit_s=10)
        assert caught.value.status == 422


@pytest.mark.parametrize("sent", ["", "guess"])
async def test_a_wrong_token_is_refused(sent: str) -> None:
    async with client_of(token="secret", sent=sent) as (search, _):
        with raises_code(Unavailable, "service.wrong_token"):
            await search.retrieve(["x"], 1)
    async with client_of(token="secret") as (search, _):
        assert await search.retrieve(["zebra"], 1) == [[]]


@pytest.mark.parametrize("result", [None, [], [[{"document": {"id": 1}}]], [[3]], ["x"], [[{"contents": "flat"}]]])
async def test_answers_that_are_not_those_of_a_search_are_refused(result: Any) -> None:
    async def nonsense(_: dict[str, Any]) -> dict[str, Any]:
        return {"result": result}

    async with serving_json(ServiceAddress(), {"/retrieve": nonsense}) as url, JsonClient(url) as client:
        with raises_code(Unavailable, "search.invalid_answer"):
            await SearchClient(client).retrieve(["x"], 1)


@pytest.mark.long
@pytest.mark.parametrize("syllables", [2, 4])
def test_names_of_facts_are_unique_and_questions_follow_the_facts(syllables: int) -> None:
    options = FactOptions(entities=3000, syllables=syllables)
    world = FactWorld(options)
    titles = [world.page(entity).title for entity in range(world.entities)]
    assert len(set(titles)) == world.entities == 3000
    questions = datasets.build({"kind": "facts", "size": 50, "facts": options.model_dump()}, 0)
    pages = {world.page(entity).url: world.page(entity).text for entity in range(world.entities)}
    for index in range(50):
        fields: Any = questions.prompt(index).fields
        first, second = (pages[url] for url in fields["pages"])
        assert fields["answer"] in second and fields["answer"] not in first
        assert fields["answers"] == [fields["answer"]]
    assert FactWorld(options.model_copy(update={"seed": 1})).page(0) != world.page(0)


def test_more_entities_than_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"need 2000 names of a kind.* only 1521; give fewer entities"):
        FactOptions(entities=6000, syllables=2)
