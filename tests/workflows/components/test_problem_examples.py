"""Removal of examples from statements in the styles of twenty sources."""

import pytest

from astraflow.workflows.components.problem_examples import without_examples

STATEMENTS = {
    "ruled": (
        "Find the sum.\n\n-----Input-----\nTwo integers.\n\n-----Output-----\nKEEP one integer.\n\n-----Examples-----\n"
        "Input\n1 77\n\nOutput\n78\n\n-----Note-----\nIn the first example 1 + 77 = 78."
    ),
    "ruled, then constraints": (
        "KEEP it.\n-----Example Input-----\n77 1\n-----Example Output-----\n78\n-----Constraints-----\n- KEEP small"
    ),
    "numbered with colon": (
        "KEEP the text.\n\nExample 1:\n\nInput: nums = [77]\nOutput: 1\nExplanation: one.\n\nExample 2:\n\n"
        "Input: nums = [77,77]\nOutput: 2\n\nConstraints:\n\n1 <= KEEP <= 100"
    ),
    "bold": "KEEP this.\n\n**Example 1:**\n\n**Input:** x = 77\n**Output:** 3\n\n**Constraints:**\n\n* KEEP x > 0",
    "html spaces": 'KEEP.\n \nExample 1:\n\nInput: s = "77"\nOutput: 1\n\n \nConstraints:\n\nKEEP n',
    "sample input and output": "KEEP.\n\nSample Input 1\n\n77 2\n\nSample Output 1\n\n79\n\nSample Input 2\n\n77\n",
    "sample in capitals": "KEEP.\n\nSAMPLE INPUT:\n77\n\nSAMPLE OUTPUT:\n78\n\nSCORING:\nKEEP: small",
    "input format first": (
        "Title\n\nInput Format\n\nKEEP n.\n\nConstraints\n\nKEEP n < 9\n\nOutput Format\n\nKEEP m.\n\nSample Input\n"
        "\n77\n\nSample Output\n\n8\n\nExplanation\n\n77 is odd."
    ),
    "markdown": "# Task\nKEEP.\n\n## Examples\n\n```\nf(77) => 1\n```\n\n## Constraints\n\nKEEP n < 5",
    "markdown with inner headings": (
        "## Problem\nKEEP.\n\n## Example\n\n### Input\n77\n\n### Output\n1\n\n## Size\nKEEP"
    ),
    "single hash": "KEEP.\n\n# Examples:\n```\nsolve(77) == 1\n```\n# Rules\nKEEP the rules.",
    "for example in a sentence": "KEEP. For example, a word may be empty.\n\nExample:\n77 -> 1",
    "doctest": 'def f(x):\n    """KEEP doubles x.\n    >>> f(77)\n    154\n    """',
    "two doctests": 'def f(x):\n    """KEEP.\n\n    >>> f(77)\n    1\n    >>> f(77)\n    2\n\n    KEEP more.\n    """',
    "input example": "KEEP.\n\nInput example\n77\nOutput example\n1\n\nRestrictions\nKEEP n",
    "examples with text": "KEEP.\n\nExample: f(77) = 1\n\nTask:\nKEEP write f.",
    "sample cases": "KEEP.\n\nSample Test Cases\n77\n1\n\nTime Limit\nKEEP 1 s",
    "example explanation": (
        "KEEP.\n\nSample Input #1\n77\n\nSample Output #1\n1\n\nSample Explanation #1\n77 it is.\n\nHint\nKEEP"
    ),
    "interaction": "KEEP.\n\nSample Interaction\n? 77\n! 1\n\nSubtasks\nKEEP: n = 1 for 10 points.",
    "without examples": ("KEEP. The input has an example number n and a sample s.\n\nInput\nKEEP n\n\nOutput\nKEEP s"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_examples_are_removed_and_everything_else_stays(name: str) -> None:
    remaining_text = without_examples(STATEMENTS[name])

    assert "77" not in remaining_text
    assert remaining_text.count("KEEP") == STATEMENTS[name].count("KEEP")
