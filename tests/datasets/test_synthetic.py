from itertools import islice
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.base import examples
from astraflow.datasets.generated.scripted import ScriptedAnswer, parse_scripted_answer
from tests.errors import raises_code


def test_letters_are_reversed_or_sorted() -> None:
    reverse = datasets.build({"kind": "letters"}, 0)
    sort = datasets.build({"kind": "letters", "operation": "sort", "alphabet": "0123456789"}, 0)

    turned, ordered = reverse.prompt(5).fields, sort.prompt(5).fields

    assert reverse.size == 8**4
    assert turned["question"] == f"rev {str(turned['answer'])[::-1]}="
    assert str(ordered["question"])[5:9] != ""
    assert ordered["answer"] == "".join(sorted(str(ordered["question"])[5:9]))
    assert len({str(reverse.prompt(index).fields["question"]) for index in range(reverse.size)}) == reverse.size


def test_arithmetic_answers_are_correct() -> None:
    dataset = datasets.build({"kind": "arithmetic"}, 0)

    for index in range(dataset.size):
        fields = dataset.prompt(index).fields
        left, right = str(fields["question"]).removesuffix("=").split("+")
        assert fields["answer"] == str(int(left) + int(right))


def test_an_alphabet_with_duplicates_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "alphabet"):
        datasets.build({"kind": "letters", "alphabet": "aab"}, 0)


def test_examples_are_endless_and_follow_from_the_seed() -> None:
    dataset = datasets.build({"kind": "arithmetic", "digits": 1}, 0)

    drawn = list(islice(examples(dataset, seed=1), 500))

    assert drawn == list(islice(examples(dataset, seed=1), 500))
    assert all(str(eval(question.removesuffix("="))) == answer for (question,), answer in drawn)  # noqa: S307 (trusted arithmetic)


def test_examples_of_a_mixture_follow_its_weights() -> None:
    sums = {"dataset": {"kind": "arithmetic", "digits": 1}, "weight": 3.0}
    letters = {"dataset": {"kind": "letters"}, "weight": 1.0}
    mixture = datasets.build({"kind": "mixture", "parts": {"sums": sums, "letters": letters}}, 0)

    drawn = list(islice(examples(mixture, seed=1), 400))

    assert sum("+" in question for (question,), _ in drawn) == pytest.approx(300, abs=40)
    assert len({question for (question,), _ in drawn if "+" in question}) > 80


def test_letters_in_other_formats_are_conversations_for_a_warm_start() -> None:
    formats = {
        "history_format": ["{text}?", "call {text}"],
        "question_format": "got {answer}",
        "answer_format": "!{answer}",
    }
    dataset = datasets.build(
        {"kind": "letters", "length": 2, "alphabet": "ab", "answer_format": "!{answer}", **formats}, 0
    )

    drawn = set(islice(examples(dataset, seed=1), 100))

    assert {(texts[0][:-1], texts, answer) for texts, answer in drawn} == {
        (text, (f"{text}?", f"call {text}", f"got {text[::-1]}"), f"!{text[::-1]}") for text in ("aa", "ab", "ba", "bb")
    }


def test_a_scripted_question_contains_its_answer() -> None:
    fields = datasets.build({"kind": "scripted", "easiest": 0.5, "hardest": 0.5}, 0).prompt(3).fields

    assert parse_scripted_answer(str(fields["question"])) == ScriptedAnswer(word=str(fields["answer"]), difficulty=0.5)
    assert parse_scripted_answer("essay righteous") is None


def test_the_answer_of_a_generated_function_passes_its_tests_and_agrees_with_the_examples() -> None:
    dataset = datasets.build({"kind": "functions", "size": 200}, 0)

    for index in range(dataset.size):
        fields = dataset.prompt(index).fields
        names: dict[str, Any] = {}
        exec(str(fields["answer"]).strip("`").removeprefix("python"), names)  # noqa: S102 (trusted code)
        for line in str(fields["question"]).splitlines():
            argument, value = line.removeprefix("f(").split(")=")
            assert names["f"](int(argument)) == int(value)
        tests: Any = fields["tests"]
        assert all(test["expected"] == [names["f"](*test["arguments"])] for test in tests)
    assert len({str(dataset.prompt(index).fields["answer"]) for index in range(dataset.size)}) == 27
