"""Model that decides in single words: for each signal of a wake it reads one line and answers with a tactic.

    learning_fault weights_stuck low rate        ->  fork_up
    launch_failures                              ->  move

That is small enough for a model of a few thousand weights. The calls of a tactic are those of the heuristic baseline,
with the same tools, guard, budgets and approvals as the calls of any model. No text of others is in a line.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from pydantic import Field

from maintainer.agent.llm.chat_completions import ChatCompletions, ChatCompletionsOptions
from maintainer.agent.llm.conversation_view import ConversationView
from maintainer.agent.llm.heuristic_baseline import TACTICS, baseline_tactic, next_step
from maintainer.agent.llm.interface import Message, Reply, Request, TextPart, Usage, models
from maintainer.agent.llm.learning_tactics import CURRICULUM

NOTHING = "nothing"
CHOSEN = "tactics: "
"""Begin of the text in which a turn of a wake keeps the decisions."""
DECIDED = frozenset({"learning_fault", "straggler", "launch_failures"})
"""Signals that the recipe `maintainer` has boards of; the baseline decides on the others."""
LOW_RATE, HIGH_RATE = 1e-6, 1e-4
"""Learning rates from which on a line says that the rate is low or high."""


class Chooser(Protocol):
    """Chooses a tactic."""

    async def __call__(self, line: str, request: Request, /) -> tuple[str, Usage]:
        """Returns the text of a model for a line. Raises: ModelFailed."""


def line_of(conversation: ConversationView, signal: Mapping[str, Any]) -> str:
    """Returns the line that the model reads: words of fixed lists only."""
    words = [signal["signal"], signal.get("fault", ""), *_words_of_run(conversation, signal)]
    return " ".join(word for word in words if word)


def _words_of_run(conversation: ConversationView, signal: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the run doctor says besides the fault: a rate of unusual size, and a curriculum in use."""
    doctor = conversation.first_reply("run_doctor") or {}
    policies = doctor.get("policies", ()) if "fault" in signal else ()
    rate = next((policy["learning_rate"] for policy in policies if policy["policy"] == signal["policy"]), None)
    if rate is not None and not LOW_RATE < rate < HIGH_RATE:
        yield "low rate" if rate <= LOW_RATE else "high rate"
    if "fault" in signal and any(flow["selector"] == CURRICULUM for flow in doctor.get("flows", ())):
        yield "with a curriculum"


def tactic_of(text: str) -> str:
    """Returns the tactic with which the last line of a model's text begins; `nothing` for any other text.

    >>> tactic_of("The rate is too low.\\nfork_up."), tactic_of("rm -rf /")
    ('fork_up', 'nothing')
    """
    word = (text.strip().rpartition("\n")[2].split() or [""])[0].strip(".,:;\"'`").lower()
    return word if word in TACTICS else NOTHING


class TacticsModel:
    """Turns the decisions of a chooser into calls."""

    def __init__(self, model: str, choose: Chooser, *, is_simulated: bool = False) -> None:
        self.model = model
        self.is_simulated = is_simulated
        self._choose = choose

    async def reply(self, request: Request) -> Reply:
        """Looks at the run, decides, and then carries the tactics out. Raises: ModelFailed."""
        conversation, usage = ConversationView(request.messages), Usage()
        if any("fault" in signal for signal in conversation.signals) and not conversation.answered_calls("run_doctor"):
            return Reply(parts=(conversation.call("run_doctor", policy=None),), usage=usage, model=self.model)
        tactics, texts = conversation.chosen(CHOSEN), []
        if tactics is None:
            tactics = []
            for signal in conversation.signals:
                if signal["signal"] not in DECIDED:
                    tactics.append(baseline_tactic(signal))
                    continue
                text, used = await self._choose(line_of(conversation, signal), request)
                tactics.append(tactic_of(text))
                usage += used
            texts = [TextPart(text=f"{CHOSEN}{' '.join(tactics)}")]
        steps = next_step(conversation, [tactic if tactic in TACTICS else NOTHING for tactic in tactics])
        parts = [TextPart(text=step) if isinstance(step, str) else step for step in steps]
        return Reply(parts=(*texts, *parts), usage=usage, model=self.model)

    def usd(self, usage: Usage) -> float:
        """Costs nothing: the model runs on machines of the run."""
        return 0.0

    async def close(self) -> None:
        """Has nothing to close."""


class TacticsOptions(ChatCompletionsOptions):
    """Model behind a chat completions endpoint that was trained by the recipe `maintainer`."""

    instructions: str = "Mend:"
    """Text before each line, as in the recipe."""
    max_new_tokens: int = Field(default=16, ge=1)
    """Length limit of an answer. Tokens."""


@models.register("tactics", options=TacticsOptions)
class ServedTactics(TacticsModel):
    """Trained model behind an endpoint."""

    def __init__(self, options: TacticsOptions) -> None:
        """Raises: InvalidInput as `ChatCompletions`."""
        self._served = ChatCompletions(options)
        self._options = options
        super().__init__(options.model, self._ask)

    def usd(self, usage: Usage) -> float:
        """Cost in US dollars."""
        return self._served.usd(usage)

    async def close(self) -> None:
        """Closes connections."""
        await self._served.close()

    async def _ask(self, line: str, request: Request) -> tuple[str, Usage]:
        question = Request(
            system="",
            tools=(),
            messages=(Message(role="user", parts=(TextPart(text=f"{self._options.instructions}\n\n{line}"),)),),
            max_tokens=self._options.max_new_tokens,
            timeout_s=request.timeout_s,
            partial_reply=request.partial_reply,
        )
        reply = await self._served.reply(question)
        return reply.text, reply.usage
