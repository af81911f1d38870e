// A decoder's embedding, its probabilities, and the steps of a search: decoding/step_decoder.py.

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

// The inputs (R, n, C) of a decoder: scale times the rows of a table (V, C) for words (R, n), 0 in slots before `starts`,
// and the encodings (.., C) of the slots (n) or (R, n).
Tensor embed(const Tensor& words, const Tensor& slots, const Tensor& table, double scale, const Tensor& encodings,
             int64_t starts) {
  TORCH_CHECK(table.is_contiguous() && encodings.is_contiguous(), "tables of another layout");
  TORCH_CHECK(words.dim() == 2 && slots.size(-1) == words.size(1), "slots of another shape");
  const Tensor word = words.contiguous(), slot = slots.contiguous();
  const int64_t count = words.numel(), own = slots.numel(), width = table.size(1);
  Tensor out = at::empty({words.size(0), words.size(1), width}, table.options());
  const int64_t *const each = word.const_data_ptr<int64_t>(), *const place = slot.const_data_ptr<int64_t>();
  const float *const weights = table.const_data_ptr<float>(), *const added = encodings.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float factor = scale;
  for (int64_t i = 0; i < count; i++, to += width) {
    const int64_t at = place[i % own];
    TORCH_CHECK(each[i] >= 0 && each[i] < table.size(0) && at >= 0 && at < encodings.size(0), "no such word or slot");
    const float *x = weights + each[i] * width, *encoding = added + at * width;
    if (at < starts)
      std::copy(encoding, encoding + width, to);
    else
      for (int64_t c = 0; c < width; c++) to[c] = factor * x[c] + encoding[c];
  }
  return out;
}

// log-softmax over the last dimension of logits, in place.
Tensor log_softmax_(Tensor logits) {
  TORCH_CHECK(logits.is_contiguous() && logits.scalar_type() == at::kFloat, "logits of another layout or type");
  constexpr float none = -std::numeric_limits<float>::infinity();
  constexpr int64_t part = 4096;  // of a row, for a thread
  const int64_t vocab = logits.size(-1), rows = vocab == 0 ? 0 : logits.numel() / vocab, parts = (vocab + part - 1) / part;
  float* table = logits.mutable_data_ptr<float>();
  std::vector<float> largest(rows * parts, none), totals(rows * parts, 0), normalizers(rows);
  const auto over_parts = [&](const auto& run) {
    at::parallel_for(0, rows * parts, 4, [&](int64_t begin, int64_t end) {
      for (int64_t each = begin; each < end; each++) {
        float* row = table + each / parts * vocab;
        const int64_t first = each % parts * part;
        run(each, row + first, std::min(part, vocab - first));
      }
    });
  };
  over_parts([&](int64_t each, const float* x, int64_t count) {
    float most = none, total = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; i++) most = x[i] > most ? x[i] : most;
    const float finite = most == none ? 0 : most;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; i++) total += exponential(x[i] - finite);
    largest[each] = most, totals[each] = total;
  });
  for (int64_t row = 0; row < rows; row++) {
    const auto begin = largest.begin() + row * parts;
    const float most = *std::max_element(begin, begin + parts);
    float total = 0;
    for (int64_t each = row * parts; each < (row + 1) * parts; each++) total += totals[each] * std::exp(largest[each] - most);
    normalizers[row] = most + std::log(total);
  }
  over_parts([&](int64_t each, float* x, int64_t count) {
    const float normalizer = normalizers[each / parts];
#pragma omp simd
    for (int64_t i = 0; i < count; i++) x[i] -= normalizer;
  });
  return logits;
}

// A decoder that writes z words a step, with its embedding and the map to logits.
class Decoder : public torch::CustomClassHolder {
 public:
  // Of its layers; the embedding (V, C) with its scale and the number of slots without words; of the norm behind the layers,
  // if there is one, weight, bias and epsilon; and the map to logits.
  Decoder(c10::intrusive_ptr<SoftmaxLayers> layers, Tensor table, double scale, int64_t starts,
          std::optional<Tensor> norm_weight, std::optional<Tensor> norm_bias, double eps, Map output)
      : layers_(std::move(layers)), output_(std::move(output)), table_(std::move(table)), norm_weight_(std::move(norm_weight)),
        norm_bias_(std::move(norm_bias)), scale_(scale), eps_(eps), starts_(starts) {}

