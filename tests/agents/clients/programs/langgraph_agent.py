"""Agent of LangGraph with a model of LangChain; the argument selects the dialect, and whether it streams."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def count_words(text: str) -> str:
    """Counts words."""
    return f"count={len(text.split())}"


if __name__ == "__main__":
    model = ChatOpenAI(
        model="policy", use_responses_api=sys.argv[1].startswith("responses"), streaming=sys.argv[1].endswith("stream")
    )
    agent = create_react_agent(model, [count_words])
    state = agent.invoke({"messages": [("user", "How many words has the text? Use the tool.")]})
    print("answer:", state["messages"][-1].text)
