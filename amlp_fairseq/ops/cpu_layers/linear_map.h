// Linear maps whose weights lie in the order in which they are read, in float32 and int8: decoding/packed_linear.py.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/custom_class.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

int64_t panels_of(int64_t size) { return (size + kLanes - 1) / kLanes; }

// The outputs of a matrix in panels of kLanes, and these in blocks of kPanels; what is left at the end are blocks of one.
struct Blocks {
  int64_t whole, count;

  explicit Blocks(int64_t out) : whole(panels_of(out) / kPanels), count(whole + panels_of(out) % kPanels) {}

  int64_t size(int64_t block) const { return block < whole ? kPanels : 1; }
  // The number of the block's first panel.
  int64_t first(int64_t block) const { return block < whole ? block * kPanels : block + whole * (kPanels - 1); }
};

// Calls tile<Rows, Count>(row) for tiles of Rows <= kRows rows that cover `rows` of a block of `size` panels.
template <typename Tile>
void over_tiles(int64_t rows, int64_t size, const Tile& tile) {
  const auto over_rows = [&]<int Count, int... Rest>(std::integral_constant<int, Count>,
                                                     std::integer_sequence<int, Rest...>) {
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) tile.template operator()<kRows, Count>(row);
    (void)((rows - row == Rest + 1 && (tile.template operator()<Rest + 1, Count>(row), true)) || ...);
  };
  const auto rest = std::make_integer_sequence<int, kRows - 1>{};
  if (size == kPanels)
    over_rows(std::integral_constant<int, kPanels>{}, rest);
  else
    over_rows(std::integral_constant<int, 1>{}, rest);
}

// Fetch `Count` vectors that are read later.
template <int Count>
void fetch(const void* weights) {
  UNROLLED for (int p = 0; p < Count; p++)
    __builtin_prefetch(static_cast<const char*>(weights) + kAhead + p * 4 * kLanes);
}

// `Rows` rows of x (…, in) with a block of `Count` panels, (in, Count, kLanes), into rows of y: its next `out` columns, all if
// there are so many. An output is its bias, if any, and then the sum over the inputs in their order, in every tile.
template <int Rows, int Count>
void multiply_tile(const float* x, int64_t x_step, int64_t in, const float* block, int64_t block_step, const float* biases,
                   float* y, int64_t y_step, int64_t out, bool relu) {
  Lanes sums[Rows][Count];
  UNROLLED for (int r = 0; r < Rows; r++)
    UNROLLED for (int p = 0; p < Count; p++) sums[r][p] = biases == nullptr ? Lanes{} : load(biases + p * kLanes);
  for (int64_t i = 0; i < in; i++, block += block_step) {
    Lanes weights[Count];
    UNROLLED for (int p = 0; p < Count; p++) weights[p] = load(block + p * kLanes);
    UNROLLED for (int r = 0; r < Rows; r++)
      UNROLLED for (int p = 0; p < Count; p++) sums[r][p] += x[r * x_step + i] * weights[p];
    fetch<Count>(block);
  }
  UNROLLED for (int r = 0; r < Rows; r++)
    UNROLLED for (int p = 0; p < Count; p++) {
      const Lanes sum = relu ? (sums[r][p] < 0 ? Lanes{} : sums[r][p]) : sums[r][p];
      store(sum, y + r * y_step + p * kLanes, out - p * kLanes);
    }
}

// Rows of x (rows, in) with a matrix in panels, into one block's columns of y (rows, out).
void multiply(const float* x, int64_t x_step, int64_t rows, int64_t in, const float* panels, const float* biases, float* y,
              int64_t y_step, int64_t out, bool relu, int64_t block) {
  const Blocks blocks(out);
  const int64_t begin = blocks.first(block) * kLanes;
  if (biases != nullptr) biases += begin;
  over_tiles(rows, blocks.size(block), [=]<int Rows, int Count>(int64_t row) {
    multiply_tile<Rows, Count>(x + row * x_step, x_step, in, panels + begin * in, Count * kLanes, biases,
                               y + row * y_step + begin, y_step, out - begin, relu);
  });
}

// A matrix (in, out) with these steps, in panels of `Group` inputs at a time; where there are no more there are zeros.
template <typename Number, int64_t Group>
std::vector<Number> make_panels(const Number* from, int64_t in, int64_t out, int64_t in_step, int64_t out_step) {
  const int64_t groups = (in + Group - 1) / Group;
  std::vector<Number> result(panels_of(out) * groups * kLanes * Group, 0);
  const Blocks blocks(out);
  Number* to = result.data();
  for (int64_t block = 0; block < blocks.count; block++)
    for (int64_t g = 0; g < groups; g++)
      for (int64_t o = blocks.first(block) * kLanes, end = o + blocks.size(block) * kLanes; o < end; o++)
        for (int64_t i = g * Group; i < (g + 1) * Group; i++, to++)
          if (o < out && i < in) *to = from[i * in_step + o * out_step];
  return result;
}

