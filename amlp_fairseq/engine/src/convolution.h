// Lightweight and dynamic convolutions (Wu et al. 2019): attention/dynamic_conv.py.

#pragma once

#include <string>

#include "attention.h"
#include "window.h"

namespace amlp {

// A normalisation of kernels over their k weights (Table 6).
class Normalization {
 public:
  explicit Normalization(const std::string& name) {
    const char* const names[] = {"none", "softmax", "sigmoid", "tanh", "power", "abs", "l1", "l2", "abs-l1", "abs-l2"};
    const auto found = std::find(std::begin(names), std::end(names), name);
    if (found == std::end(names)) throw std::invalid_argument("the normalisation " + name + " is unknown");
    kind_ = static_cast<Kind>(found - names);
  }

  // Normalise k weights, in place; there is room for whole vectors.
  void apply(float* weights, int64_t k) const {
    switch (kind_) {
      case kNone:
        return;
      case kSoftmax:
        return softmax(weights, k);
      case kSigmoid:
        return each(weights, k, [](float w) { return sigmoid(w); });
      case kTanh:
        return each(weights, k, [](float w) { return std::tanh(w); });
      case kPower:
        return each(weights, k, [](float w) { return w * w; });
      case kAbs:
        return each(weights, k, [](float w) { return std::abs(w); });
      case kL1:
      case kL2:
      case kAbsL1:
      case kAbsL2:
        break;
    }
    const bool squares = kind_ == kL2 || kind_ == kAbsL2, magnitudes = kind_ == kAbsL1 || kind_ == kAbsL2;
    float norm = 0;
    for (int64_t j = 0; j < k; j++) norm += squares ? weights[j] * weights[j] : std::abs(weights[j]);
    norm = (squares ? std::sqrt(norm) : norm) + 1e-5f;
    each(weights, k, [=](float w) { return (magnitudes ? std::abs(w) : w) / norm; });
  }

 private:
  enum Kind { kNone, kSoftmax, kSigmoid, kTanh, kPower, kAbs, kL1, kL2, kAbsL1, kAbsL2 } kind_;

  template <typename Function>
  static void each(float* weights, int64_t k, const Function& function) {
    for (int64_t j = 0; j < k; j++) weights[j] = function(weights[j]);
  }
};

// A convolution between two maps.
class Convolution : public SelfAttention {
 public:
  struct Sizes {
    int64_t channels, heads, kernel, words;  // C, H, k, and z words of a step
    bool glu;                                // a gated linear unit after the first map
  };

  // first: to the inputs of the convolution, twice as many with a gated linear unit.
  // dynamic: of these inputs to the kernels, (C, H k), or none.
  // kernels: (H, k) of all words, without `dynamic`.
  Convolution(const Sizes& sizes, std::unique_ptr<Linear> first, std::unique_ptr<Linear> last, std::unique_ptr<Linear> dynamic,
              std::vector<float> kernels, const Normalization& normalization)
      : sizes_(sizes), first_(std::move(first)), last_(std::move(last)), dynamic_(std::move(dynamic)),
        kernels_(std::move(kernels)), normalization_(normalization) {
    if (!dynamic_) kernels_ = normalized(kernels_.data());
  }

  void full(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    const std::vector<float> inputs = inputs_of(pool, y, rows);
    const int64_t left = (sizes_.kernel - 1) / 2;
    std::vector<int64_t> sentence_of(rows.count);
    for (size_t s = 0; s + 1 < starts.size(); s++) std::fill(&sentence_of[starts[s]], sentence_of.data() + starts[s + 1], s);
    convolve(pool, inputs, rows, [&](int64_t row, int64_t j) -> const float* {
      const int64_t s = sentence_of[row], at = row - left + j;
      return at < starts[s] || at >= starts[s + 1] ? nullptr : &inputs[at * sizes_.channels];
    });
  }

  std::unique_ptr<State> begin() const override {
    return std::make_unique<Window>(sizes_.channels, sizes_.words, sizes_.kernel);
  }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    Window& window = static_cast<Window&>(state);
    const std::vector<float> inputs = inputs_of(pool, y, rows);
    window.append(inputs);
    const int64_t first = window.words() - sizes_.kernel;
    convolve(pool, inputs, rows, [&](int64_t row, int64_t j) -> const float* {
      return first + j < 0 ? nullptr : window.at(step, row / sizes_.words, first + j);
    });
  }

 private:
  Sizes sizes_;
  std::unique_ptr<Linear> first_, last_, dynamic_;
  std::vector<float> kernels_;
  Normalization normalization_;

  std::vector<float> inputs_of(ThreadPool& pool, const float* y, Rows& rows) const {
    std::vector<float> inputs;
    if (!sizes_.glu) {
      first_->product(pool, y, rows.count, inputs);
      return inputs;
    }
    first_->product(pool, y, rows.count, rows.inner);
    const int64_t channels = sizes_.channels;
    inputs.resize(rows.count * channels);
    pool.run(rows.count, grain_of(4 * channels), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const float* const from = &rows.inner[2 * i * channels];
        float* const to = &inputs[i * channels];
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) to[c] = from[c] * sigmoid(from[channels + c]);
      }
    });
    return inputs;
  }

  // Of kernels (H, k).
  std::vector<float> normalized(const float* kernels) const {
    std::vector<float> result, kernel(whole_vectors(sizes_.kernel));
    for (int64_t h = 0; h < sizes_.heads; h++) {
      std::copy_n(kernels + h * sizes_.kernel, sizes_.kernel, kernel.data());
      normalization_.apply(kernel.data(), sizes_.kernel);
      result.insert(result.end(), kernel.data(), kernel.data() + sizes_.kernel);
    }
    return result;
  }

  // The convolution and the last map.
  // input(row, j): the C numbers of input j < k of a word, nullptr for zeros.
  template <typename Input>
  void convolve(ThreadPool& pool, const std::vector<float>& inputs, Rows& rows, const Input& input) const {
    const int64_t channels = sizes_.channels, k = sizes_.kernel, heads = sizes_.heads, head = channels / heads;
    if (dynamic_) dynamic_->product(pool, inputs.data(), rows.count, rows.inner);
    rows.attended.assign(rows.count * channels, 0);
    pool.run(rows.count, grain_of(2 * k * channels), [&](int64_t begin, int64_t end) {
      std::vector<float> own;
      for (int64_t row = begin; row < end; row++) {
        if (dynamic_) own = normalized(&rows.inner[row * heads * k]);
        const std::vector<float>& kernels = dynamic_ ? own : kernels_;
        float* const to = &rows.attended[row * channels];
        for (int64_t j = 0; j < k; j++) {
          const float* const from = input(row, j);
          if (from == nullptr) continue;
          for (int64_t h = 0; h < heads; h++) {
            const float weight = kernels[h * k + j];
#pragma omp simd
            for (int64_t c = h * head; c < (h + 1) * head; c++) to[c] += weight * from[c];
          }
        }
      }
    });
    last_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }
};

}  // namespace amlp
