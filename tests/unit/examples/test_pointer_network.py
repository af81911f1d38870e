"""examples/pointer_network: right answers by brute force, the distribution by its formula, pointers that are always
valid, and the command."""

from __future__ import annotations

import itertools
import math
import re
import sys

import commands
import numpy as np
import pytest
import torch

sys.path.insert(0, str(commands.ROOT / "examples/pointer_network"))
import pointer_network
import puzzles
import solve

POINTS = np.random.default_rng(5).random((6, 7, 2))


def left_of(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """Whether c is to the left of the way from a to b."""
    return bool((b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0]))


def test_hulls_have_all_other_points_on_their_left() -> None:
    for points, hull in zip(POINTS, puzzles.hulls(POINTS), strict=True):
        sides = {
            (i, j)
            for i, j in itertools.permutations(range(7), 2)
            if all(left_of(points[i], points[j], points[k]) for k in range(7) if k not in (i, j))
        }
        assert set(zip(hull, [*hull[1:], hull[0]], strict=True)) == sides
        assert hull[0] == min(hull)


def test_tours_are_the_shortest_of_all() -> None:
    for points, tour in zip(POINTS, puzzles.tours(POINTS), strict=True):
        ways = ((0, *rest) for rest in itertools.permutations(range(1, 7)) if rest[0] < rest[-1])

        def length(way: tuple[int, ...], points: np.ndarray = points) -> float:
            return sum(math.dist(points[i], points[j]) for i, j in zip(way, (*way[1:], 0), strict=True))

        best = min(ways, key=length)
        assert tuple(tour) == best
        assert puzzles.tour_length(points, tour) == pytest.approx(length(best))


def test_areas_and_crossings_by_hand() -> None:
    square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.25]])
    assert puzzles.area(square, [0, 1, 2, 3]) == puzzles.area(square, [3, 2, 1, 0]) == 1
    assert puzzles.area(square, [0, 1, 2]) == 0.5
    assert puzzles.area(square, [0, 4, 1, 2, 3]) == 1 - 0.125
    for simple in ([0, 1, 2], [0, 1, 2, 3], [0, 4, 1, 2, 3]):
        assert puzzles.is_simple(square, simple)
    for crossing in ([0, 2, 1, 3], [4, 2, 0, 1, 3]):
        assert not puzzles.is_simple(square, crossing)


def test_hulls_are_simple_and_mostly_nothing_else() -> None:
    """Of all orders of a hull's corners only the two ways around are polygons without crossings."""
    for points, hull in zip(POINTS, puzzles.hulls(POINTS), strict=True):
        simple = [order for order in itertools.permutations(hull) if puzzles.is_simple(points, list(order))]
        assert len(simple) == 2 * len(hull)


def network(seed: int = 1, width: int = 8) -> pointer_network.PointerNetwork:
    torch.manual_seed(seed)
    return pointer_network.PointerNetwork(width)


@torch.no_grad()
def test_probabilities_are_the_formulas() -> None:
    """Step by step, with one LSTM step after the other."""
    model, points, answer = network(), torch.from_numpy(POINTS[:1, :4]).float(), [2, 0, 3]
    log_p = model(points, torch.tensor([[*answer, 4]]), 3)[0]
    inputs = 6 * (points[0] - 0.5)
    s, state = model.encoder(inputs.unsqueeze(0))
    keys = [*s[0], model.end]
    for t in range(4):
        read = model.start if t == 0 else inputs[answer[t - 1]]
        h, state = model.decoder(read.view(1, 1, 2), state)
        allowed = [j for j in range(5) if (j == 4 and t >= 3) or (j < 4 and j not in answer[:t])]
        u = [float(model.v(torch.tanh(model.w_1(keys[j]) + model.w_2(h[0, 0])))) for j in allowed]
        expected = torch.tensor(u).log_softmax(dim=0)
        torch.testing.assert_close(log_p[t, allowed], expected, atol=1e-5, rtol=1e-5)
        assert log_p[t].exp().sum() == pytest.approx(1, abs=1e-5)
    assert log_p[4].exp().tolist() == [0, 0, 0, 0, 1]  # behind the end
    torch.testing.assert_close(model(points, torch.tensor([[*answer, 4]]), 3, first=3)[0], log_p[3:])