std::vector<float> padded(const Tensor& vector) {
  return make_panels<float, 1>(vector.const_data_ptr<float>(), 1, vector.size(0), 0, vector.stride(0));
}

// Of a product: calls part(block, begin, end) for all blocks of outputs and parts of the rows, with threads.
template <typename Part>
void in_parts(int64_t rows, int64_t work_of_a_row, int64_t blocks, const Part& part) {
  const int64_t parts = (rows + kRowsAtATime - 1) / kRowsAtATime;
  const int64_t work = std::min(rows, kRowsAtATime) * work_of_a_row / std::max<int64_t>(1, blocks);
  at::parallel_for(0, blocks * parts, rows_for_a_thread(work), [&](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; each++) {
      const int64_t first = each % parts * kRowsAtATime;
      part(each / parts, first, std::min(first + kRowsAtATime, rows));
    }
  });
}

// A linear map's weights.
struct Weights {
  virtual ~Weights() = default;
  // Inputs (n, in) to outputs (n, out).
  virtual void product(const float* x, int64_t rows, float* y, bool relu) const = 0;
};

struct FloatWeights : Weights {
  int64_t in, out;
  std::vector<float> panels, biases;

  // Weights (out, in).
  FloatWeights(const Tensor& weight, const Tensor& bias)
      : in(weight.size(1)), out(weight.size(0)),
        panels(make_panels<float, 1>(weight.const_data_ptr<float>(), in, out, weight.stride(1), weight.stride(0))),
        biases(padded(bias)) {}

  void product(const float* x, int64_t rows, float* y, bool relu) const override {
    in_parts(rows, in * out, Blocks(out).count, [&](int64_t block, int64_t begin, int64_t end) {
      multiply(x + begin * in, in, end - begin, in, panels.data(), biases.data(), y + begin * out, out, out, relu, block);
    });
  }
};

#ifdef __AVX2__
#define HAS_INT8
constexpr int64_t kGroup = 4;  // products that are added up for each lane
typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));

// To each lane's sum the products of its four unsigned inputs with its four weights. Without VNNI two products are added up in
// 16 bits, which is why inputs are below 128 then.
inline void add_products(Integers& sum, Integers inputs, Integers weights) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(inputs), "v"(weights));  // GCC 12 moves sums of the intrinsic to memory and back
#elif defined(__AVX512F__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)inputs, (__m512i)weights);
  sum += (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)inputs, (__m256i)weights);
  sum += (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

Integers load_integers(const void* from) {
  Integers result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

// The largest magnitude of a row's inputs; not a number if one of them is none, or infinite.
float size_of(const float* x, int64_t in) {
  float size = 0, wrong = 0;
#pragma omp simd reduction(max : size) reduction(+ : wrong)
  for (int64_t i = 0; i < in; i++) {
    size = std::max(size, std::abs(x[i]));
    wrong += x[i] * 0;
  }
  return size + wrong;
}

// See int8_product of decoding/packed_linear.py.
struct Int8Weights : Weights {
  int64_t in, out, groups;
  float step;
  int32_t zero;
  std::vector<int8_t> panels;
  std::vector<float> scales, biases;
  std::vector<int32_t> corrections;

  // Weights (out, in) and their scales (out,); the inputs' step size and zero point.
  Int8Weights(const Tensor& weight, const Tensor& weight_scales, const Tensor& bias, double step, int64_t zero)
      : in(weight.size(1)), out(weight.size(0)), groups((in + kGroup - 1) / kGroup), step(step), zero(zero),
        panels(make_panels<int8_t, kGroup>(weight.const_data_ptr<int8_t>(), in, out, weight.stride(1), weight.stride(0))),
        scales(padded(weight_scales)), biases(padded(bias)), corrections(scales.size(), 0) {
    for (float& scale : scales) scale *= this->step;
    const int8_t* from = weight.const_data_ptr<int8_t>();
    const int64_t out_step = weight.stride(0), in_step = weight.stride(1);
    for (int64_t o = 0; o < out; o++) {
      int32_t sum = 0;
      for (int64_t i = 0; i < in; i++) sum += from[o * out_step + i * in_step];
      corrections[o] = this->zero * sum;
    }
  }

  // A row of x in unsigned steps; returns its size.
  float quantise(const float* x, uint8_t* units) const {
    const float size = size_of(x, in), factor = size > 0 ? 1 / size : 0, steps = 1 / step;
#pragma omp simd
    for (int64_t i = 0; i < in; i++) {
      const int32_t unit = static_cast<int32_t>(std::nearbyint(x[i] * factor * steps)) + zero;
      units[i] = std::min(std::max(unit, 0), 255);
    }
    return size;
  }

  template <int Rows, int Count>
  void tile(const uint8_t* units, const float* sizes, int64_t first, float* y, bool relu) const {
    Integers sums[Rows][Count];
    UNROLLED for (int r = 0; r < Rows; r++)
      UNROLLED for (int p = 0; p < Count; p++) sums[r][p] = Integers{};
    const int8_t* block = panels.data() + first * groups * kLanes * kGroup;
    for (int64_t g = 0; g < groups; g++, block += Count * kLanes * kGroup) {
      Integers weights[Count];
      UNROLLED for (int p = 0; p < Count; p++) weights[p] = load_integers(block + p * kLanes * kGroup);
      UNROLLED for (int r = 0; r < Rows; r++) {
        int32_t group;
        std::memcpy(&group, units + (r * groups + g) * kGroup, sizeof group);
        const Integers inputs = Integers{} + group;
        UNROLLED for (int p = 0; p < Count; p++) add_products(sums[r][p], inputs, weights[p]);
      }
      fetch<Count>(block);
    }
    UNROLLED for (int r = 0; r < Rows; r++)
      UNROLLED for (int p = 0; p < Count; p++) {
        const int64_t begin = (first + p) * kLanes;
        const Integers sum = sums[r][p] - load_integers(&corrections[begin]);
        const Lanes value = __builtin_convertvector(sum, Lanes) * load(&scales[begin]) * sizes[r] + load(&biases[begin]);
        store(relu ? (value < 0 ? Lanes{} : value) : value, y + r * out + begin, out - begin);
      }
  }

  void product(const float* x, int64_t rows, float* y, bool relu) const override {
    std::vector<uint8_t> units(rows * groups * kGroup, 0);
    std::vector<float> sizes(rows);
    at::parallel_for(0, rows, rows_for_a_thread(2 * in), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) sizes[r] = quantise(x + r * in, &units[r * groups * kGroup]);
    });
    const Blocks blocks(out);
    in_parts(rows, in * out / kGroup, blocks.count, [&](int64_t block, int64_t begin, int64_t end) {
      over_tiles(end - begin, blocks.size(block), [&]<int Rows, int Count>(int64_t row) {
        const int64_t at = begin + row;
        tile<Rows, Count>(&units[at * groups * kGroup], &sizes[at], blocks.first(block), y + at * out, relu);
      });
    });
  }
};
#endif

