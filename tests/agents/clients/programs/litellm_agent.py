"""Agent on LiteLLM: chat, chat as a stream, responses, and the messages of Anthropic, in this order."""

import json
import sys

import litellm

QUESTION = [{"role": "user", "content": "How many words has the text? Use the tool."}]
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
FUNCTION = {"name": "count_words", "description": "Counts words.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]


def completion(model: str, *, is_streaming: bool) -> str:
    """Runs the agent with `litellm.completion`; returns its answer."""
    messages: list = list(QUESTION)
    while True:
        reply = litellm.completion(model=model, messages=messages, tools=TOOLS, stream=is_streaming, max_tokens=300)
        if is_streaming:
            reply = litellm.stream_chunk_builder(list(reply), messages=messages)
        message = reply.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            count = len(json.loads(call.function.arguments)["text"].split())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"count={count}"})


def responses(model: str) -> str:
    """Runs the agent with `litellm.responses`; returns its answer."""
    items: list = list(QUESTION)
    while True:
        reply = litellm.responses(model=model, input=items, tools=[{"type": "function", **FUNCTION}])
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output[-1].content[0].text
        items += [item.model_dump(exclude_none=True) for item in reply.output]
        for call in calls:
            count = len(json.loads(call.arguments)["text"].split())
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": f"count={count}"})


if __name__ == "__main__":
    route = sys.argv[1]
    if route == "responses":
        answer = responses("openai/policy")
    else:
        model = "anthropic/policy" if route.startswith("anthropic") else "openai/policy"
        answer = completion(model, is_streaming=route.endswith("stream"))
    print(answer)
