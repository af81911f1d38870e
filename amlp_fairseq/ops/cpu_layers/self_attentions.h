// The steps of self-attentions that are not softmax attention: decoding/compiled_attentions.py.

#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "softmax_attention.h"

namespace {

// A self-attention in steps that is not softmax attention.
struct StepAttention {
  virtual ~StepAttention() = default;
  // Outputs (R n, C) for inputs y (R n, C), n words of each row in whole steps, which replace what was in `out`. The state, with
  // R as its first axis, is that after the `count` words before; it is updated.
  virtual void step(const float* y, int64_t n, const Tensor& state, int64_t count, std::vector<float>& out) const = 0;
};

// See attention/average.py; the state is the sums (R, C) of the inputs.
struct AverageAttention : StepAttention {
  // The maps of the feed-forward network and of the gates, where it has them; and z.
  const std::optional<Map> inner_, outer_, gates_;
  const int64_t z_;

  AverageAttention(std::optional<Map> inner, std::optional<Map> outer, std::optional<Map> gates, int64_t z)
      : inner_(std::move(inner)), outer_(std::move(outer)), gates_(std::move(gates)), z_(z) {}

  void step(const float* y, int64_t n, const Tensor& sums, int64_t count, std::vector<float>& out) const override {
    const int64_t rows = sums.size(0), width = sums.size(1), size = rows * n * width;
    TORCH_CHECK(sums.is_contiguous() && n % z_ == 0, "sums of another layout, or parts of steps");
    out.resize(size);
    float* total = sums.mutable_data_ptr<float>();
    for (int64_t row = 0; row < rows; row++, total += width)
      for (int64_t word = 0; word < n; word += z_) {
        const float *first = y + (row * n + word) * width, seen = count + word + z_;
        float* to = &out[(row * n + word) * width];
        for (int64_t c = 0; c < width; c++) {
          float sum = first[c];
          for (int64_t i = 1; i < z_; i++) sum += first[i * width + c];
          total[c] += sum;
          for (int64_t i = 0; i < z_; i++) to[i * width + c] = total[c] / seen;
        }
      }
    if (inner_.has_value()) {
      std::vector<float> inner;
      (*inner_)->product_into(inner, out.data(), rows * n, true);
      (*outer_)->product_into(out, inner.data(), rows * n, false);
    }
    if (!gates_.has_value()) return;
    std::vector<float> both(2 * size), gates;
    for (int64_t word = 0; word < rows * n; word++) {
      std::copy_n(y + word * width, width, &both[2 * word * width]);
      std::copy_n(&out[word * width], width, &both[(2 * word + 1) * width]);
    }
    (*gates_)->product_into(gates, both.data(), rows * n, false);
    for (int64_t word = 0; word < rows * n; word++) {
      const float* gate = &gates[2 * word * width];
#pragma omp simd
      for (int64_t c = 0; c < width; c++)
        out[word * width + c] = sigmoid(gate[c]) * y[word * width + c] + sigmoid(gate[width + c]) * out[word * width + c];
    }
  }
};

// See attention/dynamic_conv.py; the state is the last max(k - z, 0) inputs of the convolution, (R, .., C).
struct Convolution : StepAttention {
  // The maps in front and behind; that of the kernels, or kernels (H, k) that are the same for all; H, k and z; whether a gated
  // linear unit is in front, and whether kernels are normalised by a softmax.
  const Map first_, last_;
  const std::optional<Map> kernel_map_;
  const std::optional<Tensor> kernels_;
  const int64_t heads_, k_, z_;
  const bool glu_, softmax_;

  Convolution(Map first, Map last, std::optional<Map> kernel_map, std::optional<Tensor> kernels, int64_t heads, int64_t k,
              int64_t z, bool glu, bool softmax)
      : first_(std::move(first)), last_(std::move(last)), kernel_map_(std::move(kernel_map)), kernels_(std::move(kernels)),
        heads_(heads), k_(k), z_(z), glu_(glu), softmax_(softmax) {}

  void step(const float* y, int64_t n, const Tensor& state, int64_t, std::vector<float>& out) const override {
    const int64_t rows = state.size(0), kept = state.size(1), width = state.size(2), head = width / heads_;
    TORCH_CHECK(state.is_contiguous() && n % z_ == 0, "a state of another layout, or parts of steps");
    std::vector<float> inputs, kernels, mixed(rows * n * width, 0);
    first_->product_into(inputs, y, rows * n, false);
    if (glu_) {
      for (int64_t word = 0; word < rows * n; word++)
        for (int64_t c = 0; c < width; c++)
          inputs[word * width + c] = inputs[2 * word * width + c] * sigmoid(inputs[(2 * word + 1) * width + c]);
    }
    if (kernel_map_.has_value()) (*kernel_map_)->product_into(kernels, inputs.data(), rows * n, false);
    at::parallel_for(0, rows, rows_for_a_thread(n * k_ * width), [&](int64_t begin, int64_t end) {
      std::vector<float> window((kept + n) * width), kernel(whole_vectors(k_));
      for (int64_t row = begin; row < end; row++) {
        float* last = state.mutable_data_ptr<float>() + row * kept * width;
        std::copy_n(last, kept * width, window.begin());
        std::copy_n(&inputs[row * n * width], n * width, window.begin() + kept * width);
        for (int64_t word = 0; word < n; word++) {
          const float* seen = &window[(kept + (word / z_ + 1) * z_ - k_) * width];
          for (int64_t h = 0; h < heads_; h++) {
            const float* own = kernels_.has_value() ? kernels_->const_data_ptr<float>() : &kernels[(row * n + word) * heads_ * k_];
            std::copy_n(own + h * k_, k_, kernel.begin());
            if (softmax_) ::softmax(kernel.data(), nullptr, k_);
            float* to = &mixed[(row * n + word) * width + h * head];
            for (int64_t j = 0; j < k_; j++)
#pragma omp simd
              for (int64_t c = 0; c < head; c++) to[c] += kernel[j] * seen[j * width + h * head + c];
          }
        }
        std::copy_n(window.end() - kept * width, kept * width, last);
      }
    });
    last_->product_into(out, mixed.data(), rows * n, false);
  }
};

class SelfAttention : public torch::CustomClassHolder {
 public:
  explicit SelfAttention(std::unique_ptr<const StepAttention> own) : own(std::move(own)) {}

  static c10::intrusive_ptr<SelfAttention> average(std::optional<Map> inner, std::optional<Map> outer,
                                                   std::optional<Map> gates, int64_t z) {
    return c10::make_intrusive<SelfAttention>(std::make_unique<AverageAttention>(inner, outer, gates, z));
  }

  static c10::intrusive_ptr<SelfAttention> convolution(Map first, Map last, std::optional<Map> kernel_map,
                                                       std::optional<Tensor> kernels, int64_t heads, int64_t k, int64_t z,
                                                       bool glu, bool softmax) {
    return c10::make_intrusive<SelfAttention>(
        std::make_unique<Convolution>(first, last, kernel_map, kernels, heads, k, z, glu, softmax));
  }

  const std::unique_ptr<const StepAttention> own;
};

}  // namespace