constexpr bool has_int8() {
#ifdef HAS_INT8
  return true;
#else
  return false;
#endif
}

class LinearMap : public torch::CustomClassHolder {
 public:
  // Of weights (out, in) and biases (out,); int8 weights have scales (out,), and their inputs a step size and a zero point.
  LinearMap(const Tensor& weight, const Tensor& bias, const std::optional<Tensor>& scales, double step, int64_t zero)
      : in_(weight.size(1)), out_(weight.size(0)) {
#ifdef HAS_INT8
    if (scales.has_value()) {
      weights_ = std::make_unique<Int8Weights>(weight, *scales, bias, step, zero);
      return;
    }
#endif
    weights_ = std::make_unique<FloatWeights>(weight, bias);
  }

  // Inputs (…, in) to outputs (…, out).
  Tensor product(const Tensor& inputs, bool relu) const {
    TORCH_CHECK(inputs.size(-1) == in_ && inputs.scalar_type() == at::kFloat, "inputs for other weights");
    std::vector<int64_t> sizes = inputs.sizes().vec();
    sizes.back() = out_;
    const Tensor x = inputs.contiguous();
    Tensor y = at::empty(sizes, x.options());
    weights_->product(x.const_data_ptr<float>(), y.numel() / out_, y.mutable_data_ptr<float>(), relu);
    return y;
  }

  // Inputs (T, b, in) to the `parts` tables (b, H, T, d_h) that the outputs consist of.
  std::vector<Tensor> split_heads(const Tensor& inputs, int64_t parts, int64_t heads) const {
    const Tensor x = inputs.transpose(0, 1).contiguous();
    TORCH_CHECK(x.size(2) == in_ && x.scalar_type() == at::kFloat, "inputs for other weights");
    const int64_t sentences = x.size(0), words = x.size(1), width = out_ / parts / heads;
    std::vector<float> y;
    product_into(y, x.const_data_ptr<float>(), sentences * words, false);
    std::vector<Tensor> result;
    for (int64_t part = 0; part < parts; part++) {
      result.push_back(at::empty({sentences, heads, words, width}, x.options()));
      float* to = result.back().mutable_data_ptr<float>();
      for (int64_t sentence = 0; sentence < sentences; sentence++)
        for (int64_t h = 0; h < heads; h++)
          for (int64_t word = 0; word < words; word++, to += width)
            std::copy_n(&y[(sentence * words + word) * out_ + (part * heads + h) * width], width, to);
    }
    return result;
  }

  // Inputs (n, in) to outputs (n, out), which replace what was in y.
  void product_into(std::vector<float>& y, const float* x, int64_t rows, bool relu) const {
    y.resize(rows * out_);
    weights_->product(x, rows, y.data(), relu);
  }

 private:
  int64_t in_, out_;
  std::unique_ptr<const Weights> weights_;
};

using Map = c10::intrusive_ptr<LinearMap>;

}  // namespace
