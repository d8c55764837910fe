"""Agent of the OpenAI Agents SDK, on responses or on chat completions, with or without a stream."""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def count_words(text: str) -> str:
    """Counts words."""
    return f"count={len(text.split())}"


async def main(api: str, *, is_streaming: bool) -> None:
    """Runs the agent and prints its answer."""
    set_tracing_disabled(True)
    set_default_openai_api(api)
    agent = Agent(name="counter", instructions="Use the tool.", model="policy", tools=[count_words])
    if is_streaming:
        run = Runner.run_streamed(agent, "How many words has the text?")
        async for _ in run.stream_events():
            pass
    else:
        run = await Runner.run(agent, "How many words has the text?")
    print("answer:", run.final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split("-")[0], is_streaming=sys.argv[1].endswith("stream")))
