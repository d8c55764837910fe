"""The table and the plot of the tiny recipes."""

from xml.etree import ElementTree

from benchmarks.recipe_curves import RunOutcome, plot, table

OUTCOME = RunOutcome(
    recipe="math_multi_agent/tiny",
    seed=2,
    reached=False,
    end="time limit",
    before={"solver": 0.25, "verifier": None},
    after={"solver": 0.75, "verifier": None},
    warm_start_s=12.4,
    training_s=99.6,
    load=3.21,
    rewards={"solver": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "verifier": []},
)


def test_the_table_has_a_line_for_each_policy() -> None:
    _, solver, verifier = table([OUTCOME]).splitlines()

    assert solver.split() == ["math_multi_agent/tiny", "solver", "2", "0.250", "0.750", "no", "12", "100", "6", "3.2"]
    assert verifier.split()[3:5] == ["-", "-"]


def test_the_plot_averages_five_steps() -> None:
    picture = plot([OUTCOME])

    assert "solver, seed 2" in "".join(ElementTree.fromstring(picture).itertext())  # noqa: S314 (we drew it ourselves)
    line = next(part for part in picture.splitlines() if "polyline" in part)
    assert len(line.split('points="')[1].split('"')[0].split()) == 2
