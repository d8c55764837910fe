"""A program of two agents, written against the plain `openai` SDK: each model name is a policy with a role of its own.

    astraflow --plugin recipes/examples/two_agents.py run recipes/examples/two_agents.toml

The model `there` reverses the letters of a question, and the model `back` reverses them back. Each has its own reward.
"""

from typing import Any

from openai import OpenAI


def ask(client: OpenAI, model: str, question: str) -> str:
    """Returns the answer of a model."""
    reply = client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}])
    return reply.choices[0].message.content or ""


def play(question: str, answer: str) -> dict[str, Any]:
    """Returns the rewards of both policies for a question such as `rev abcd=` with the answer `dcba`."""
    client = OpenAI()
    there = ask(client, "there", question)
    back = ask(client, "back", f"rev {there}=")
    return {"rewards": {"solver": there == answer, "back": f"rev {back}=" == question}, "answer": there}
