"""Hugging Face hub in this process: repositories of models and data sets over HTTP, with faults that a test sets."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

LARGE_SUFFIXES = (".parquet", ".safetensors", ".jsonl")
"""Files that the hub keeps outside of git, with their SHA-256."""

_INFO = re.compile(r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
_FILE = re.compile(r"/(?P<kind>datasets/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class FakeHub:
    """Repositories, what was asked for, and the faults."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by path, of each `models/owner/name` and `datasets/owner/name`."""
    cards: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """Metadata of the cards."""
    url: str = ""
    files_sent: list[str] = field(default_factory=list)
    """Paths of the files that were sent."""
    replaced: dict[str, bytes] = field(default_factory=dict)
    """Content that is sent instead of the listed one, of the same length, by file."""
    status: int = 200
    """Status of every answer."""

    def add(self, repository: str, folder: Path, card: Mapping[str, object] | None = None) -> None:
        """Adds the files of a folder as a repository."""
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        self.repositories[repository] = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        self.cards[repository] = card or {}

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes it the hub of this process, while it is serving."""
        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", self.url + "/{repo_id}/resolve/{revision}/{filename}"
        )

    def commit(self, repository: str) -> str:
        """Returns the commit of a repository, which changes with its content."""
        files = self.repositories[repository]
        return hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()

    @contextmanager
    def serving(self) -> Iterator["FakeHub"]:
        """Listens on a free port of loopback while the block runs."""
        hub = self

        class Handler(_Handler):
            answers = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    answers: FakeHub

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Writes nothing."""

    def _answer(self, *, is_head: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        info, file = _INFO.fullmatch(path), _FILE.fullmatch(path)
        if self.answers.status != 200:
            self._send(self.answers.status, {}, b"")
        elif info and (repository := f"{info['kind']}/{info['name']}") in self.answers.repositories:
            self._send(200, {"Content-Type": "application/json"}, json.dumps(self._info(repository)).encode())
        elif file and (repository := f"{'datasets' if file['kind'] else 'models'}/{file['name']}"):
            self._send_file(repository, file["path"], is_head=is_head)
        else:
            self._send(404, {"X-Error-Code": "RepoNotFound"}, b"")

    def _info(self, repository: str) -> Mapping[str, object]:
        siblings = []
        for path, content in self.answers.repositories[repository].items():
            entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": _git_id(content)}
            if path.endswith(LARGE_SUFFIXES):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 130}
            siblings.append(entry)
        name = repository.partition("/")[2]
        card = self.answers.cards[repository]
        return {"id": name, "sha": self.answers.commit(repository), "siblings": siblings, "cardData": card, "tags": []}

    def _send_file(self, repository: str, path: str, *, is_head: bool) -> None:
        content = self.answers.repositories[repository].get(path)
        if content is None:
            self._send(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        etag = hashlib.sha256(content).hexdigest() if path.endswith(LARGE_SUFFIXES) else _git_id(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.answers.commit(repository)}
        if is_head:
            self._send(200, headers | {"Content-Length": str(len(content))}, None)
            return
        self.answers.files_sent.append(path)
        self._send(200, headers, self.answers.replaced.get(path, content))

    def _send(self, status: int, headers: Mapping[str, str], body: bytes | None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if body is not None and "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body or b"")


def _git_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