@pytest.mark.parametrize("seed", range(4))
def test_pointers_are_always_valid(seed: int) -> None:
    """Of networks that have learned nothing."""
    model, points = network(seed), torch.rand(50, 6, 2, generator=torch.Generator().manual_seed(seed))
    for name, puzzle in puzzles.PUZZLES.items():
        for answer in model.answer(points, puzzle.shortest(6)):
            assert len(set(answer)) == len(answer) >= puzzle.shortest(6)
            assert set(answer) <= set(range(6))
            assert name == "hull" or len(answer) == 6


@torch.no_grad()
def test_no_step_behind_the_end_of_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network for which the end is always the likeliest; two sets of points are answered at once."""
    model, seen = network(), []
    model.w_1.weight.copy_(10 * torch.eye(8))
    for parameter, value in ((model.w_2.weight, 0), (model.v.weight, 1), (model.end, 10)):
        parameter.fill_(value)
    monkeypatch.setattr(pointer_network, "ANSWERED", 2)
    model.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[1].shape)))
    assert [len(answer) for answer in model.answer(torch.rand(4, 20, 2), 3)] == [3] * 4
    assert seen == [(2, 0), (2, 1), (2, 2), (2, 3)] * 2


@pytest.mark.parametrize("name", puzzles.PUZZLES)
def test_it_learns_a_few_answers(name: str) -> None:
    model, puzzle, given = network(width=32), puzzles.PUZZLES[name], POINTS[:, :4]
    points, answers = torch.from_numpy(given).float(), puzzle.solve(given)
    assert len(set(map(tuple, answers))) > 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        model.loss(points, answers, puzzle.shortest(4)).backward()
        optimizer.step()
    assert model.answer(points, puzzle.shortest(4)) == answers


def test_the_command_says_how_many_are_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.call(solve, monkeypatch, "hull", points=3, test_sets=50, updates=1, width=4)
    printed = capsys.readouterr()
    right, covered, simple = re.findall(
        r"^hull of 3 points: (\S+) % of 50 answers are right; area (\S+) % of the (\d+) that", printed.out
    )[0]
    assert (covered, simple) == ("100.0", "50")  # a triangle is one in any order
    assert 0 < float(right) < 100  # a guess is right in half of the cases
    assert printed.err.startswith("update 1 of 1, loss ")


def test_tours_are_compared_with_the_shortest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.call(solve, monkeypatch, "tour", points=4, test_sets=50, updates=1, width=4)
    found, best = map(float, re.findall(r"mean length (\S+), of the shortest tours (\S+)$", capsys.readouterr().out)[0])
    assert found > best


def test_other_numbers_of_points_than_in_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches of each number of a range; of tours that are not solved the length alone."""
    seen, learn = set(), pointer_network.PointerNetwork.loss

    def recorded(self: pointer_network.PointerNetwork, points: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.add(points.size(1))
        return learn(self, points, *rest)

    monkeypatch.setattr(pointer_network.PointerNetwork, "loss", recorded)
    commands.call(solve, monkeypatch, "tour", points="4-6", test_points=[5, 14], updates=20, width=4, test_sets=3)
    assert seen == {4, 5, 6}
    five, fourteen = capsys.readouterr().out.splitlines()
    assert five.startswith("tour of 5 points: ")
    assert "of the shortest tours" in five
    assert re.fullmatch(r"tour of 14 points: mean length of 3 answers \d\.\d{3}", fourteen)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["hul"], "solve.py: PUZZLE: 'hul' is unknown; did you mean 'hull'?", None),
        (["tour", "--points", "13"], "solve.py: --points 13: tour is for 3 to 12 points", None),
        (["hull", "--points", "2"], "solve.py: --points 2: hull is for 3 to 500 points", None),
        (["tour", "--points", "5-13"], "solve.py: --points 13: tour is for 3 to 12 points", None),
        (["tour", "--test-points", "5", "51"], "solve.py: --test-points 51: tour is for 3 to 50 points", None),
        (
            ["hull", "--points", "9-5"],
            2,
            "solve.py: argument --points: must be a number or a range like 5-50, not '9-5'",
        ),
        (["hull", "--lr", "0"], "solve.py: --lr 0.0 must be above 0", None),
        (["hull", "--point", "4"], 2, "solve.py: --point is unknown; did you mean --points?"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    status: int | str,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as error:
        commands.call(solve, monkeypatch, *words)
    assert error.value.code == status
    if message is not None:
        assert capsys.readouterr().err == f"{message} (all options: solve.py --help)\n"
