"""Changes of ``fairseq.sequence_generator``: ``--no-repeat-ngram-size`` where fairseq's CUDA extension is not built."""

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor, nn


class RepeatedNgrams(nn.Module):
    """Stock's module, which it gives what is written: stock looks at the end of a buffer, which is padding until the
    longest output is written, so that nothing is blocked. TorchScript can compile it, as that of a generator."""

    def __init__(self, no_repeat_ngram_size: int, use_extension: bool = True) -> None:
        super().__init__()
        self.stock = NGramRepeatBlock(no_repeat_ngram_size, use_extension)

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        """Log-probabilities (B K, V) without those of words that would repeat an n-gram.

        Args:
            tokens: (B K, T), a start symbol and ``step`` words, then padding.
        """
        words = tokens if self.stock.use_extension else tokens[:, : step + 1]
        result: Tensor = self.stock(words, lprobs, bsz, beam_size, step)
        return result
