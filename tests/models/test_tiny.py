"""The tiny model: built from a seed, warm-started until it gets some answers right, cached by its options."""

import random
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.base import Example, ExamplesSource, Transcript, WarmStartOptions, WarmStartProgress
from astraflow.models.causal import check_supported, named_weights
from astraflow.models.tiny import TinyModel
from astraflow.models.tiny_options import TinyModelOptions
from astraflow.models.warm_start import _tokens
from tests.errors import raises_code

SMALL = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}


def copies(seed: int = 0) -> Iterator[Example]:
    """Yields examples of the easiest task: repeat the letter."""
    draws = random.Random(seed)
    while True:
        letter = draws.choice(string.ascii_lowercase[:4])
        yield (letter,), letter


def warm(**changes: object) -> dict[str, object]:
    return {"dataset": {"kind": "copies"}, "batch_size": 16, "learning_rate": 1e-2, **changes}


def test_the_model_follows_from_the_seed_without_global_random_state() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()

    first, again = models.build(SMALL).architecture(), models.build(SMALL).architecture()
    other = models.build({**SMALL, "seed": 1}).architecture()

    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert torch.equal(torch.get_rng_state(), before)


def test_tied_weights_are_named_once() -> None:
    names = named_weights(models.build(SMALL).architecture())

    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_the_architecture_is_supported() -> None:
    check_supported(models.build(SMALL).architecture())


@pytest.mark.long
def test_a_warm_start_stops_at_its_target_and_is_cached(own_home: Path) -> None:
    source = models.build({**SMALL, "warm_start": warm(target_accuracy=0.5)})
    progress: list[WarmStartProgress] = []
    assert source.examples_source == ExamplesSource(dataset={"kind": "copies"})

    folder = source.prepare(copies(), progress.append)

    assert progress[0].accuracy < 0.1
    assert 0.5 <= progress[-1].accuracy < 0.95
    assert source.examples_source is None
    assert source.prepare() == folder
    assert folder.is_relative_to(own_home)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_saved_weights_load_unchanged(own_home: Path) -> None:
    source = models.build(SMALL)

    loaded = named_weights(source.load(source.prepare()))

    for name, weight in named_weights(source.architecture()).items():
        assert torch.equal(loaded[name], weight), name


def test_different_options_have_different_folders() -> None:
    with_target = [
        TinyModel(TinyModelOptions(warm_start=WarmStartOptions(dataset={}, target_accuracy=target))).folder
        for target in (0.2, 0.3)
    ]

    assert len({*with_target, TinyModel(TinyModelOptions()).folder}) == 3


def test_a_warm_start_without_examples_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        models.build({**SMALL, "warm_start": warm()}).prepare()
    assert caught.value.code == "model.not_prepared"


def test_a_warm_start_of_a_number_of_steps_ends_whatever_accuracy_it_reaches() -> None:
    progress: list[WarmStartProgress] = []
    source = models.build({**SMALL, "warm_start": warm(steps=2, report_every_steps=1)})
    folder = source.prepare(copies(), progress.append)

    assert [(each.step, each.steps, each.target_accuracy) for each in progress] == [(0, 2, None), (1, 2, None)]
    assert source.prepare() == folder


def test_a_warm_start_that_misses_its_target_fails() -> None:
    source = models.build({**SMALL, "warm_start": warm(max_steps=2, target_accuracy=0.9)})

    with pytest.raises(InvalidInput) as caught:
        source.prepare(copies())
    assert caught.value.code == "model.warm_start_target_missed"


def test_a_warm_start_with_too_few_examples_is_refused() -> None:
    source = models.build({**SMALL, "warm_start": warm()})

    with pytest.raises(InvalidInput) as caught:
        source.prepare(iter([(("a",), "a")] * 3))
    assert caught.value.code == "model.examples_exhausted"