  // The steps of a beam search until one in which sentences are finished, but at most `most`.
  //
  // Takes the hypotheses of _Search in search/multiword_beam_search.py: tokens (R, z + T), word_scores (R, T) and
  // scores (b, B); how many of each sentence have ended, found (b); how many ways to continue each are looked at, k, and the
  // other arguments of combine_words; the least words before an end symbol; whether all that end are kept; the slots that are
  // written, T, the encodings (.., C) of all and the bias (.., ..) between them; and the last arguments of StepLayers.forward.
  // Padding is not a word.
  //
  // Returns the hypotheses that have gone on, how many steps were made, the sentences that are not finished, and the hypotheses
  // that have ended, as advance does.
  std::tuple<Tensor, Tensor, Tensor, int64_t, std::vector<int64_t>, FinishedHypotheses> search(
      Tensor tokens, Tensor word_scores, Tensor scores, std::vector<int64_t> found, int64_t z, int64_t most, int64_t k, int64_t eos,
      int64_t pad, bool ignore, int64_t least, bool keep_all, int64_t slots_written, const Tensor& encodings,
      const std::optional<Tensor>& bias, std::vector<Tensor> states, const std::vector<Tensor>& ks,
      const std::vector<Tensor>& vs, const std::optional<Tensor>& source_bias) const {
    constexpr float none = -std::numeric_limits<float>::infinity();
    const Tensor slots = at::arange(slots_written, slots_written + most * z, tokens.options());
    const int64_t beam = scores.size(1);
    std::vector<int64_t> remaining;
    FinishedHypotheses all_ended;
    int64_t made = 0;
    do {
      const int64_t begin = slots_written + made * z, end = begin + z;
      const Tensor words = tokens.narrow(1, tokens.size(1) - z, z);
      Tensor x = embed(words, slots.narrow(0, made * z, z), table_, scale_, encodings, starts_);
      std::optional<Tensor> own;
      if (bias.has_value()) own = bias->narrow(0, begin, z).narrow(1, 0, end);
      x = layers_->step(x, slots, end, own, states, ks, vs, source_bias);
      if (norm_weight_.has_value()) x = at::layer_norm(x, {x.size(2)}, norm_weight_, norm_bias_, eps_);
      const Tensor lprobs = log_softmax_(output_->product(x, false));
      lprobs.select(2, pad).fill_(none);
      if (begin < least) lprobs.narrow(1, 0, std::min(z, least - begin)).select(2, eos).fill_(none);
      auto [kept, rows, next, next_scores, onward, ended] =
          advance(tokens, word_scores, scores, found, combine_words(lprobs, k, eos, pad, ignore), keep_all);
      made++;
      scores = kept, remaining = std::move(onward);
      if (moves(rows)) {
        tokens = tokens.index_select(0, rows), word_scores = word_scores.index_select(0, rows);
        for (const Tensor& state : states) permute(state, rows, end);
      }
      tokens = at::cat({tokens, next}, 1), word_scores = at::cat({word_scores, next_scores}, 1);
      for (const int64_t row : std::get<0>(ended)) found[row / beam]++;
      append(all_ended, std::move(ended));
    } while (made < most && remaining.size() == found.size());
    return {tokens, word_scores, scores, made, remaining, all_ended};
  }

 private:
  c10::intrusive_ptr<SoftmaxLayers> layers_;
  Map output_;
  Tensor table_;
  std::optional<Tensor> norm_weight_, norm_bias_;
  double scale_, eps_;
  int64_t starts_;

  static void append(FinishedHypotheses& all, FinishedHypotheses more) {
    const auto join = [](auto& list, auto& other) { list.insert(list.end(), other.begin(), other.end()); };
    join(std::get<0>(all), std::get<0>(more)), join(std::get<1>(all), std::get<1>(more));
    join(std::get<2>(all), std::get<2>(more)), join(std::get<3>(all), std::get<3>(more));
    join(std::get<4>(all), std::get<4>(more));
  }

  static bool moves(const Tensor& rows) {
    const int64_t* from = rows.const_data_ptr<int64_t>();
    for (int64_t row = 0; row < rows.size(0); row++)
      if (from[row] != row) return true;
    return false;
  }

  // Row i of a state becomes what row rows[i] was: of a buffer (R, H, 2, slots, d_h) in the first `end` slots, of others as
  // a whole.
  static void permute(const Tensor& state, const Tensor& rows, int64_t end) {
    const bool buffer = state.dim() == 5;
    TORCH_CHECK(buffer ? state.stride(3) == state.size(4) : state.is_contiguous(), "a state of another layout");
    const int64_t parts = buffer ? state.size(1) * 2 : 1, part = buffer ? end * state.size(4) : state.numel() / state.size(0);
    float* table = state.mutable_data_ptr<float>();
    const int64_t* from = rows.const_data_ptr<int64_t>();
    const auto at = [&](int64_t row, int64_t i) {
      return table + row * state.stride(0) + (buffer ? i / 2 * state.stride(1) + i % 2 * state.stride(2) : 0);
    };
    std::vector<float> moved;
    for (int64_t row = 0; row < rows.size(0); row++)
      for (int64_t i = 0; i < parts && from[row] != row; i++) moved.insert(moved.end(), at(from[row], i), at(from[row], i) + part);
    const float* next = moved.data();
    for (int64_t row = 0; row < rows.size(0); row++)
      for (int64_t i = 0; i < parts && from[row] != row; i++, next += part) std::copy(next, next + part, at(row, i));
  }
};

}  // namespace
