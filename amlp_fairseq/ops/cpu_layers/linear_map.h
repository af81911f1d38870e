// Linear maps in float32 and int8 with weights packed in the order of access: decoding/packed_linear.py.

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

// Returns the number of panels of `size` outputs.
int64_t panels_of(int64_t size) { return (size + kLanes - 1) / kLanes; }

// Outputs of a matrix in panels of kLanes outputs, and panels in blocks of kPanels; the last panels are blocks of one.
struct Blocks {
  int64_t whole, count;

  explicit Blocks(int64_t out) : whole(panels_of(out) / kPanels), count(whole + panels_of(out) % kPanels) {}

  int64_t size(int64_t block) const { return block < whole ? kPanels : 1; }
  // Returns the index of the block's first panel.
  int64_t first(int64_t block) const { return block < whole ? block * kPanels : block + whole * (kPanels - 1); }
};

// Calls tile<Rows, Count>(row) for tiles of Rows <= kRows rows, which together cover all rows of a block.
//
// @param rows: number of rows.
// @param size: number of panels in the block.
// @param tile: function.
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

// Prefetches `Count` vectors kAhead bytes ahead.
template <int Count>
void fetch(const void* weights) {
  UNROLLED for (int p = 0; p < Count; p++)
    __builtin_prefetch(static_cast<const char*>(weights) + kAhead + p * 4 * kLanes);
}

// Multiplies `Rows` rows of x with a block of `Count` panels. In every tile the products of an output are added to its bias in
// the order of the inputs.
//
// @param x: inputs (Rows, in), x_stride apart.
// @param block: weights (in, Count, kLanes), block_stride apart.
// @param biases: biases of the outputs, or null.
// @param y: outputs, y_stride apart.
// @param out: number of remaining columns of y, of which at most Count * kLanes are written.
// @param relu: apply ReLU to the outputs.
template <int Rows, int Count>
void multiply_tile(const float* x, int64_t x_stride, int64_t in, const float* block, int64_t block_stride, const float* biases,
                   float* y, int64_t y_stride, int64_t out, bool relu) {
  Lanes sums[Rows][Count];
  UNROLLED for (int r = 0; r < Rows; r++)
    UNROLLED for (int p = 0; p < Count; p++) sums[r][p] = biases == nullptr ? Lanes{} : load(biases + p * kLanes);
  for (int64_t i = 0; i < in; i++, block += block_stride) {
    Lanes weights[Count];
    UNROLLED for (int p = 0; p < Count; p++) weights[p] = load(block + p * kLanes);
    UNROLLED for (int r = 0; r < Rows; r++)
      UNROLLED for (int p = 0; p < Count; p++) sums[r][p] += x[r * x_stride + i] * weights[p];
    fetch<Count>(block);
  }
  UNROLLED for (int r = 0; r < Rows; r++)
    UNROLLED for (int p = 0; p < Count; p++) {
      const Lanes sum = relu ? (sums[r][p] < 0 ? Lanes{} : sums[r][p]) : sums[r][p];
      store(sum, y + r * y_stride + p * kLanes, out - p * kLanes);
    }
}

// Multiplies x with one block of a matrix in panels.
//
// @param x: inputs (rows, in), x_stride apart.
// @param panels: weights of the whole matrix.
// @param biases: biases of all outputs, or null.
// @param y: outputs (rows, out), y_stride apart, of which the block's columns are written.
// @param relu: apply ReLU to the outputs.
// @param block: index of the block.
void multiply(const float* x, int64_t x_stride, int64_t rows, int64_t in, const float* panels, const float* biases, float* y,
              int64_t y_stride, int64_t out, bool relu, int64_t block) {
  const Blocks blocks(out);
  const int64_t begin = blocks.first(block) * kLanes;
  if (biases != nullptr) biases += begin;
  over_tiles(rows, blocks.size(block), [=]<int Rows, int Count>(int64_t row) {
    multiply_tile<Rows, Count>(x + row * x_stride, x_stride, in, panels + begin * in, Count * kLanes, biases,
                               y + row * y_stride + begin, y_stride, out - begin, relu);
  });
}

