// The operators of search_steps.h.

#include "search_steps.h"

#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(amlp_fairseq, library) {
  library.def("combine_words(Tensor lprobs, int k, int eos, int pad, bool ignore) -> (Tensor, Tensor, Tensor, Tensor)",
              &combine_words);
  library.def(
      "advance(Tensor tokens, Tensor word_scores, Tensor scores, int[] finished_counts, Tensor continuation_scores,"
      " Tensor continuation_words, Tensor continuation_word_scores, Tensor continuation_ends, bool keep_all)"
      " -> (Tensor, Tensor, Tensor, Tensor, int[], int[], int[], float[], Tensor[], Tensor[])",
      [](const Tensor& tokens, const Tensor& word_scores, const Tensor& scores, const std::vector<int64_t>& finished_counts,
         const Tensor& continuation_scores, const Tensor& continuation_words, const Tensor& continuation_word_scores,
         const Tensor& continuation_ends, bool keep_all) {
        auto [next_scores, parents, words, next_word_scores, remaining, finished] =
            advance(tokens, word_scores, scores, finished_counts,
                    {continuation_scores, continuation_words, continuation_word_scores, continuation_ends}, keep_all);
        return std::tuple_cat(std::make_tuple(next_scores, parents, words, next_word_scores, remaining), std::move(finished));
      });
}
