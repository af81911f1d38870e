// Self-attentions other than softmax attention: decoding/compiled_attentions.py.

#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "softmax_attention.h"

namespace {

// Interface of the self-attentions. Inputs y and outputs are (b n, C), n words per sentence or row; `out` is overwritten.
class SelfAttention : public torch::CustomClassHolder {
 public:
  // Decoding step.
  //
  // @param y: inputs at the new words, in whole steps.
  // @param n: number of new words per row.
  // @param state: decoding state (R, …) after the previous words; updated in place.
  // @param count: number of previous words.
  // @param out: outputs.
  virtual void step(const float* y, int64_t n, const Tensor& state, int64_t count, std::vector<float>& out) const = 0;
  // Whole sequences; not causal.
  //
  // @param y: inputs.
  // @param sentences: number of sentences.
  // @param n: number of words per sentence.
  // @param bias: 0 at words, -inf at padding.
  // @param out: outputs.
  virtual void forward_full(const float* y, int64_t sentences, int64_t n, const Bias& bias, std::vector<float>& out) const = 0;
};

bool is_padding(const Bias& bias, int64_t sentence, int64_t word) {
  const float* values = bias.of(sentence, 0);
  return values != nullptr && values[word] != 0;
}

// Average attention, see attention/average.py; the state is the sums (R, C) of the inputs.
class AverageAttention : public SelfAttention {
 public:
  // @param inner: first map of the feed-forward network, optional.
  // @param outer: second map of the feed-forward network, optional.
  // @param gates: map of the gates, optional.
  // @param width: C.
  // @param z: words per step.
  AverageAttention(std::optional<Map> inner, std::optional<Map> outer, std::optional<Map> gates, int64_t width, int64_t z)
      : inner_(std::move(inner)), outer_(std::move(outer)), gates_(std::move(gates)), width_(width), z_(z) {}

  void step(const float* y, int64_t n, const Tensor& sums, int64_t count, std::vector<float>& out) const override {
    const int64_t rows = sums.size(0);
    TORCH_CHECK(sums.is_contiguous() && n % z_ == 0, "sums must be contiguous, words whole steps");
    out.resize(rows * n * width_);
    float* total = sums.mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; row++, total += width_)
      for (int64_t word = 0; word < n; word += z_) {
        const float *first = y + (row * n + word) * width_, total_words = count + word + z_;
        float* to = &out[(row * n + word) * width_];
        for (int64_t c = 0; c < width_; c++) {
          float sum = first[c];
          for (int64_t i = 1; i < z_; i++) sum += first[i * width_ + c];
          total[c] += sum;
          for (int64_t i = 0; i < z_; i++) to[i * width_ + c] = total[c] / total_words;
        }
      }
    finish(y, rows * n, out);
  }

  void forward_full(const float* y, int64_t sentences, int64_t n, const Bias& bias, std::vector<float>& out) const override {
    out.assign(sentences * n * width_, 0);
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
      float *first = &out[sentence * n * width_], total_words = 0;
      for (int64_t word = 0; word < n; word++) {
        if (is_padding(bias, sentence, word)) continue;
        total_words++;
        for (int64_t c = 0; c < width_; c++) first[c] += y[(sentence * n + word) * width_ + c];
      }
      for (int64_t c = 0; c < width_; c++) first[c] /= std::max(total_words, 1.0f);
      for (int64_t word = 1; word < n; word++) std::copy_n(first, width_, first + word * width_);
    }
    finish(y, sentences * n, out);
  }

 private:
  const std::optional<Map> inner_, outer_, gates_;
  const int64_t width_, z_;

  // Applies feed-forward network and gates to the means, given the inputs y; overwrites the means with the outputs.
  void finish(const float* y, int64_t words, std::vector<float>& means) const {
    if (inner_.has_value()) {
      std::vector<float> inner;
      (*inner_)->product_into(inner, means.data(), words, true);
      (*outer_)->product_into(means, inner.data(), words, false);
    }
    if (!gates_.has_value()) return;
    std::vector<float> both(2 * words * width_), gates;
    for (int64_t word = 0; word < words; word++) {
      std::copy_n(y + word * width_, width_, &both[2 * word * width_]);
      std::copy_n(&means[word * width_], width_, &both[(2 * word + 1) * width_]);
    }
    (*gates_)->product_into(gates, both.data(), words, false);
    for (int64_t word = 0; word < words; word++) {
      const float *gate = &gates[2 * word * width_], *input = y + word * width_;
      float* to = &means[word * width_];
#pragma omp simd
      for (int64_t c = 0; c < width_; c++) to[c] = sigmoid(gate[c]) * input[c] + sigmoid(gate[width_ + c]) * to[c];
    }
  }
};

// Convolution, see attention/dynamic_conv.py; the state is its last max(k - z, 0) inputs, (R, max(k - z, 0), C).
class Convolution : public SelfAttention {
 public:
  // @param first: map before the convolution.
  // @param last: map after the convolution.
  // @param kernel_map: map to the kernels of a dynamic convolution, optional.
  // @param kernels: kernels (H, k) of a lightweight convolution, optional.
  // @param width: C.
  // @param heads: H.
  // @param k: kernel width.
  // @param z: words per step.
  // @param padding: number of inputs to the left of an output in forward_full.
  // @param glu: gated linear unit before the convolution.
  // @param softmax: normalise the kernels by a softmax.
  Convolution(Map first, Map last, std::optional<Map> kernel_map, std::optional<Tensor> kernels, int64_t width, int64_t heads,
              int64_t k, int64_t z, int64_t padding, bool glu, bool softmax)
      : first_(std::move(first)), last_(std::move(last)), kernel_map_(std::move(kernel_map)), kernels_(std::move(kernels)),
        width_(width), heads_(heads), k_(k), z_(z), padding_(padding), glu_(glu), softmax_(softmax) {}