// Returns a matrix in panels, with `Group` inputs of an output side by side, padded with zeros.
//
// @param from: matrix (in, out).
// @param in_stride: distance between two inputs.
// @param out_stride: distance between two outputs.
template <typename Number, int64_t Group>
std::vector<Number> make_panels(const Number* from, int64_t in, int64_t out, int64_t in_stride, int64_t out_stride) {
  const int64_t groups = (in + Group - 1) / Group;
  std::vector<Number> result(panels_of(out) * groups * kLanes * Group, 0);
  const Blocks blocks(out);
  Number* to = result.data();
  for (int64_t block = 0; block < blocks.count; block++)
    for (int64_t g = 0; g < groups; g++)
      for (int64_t o = blocks.first(block) * kLanes, end = o + blocks.size(block) * kLanes; o < end; o++)
        for (int64_t i = g * Group; i < (g + 1) * Group; i++, to++)
          if (o < out && i < in) *to = from[i * in_stride + o * out_stride];
  return result;
}

// Returns a vector padded with zeros to whole panels.
std::vector<float> padded(const Tensor& vector) {
  return make_panels<float, 1>(vector.const_data_ptr<float>(), 1, vector.size(0), 0, vector.stride(0));
}

// Distributes a product over threads.
//
// @param rows: number of rows.
// @param work_of_a_row: number of multiplications per row.
// @param blocks: number of blocks of outputs.
// @param part: function part(block, begin, end), called for all blocks and ranges of rows.
template <typename Part>
void in_parts(int64_t rows, int64_t work_of_a_row, int64_t blocks, const Part& part) {
  const int64_t parts = (rows + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t work = std::min(rows, kRowsPerTask) * work_of_a_row / std::max<int64_t>(1, blocks);
  at::parallel_for(0, blocks * parts, rows_for_a_thread(work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      const int64_t first = task % parts * kRowsPerTask;
      part(task / parts, first, std::min(first + kRowsPerTask, rows));
    }
  });
}

// Weights of a linear map.
struct Weights {
  virtual ~Weights() = default;
  // Computes outputs y (rows, out) from inputs x (rows, in).
  virtual void product(const float* x, int64_t rows, float* y, bool relu) const = 0;
};

struct FloatWeights : Weights {
  int64_t in, out;
  std::vector<float> panels, biases;

  // @param weight: weights (out, in).
  // @param bias: biases (out).
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
constexpr int64_t kGroup = 4;  // number of products summed per lane
typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));

// Adds the products of four unsigned inputs and four weights to the sum of each lane. Without VNNI two products are summed in
// 16 bits, which requires inputs below 128.
inline void add_products(Integers& sum, Integers inputs, Integers weights) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(inputs), "v"(weights));  // with the intrinsic GCC 12 spills the sums
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

// Returns the maximum magnitude of a row's inputs; NaN if an input is NaN or infinite.
float max_magnitude(const float* x, int64_t in) {
  float maximum = 0, invalid = 0;
#pragma omp simd reduction(max : maximum) reduction(+ : invalid)
  for (int64_t i = 0; i < in; i++) {
    maximum = std::max(maximum, std::abs(x[i]));
    invalid += x[i] * 0;
  }
  return maximum + invalid;
}

// Weights in int8, see int8_product in decoding/packed_linear.py.
struct Int8Weights : Weights {
  int64_t in, out, groups;
  float step_size;
  int32_t zero_point;
  std::vector<int8_t> panels;
  std::vector<float> scales, biases;
  std::vector<int32_t> corrections;

  // @param weight: int8 weights (out, in).
  // @param weight_scales: scales of the weights, (out).
  // @param bias: biases (out).
  // @param step_size: step size of the inputs.
  // @param zero_point: zero point of the inputs.
  Int8Weights(const Tensor& weight, const Tensor& weight_scales, const Tensor& bias, double step_size, int64_t zero_point)
      : in(weight.size(1)), out(weight.size(0)), groups((in + kGroup - 1) / kGroup), step_size(step_size),
        zero_point(zero_point),
        panels(make_panels<int8_t, kGroup>(weight.const_data_ptr<int8_t>(), in, out, weight.stride(1), weight.stride(0))),
        scales(padded(weight_scales)), biases(padded(bias)), corrections(scales.size(), 0) {
    for (float& scale : scales) scale *= this->step_size;
    const int8_t* from = weight.const_data_ptr<int8_t>();
    const int64_t out_stride = weight.stride(0), in_stride = weight.stride(1);
    for (int64_t o = 0; o < out; o++) {
      int32_t sum = 0;
      for (int64_t i = 0; i < in; i++) sum += from[o * out_stride + i * in_stride];
      corrections[o] = this->zero_point * sum;
    }
  }

