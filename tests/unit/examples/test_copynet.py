"""examples/copynet: the rules by hand, the probabilities by the lecture's formula, and the command."""

from __future__ import annotations

import random
import sys

import commands
import pytest
import torch

sys.path.insert(0, str(commands.ROOT / "examples/copynet"))
import copynet
import rewrite
import rules

V = rules.VOCABULARY


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("x → ∅", lambda x, y: [7]),
        ("x → x", lambda x, y: [7, *x, 8]),
        ("x → xx", lambda x, y: [7, *x, 8, *x, 9]),
        ("xy → x", lambda x, y: [7, *x, 8]),
        ("xy → xy", lambda x, y: [7, *x, 8, *y, 9]),
    ],
)
def test_rules_copy_what_stands_for_their_variables(kind: str, target: object) -> None:
    variables = kind.split()[0]
    rule = rules.Rule(kind, (4, 5, 6)[: 1 + len(variables)], (7, 8, 9)[: 1 + len(rules.TYPES[kind])])
    outside = 0
    for seed in range(20):
        pair = rules.make_pair(rule, random.Random(seed))
        first = pair.source.index(5)
        x = pair.source[1:first]
        y = pair.source[first + 1 : -1] if variables == "xy" else []
        assert pair.source == [4, *x, 5, *([*y, 6] if variables == "xy" else [])]
        assert pair.target == target(x, y)  # type: ignore[operator]
        assert 1 <= len(x) <= rules.LONGEST >= len(y)
        outside += sum(word >= V for word in x)
    assert outside > 5


def test_every_rule_is_told_by_its_first_word() -> None:
    made = rules.make_rules(random.Random(1))
    assert len({rule.source[0] for rule in made}) == len(made) == 3 * len(rules.TYPES)
    assert [rule.kind for rule in made[::3]] == list(rules.TYPES)


def test_words_outside_the_vocabulary_have_numbers_of_their_own() -> None:
    assert copynet.numbered([5, V + 70, V + 9, V + 70], [V + 9, 5, V + 70, V + 1], V) == (
        [5, V, V + 1, V],
        [V + 1, 5, V, rules.UNK],
    )


def model(copies: bool = True, vocabulary: int = 8) -> copynet.CopyNet:
    torch.manual_seed(1)
    return copynet.CopyNet(vocabulary, 6, copies)


#: Words 4 to 7 are in the vocabulary; 8 and 9 are the first two outside it.
SOURCE, BEFORE = [5, 8, 4, 8, 9, 5], [rules.START, 4, 8, 9]


@torch.no_grad()
def test_probabilities_are_the_formulas() -> None:
    net = model()
    states, _ = net.encoder(net._embedded(torch.tensor([SOURCE])))
    s = torch.tanh(net.narrow(states))[0]
    h = s.mean(dim=0).view(1, 1, -1)
    log_p = net(torch.tensor([SOURCE]), torch.tensor([BEFORE]))[0]
    assert log_p.shape == (4, 8 + 6)
    for t, word in enumerate(BEFORE):
        places = [s[j] for j, other in enumerate(SOURCE) if other == word]
        there = torch.stack(places).mean(dim=0) if places else torch.zeros(6)
        embedded = net.embedding.weight[word if word < 8 else rules.UNK]
        _, h = net.decoder(torch.cat([embedded, there]).view(1, 1, -1), h)
        attention = torch.stack([net.w_a(h[0, 0]) @ each for each in s]).softmax(dim=0)
        state = torch.tanh(net.join(torch.cat([h[0, 0], attention @ s])))
        generate = net.w_o(state).exp().tolist()
        copy = [float((torch.tanh(net.w_c(each)) @ state).exp()) for each in s]
        z = sum(generate) + sum(copy)
        for y in range(8 + 6):
            own = generate[y] if y < 8 else 0
            expected = (own + sum(each for each, x in zip(copy, SOURCE, strict=True) if x == y)) / z
            assert float(log_p[t, y].exp()) == pytest.approx(expected, abs=1e-6)


@torch.no_grad()
def test_probabilities_sum_to_one_and_padding_is_not_seen() -> None:
    for copies in (True, False):
        net = model(copies)
        padded = torch.tensor([[*SOURCE, rules.PAD, rules.PAD], [4] * 8])
        log_p = net(padded, torch.tensor([BEFORE, BEFORE]))
        torch.testing.assert_close(log_p.exp().sum(dim=2), torch.ones(2, 4))
        alone = net(torch.tensor([SOURCE]), torch.tensor([BEFORE]))[0]
        torch.testing.assert_close(log_p[0, :, : 8 + 6], alone, atol=1e-5, rtol=1e-5)
        assert log_p[0, :, 8 + 6 :].exp().max() < 1e-6
        assert bool((alone[:, 8:10].exp() > 1e-6).all()) == copies


def test_it_learns_one_rule_with_words_that_it_has_never_seen() -> None:
    torch.manual_seed(1)
    net, rng = copynet.CopyNet(V, 32), random.Random(1)
    rule = rules.Rule("x → x", (4, 5), (6, 7))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        rewrite.loss(net, [rules.make_pair(rule, rng) for _ in range(32)]).backward()
        optimizer.step()
    pairs = [rules.make_pair(rule, rng) for _ in range(50)]
    source, target = rewrite.batched(pairs)
    found = net.answer(source, rewrite.LONGEST_TARGET)
    right = sum(each == row[1 : row.index(rules.END)] for each, row in zip(found, target.tolist(), strict=True))
    assert right > 40


def test_the_command_prints_a_line_for_each_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rewrite, "TEST", 2)
    commands.call(rewrite, monkeypatch, updates=1, width=4)
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head == "| % right | x → ∅ | x → x | x → xx | xy → x | xy → xy |"
    assert [line.split(" | ")[0] for line in lines] == ["| without copies", "| CopyNet"]
    with pytest.raises(SystemExit, match=r"rewrite.py: --lr -1.0 must be above 0"):
        commands.call(rewrite, monkeypatch, lr=-1)
