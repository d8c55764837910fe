"""Typed answers by instructor, on OpenAI's chat or Anthropic's messages, after one that does not have the type."""

import sys

import instructor
from pydantic import BaseModel, Field

PROVIDERS = {"chat": "openai/policy", "anthropic": "anthropic/policy"}


class Count(BaseModel):
    """Number of words."""

    words: int = Field(ge=0)


def main(api: str) -> None:
    """Prints an answer."""
    client = instructor.from_provider(PROVIDERS[api])
    count = client.chat.completions.create(
        response_model=Count,
        max_tokens=500,
        max_retries=2,
        messages=[{"role": "user", "content": "How many words has the text?"}],
    )
    print("answer:", f"It has {count.words} words.")


if __name__ == "__main__":
    main(sys.argv[1])
