"""Bridge to the package `coins`, as those beside `serving.py` are to the packages of other projects."""

import os
import random
from typing import Any

import coins
import serving


class Coins:
    """Episodes of `coins`."""

    async def tasks(self, request: serving.Request) -> list[dict[str, Any]]:
        return [{"question": f"coin {task['coin']}", "task": task} for task in coins.tasks(request["limit"])]

    async def open(self, request: serving.Request) -> dict[str, Any]:
        if request["id"] == "counterfeit":
            raise serving.InvalidInput("cannot load 'counterfeit': no such coin; choose another", code="coins.unknown")
        if request["id"] == "loud":
            print("loud words on standard output")  # noqa: T201 (the package prints)
        if "SECRET_OF_THE_NODE" in os.environ:
            raise serving.InvalidInput("cannot start: it has a secret of the node", code="coins.secret")
        return {}

    async def run(self, request: serving.Request) -> dict[str, Any]:
        random.seed(request["seed"])
        reward = await coins.play(request["task"], request["base_url"], request["model"])
        return {"reward": reward, "terms": {"guesses": 2}}


bridge = Coins()
serving.serve({"tasks": bridge.tasks, "open": bridge.open, "run": bridge.run})
