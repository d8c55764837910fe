"""Agent of Pydantic AI, on OpenAI's chat or responses or Anthropic's messages, with or without a stream."""

import asyncio
import sys
from collections.abc import AsyncIterable
from typing import Any

from pydantic_ai import Agent

MODELS = {"chat": "openai-chat:policy", "responses": "openai-responses:policy", "anthropic": "anthropic:policy"}


async def read(_: Any, events: AsyncIterable[Any]) -> None:
    """Reads a stream to its end."""
    async for _event in events:
        pass


async def main(api: str, *, is_streaming: bool) -> None:
    """Asks two questions, the second after the first conversation, and prints the answers."""
    agent = Agent(MODELS[api], instructions="Use the tool.")

    @agent.tool_plain
    def count_words(text: str) -> str:
        """Counts words."""
        return f"count={len(text.split())}"

    history: list[Any] = []
    for question in ("How many words has the text?", "Is this sure?"):
        handler = read if is_streaming else None
        result = await agent.run(question, message_history=history, event_stream_handler=handler)
        history = result.all_messages()
        print("answer:", result.output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split("-")[0], is_streaming=sys.argv[1].endswith("stream")))
