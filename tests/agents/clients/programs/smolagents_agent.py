"""Agent of smolagents that calls a tool, with its client of OpenAI; `stream` streams the replies."""

import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def count_words(text: str) -> str:
    """Counts words.

    Args:
        text: Text to count.
    """
    return f"count={len(text.split())}"


if __name__ == "__main__":
    model = OpenAIServerModel(
        "policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], max_tokens=300
    )
    agent = ToolCallingAgent(tools=[count_words], model=model, stream_outputs=sys.argv[1] == "stream", max_steps=4)
    print("answer:", agent.run("How many words has the text? Use the tool."))
