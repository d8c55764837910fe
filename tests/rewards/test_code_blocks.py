"""Blocks of Python in completions."""

import pytest

from astraflow.rewards.code_blocks import last_python_block

CODE = "print(sum(map(int, input().split())))"
LONG_OUTPUT = "```\n1 2 3 4 5 6 7 8 9 10 11 12 13\n```\n"
DOCSTRING = f'def f():\n    """Example:\n\n    ```\n    f()\n    ```\n    """\n{CODE}'
INNER_PYTHON = f"'''\n```python\nprint('an example of its use')\n```\n'''\n{CODE}"


def test_the_last_long_block_of_python_is_the_solution() -> None:
    fence = "```"
    text = f"{fence}python\nfirst = 'a long enough program'\n{fence}\n"
    text += f"{fence}PY\nsecond = 'another long program'\n{fence}\n"
    assert last_python_block(text).startswith("second")
    assert last_python_block(text + f"{fence}\nshort\n{fence}\n").startswith("second")
    assert last_python_block(text + f"{fence}cpp\nint main() {{ return 0 + 0 + 0; }}\n{fence}").startswith("second")
    assert last_python_block(text + f"{fence}python\nthird = 'is cut at the token limit'").startswith("second")
    assert last_python_block("no code") == ""


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}\n```\nIt prints:\n{LONG_OUTPUT}",
        f"```\n{CODE}\n```\nIt prints:\n{LONG_OUTPUT}",
        f"1. The program:\n\n   ```python\n   {CODE}\n   ```\n2. Done.",
        f"- ```python\n  {CODE}\n  ```\n",
        f"> ```python\n> {CODE}\n> ```\n",
        f'```python title="x"\n{CODE}\n```',
        f"``` {{.python .numberLines}}\n{CODE}\n```",
        f"```python3.11\n{CODE}\n```",
        f"```Python:main.py\n{CODE}\n```",
        f"~~~python\n{CODE}\n~~~\n",
        f"Here is the program: ```python\n{CODE}\n```",
        f"```python\nprint('an older program')\n```\n<answer>```python \n{CODE}\n```</answer>",
        f"I begin with ```python\n\n```python\n{CODE}\n```",
        f"````python\n{CODE}\n````\n",
        f"```python\r\n{CODE}\r\n```\r\n{LONG_OUTPUT}",
        f"```python\n{CODE}\n```   \n```text\n{CODE} is the program\n```",
        f"```\nan example without an end\n```python\n{CODE}\n```",
        f"```python\n{CODE}",
        f"<think>```python\nx = 'a draft, and no more'\n```</think>\n```python\n{CODE}\n```",
        f"a thought without a begin: ```python\nx = 'a draft, and no more'\n```\n</think>```python\n{CODE}\n```",
        f"```python\n{CODE}\n```\n<think>\n```python\nx = 'a draft, and no more'\n```",
    ],
)
def test_a_program_is_found(text: str) -> None:
    assert last_python_block(text) == CODE


@pytest.mark.parametrize("code", [DOCSTRING, INNER_PYTHON, f"# it's '''no string\n{CODE}", f"s = '\\'''''\n{CODE}"])
def test_fences_in_strings_belong_to_the_code(code: str) -> None:
    assert last_python_block(f"```python\n{code}\n```\nIt prints:\n{LONG_OUTPUT}") == code


def test_code_with_a_string_that_does_not_end_is_a_block() -> None:
    assert last_python_block(f"```python\n{CODE}\nx = '''\n```\nmore text\n") == f"{CODE}\nx = '''"


@pytest.mark.parametrize(
    "text", [f"<think>```python\n{CODE}\n```", f"```cpp\n{CODE}\n```", "", "```", "~~~\n\n~~~", CODE]
)
def test_an_unfinished_thought_another_language_and_bare_text_have_no_program(text: str) -> None:
    assert last_python_block(text) == ""


def test_the_last_block_that_defines_the_function_is_the_solution() -> None:
    first, last = "def add(a, b):\n    return a - b", "def add(a, b):\n    return a + b"
    use = "```python\nprint(add(1, 2), add(3, 4), add(5, 6))\n```\n"
    text = f"```python\n{first}\n```\nBetter:\n```python\n{last}\n```\nUse it:\n{use}"
    assert last_python_block(text, function="add") == last
    assert last_python_block(text) == use.split("\n")[1]
    method = "class Solution:\n    def add(self, a, b): return a + b"
    assert last_python_block(f"```python\n{method}\n```\n{use}", function="add") == method


def test_a_short_program_counts_where_there_is_no_longer_one() -> None:
    assert last_python_block("```python\nprint(42)\n```") == "print(42)"
