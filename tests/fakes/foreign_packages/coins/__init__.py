"""A complete small package of environments, for tests of what runs other projects' packages: guess a side of a coin."""

import asyncio
import json
import os
import random
import subprocess
import sys
import urllib.request
from typing import Any

SIDES = ("heads", "tails")


def tasks(count: int) -> list[dict[str, Any]]:
    """Returns the tasks."""
    return [{"coin": number, "side": SIDES[number % 2]} for number in range(count)]


def ask(base_url: str, model: str, question: str) -> str:
    """Returns the reply of a model to a question."""
    content = {"model": model, "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(  # noqa: S310 (the address of the proxy)
        f"{base_url}/chat/completions",
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer unused"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60.0) as reply:
        text: str = json.load(reply)["choices"][0]["message"]["content"]
    return text


async def play(task: dict[str, Any], base_url: str, model: str) -> float:
    """Plays an episode: two questions, with a helper process that leaves the group of this one; returns the reward."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        draw = random.randrange(10**6)
        first = await asyncio.to_thread(ask, base_url, model, f"coin {task['coin']}, draw {draw}: heads or tails?")
        second = await asyncio.to_thread(ask, base_url, model, f"you said {first!r}; again: heads or tails?")
        if second == "hang":
            await asyncio.Event().wait()
        if second == "die":
            os._exit(9)
        if second == "break":
            raise ValueError("the coin is lost")
        return float(second == task["side"])
    finally:
        helper.kill()
        helper.wait()
