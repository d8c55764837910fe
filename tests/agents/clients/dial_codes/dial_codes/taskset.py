"""The tasks and their reward."""

import verifiers.v1 as vf

from dial_codes.server import CODES, PhoneBook


class DialCodeConfig(vf.TaskConfig):
    """Options of a task."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class DialCodeData(vf.TaskData):
    """A task."""

    code: str
    """The dial code."""


class DialCode(vf.Task[DialCodeData, vf.State, DialCodeConfig]):
    """Asks for the dial code of a country."""

    @classmethod
    def toolsets(cls, config: DialCodeConfig) -> list[vf.Toolset]:
        """Returns the phone book."""
        return [PhoneBook(config.tools)]

    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        """Returns 1 if the last message has the dial code."""
        return float(self.data.code in (trace.last_reply or ""))


class DialCodesConfig(vf.TasksetConfig):
    """Options of the tasks."""

    task: DialCodeConfig = DialCodeConfig()


class DialCodes(vf.Taskset[DialCode, DialCodesConfig]):
    """One task for each country."""

    def load(self) -> list[DialCode]:
        """Returns the tasks."""
        return [
            DialCode(
                DialCodeData(
                    idx=index,
                    name=country,
                    prompt=f"What is the dial code of {country}? Call `phone_dial_code` and answer with the code.",
                    code=code,
                ),
                self.config.task,
            )
            for index, (country, code) in enumerate(CODES.items())
        ]
