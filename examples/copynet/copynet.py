"""CopyNet (Gu et al. 2016), after the lecture: a sequence-to-sequence model that generates words or copies them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rules import END, PAD, START, UNK
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class CopyNet(nn.Module):
    """An encoder (GRU, both directions) with states s_j of the source's words x_j, and a decoder (GRU) with states h_t:

        ψ_g(v) = (W_o h_t)_v              for the words v of the vocabulary, ``UNK`` among them
        ψ_c(x_j) = tanh(s_jᵀ W_c) h_t     for the positions j of the source
        p(y_t) = 1/Z (exp ψ_g(y_t) + Σ_{j: x_j = y_t} exp ψ_c(x_j)),   Z = Σ_v exp ψ_g(v) + Σ_j exp ψ_c(x_j)

    The decoder sees the source through attention (hᵀ W_a s), and reads the word before and, where the source has it,
    the mean of its states s_j there: so it knows where in the source it is, also at words that it does not know.

    Args:
        vocabulary: V, how many words it can generate.
        width: of the states.
        copies: whether it copies; without, p(y_t) is the softmax of ψ_g, and the decoder reads embeddings only.
    """

    def __init__(self, vocabulary: int, width: int, copies: bool = True) -> None:
        super().__init__()
        self.vocabulary, self.copies = vocabulary, copies
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.narrow = nn.Linear(2 * width, width)
        self.decoder = nn.GRU(2 * width, width, batch_first=True)
        self.w_a, self.w_c = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width)
        self.w_o = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        """log p of each next word.

        Args:
            source: (B, S), as ``numbered`` gives them.
            before: the words before, (B, T), the start symbol first.

        Returns:
            (B, T, V + S): of the words of the vocabulary, and of those which only the source has, by their numbers.
        """
        padding = source.eq(PAD)
        s = torch.tanh(self.narrow(self._encoded(source)))
        same = before.unsqueeze(2).eq(source.unsqueeze(1)) & ~padding.unsqueeze(1)  # (B, T, S)
        there = same.float() @ s / same.sum(dim=2, keepdim=True).clamp(min=1) * self.copies
        words = (~padding).unsqueeze(2)
        first = (s * words).sum(dim=1) / words.sum(dim=1)
        h, _ = self.decoder(torch.cat([self._embedded(before), there], dim=2), first.unsqueeze(0).contiguous())
        a = (self.w_a(h) @ s.mT).masked_fill(padding.unsqueeze(1), -torch.inf).softmax(dim=2)
        h = torch.tanh(self.join(torch.cat([h, a @ s], dim=2)))
        psi_c = (h @ torch.tanh(self.w_c(s)).mT).masked_fill(padding.unsqueeze(1), -torch.inf)
        psi_c = psi_c if self.copies else torch.full_like(psi_c, -torch.inf)
        p = torch.cat([self.w_o(h), psi_c], dim=2).softmax(dim=2)
        of_words = F.pad(p[:, :, : self.vocabulary], (0, source.size(1)))
        positions = source.unsqueeze(1).expand(-1, before.size(1), -1)
        return of_words.scatter_add(2, positions, p[:, :, self.vocabulary :]).clamp(min=1e-20).log()

    @torch.no_grad()
    def answer(self, source: Tensor, longest: int) -> list[list[int]]:
        """The likeliest next word after each other, up to the end symbol, as numbers of ``numbered``."""
        words = torch.full((len(source), 1), START)
        for _ in range(longest):
            words = torch.cat([words, self(source, words)[:, -1:].argmax(dim=2)], dim=1)
        return [row[: row.index(END)] if END in row else row for row in words[:, 1:].tolist()]

    def _encoded(self, source: Tensor) -> Tensor:
        """The encoder's states (B, S, 2 width), which do not depend on the padding."""
        packed = pack_padded_sequence(
            self._embedded(source), source.ne(PAD).sum(dim=1), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.encoder(packed)[0], batch_first=True)[0]

    def _embedded(self, words: Tensor) -> Tensor:
        return self.embedding(words.masked_fill(words >= self.vocabulary, UNK))


def numbered(source: list[int], target: list[int], vocabulary: int) -> tuple[list[int], list[int]]:
    """A sentence and its target with numbers of their own for the words outside the vocabulary: V, V + 1, … in the
    order in which the source has them. What only the target has is ``UNK``."""
    outside = list(dict.fromkeys(word for word in source if word >= vocabulary))
    numbers = {word: vocabulary + i for i, word in enumerate(outside)}
    return (
        [numbers.get(word, word) for word in source],
        [numbers.get(word, UNK if word >= vocabulary else word) for word in target],
    )
