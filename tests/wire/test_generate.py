"""The generated files in the repository match the protos."""

from pathlib import Path

from astraflow.wire import pb
from astraflow.wire.generate import generate


def test_the_generated_modules_match_the_protos(tmp_path: Path) -> None:
    fresh = {path.name: path.read_text() for path in generate(tmp_path)}
    room = Path(str(pb.__file__)).parent
    kept = {path.name: path.read_text() for path in room.iterdir() if "_pb2" in path.name and path.is_file()}
    assert sorted(fresh) == sorted(kept)
    stale = [name for name, text in fresh.items() if kept[name] != text]
    assert not stale, "run: python -m astraflow.wire.generate"
