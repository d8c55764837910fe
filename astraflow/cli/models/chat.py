"""Conversation with a model in the terminal."""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.markup import escape

from astraflow.baselines.subjects import served_folder
from astraflow.cli.models.sources import find_checkpoints
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish
from astraflow.models.fetched.packages import PACKAGED_MODELS
from astraflow.models.tokenizers import Message
from astraflow.raas.policies.served_policies import ServedPolicy
from astraflow.runtime import logs
from astraflow.workflows.components.answers import AnswerOptions

T = TypeVar("T")


class ChatOptions(AnswerOptions):
    """System message and sampling of the answers."""

    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Model that a user wants to talk to, and how it answers."""

    source: str
    policy: str
    version: int | None
    given: Mapping[str, Any]
    """Options on the command line; None: as in the run's recipe."""
    keeps_turns: bool | None
    """Whether a question follows the earlier ones; None: unless the run trains the policy on single turns."""
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chat:
    folder: Path
    title: str
    options: ChatOptions
    keeps_turns: bool


class _Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


def hold_conversation(request: ChatRequest) -> None:
    """Loads the model and answers lines of standard input until its end or Ctrl-C.

    Raises: InvalidInput when the model does not exist, Unavailable when the engine does not start.
    """
    logs.configure(level="CRITICAL")
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="astraflow-chat-") as scratch, _event_loop() as run:
        resources = AsyncExitStack()
        try:
            with console.status(f"loading {escape(request.source)}"):
                chat = _prepared(request, Path(scratch))
                served = run(served_folder(PolicyId("chat"), chat.folder, {"kind": request.engine}, resources))
            begin = "an empty line begins a new conversation" if chat.keeps_turns else "each line is a new conversation"
            console.print(f"{escape(chat.title)}; {begin}, Ctrl-D ends", soft_wrap=True)
            _answer_lines(console, served, chat, run)
        except KeyboardInterrupt:
            console.print()
        finally:
            run(resources.aclose())


@contextmanager
def _event_loop() -> Iterator[_Run]:
    """Runs an event loop in a thread, where an engine's tasks continue while the main thread waits for a line."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="event-loop", daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _prepared(request: ChatRequest, scratch: Path) -> _Chat:
    """Returns the model folder and the options of its answers; exports a checkpoint to `scratch`."""
    # torch and transformers take seconds to import
    from astraflow.models.fetched.model import fetched_files, fetched_folder
    from astraflow.trainer.export import export_checkpoint

    chat_options = {name: value for name, value in request.given.items() if value is not None}
    named = Path(request.source).expanduser()
    if (named / "config.json").is_file():
        return _plain_chat(named.resolve(), str(named), request, chat_options)
    if request.source in PACKAGED_MODELS and not named.exists():
        fetched_files(request.source)
        return _plain_chat(fetched_folder(request.source), request.source, request, chat_options)
    checkpoints = find_checkpoints(request.source, request.policy)
    version = export_checkpoint(checkpoints.folder, scratch / "model", version=request.version).version
    workflow = checkpoints.workflow_options()
    trained = {name: workflow[name] for name in ChatOptions.model_fields if name in workflow}
    has_turns = workflow.get("kind") != "single_turn"
    return _Chat(
        folder=scratch / "model",
        title=f"version {version} of {checkpoints.policy or request.source}",
        options=ChatOptions.parse({**trained, **chat_options}, where="chat"),
        keeps_turns=has_turns if request.keeps_turns is None else request.keeps_turns,
    )


def _plain_chat(folder: Path, title: str, request: ChatRequest, chat_options: Mapping[str, Any]) -> _Chat:
    """Returns the chat with a model folder that belongs to no run."""
    options = ChatOptions.parse(dict(chat_options), where="chat")
    return _Chat(folder=folder, title=title, options=options, keeps_turns=request.keeps_turns is not False)


def _answer_lines(console: Console, served: ServedPolicy, chat: _Chat, run: _Run) -> None:
    options = chat.options
    begin: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    messages, count = [*begin], 0
    sampling = options.sampling(stop_tokens=served.tokenizer.stop_tokens)
    while (line := _read_line()) is not None:
        if not line:
            messages = [*begin]
            console.print("[dim]new conversation[/dim]")
            continue
        messages = [*(messages if chat.keeps_turns else begin), {"role": "user", "content": line}]
        count += 1
        prompt = served.tokenizer.encode_chat(messages)
        generation = run(served.engine.generate(f"chat:{count}", prompt, sampling))
        answer = served.tokenizer.answer_text(prompt, generation.tokens)
        messages.append({"role": "assistant", "content": answer})
        cut = " [dim](cut at its length limit)[/dim]" if generation.finish is Finish.LENGTH else ""
        console.print(f"{escape(answer)}{cut}", soft_wrap=True)


def _read_line() -> str | None:
    """Returns a line of standard input, which a person can edit; None at its end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    import readline  # noqa: F401 (lets `input` edit the line and recall earlier ones)

    try:
        return input("> ").strip()
    except EOFError:
        return None
