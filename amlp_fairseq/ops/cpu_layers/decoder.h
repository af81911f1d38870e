// Decoder with embedding, log-probabilities and search steps: decoding/step_decoder.py.

#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "../search_steps/search_steps.h"
#include "layers.h"

namespace {

// Returns the inputs (R, n, C) of a decoder: scaled word embeddings plus position encodings.
//
// @param words: indices of the words, (R, n).
// @param slots: slots of the words, (n) or (R, n).
// @param table: embeddings, (V, C).
// @param scale: factor of the embeddings.
// @param encodings: position encodings of all slots, (slots, C).
// @param starts: number of slots with start symbols, which have no word embedding.
Tensor embed(const Tensor& words, const Tensor& slots, const Tensor& table, double scale, const Tensor& encodings,
             int64_t starts) {
  TORCH_CHECK(table.is_contiguous() && encodings.is_contiguous(), "embeddings and encodings must be contiguous");
  TORCH_CHECK(words.dim() == 2 && slots.size(-1) == words.size(1), "words must be (R, n), slots (n) or (R, n)");
  const Tensor word = words.contiguous(), slot = slots.contiguous();
  const int64_t count = words.numel(), slot_count = slots.numel(), width = table.size(1);
  Tensor out = at::empty({words.size(0), words.size(1), width}, table.options());
  const int64_t *const word_indices = word.const_data_ptr<int64_t>(), *const slot_indices = slot.const_data_ptr<int64_t>();
  const float *const embeddings = table.const_data_ptr<float>(), *const encoding_rows = encodings.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float factor = scale;
  for (int64_t i = 0; i < count; i++, to += width) {
    const int64_t index = word_indices[i], position = slot_indices[i % slot_count];
    TORCH_CHECK(index >= 0 && index < table.size(0) && position >= 0 && position < encodings.size(0), "no such word or slot");
    const float *x = embeddings + index * width, *encoding = encoding_rows + position * width;
    if (position < starts)
      std::copy(encoding, encoding + width, to);
    else
      for (int64_t c = 0; c < width; c++) to[c] = factor * x[c] + encoding[c];
  }
  return out;
}

// Replaces logits (…, V) by their log-softmax over the last dimension and returns them.
Tensor log_softmax_(Tensor logits) {
  TORCH_CHECK(logits.is_contiguous() && logits.scalar_type() == at::kFloat, "logits must be contiguous and float32");
  constexpr float none = -std::numeric_limits<float>::infinity();
  constexpr int64_t part_size = 4096;  // entries of a row per task of a thread
  const int64_t vocab = logits.size(-1), rows = vocab == 0 ? 0 : logits.numel() / vocab;
  const int64_t parts = (vocab + part_size - 1) / part_size;
  float* table = logits.mutable_data_ptr<float>();
  std::vector<float> maxima(rows * parts, none), totals(rows * parts, 0), normalizers(rows);
  const auto over_parts = [&](const auto& run) {
    at::parallel_for(0, rows * parts, 4, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; part++) {
        float* row = table + part / parts * vocab;
        const int64_t first = part % parts * part_size;
        run(part, row + first, std::min(part_size, vocab - first));
      }
    });
  };
  over_parts([&](int64_t part, const float* x, int64_t count) {
    float maximum = none, total = 0;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < count; i++) maximum = x[i] > maximum ? x[i] : maximum;
    const float finite = maximum == none ? 0 : maximum;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; i++) total += exponential(x[i] - finite);
    maxima[part] = maximum, totals[part] = total;
  });
  for (int64_t row = 0; row < rows; row++) {
    const auto begin = maxima.begin() + row * parts;
    const float maximum = *std::max_element(begin, begin + parts);
    float total = 0;
    for (int64_t part = row * parts; part < (row + 1) * parts; part++) total += totals[part] * std::exp(maxima[part] - maximum);
    normalizers[row] = maximum + std::log(total);
  }
  over_parts([&](int64_t part, float* x, int64_t count) {
    const float normalizer = normalizers[part / parts];
#pragma omp simd
    for (int64_t i = 0; i < count; i++) x[i] -= normalizer;
  });
  return logits;
}

// Decoder that writes z words per step, with embedding and output projection.
class Decoder : public torch::CustomClassHolder {
 public:
  // @param layers: the decoder's layers.
  // @param table: embeddings, (V, C).
  // @param scale: factor of the embeddings.
  // @param starts: number of slots with start symbols, which have no word embedding.
  // @param norm_weight: weight (C) of the norm after the layers, if there is a norm.
  // @param norm_bias: bias (C) of that norm.
  // @param eps: epsilon of that norm.
  // @param output: map to logits.
  Decoder(c10::intrusive_ptr<SoftmaxLayers> layers, Tensor table, double scale, int64_t starts,
          std::optional<Tensor> norm_weight, std::optional<Tensor> norm_bias, double eps, Map output)
      : layers_(std::move(layers)), output_(std::move(output)), table_(std::move(table)), norm_weight_(std::move(norm_weight)),
        norm_bias_(std::move(norm_bias)), scale_(scale), eps_(eps), starts_(starts) {}