  // Quantises a row of x to unsigned units; returns the maximum magnitude of the row.
  float quantise(const float* x, uint8_t* units) const {
    const float magnitude = max_magnitude(x, in), factor = magnitude > 0 ? 1 / magnitude : 0, steps = 1 / step_size;
#pragma omp simd
    for (int64_t i = 0; i < in; i++) {
      const int32_t unit = static_cast<int32_t>(std::nearbyint(x[i] * factor * steps)) + zero_point;
      units[i] = std::min(std::max(unit, 0), 255);
    }
    return magnitude;
  }

  // Computes the outputs of `Rows` rows in `Count` panels, from panel `first` on.
  template <int Rows, int Count>
  void tile(const uint8_t* units, const float* magnitudes, int64_t first, float* y, bool relu) const {
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
        const Lanes value = __builtin_convertvector(sum, Lanes) * load(&scales[begin]) * magnitudes[r] + load(&biases[begin]);
        store(relu ? (value < 0 ? Lanes{} : value) : value, y + r * out + begin, out - begin);
      }
  }

  void product(const float* x, int64_t rows, float* y, bool relu) const override {
    std::vector<uint8_t> units(rows * groups * kGroup, 0);
    std::vector<float> magnitudes(rows);
    at::parallel_for(0, rows, rows_for_a_thread(2 * in), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) magnitudes[r] = quantise(x + r * in, &units[r * groups * kGroup]);
    });
    const Blocks blocks(out);
    in_parts(rows, in * out / kGroup, blocks.count, [&](int64_t block, int64_t begin, int64_t end) {
      over_tiles(end - begin, blocks.size(block), [&]<int Rows, int Count>(int64_t row) {
        const int64_t index = begin + row;
        tile<Rows, Count>(&units[index * groups * kGroup], &magnitudes[index], blocks.first(block), y + index * out, relu);
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

// Linear map x -> x Wᵀ + b.
class LinearMap : public torch::CustomClassHolder {
 public:
  // @param weight: W (out, in), float32 or int8.
  // @param bias: b (out).
  // @param scales: scales of int8 weights, (out); none for float32.
  // @param step_size: step size of the inputs of int8 weights.
  // @param zero_point: zero point of the inputs of int8 weights.
  LinearMap(const Tensor& weight, const Tensor& bias, const std::optional<Tensor>& scales, double step_size, int64_t zero_point)
      : in_(weight.size(1)), out_(weight.size(0)) {
#ifdef HAS_INT8
    if (scales.has_value()) {
      weights_ = std::make_unique<Int8Weights>(weight, *scales, bias, step_size, zero_point);
      return;
    }
#endif
    weights_ = std::make_unique<FloatWeights>(weight, bias);
  }

  // Returns outputs (…, out) for inputs (…, in), after ReLU with `relu`.
  Tensor product(const Tensor& inputs, bool relu) const {
    TORCH_CHECK(inputs.size(-1) == in_ && inputs.scalar_type() == at::kFloat,
                "inputs must be float32 and have the width of the weights");
    std::vector<int64_t> sizes = inputs.sizes().vec();
    sizes.back() = out_;
    const Tensor x = inputs.contiguous();
    Tensor y = at::empty(sizes, x.options());
    weights_->product(x.const_data_ptr<float>(), y.numel() / out_, y.mutable_data_ptr<float>(), relu);
    return y;
  }

  // Returns the outputs for inputs (T, b, in) as `parts` tensors (b, H, T, d_h).
  std::vector<Tensor> split_heads(const Tensor& inputs, int64_t parts, int64_t heads) const {
    const Tensor x = inputs.transpose(0, 1).contiguous();
    TORCH_CHECK(x.size(2) == in_ && x.scalar_type() == at::kFloat,
                "inputs must be float32 and have the width of the weights");
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

  // Overwrites y with outputs (rows, out) for inputs x (rows, in).
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
