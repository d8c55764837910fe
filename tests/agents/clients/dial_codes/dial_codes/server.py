"""The tool, which verifiers starts as a server of MCP for each rollout."""

import verifiers.v1 as vf

CODES = {"Chile": "+56", "Iceland": "+354", "Kenya": "+254", "Nepal": "+977"}


class PhoneBook(vf.Toolset[vf.ToolsetConfig]):
    """Phone book of countries."""

    TOOL_PREFIX = "phone"

    @vf.tool
    def dial_code(self, country: str) -> str:
        """Returns the dial code of a country."""
        return CODES.get(country, "unknown country")


if __name__ == "__main__":
    PhoneBook.run()