  // Makes steps of a beam search until a sentence is finished, at most max_steps. Padding is never chosen as a word.
  //
  // @param tokens: start symbols and words of the hypotheses, (R, z + T).
  // @param word_scores: log-probabilities of the words, (R, T).
  // @param scores: scores of the hypotheses, (b, B).
  // @param finished_counts: number of finished hypotheses of each sentence, (b).
  // @param z: words per step.
  // @param max_steps: maximum number of steps.
  // @param k: number of continuations per hypothesis.
  // @param eos: index of the end symbol.
  // @param pad: index of the padding symbol.
  // @param ignore: ignore the slots after an end symbol.
  // @param min_length: minimum number of words before an end symbol.
  // @param keep_all: keep all finished hypotheses, not only the best B.
  // @param slots_written: number of slots already written, T.
  // @param encodings: position encodings of all slots, (slots, C).
  // @param bias: 0 or -inf between all slots, (slots, slots); none: 0 everywhere.
  // @param states: decoding states of the layers' self-attentions; updated in place.
  // @param ks: keys of the source in each layer.
  // @param vs: values of the source in each layer.
  // @param source_bias: bias of the source's padding.
  // @return tokens, word_scores and scores after the last step, the number of steps, and as advance returns them the unfinished
  //     sentences and the finished hypotheses.
  std::tuple<Tensor, Tensor, Tensor, int64_t, std::vector<int64_t>, FinishedHypotheses> search(
      Tensor tokens, Tensor word_scores, Tensor scores, std::vector<int64_t> finished_counts, int64_t z, int64_t max_steps,
      int64_t k, int64_t eos, int64_t pad, bool ignore, int64_t min_length, bool keep_all, int64_t slots_written,
      const Tensor& encodings,
      const std::optional<Tensor>& bias, std::vector<Tensor> states, const std::vector<Tensor>& ks,
      const std::vector<Tensor>& vs, const std::optional<Tensor>& source_bias) const {
    constexpr float none = -std::numeric_limits<float>::infinity();
    const Tensor slots = at::arange(slots_written, slots_written + max_steps * z, tokens.options());
    const int64_t beam = scores.size(1);
    std::vector<int64_t> remaining;
    FinishedHypotheses all_finished;
    int64_t steps = 0;
    do {
      const int64_t begin = slots_written + steps * z, end = begin + z;
      const Tensor words = tokens.narrow(1, tokens.size(1) - z, z);
      Tensor x = embed(words, slots.narrow(0, steps * z, z), table_, scale_, encodings, starts_);
      std::optional<Tensor> step_bias;
      if (bias.has_value()) step_bias = bias->narrow(0, begin, z).narrow(1, 0, end);
      x = layers_->step(x, slots, end, step_bias, states, ks, vs, source_bias);
      if (norm_weight_.has_value()) x = at::layer_norm(x, {x.size(2)}, norm_weight_, norm_bias_, eps_);
      const Tensor lprobs = log_softmax_(output_->product(x, false));
      lprobs.select(2, pad).fill_(none);
      if (begin < min_length) lprobs.narrow(1, 0, std::min(z, min_length - begin)).select(2, eos).fill_(none);
      auto [next_scores, parents, next_words, next_word_scores, unfinished, finished] =
          advance(tokens, word_scores, scores, finished_counts, combine_words(lprobs, k, eos, pad, ignore), keep_all);
      steps++;
      scores = next_scores, remaining = std::move(unfinished);
      if (!is_identity(parents)) {
        tokens = tokens.index_select(0, parents), word_scores = word_scores.index_select(0, parents);
        for (const Tensor& state : states) permute_rows(state, parents, end);
      }
      tokens = at::cat({tokens, next_words}, 1), word_scores = at::cat({word_scores, next_word_scores}, 1);
      for (const int64_t row : std::get<0>(finished)) finished_counts[row / beam]++;
      append(all_finished, std::move(finished));
    } while (steps < max_steps && remaining.size() == finished_counts.size());
    return {tokens, word_scores, scores, steps, remaining, all_finished};
  }

 private:
  c10::intrusive_ptr<SoftmaxLayers> layers_;
  Map output_;
  Tensor table_;
  std::optional<Tensor> norm_weight_, norm_bias_;
  double scale_, eps_;
  int64_t starts_;

  static void append(FinishedHypotheses& all, FinishedHypotheses more) {
    const auto join = [](auto& list, auto& new_items) { list.insert(list.end(), new_items.begin(), new_items.end()); };
    join(std::get<0>(all), std::get<0>(more)), join(std::get<1>(all), std::get<1>(more));
    join(std::get<2>(all), std::get<2>(more)), join(std::get<3>(all), std::get<3>(more));
    join(std::get<4>(all), std::get<4>(more));
  }

  static bool is_identity(const Tensor& parents) {
    const int64_t* parent = parents.const_data_ptr<int64_t>();
    for (int64_t row = 0; row < parents.size(0); row++)
      if (parent[row] != row) return false;
    return true;
  }

  // Replaces row i of a state by row parents[i]: the first `end` slots of a buffer (R, H, 2, slots, d_h), or the whole row of a
  // state of another shape.
  static void permute_rows(const Tensor& state, const Tensor& parents, int64_t end) {
    const bool buffer = state.dim() == 5;
    TORCH_CHECK(buffer ? state.stride(3) == state.size(4) : state.is_contiguous(),
                "a state must be contiguous, a buffer in its last two axes");
    const int64_t parts = buffer ? state.size(1) * 2 : 1, part = buffer ? end * state.size(4) : state.numel() / state.size(0);
    float* table = state.mutable_data_ptr<float>();
    const int64_t* parent = parents.const_data_ptr<int64_t>();
    const auto at = [&](int64_t row, int64_t i) {
      return table + row * state.stride(0) + (buffer ? i / 2 * state.stride(1) + i % 2 * state.stride(2) : 0);
    };
    std::vector<float> moved;
    for (int64_t row = 0; row < parents.size(0); row++)
      for (int64_t i = 0; i < parts && parent[row] != row; i++)
        moved.insert(moved.end(), at(parent[row], i), at(parent[row], i) + part);
    const float* next = moved.data();
    for (int64_t row = 0; row < parents.size(0); row++)
      for (int64_t i = 0; i < parts && parent[row] != row; i++, next += part) std::copy(next, next + part, at(row, i));
  }
};

}  // namespace