  void step(const float* y, int64_t n, const Tensor& state, int64_t, std::vector<float>& out) const override {
    const int64_t rows = state.size(0), history = state.size(1);
    TORCH_CHECK(state.is_contiguous() && n % z_ == 0, "a state must be contiguous, words whole steps");
    std::vector<float> inputs;
    project_in(y, rows * n, inputs);
    convolve(inputs, rows, n, out, [&](int64_t row, std::vector<float>& window, const auto& output) {
      window.resize((history + n) * width_);
      float* last = state.mutable_data_ptr<float>() + row * history * width_;
      std::copy_n(last, history * width_, window.begin());
      std::copy_n(&inputs[row * n * width_], n * width_, window.begin() + history * width_);
      for (int64_t word = 0; word < n; word++) output(word, &window[(history + (word / z_ + 1) * z_ - k_) * width_], 0, k_);
      std::copy_n(window.end() - history * width_, history * width_, last);
    });
  }

  void forward_full(const float* y, int64_t sentences, int64_t n, const Bias& bias, std::vector<float>& out) const override {
    std::vector<float> inputs;
    project_in(y, sentences * n, inputs);
    for (int64_t word = 0; word < sentences * n; word++)
      if (is_padding(bias, word / n, word % n)) std::fill_n(&inputs[word * width_], width_, 0.0f);
    convolve(inputs, sentences, n, out, [&](int64_t sentence, std::vector<float>&, const auto& output) {
      for (int64_t word = 0; word < n; word++) {
        const int64_t first = word - padding_, begin = std::max<int64_t>(0, -first), end = std::min(k_, n - first);
        output(word, inputs.data() + (sentence * n + first) * width_, begin, end);
      }
    });
  }

 private:
  const Map first_, last_;
  const std::optional<Map> kernel_map_;
  const std::optional<Tensor> kernels_;
  const int64_t width_, heads_, k_, z_, padding_;
  const bool glu_, softmax_;

  // Computes the inputs of the convolution.
  void project_in(const float* y, int64_t words, std::vector<float>& inputs) const {
    first_->product_into(inputs, y, words, false);
    if (!glu_) return;
    for (int64_t word = 0; word < words; word++)
      for (int64_t c = 0; c < width_; c++)
        inputs[word * width_ + c] = inputs[2 * word * width_ + c] * sigmoid(inputs[(2 * word + 1) * width_ + c]);
  }

  // Computes the convolution and the last map.
  //
  // @param inputs: inputs of the convolution, (rows n, C).
  // @param rows: number of rows.
  // @param n: number of words per row.
  // @param out: outputs.
  // @param of_row: of_row(row, buffer, output) calls output(word, window, begin, end) for each word of a row, where the word's
  //     kernel is applied to inputs begin … end - 1 of the k inputs at `window`.
  template <typename OfRow>
  void convolve(const std::vector<float>& inputs, int64_t rows, int64_t n, std::vector<float>& out, const OfRow& of_row) const {
    const int64_t head = width_ / heads_;
    std::vector<float> kernels, mixed(rows * n * width_, 0);
    if (kernel_map_.has_value()) (*kernel_map_)->product_into(kernels, inputs.data(), rows * n, false);
    at::parallel_for(0, rows, rows_for_a_thread(n * k_ * width_), [&](int64_t first_row, int64_t last_row) {
      std::vector<float> buffer, kernel(whole_vectors(k_));
      for (int64_t row = first_row; row < last_row; row++)
        of_row(row, buffer, [&](int64_t word, const float* window, int64_t begin, int64_t end) {
          const float* word_kernels =
              kernels_.has_value() ? kernels_->const_data_ptr<float>() : &kernels[(row * n + word) * heads_ * k_];
          for (int64_t h = 0; h < heads_; h++) {
            std::copy_n(word_kernels + h * k_, k_, kernel.begin());
            if (softmax_) ::softmax(kernel.data(), nullptr, k_);
            float* to = &mixed[(row * n + word) * width_ + h * head];
            for (int64_t j = begin; j < end; j++)
#pragma omp simd
              for (int64_t c = 0; c < head; c++) to[c] += kernel[j] * window[j * width_ + h * head + c];
          }
        });
    });
    last_->product_into(out, mixed.data(), rows * n, false);
  }
};

c10::intrusive_ptr<SelfAttention> average_attention(std::optional<Map> inner, std::optional<Map> outer,
                                                    std::optional<Map> gates, int64_t width, int64_t z) {
  return c10::make_intrusive<AverageAttention>(inner, outer, gates, width, z);
}

c10::intrusive_ptr<SelfAttention> convolution(Map first, Map last, std::optional<Map> kernel_map,
                                              std::optional<Tensor> kernels, int64_t width, int64_t heads, int64_t k, int64_t z,
                                              int64_t padding, bool glu, bool softmax) {
  return c10::make_intrusive<Convolution>(first, last, kernel_map, kernels, width, heads, k, z, padding, glu, softmax);
}

}  // namespace
