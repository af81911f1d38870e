"""Sessions of speculative decoding: several words per call, which can be removed again. Notation: docs/glossary.md."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from amlp_fairseq.attention.state import RowContext, StepContext
from amlp_fairseq.decoding.step_decoder import Decoding, StepDecoder


class SpeculativeSession(Decoding):
    """A session of one row per sentence, whose rows advance by different numbers of words.

    Args:
        decoder: the decoder.
        encoder_out: the encoder's output for R sentences.

    Attributes:
        lengths: number of words read in each row.

    Raises:
        ValueError: if one of the decoder's attentions is not softmax attention: other states cannot be rolled back.
    """

    def __init__(self, decoder: StepDecoder, encoder_out: dict[str, list[Tensor]]) -> None:
        if (other := decoder.other_attention()) is not None:
            raise ValueError(
                f"a draft needs a decoder with softmax attention, which can take words back: this one has {other}"
            )
        super().__init__(decoder, encoder_out, beam=1)
        self.lengths = [0] * self.rows
        for stack in self.states.stacks:
            stack.zero_()  # a row may see slots, with weight 0, that only longer rows have written: never NaN

    def verify(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """The logits after each of k words (R, k, V), and attention over the source (R, k, S) or None.

        Args:
            words: the next words of each row, from position ``lengths`` on, (R, k); the first is the start symbol.
            need_attention: True to return attention.
        """
        decoder, count = self.decoder, words.size(1)
        first, last = min(self.lengths), max(self.lengths)
        self.length = last + count
        self.make_room(self.length, self.length)
        if first == last:
            bias = None if count == 1 else decoder.bias[first : self.length, : self.length]
            context = StepContext(decoder.slots.narrow(0, first, count), self.length, bias=bias)
        else:
            slots = words.new_tensor(self.lengths).unsqueeze(1) + decoder.slots[:count]
            bias = decoder.bias[slots].narrow(2, 0, self.length).unsqueeze(1)
            context = RowContext(slots, self.length, bias=bias)
        self.lengths = [length + count for length in self.lengths]
        return decoder.decode(words, context, self.states.by_attention, self.memories, need_attention)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Keep the first ``lengths`` words of each row; the slots of removed words are overwritten later."""
        self.lengths = list(lengths)

    def reorder(self, rows: Tensor) -> None:
        self.length = max(self.lengths)
        self.lengths = [self.lengths[row] for row in rows.tolist()]
        super().reorder(rows)
