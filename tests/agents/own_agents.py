"""Agents for tests: functions that call a model over HTTP, and know nothing of AstraFlow."""

import asyncio
import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

from astraflow.agents.programs.base import AgentTask


def complete(messages: list[dict[str, Any]], model: str = "solver") -> dict[str, Any]:
    """Returns the next assistant message. Raises: OSError when the call is refused."""
    request = urllib.request.Request(  # noqa: S310 (the proxy)
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps({"model": model, "messages": messages}).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:  # noqa: S310 (the proxy)
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message


def post(url: str, text: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=text.encode())).close()  # noqa: S310 (the proxy)


def ask(question: str, model: str = "solver") -> str:
    """Asks once."""
    return str(complete([{"role": "user", "content": question}], model)["content"])


async def ask_twice(question: str, agent_task: AgentTask) -> str:
    """Asks, and asks again in the same conversation."""
    assert agent_task.fields == {"question": question}
    messages = [{"role": "user", "content": question}]
    messages += [await asyncio.to_thread(complete, messages), {"role": "user", "content": "again"}]
    return str((await asyncio.to_thread(complete, messages))["content"])


def crash(question: str) -> str:
    """Fails after a call."""
    ask(question)
    raise ValueError(f"my own defect with {os.environ['OPENAI_API_KEY']}")


def silent(question: str) -> str:
    """Calls no model."""
    return question


def endless(question: str) -> None:
    """Never ends after a call."""
    ask(question)
    time.sleep(1000)


def patient(question: str) -> None:
    """Asks until it is refused."""
    messages = [{"role": "user", "content": question}]
    while True:
        messages += [complete(messages), {"role": "user", "content": "more"}]


def scores_itself(question: str) -> dict[str, Any]:
    """Returns a reward."""
    return {"reward": 0.25, "terms": {"letters": len(ask(question))}, "answer": question}


def scores_by_policy(question: str) -> dict[str, Any]:
    """Lets one model answer and another one repeat, and returns a reward of each."""
    ask(ask(question), "small")
    return {"rewards": {"solver": 1, "critic": 0.5}}


def nonsense(question: str) -> dict[str, Any]:
    """Returns a reward that is no number."""
    ask(question)
    return {"reward": float("nan")}


def writes_files(question: str) -> None:
    """Leaves its answer and a reward in files."""
    Path("answer.txt").write_text(f"{ask(question)}\n")
    Path("reward.json").write_text('{"reward": 0.75}')


def reports(question: str) -> None:
    """Posts a reward."""
    ask(question)
    post(os.environ["ASTRAFLOW_REWARD_URL"], "0.125")


def sees_variables(question: str) -> list[str]:
    """Returns the names of its environment variables."""
    ask(question)
    return sorted(os.environ)


def leaves_traps(question: str) -> None:
    """Leaves a pipe, links and a value of its own in place of what is read afterwards."""
    ask(question)
    Path("secret").symlink_to("/etc/passwd")
    os.mkfifo("pipe")
    for name in ("stdout", "stderr"):
        Path("..", name).unlink()
        Path("..", name).symlink_to("/etc/passwd")
    os.mkfifo("../value.json")
    os._exit(0)


def nests_deeply(question: str) -> None:
    """Leaves a value that is nested too deeply."""
    ask(question)
    Path("../value.json").write_text("[" * 100_000)
    os._exit(0)
