"""Several words of an autoregressive decoder in one call, which may be taken back. Notation: docs/glossary.md."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from amlp_fairseq.attention.state import RowContext, StepContext
from amlp_fairseq.decoding.step_decoder import Decoding, StepDecoder


class SpeculativeSession(Decoding):
    """A session of one row per sentence, whose rows advance by different numbers of words.

    Args:
        decoder: the decoder.
        encoder_out: of R sentences.

    Attributes:
        lengths: how many words of each row have been read.

    Raises:
        ValueError: if one of the decoder's attentions is not softmax attention: other states cannot be taken back.
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
        """The logits behind each of k words (R, k, V), and attention over the source (R, k, S) or None.

        Args:
            words: of each row those behind its first ``lengths``, (R, k); the very first is the start symbol.
            need_attention: whether to return attention.
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
        return decoder.decode(words, context, self.states.each, self.memories, need_attention)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Take words back: keep so many of each row. Their slots are overwritten later."""
        self.lengths = list(lengths)

    def reorder(self, rows: Tensor) -> None:
        self.length = max(self.lengths)
        self.lengths = [self.lengths[row] for row in rows.tolist()]
        super().reorder(rows)
