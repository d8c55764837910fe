"""Scripted experts of the games for two players, which read what a player sees.

`TicTacToe`, `Nim` and `Othello-v0-tiny` (4 by 4) are played perfectly, by the exact value of each position. Strategies
without this certainty: the best response to a random player in `KuhnPoker`, "end race or keep pace" in `PigDice`
(Neller and Presser, Practical Play of the Dice Game Pig, 2010), and one move ahead in `ConnectFour` and on larger
boards of `Othello`.
"""

import random
import re
from collections.abc import Sequence
from functools import cache, reduce
from operator import xor
from typing import Protocol

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments.base import Observation
from astraflow.environments.two_player import GameFactory, GameTurn

Board = tuple[str, ...]
"""Rows of a board."""
Cell = tuple[int, int]


class GameExpert(Protocol):
    """Player without a model."""

    def __call__(self, observations: Sequence[Observation], rng: random.Random, /) -> str:
        """Returns the next action. seen: all that this player has seen, the oldest first."""


def random_player(observations: Sequence[Observation], rng: random.Random) -> str:
    """Chooses among the possible actions."""
    return rng.choice(observations[-1].actions)


async def play_game(
    factory: GameFactory, prompt: Prompt, players: tuple[GameExpert, GameExpert], seed: int = 0
) -> list[GameTurn]:
    """Plays a game to its end; returns all turns."""
    game, rng = factory.make(), random.Random(seed)
    turns = [await game.begin(prompt, seed)]
    observations: tuple[list[Observation], list[Observation]] = ([], [])
    while not turns[-1].is_over:
        turn = turns[-1]
        observations[turn.player].append(turn.observation)
        turns.append(await game.act(turn.player, players[turn.player](observations[turn.player], rng)))
    await game.close()
    return turns


def expert_of(game: str) -> GameExpert:
    """Returns the expert of a game, such as `Nim-v0`."""
    return _EXPERTS[game] if game in _EXPERTS else _EXPERTS[game.split("-")[0]]


def _number_of(observations: Sequence[Observation]) -> int:
    """Returns the number of the player, which the rules tell."""
    match = re.search(r"Player (\d)", observations[0].text)
    assert match is not None
    return int(match[1])


def _nim(observations: Sequence[Observation], rng: random.Random) -> str:
    """Leaves piles whose exclusive or is 0, where that is possible."""
    piles = [int(size) for size in re.findall(r"pile \d+: (\d+)", observations[-1].text)]
    total = reduce(xor, piles)
    for pile, size in enumerate(piles):
        if size ^ total < size:
            return f"[{pile} {size - (size ^ total)}]"
    return random_player(observations, rng)


_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def _tic_tac_toe(observations: Sequence[Observation], rng: random.Random) -> str:
    """Takes a cell of the highest value, and of these the one from which the opponent has the most ways to lose."""
    del rng
    number = _number_of(observations)
    own, other = ("O", "X") if number == 0 else ("X", "O")
    rows = re.findall(r"^\s*(\S)\s*\|\s*(\S)\s*\|\s*(\S)\s*$", observations[-1].text, re.MULTILINE)[-3:]
    cells = "".join(cell if cell in "XO" else "." for row in rows for cell in row)
    return f"[{max(_free(cells), key=lambda cell: _mean_and_value(_put(cells, cell, own), other, own))}]"


def _mean_and_value(cells: str, own: str, other: str) -> tuple[int, float]:
    """Returns the value for `other`, who has just moved: against the best replies, and on average over all."""
    replies = [_value(_put(cells, cell, own), other, own) for cell in _free(cells)]
    return -_value(cells, own, other), sum(replies) / len(replies) if replies else 0.0


@cache
def _value(cells: str, own: str, other: str) -> int:
    """Returns 1 where the player `own`, who moves, wins, 0 for a draw, -1 for a loss."""
    if any(cells[a] == cells[b] == cells[c] == other for a, b, c in _LINES):
        return -1
    return max((-_value(_put(cells, cell, own), other, own) for cell in _free(cells)), default=0)


def _free(cells: str) -> list[int]:
    return [index for index, cell in enumerate(cells) if cell == "."]


def _put(cells: str, index: int, mark: str) -> str:
    return f"{cells[:index]}{mark}{cells[index + 1 :]}"


def _connect_four(observations: Sequence[Observation], rng: random.Random) -> str:
    """Connects four, else prevents it, else takes the most central column that lets the opponent not connect four."""
    own, other = "XO" if _number_of(observations) == 0 else "OX"
    board = [
        list(row) for row in re.findall(r"^[.XO](?: [.XO])+$", observations[-1].text.replace("|", ""), re.MULTILINE)
    ]
    board = [[cell for cell in row if cell != " "] for row in board]
    columns = [column for column, cell in enumerate(board[0]) if cell == "."]
    for mark in (own, other):
        for column in columns:
            if _connects(board, _landing(board, column), mark):
                return f"[col {column}]"
    middle = (len(board[0]) - 1) / 2
    ranked = sorted(columns, key=lambda column: (abs(column - middle), rng.random()))
    return f"[col {next((column for column in ranked if _is_safe(board, column, other)), ranked[0])}]"


