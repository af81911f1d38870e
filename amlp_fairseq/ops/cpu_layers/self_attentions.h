// Self-attentions that are not softmax attention: decoding/compiled_attentions.py.

#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "softmax_attention.h"

namespace {

// Outputs replace what was in `out`; inputs y and outputs are (b n, C), n words of each sentence or row.
class SelfAttention : public torch::CustomClassHolder {
 public:
  // New words, in whole steps. The state, whose first axis is the rows, is that after the `count` words before; it is updated.
  virtual void step(const float* y, int64_t n, const Tensor& state, int64_t count, std::vector<float>& out) const = 0;
  // Whole sentences, of which words with a bias other than 0 are padding; not causal.
  virtual void mix(const float* y, int64_t sentences, int64_t n, const Bias& bias, std::vector<float>& out) const = 0;
};

bool is_padding(const Bias& bias, int64_t sentence, int64_t word) {
  const float* own = bias.of(sentence, 0);
  return own != nullptr && own[word] != 0;
}

// See attention/average.py; the state is the sums (R, C) of the inputs.
class AverageAttention : public SelfAttention {
 public:
  // Of the maps of the feed-forward network and of the gates, where it has them; C and z.
  AverageAttention(std::optional<Map> inner, std::optional<Map> outer, std::optional<Map> gates, int64_t width, int64_t z)
      : inner_(std::move(inner)), outer_(std::move(outer)), gates_(std::move(gates)), width_(width), z_(z) {}

  void step(const float* y, int64_t n, const Tensor& sums, int64_t count, std::vector<float>& out) const override {
    const int64_t rows = sums.size(0);
    TORCH_CHECK(sums.is_contiguous() && n % z_ == 0, "sums of another layout, or parts of steps");
    out.resize(rows * n * width_);
    float* total = sums.mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; row++, total += width_)
      for (int64_t word = 0; word < n; word += z_) {
        const float *first = y + (row * n + word) * width_, seen = count + word + z_;
        float* to = &out[(row * n + word) * width_];
        for (int64_t c = 0; c < width_; c++) {
          float sum = first[c];
          for (int64_t i = 1; i < z_; i++) sum += first[i * width_ + c];
          total[c] += sum;
          for (int64_t i = 0; i < z_; i++) to[i * width_ + c] = total[c] / seen;
        }
      }
    behind_mean(y, rows * n, out);
  }

  void mix(const float* y, int64_t sentences, int64_t n, const Bias& bias, std::vector<float>& out) const override {
    out.assign(sentences * n * width_, 0);
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
      float *first = &out[sentence * n * width_], seen = 0;
      for (int64_t word = 0; word < n; word++) {
        if (is_padding(bias, sentence, word)) continue;
        seen++;
        for (int64_t c = 0; c < width_; c++) first[c] += y[(sentence * n + word) * width_ + c];
      }
      for (int64_t c = 0; c < width_; c++) first[c] /= std::max(seen, 1.0f);
      for (int64_t word = 1; word < n; word++) std::copy_n(first, width_, first + word * width_);
    }
    behind_mean(y, sentences * n, out);
  }

 private:
  const std::optional<Map> inner_, outer_, gates_;
  const int64_t width_, z_;

  // What follows from inputs y and their means.
  void behind_mean(const float* y, int64_t words, std::vector<float>& means) const {
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
      const float *gate = &gates[2 * word * width_], *own = y + word * width_;
      float* to = &means[word * width_];
#pragma omp simd
      for (int64_t c = 0; c < width_; c++) to[c] = sigmoid(gate[c]) * own[c] + sigmoid(gate[width_ + c]) * to[c];
    }
  }
};

// See attention/dynamic_conv.py; the state is the last max(k - z, 0) inputs of the convolution, (R, .., C).
class Convolution : public SelfAttention {
 public:
  // Of the maps in front and behind; that of the kernels, or kernels (H, k) that are the same for all; C, H, k and z; the
  // inputs to the left of an output in `mix`; whether a gated linear unit is in front, and whether a softmax normalises kernels.
  Convolution(Map first, Map last, std::optional<Map> kernel_map, std::optional<Tensor> kernels, int64_t width, int64_t heads,
              int64_t k, int64_t z, int64_t padding, bool glu, bool softmax)
      : first_(std::move(first)), last_(std::move(last)), kernel_map_(std::move(kernel_map)), kernels_(std::move(kernels)),
        width_(width), heads_(heads), k_(k), z_(z), padding_(padding), glu_(glu), softmax_(softmax) {}

  void step(const float* y, int64_t n, const Tensor& state, int64_t, std::vector<float>& out) const override {
    const int64_t rows = state.size(0), kept = state.size(1);
    TORCH_CHECK(state.is_contiguous() && n % z_ == 0, "a state of another layout, or parts of steps");
    std::vector<float> inputs;
    in_front(y, rows * n, inputs);
    convolve(inputs, rows, n, out, [&](int64_t row, std::vector<float>& window, const auto& output) {
      window.resize((kept + n) * width_);
      float* last = state.mutable_data_ptr<float>() + row * kept * width_;
      std::copy_n(last, kept * width_, window.begin());
      std::copy_n(&inputs[row * n * width_], n * width_, window.begin() + kept * width_);
      for (int64_t word = 0; word < n; word++) output(word, &window[(kept + (word / z_ + 1) * z_ - k_) * width_], 0, k_);
      std::copy_n(window.end() - kept * width_, kept * width_, last);
    });
  }

  void mix(const float* y, int64_t sentences, int64_t n, const Bias& bias, std::vector<float>& out) const override {
    std::vector<float> inputs;
    in_front(y, sentences * n, inputs);
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

  // The inputs of the convolution for so many words.
  void in_front(const float* y, int64_t words, std::vector<float>& inputs) const {
    first_->product_into(inputs, y, words, false);
    if (!glu_) return;
    for (int64_t word = 0; word < words; word++)
      for (int64_t c = 0; c < width_; c++)
        inputs[word * width_ + c] = inputs[2 * word * width_ + c] * sigmoid(inputs[(2 * word + 1) * width_ + c]);
  }

  // Calls of_row(row, room, output) for all rows; output(word, seen, begin, end) makes the output of a word from the inputs
  // begin … end - 1 of the k that its kernel sees from `seen` on. The last map follows.
  template <typename OfRow>
  void convolve(const std::vector<float>& inputs, int64_t rows, int64_t n, std::vector<float>& out, const OfRow& of_row) const {
    const int64_t head = width_ / heads_;
    std::vector<float> kernels, mixed(rows * n * width_, 0);
    if (kernel_map_.has_value()) (*kernel_map_)->product_into(kernels, inputs.data(), rows * n, false);
    at::parallel_for(0, rows, rows_for_a_thread(n * k_ * width_), [&](int64_t first_row, int64_t last_row) {
      std::vector<float> room, kernel(whole_vectors(k_));
      for (int64_t row = first_row; row < last_row; row++)
        of_row(row, room, [&](int64_t word, const float* seen, int64_t begin, int64_t end) {
          const float* own = kernels_.has_value() ? kernels_->const_data_ptr<float>() : &kernels[(row * n + word) * heads_ * k_];
          for (int64_t h = 0; h < heads_; h++) {
            std::copy_n(own + h * k_, k_, kernel.begin());
            if (softmax_) ::softmax(kernel.data(), nullptr, k_);
            float* to = &mixed[(row * n + word) * width_ + h * head];
            for (int64_t j = begin; j < end; j++)
#pragma omp simd
              for (int64_t c = 0; c < head; c++) to[c] += kernel[j] * seen[j * width_ + h * head + c];
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