def test_an_interrupted_warm_start_leaves_no_files(own_home: Path) -> None:
    source = models.build({**SMALL, "warm_start": warm()})

    def interrupt(_progress: WarmStartProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.prepare(copies(), interrupt)

    assert not (own_home / "models").exists()


def test_a_warm_start_reads_whole_conversations() -> None:
    tokenizer = models.build(SMALL).tokenizer()

    prompt, answer = _tokens(tokenizer, "be brief", ("ab", "ba", "cd"), "dc")

    assert tokenizer.decode(prompt, keep_special_tokens=True) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nba<|im_end|>\n"
        "<|im_start|>user\ncd<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(answer, keep_special_tokens=True) == "dc<|im_end|>"


def test_an_unwritable_cache_is_refused_with_its_variable(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_home / "models").write_text("a file where the folder should be")

    with raises_code(InvalidInput, "model.not_written"):
        models.build(SMALL).prepare()


def test_indivisible_attention_heads_are_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "heads 4", "key_value_heads = 3"):
        models.build({"kind": "tiny", "key_value_heads": 3})


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with raises_code(InvalidInput, "config.invalid", "target_accuracy"):
        models.build({**SMALL, "warm_start": {"dataset": {}, "target_acuracy": 0.3}})


def test_words_have_a_token_of_their_own_and_texts_stay_the_same() -> None:
    words = [" iron", " iron cord", "user\n"]
    tokenizer = models.build({**SMALL, "words": words}).tokenizer()
    plain = models.build(SMALL).tokenizer()
    messages = [{"role": "user", "content": "2 iron cord, 1 iron, 1 ironing"}]

    short, long = tokenizer.encode_chat(messages), plain.encode_chat(messages)

    assert tokenizer.decode(short, keep_special_tokens=True) == plain.decode(long, keep_special_tokens=True)
    assert len(short) == len(long) - (len("user\n") - 1) - (len(" iron cord") - 1) - 2 * (len(" iron") - 1)
    assert tokenizer.vocab_size == models.build({**SMALL, "words": words}).architecture().config.vocab_size == 128
    many = [f"w{number}x" for number in range(100)]
    assert models.build({**SMALL, "words": many}).tokenizer().vocab_size == 256


def test_short_or_repeated_words_are_refused() -> None:
    for words in (["a"], ["ab", "ab"]):
        with raises_code(InvalidInput, "config.invalid", "words"):
            models.build({**SMALL, "words": words})


def test_a_warm_start_imitates_the_marked_tokens_of_episodes(own_home: Path) -> None:
    tokenizer = models.build(SMALL).tokenizer()
    tokens = tokenizer.encode("xaxb")
    episode = Transcript(tokens=tokens, is_written=np.array([False, True, False, True]))
    source = models.build({**SMALL, "warm_start": warm(target_accuracy=0.9, learning_rate=3e-2)})

    model = source.load(source.prepare(iter([episode] * 16 * 200)))

    with torch.no_grad():
        likely = model(torch.from_numpy(tokens[None].astype("int64"))).logits[0].argmax(-1)
    assert likely[[0, 2]].tolist() == tokens[[1, 3]].tolist()


@pytest.mark.parametrize(
    ("options", "model_type"),
    [
        ({}, "qwen3"),
        ({"experts": 4}, "qwen3_moe"),
        ({"family": "llama"}, "llama"),
        ({"family": "qwen35"}, "qwen3_5_text"),
        ({"family": "qwen35", "experts": 4}, "qwen3_5_moe_text"),
        ({"family": "gpt_oss"}, "gpt_oss"),
        ({"family": "gpt_oss", "window": 8}, "gpt_oss"),
        ({"family": "falcon_h1"}, "falcon_h1"),
        ({"family": "lfm2"}, "lfm2"),
    ],
)
def test_each_family_is_saved_and_loaded_unchanged(options: dict[str, object], model_type: str, own_home: Path) -> None:
    source = models.build({**SMALL, **options})
    model = source.architecture()
    ids = torch.arange(12)[None]

    loaded = source.load(source.prepare())

    assert model.config.model_type == model_type
    assert sum(parameter.numel() for parameter in model.parameters()) < 400_000
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


@pytest.mark.parametrize(
    "options", [{"family": "llama", "experts": 4}, {"family": "qwen35", "window": 8}, {"experts": 4, "window": 8}]
)
def test_a_family_refuses_parts_that_it_does_not_have(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        models.build({"kind": "tiny", **options})


def test_folders_of_models_from_before_there_were_families_keep_their_names() -> None:
    assert TinyModel(TinyModelOptions()).folder.name == "tiny-eed7b5be21584823"
