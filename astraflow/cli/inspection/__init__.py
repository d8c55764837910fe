"""A live or ended run: `report`, `view`, `plugins` and `track`, and its output in the terminal."""
