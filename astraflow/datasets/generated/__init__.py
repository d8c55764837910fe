"""Generated tasks with known answers: sums, strings, functions, facts and puzzles."""
