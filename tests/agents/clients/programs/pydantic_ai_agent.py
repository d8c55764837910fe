"""Agent of Pydantic AI, on OpenAI's chat or responses or Anthropic's messages, with or without a stream."""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent

MODELS = {"chat": "openai-chat:policy", "responses": "openai-responses:policy", "anthropic": "anthropic:policy"}


async def ask(agent: Agent, question: str, history: list[Any], *, is_streaming: bool) -> tuple[str, list[Any]]:
    """Returns the answer and the conversation."""
    if not is_streaming:
        result = await agent.run(question, message_history=history)
        return result.output, result.all_messages()
    async with agent.run_stream(question, message_history=history) as stream:
        return await stream.get_output(), stream.all_messages()


async def main(api: str, *, is_streaming: bool) -> None:
    """Asks two questions, the second after the first conversation, and prints the answers."""
    agent = Agent(MODELS[api], instructions="Use the tool.")

    @agent.tool_plain
    def count_words(text: str) -> str:
        """Counts words."""
        return f"count={len(text.split())}"

    history: list[Any] = []
    for question in ("How many words has the text?", "Is this sure?"):
        answer, history = await ask(agent, question, history, is_streaming=is_streaming)
        print("answer:", answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split("-")[0], is_streaming=sys.argv[1].endswith("stream")))
