"""Pointer network (Vinyals et al. 2015), after the lecture: its outputs are positions of its input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Coordinates are read as those of a square of this side around 0. As they are, in the unit square, they hardly move an
#: LSTM with PyTorch's start: after 1000 updates it had learned nothing.
SIDE = 6.0
#: Sets of points that are answered at once; no answer depends on it.
ANSWERED = 50


class PointerNetwork(nn.Module):
    """An LSTM reads the points, another one answers by pointing at them:

        u_j^t = vᵀ tanh(W₁ s_j + W₂ h_t),   p(y_t = j | y_<t, x) = softmax(u^t)_j

    over the points that the answer does not have yet, and the end; s_j are the encoder's states, h_t the decoder's,
    whose input is the point before. The end has a learned state in place of s_j. It is allowed once the answer has its
    least length.

    Args:
        width: of both LSTMs.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.LSTM(2, width, batch_first=True), nn.LSTM(2, width, batch_first=True)
        self.w_1, self.w_2 = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, 1, bias=False)
        self.start, self.end = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.randn(width) / width**0.5)

    def forward(self, points: Tensor, answers: Tensor, shortest: int, first: int = 0) -> Tensor:
        """log p of each next pointer.

        Args:
            points: (B, n, 2), in the unit square.
            answers: their first pointers (B, T), each less than n, or n where the answer has ended.
            shortest: the least length of an answer.
            first: the pointers from this one on are asked for.

        Returns:
            (B, T + 1 - first, n + 1); n is the end.
        """
        n, points = points.size(1), SIDE * (points - 0.5)
        s, state = self.encoder(points)
        s = torch.cat([s, self.end.expand(len(s), 1, -1)], dim=1)
        pointed = torch.cat([points, points.new_zeros(len(points), 1, 2)], dim=1)
        pointed = pointed.gather(1, answers.unsqueeze(2).expand(-1, -1, 2))
        h, _ = self.decoder(torch.cat([self.start.expand(len(points), 1, 2), pointed], dim=1), state)
        u = self.v(torch.tanh(self.w_1(s).unsqueeze(1) + self.w_2(h[:, first:]).unsqueeze(2))).squeeze(3)
        return u.masked_fill(~_allowed(answers, n, shortest)[:, first:], -torch.inf).log_softmax(dim=2)

    def loss(self, points: Tensor, answers: list[list[int]], shortest: int) -> Tensor:
        """- log p of answers, mean over pointers and ends."""
        n = points.size(1)
        rows = [torch.tensor([*answer, n]) for answer in answers]
        target = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        log_p = self(points, target[:, :-1].masked_fill(target[:, :-1] < 0, n), shortest)
        return F.nll_loss(log_p.flatten(0, 1), target.flatten(), ignore_index=-1)

    @torch.no_grad()
    def answer(self, points: Tensor, shortest: int) -> list[list[int]]:
        """The likeliest next pointer after each other, for points (B, n, 2)."""
        return [answer for part in points.split(ANSWERED) for answer in self._answer(part, shortest)]

    def _answer(self, points: Tensor, shortest: int) -> list[list[int]]:
        n = points.size(1)
        answers = torch.empty(len(points), 0, dtype=torch.long)
        for t in range(n):
            answers = torch.cat([answers, self(points, answers, shortest, first=t).argmax(dim=2)], dim=1)
            if answers[:, -1].eq(n).all():
                break
        return [[j for j in row if j < n] for row in answers.tolist()]


def _allowed(answers: Tensor, n: int, shortest: int) -> Tensor:
    """True for the pointers that may follow a beginning of the answers (B, T): (B, T + 1, n + 1)."""
    pointed = F.one_hot(answers, n + 1).cumsum(dim=1)
    before = F.pad(pointed, (0, 0, 1, 0)).bool()  # of the beginnings of 0 … T pointers
    ended, count = before[:, :, n:], torch.arange(before.size(1)).view(1, -1, 1)
    return torch.cat([~before[:, :, :n] & ~ended, (count >= shortest) | ended], dim=2)
