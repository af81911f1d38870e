// The operators of search_steps.h.

#include "search_steps.h"

#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(amlp_fairseq, library) {
  library.def("combine_words(Tensor lprobs, int k, int eos, int pad, bool ignore) -> (Tensor, Tensor, Tensor, Tensor)",
              &combine_words);
  library.def(
      "advance(Tensor tokens, Tensor word_scores, Tensor scores, int[] found, Tensor way_scores, Tensor way_words,"
      " Tensor way_word_scores, Tensor way_ends, bool keep_all)"
      " -> (Tensor, Tensor, Tensor, Tensor, int[], int[], int[], float[], Tensor[], Tensor[])",
      [](const Tensor& tokens, const Tensor& word_scores, const Tensor& scores, const std::vector<int64_t>& found,
         const Tensor& way_scores, const Tensor& way_words, const Tensor& way_word_scores, const Tensor& way_ends,
         bool keep_all) {
        auto [next, rows, words, word_scores_, remaining, ended] =
            advance(tokens, word_scores, scores, found, {way_scores, way_words, way_word_scores, way_ends}, keep_all);
        return std::tuple_cat(std::make_tuple(next, rows, words, word_scores_, remaining), std::move(ended));
      });
}
