"""Tools of your own: typed asynchronous functions.

    astraflow --plugin recipes/examples/own_tool.py run recipes/examples/own_tool.toml

Copy both files, and change the functions. The policy reads names, docstrings and annotations.
"""

from typing import Annotated

from pydantic import Field

from astraflow.tools.base import ToolError
from astraflow.tools.functions import tool

POPULATIONS = {"norway": 5_550_000, "peru": 34_200_000, "japan": 123_800_000}


@tool
async def population(country: Annotated[str, Field(description="Name of a country in English.")]) -> str:
    """Looks up the population of a country."""
    people = POPULATIONS.get(country.strip().lower())
    if people is None:
        raise ToolError(f"no figure for {country!r}; known: {', '.join(POPULATIONS)}", code="own_tool.unknown_country")
    return str(people)


@tool(timeout_s=5)
async def words(text: str, longest: Annotated[int, Field(ge=1, le=100)] = 10) -> str:
    """Lists the longest words of a text, the longest first."""
    return ", ".join(sorted(set(text.split()), key=lambda word: (-len(word), word))[:longest])


TOOLS = [population, words]
