"""Dense retrieval: exact nearest vectors, folders of vectors, and an encoder from a folder."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.models.base import TextKind, Vectors, embedders
from astraflow.runtime.config.base import Config
from astraflow.runtime.http.json_service import JsonClient, ServiceAddress
from astraflow.search import dense
from astraflow.search.client import SearchClient
from astraflow.search.corpus import CorpusOptions
from astraflow.search.dense import DenseIndex, nearest, open_search
from astraflow.search.service import serving_search
from tests.errors import raises_code

TOPICS = {"pet": ("cat", "dog"), "food": ("bread", "soup"), "sky": ("sun", "moon")}


class NoOptions(Config):
    """No options."""


@embedders.register("test_topics", options=NoOptions)
class Topics:
    """Counts the words of each topic, so that words of one topic are close."""

    calls = 0

    def __init__(self, options: NoOptions) -> None:
        pass

    def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        Topics.calls += kind is TextKind.DOCUMENT
        counts = [
            [1e-3 + sum(text.lower().count(word) for word in words) for words in TOPICS.values()] for text in texts
        ]
        vectors = np.array(counts, np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def corpus(folder: Path, *texts: str) -> Path:
    path = folder / "corpus.jsonl"
    rows = [{"id": text, "url": f"https://a.example/{text}", "text": text} for text in texts]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_the_nearest_vectors_equal_a_full_sort(rows: int, top: int, queries: int, block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (rows, 3)).astype(np.float32)  # few values, so that many products are equal
    query_vectors = rng.integers(-1, 2, (queries, 3)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "_BLOCK_BYTES", 12 * block * 5)
        indices, scores = nearest(query_vectors, vectors, top)
    expected = [
        sorted(range(rows), key=lambda row: (-float(vectors[row] @ query), row))[:top] for query in query_vectors
    ]
    assert indices.tolist() == expected
    assert scores.tolist() == [
        [float(vectors[row] @ query) for row in best] for query, best in zip(query_vectors, expected, strict=True)
    ]


@pytest.mark.anyio
async def test_documents_are_found_by_meaning_through_the_service(tmp_path: Path) -> None:
    options = CorpusOptions(corpus=str(corpus(tmp_path, "cat", "bread", "moon")), embedder={"kind": "test_topics"})
    search = open_search(options)
    assert isinstance(search, DenseIndex)
    async with serving_search(search, ServiceAddress(port=0)) as url, JsonClient(url) as client:
        answer = await SearchClient(client).retrieve(["a dog", " ", "soup"], 2)
        pages = await SearchClient(client).access(["https://a.example/moon", "https://a.example/mars"])
    assert [[hit.document.id for hit in hits][:1] for hits in answer] == [["cat"], [], ["bread"]]
    assert answer[0][0].score > 0.99 > answer[0][1].score
    assert [page.text if page else None for page in pages] == ["moon", None]


@pytest.mark.anyio
async def test_the_vectors_of_a_folder_are_computed_once_for_a_corpus_and_an_embedder(tmp_path: Path) -> None:
    options = CorpusOptions(
        corpus=str(corpus(tmp_path, "cat", "sun")), index=str(tmp_path / "index"), embedder={"kind": "test_topics"}
    )
    before = Topics.calls
    first, second = open_search(options), open_search(options)
    assert await first.retrieve(["moon"], 1) == await second.retrieve(["moon"], 1)
    assert Topics.calls == before + 1
    corpus(tmp_path, "cat", "sun", "soup")
    assert [hit.document.id for hit in (await open_search(options).retrieve(["bread"], 1))[0]] == ["soup"]
    assert Topics.calls == before + 2


def test_an_unknown_embedder_and_an_empty_corpus_are_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "plugin.unknown_kind"):
        CorpusOptions.parse({"corpus": "c", "embedder": {"kind": "unheard_of"}}, where="search")
    with raises_code(InvalidInput, "search.empty_corpus"):
        open_search(CorpusOptions(corpus=str(corpus(tmp_path)), embedder={"kind": "test_topics"}))


def encoder_folder(folder: Path) -> Path:
    """Writes a small encoder with random weights and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "query:", "cat", "dog", "the", "sleeps"]
    core = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    return folder


def test_an_encoder_gives_the_mean_of_its_states_whatever_shares_its_batch(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = encoder_folder(tmp_path / "encoder")
    embedder = embedders.build({"kind": "huggingface", "path": str(folder), "query_prefix": "query: ", "batch": 2})
    texts = ["cat", "the dog sleeps the dog sleeps", "dog", "\ud800 cat"]
    vectors = embedder.embed(texts, TextKind.DOCUMENT)

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(**tokenizer(texts[1], return_tensors="pt")).last_hidden_state[0].mean(dim=0).numpy()

    np.testing.assert_allclose(vectors[1], states / np.linalg.norm(states), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(4), atol=1e-6)
    np.testing.assert_allclose(vectors[:1], embedder.embed(["cat"], TextKind.DOCUMENT), atol=1e-6)
    assert np.abs(embedder.embed(["cat"], TextKind.QUERY) - vectors[:1]).max() > 1e-3


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    embedder = embedders.build({"kind": "huggingface", "path": str(tmp_path)})
    with raises_code(InvalidInput, "search.no_embedder"):
        embedder.embed(["cat"], TextKind.QUERY)
