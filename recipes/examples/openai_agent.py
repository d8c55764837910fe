"""An agent with a tool, written against the plain `openai` SDK: it knows nothing of AstraFlow.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python recipes/examples/openai_agent.py "rev abc="     # asks any model
astraflow --plugin recipes/examples/openai_agent.py run recipes/examples/openai_agent.toml    # trains one
"""

import json
import sys
from typing import Any

from openai import OpenAI

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "reverse", "parameters": TEXT}}]


def run_tool(arguments: str) -> str:
    """Returns the letters of the argument `text` in reverse order."""
    try:
        return str(json.loads(arguments)["text"])[::-1]
    except (ValueError, KeyError) as problem:
        return f"error: {problem}"


def solve(question: str) -> str:
    """Returns the model's answer, after the calls of the tool that it asks for."""
    client = OpenAI()
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(3):
        reply = client.chat.completions.create(model="solver", messages=messages, tools=TOOLS).choices[0].message
        if not reply.tool_calls:
            return reply.content or ""
        calls = [call for call in reply.tool_calls if call.type == "function"]
        results = [(call.id, run_tool(call.function.arguments)) for call in calls]
        messages += [reply, *({"role": "tool", "tool_call_id": id_, "content": text} for id_, text in results)]
    return ""


if __name__ == "__main__":
    sys.stdout.write(f"{solve(sys.argv[1])}\n")