def _is_safe(board: list[list[str]], column: int, other: str) -> bool:
    row, _ = _landing(board, column)
    return row == 0 or not _connects(board, (row - 1, column), other)


def _landing(board: list[list[str]], column: int) -> Cell:
    return max(row for row in range(len(board)) if board[row][column] == "."), column


def _connects(board: list[list[str]], cell: Cell, mark: str) -> bool:
    def count(down: int, right: int) -> int:
        row, column, reached = cell[0] + down, cell[1] + right, 0
        while 0 <= row < len(board) and 0 <= column < len(board[0]) and board[row][column] == mark:
            row, column, reached = row + down, column + right, reached + 1
        return reached

    return any(count(*way) + count(-way[0], -way[1]) >= 3 for way in ((0, 1), (1, 0), (1, 1), (1, -1)))


def _kuhn_poker(observations: Sequence[Observation], rng: random.Random) -> str:
    """Bets with every card, and calls with queen and king: the best response to a player who acts at random."""
    del rng
    card = re.findall(r"Your card is: '([JQK])'", "\n".join(observation.text for observation in observations))[-1]
    if "[bet]" in observations[-1].actions:
        return "[bet]"
    return "[fold]" if card == "J" else "[call]"


def _pig_dice(observations: Sequence[Observation], rng: random.Random) -> str:
    """Holds at 21 and an eighth of the opponent's lead, and rolls for the end once a player needs at most 29 points."""
    del rng
    goal = int(re.findall(r"First to (\d+) points", observations[0].text)[-1])
    text, number = observations[-1].text, _number_of(observations)
    scores = [int(score) for score in re.findall(r"Player \d: '(\d+)'", text)[-2:]]
    own, other = scores[number], scores[1 - number]
    total = int(re.findall(r"turn total is (\d+)", text)[-1])
    if own + total >= goal:
        return "[hold]"
    if max(own, other) >= goal - 29:
        return "[roll]"
    return "[hold]" if total >= 21 + round((other - own) / 8) else "[roll]"


_WAYS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0))


def _othello(observations: Sequence[Observation], rng: random.Random) -> str:
    """Takes a corner, else leaves the opponent the fewest moves and no corner."""
    own, other = "BW" if _number_of(observations) == 0 else "WB"
    board = _othello_board(observations[-1].text)
    moves = _moves(board, own, other)
    if not moves:
        return "[skip]"
    last = len(board) - 1
    corners = {(0, 0), (0, last), (last, 0), (last, last)}

    def rank(move: Cell) -> tuple[bool, int, float]:
        replies = _moves(_placed(board, move, own, other), other, own)
        return move in corners, -len(replies) - 10 * len(corners.intersection(replies)), rng.random()

    return "[{}, {}]".format(*max(moves, key=rank))


def _small_othello(observations: Sequence[Observation], rng: random.Random) -> str:
    """Takes a move of the highest value."""
    own, other = "BW" if _number_of(observations) == 0 else "WB"
    board = _othello_board(observations[-1].text)
    moves = _moves(board, own, other)
    values = {move: -_lead(_placed(board, move, own, other), other, own) for move in moves}
    best = [move for move in moves if values[move] == max(values.values())]
    return "[{}, {}]".format(*rng.choice(best)) if best else "[skip]"


@cache
def _lead(board: Board, own: str, other: str) -> int:
    """Returns the pieces by which the player `own`, who moves, is ahead at the end."""
    if moves := _moves(board, own, other):
        return max(-_lead(_placed(board, move, own, other), other, own) for move in moves)
    if _moves(board, other, own):
        return -_lead(board, other, own)
    return sum(row.count(own) - row.count(other) for row in board)


def _othello_board(text: str) -> Board:
    rows = re.findall(r"^\d+\|((?:[.BW]\|)+)$", text, re.MULTILINE)
    return tuple(row.replace("|", "") for row in rows)


def _moves(board: Board, own: str, other: str) -> list[Cell]:
    size = range(len(board))
    return [
        (row, column)
        for row in size
        for column in size
        if board[row][column] == "." and any(_flipped(board, (row, column), way, own, other) for way in _WAYS)
    ]


def _placed(board: Board, move: Cell, own: str, other: str) -> Board:
    rows = [list(row) for row in board]
    for row, column in [move, *(cell for way in _WAYS for cell in _flipped(board, move, way, own, other))]:
        rows[row][column] = own
    return tuple("".join(row) for row in rows)


def _flipped(board: Board, move: Cell, way: Cell, own: str, other: str) -> list[Cell]:
    size, cells = len(board), []
    row, column = move[0] + way[0], move[1] + way[1]
    while 0 <= row < size and 0 <= column < size and board[row][column] == other:
        cells.append((row, column))
        row, column = row + way[0], column + way[1]
    return cells if 0 <= row < size and 0 <= column < size and board[row][column] == own else []


_EXPERTS: dict[str, GameExpert] = {
    "ConnectFour": _connect_four,
    "KuhnPoker": _kuhn_poker,
    "Nim": _nim,
    "Othello": _othello,
    "Othello-v0-tiny": _small_othello,
    "PigDice": _pig_dice,
    "TicTacToe": _tic_tac_toe,
}
"""By game, or by its name without size."""
