"""Model that decides in single words: for each signal of a wake it reads one line and answers with a tactic.

    learning_fault weights_stuck                 ->  fork_up
    launch_failures while trainers wait          ->  move

That is small enough for a model of a few thousand weights. The calls of a tactic are those of the heuristic baseline,
with the same tools, guard, budgets and approvals as the calls of any model. No text of others is in a line.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from maintainer.agent.llm.chat_completions import ChatCompletions, ChatCompletionsOptions
from maintainer.agent.llm.conversation_view import ConversationView
from maintainer.agent.llm.heuristic_baseline import TACTICS, WAITING_SHARE, next_step
from maintainer.agent.llm.interface import Message, Reply, Request, TextPart, Usage, models

NOTHING = "nothing"
CHOSEN = "tactics: "
"""Begin of the text in which the first turn of a wake keeps the decisions."""


class Chooser(Protocol):
    """Chooses a tactic."""

    async def __call__(self, line: str, request: Request, /) -> tuple[str, Usage]:
        """Returns the text of a model for a line. Raises: ModelFailed."""


def line_of(conversation: ConversationView, signal: Mapping[str, Any]) -> str:
    """Returns the line that the model reads: words of fixed lists only."""
    words = [signal["signal"], signal.get("fault", "")]
    is_waiting = any(stream["wait_fraction"] >= WAITING_SHARE for stream in conversation.report["streams"])
    words += ["while trainers wait"] if is_waiting else []
    words += ["after a proposal"] if conversation.wake_facts["proposals_waiting"] else []
    return " ".join(word for word in words if word)


def tactic_of(text: str) -> str:
    """Returns the tactic that a model's text names; `nothing` for any other text.

    >>> tactic_of(" fork_up."), tactic_of("rm -rf /")
    ('fork_up', 'nothing')
    """
    word = (text.split() or [""])[0].strip(".,:;\"'`").lower()
    return word if word in TACTICS else NOTHING


class TacticsModel:
    """Turns the decisions of a chooser into calls."""

    def __init__(self, model: str, choose: Chooser, *, is_simulated: bool = False) -> None:
        self.model = model
        self.is_simulated = is_simulated
        self._choose = choose

    async def reply(self, request: Request) -> Reply:
        """Decides in the first turn of a wake, and then carries the tactics out. Raises: ModelFailed."""
        conversation, usage = ConversationView(request.messages), Usage()
        tactics, texts = conversation.chosen(CHOSEN), []
        if tactics is None:
            tactics = []
            for signal in conversation.signals:
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


@models.register("tactics", options=TacticsOptions)
class ServedTactics(TacticsModel):
    """Trained model behind an endpoint."""

    def __init__(self, options: TacticsOptions) -> None:
        """Raises: InvalidInput as `ChatCompletions`."""
        self._served = ChatCompletions(options)
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
            messages=(Message(role="user", parts=(TextPart(text=line),)),),
            max_tokens=16,
            timeout_s=request.timeout_s,
            partial_reply=request.partial_reply,
        )
        reply = await self._served.reply(question)
        return reply.text, reply.usage
