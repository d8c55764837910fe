"""Agents as users write them: functions against the plain `openai` SDK."""

import json
import os
import sys
import time
from typing import Any

from openai import AsyncOpenAI, OpenAI

from astraflow.agents.programs.base import AgentTask


def ask(question: str) -> str:
    """Asks once."""
    reply = OpenAI().chat.completions.create(model="solver", messages=[{"role": "user", "content": question}])
    return reply.choices[0].message.content or ""


async def ask_twice(question: str, agent_task: AgentTask) -> str:
    """Asks, and then asks again in the same conversation."""
    client = AsyncOpenAI(base_url=agent_task.base_url, api_key=agent_task.api_key)
    messages: list[Any] = [{"role": "user", "content": question}]
    first = await client.chat.completions.create(model="solver", messages=messages)
    messages += [first.choices[0].message, {"role": "user", "content": "again"}]
    second = await client.chat.completions.create(model="solver", messages=messages)
    return second.choices[0].message.content or ""


def crash(question: str) -> str:
    """Fails after a call."""
    ask(question)
    print("on my way", os.environ["OPENAI_API_KEY"], file=sys.stderr)
    raise ValueError("my own defect")


def silent(question: str) -> str:
    """Calls no model."""
    return question


def endless(question: str) -> None:
    """Never ends after a call."""
    ask(question)
    while True:
        time.sleep(1)


def patient(question: str) -> str:
    """Asks until it is refused."""
    client = OpenAI(max_retries=0)
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        messages.append(client.chat.completions.create(model="solver", messages=messages).choices[0].message)
        messages.append({"role": "user", "content": "more"})


def scores_itself(question: str) -> dict[str, Any]:
    """Returns a reward."""
    return {"reward": 0.25, "terms": {"letters": len(ask(question))}, "answer": question}


def writes_files(question: str) -> None:
    """Leaves its answer and a reward in files."""
    text = ask(question)
    with open("answer.txt", "w") as file:
        file.write(f"{text}\n")
    with open("reward.json", "w") as file:
        json.dump({"reward": 0.75}, file)


def two_models(question: str) -> str:
    """Lets one model answer, and another one repeat."""
    client = OpenAI()
    text = question
    for model in ("solver", "critic"):
        reply = client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
        text = reply.choices[0].message.content or ""
    return text
