// Linear maps and layers of softmax attention and feed-forward networks for CPUs: what decoding/packed_linear.py and
// decoding/softmax_layers.py compute, all layers in one call. A row's result does not depend on the other rows, bit for bit.
// Notation: docs/glossary.md.

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <torch/custom_class.h>

#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

// Work, in multiplications, from which on other threads help.
constexpr int64_t kGrain = 1 << 17;

#ifdef __AVX512F__
constexpr int64_t kLanes = 16;  // numbers in a vector
constexpr int kPanels = 4;      // a tile's outputs, in vectors
#else
constexpr int64_t kLanes = 8;
constexpr int kPanels = 2;
#endif
constexpr int kRows = 6;  // and its rows: as many sums as registers can hold
constexpr int64_t kRowsAtATime = 8 * kRows;  // of a product's block for a thread
// How far ahead weights are fetched, in bytes.
constexpr int64_t kAhead = 4096;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

// Loops over a tile's sums are unrolled: only then does the compiler keep the sums in registers.
#define UNROLLED _Pragma("GCC unroll 8")

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Store the lanes, or the first `count` if there is room for fewer.
void store(const Lanes& lanes, float* to, int64_t count) {
  if (count >= kLanes)
    std::memcpy(to, &lanes, sizeof lanes);
  else if (count > 0)
    std::memcpy(to, &lanes, count * sizeof(float));
}

int64_t rows_for_a_thread(int64_t work_of_a_row) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_of_a_row));
}

// e^x for x <= 0, within 2 units in the last place; 0 below -87. Without branches, so that the compiler vectorises it.
inline float exponential(float x) {
  const float bounded = std::max(x, -87.0f);
  const float power = std::nearbyint(bounded * 1.44269504f);
  const float rest = (bounded - power * 0.693359375f) + power * 2.12194440e-4f;
  float series = 1.9875691500e-4f;
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(power) + 127) << 23;
  float scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return x < -87.0f ? 0.0f : series * scale;
}

inline float sigmoid(float x) {
  const float power = exponential(-std::abs(x));
  return (x < 0 ? power : 1.0f) / (1.0f + power);
}

void normalize(const float* x, float* out, int64_t width, const float* weight, const float* bias, float eps) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; i++) sum += x[i];
  const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1 / std::sqrt(squares / width + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

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

#ifdef __AVX512VNNI__
constexpr int64_t kGroup = 4;  // products that an instruction adds up for each lane

// _mm512_dpbusd_epi32, for which GCC 12 moves sums to memory and back.
inline void add_products(__m512i& sum, __m512i inputs, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(inputs), "v"(weights));
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
    __m512i sums[Rows][Count];
    UNROLLED for (int r = 0; r < Rows; r++)
      UNROLLED for (int p = 0; p < Count; p++) sums[r][p] = _mm512_setzero_si512();
    const int8_t* block = panels.data() + first * groups * kLanes * kGroup;
    for (int64_t g = 0; g < groups; g++, block += Count * kLanes * kGroup) {
      __m512i weights[Count];
      UNROLLED for (int p = 0; p < Count; p++) weights[p] = _mm512_loadu_si512(block + p * kLanes * kGroup);
      UNROLLED for (int r = 0; r < Rows; r++) {
        int32_t group;
        std::memcpy(&group, units + (r * groups + g) * kGroup, sizeof group);
        const __m512i inputs = _mm512_set1_epi32(group);
        UNROLLED for (int p = 0; p < Count; p++) add_products(sums[r][p], inputs, weights[p]);
      }
      fetch<Count>(block);
    }
    UNROLLED for (int r = 0; r < Rows; r++)
      UNROLLED for (int p = 0; p < Count; p++) {
        const int64_t begin = (first + p) * kLanes;
        const __m512i sum = _mm512_sub_epi32(sums[r][p], _mm512_loadu_si512(&corrections[begin]));
        const Lanes value = Lanes(_mm512_cvtepi32_ps(sum)) * load(&scales[begin]) * sizes[r] + load(&biases[begin]);
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
#ifdef __AVX512VNNI__
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
#ifdef __AVX512VNNI__
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

  // Inputs (n, in) to outputs (n, out), which replace what was in y.
  void product_into(std::vector<float>& y, const float* x, int64_t rows, bool relu) const {
    y.resize(rows * out_);
    weights_->product(x, rows, y.data(), relu);
  }

 private:
  int64_t in_, out_;
  std::unique_ptr<const Weights> weights_;
};

// A table (sentences, heads, positions, d_h) in which the d_h stand together, with the steps of the other axes.
struct Table {
  const float* data;
  int64_t positions, sentence, head, position;

  const float* at(int64_t s, int64_t h) const { return data + s * sentence + h * head; }
};

Table table_of(const Tensor& table) {
  TORCH_CHECK(table.dim() == 4 && table.stride(3) == 1, "a table of another layout");
  return {table.const_data_ptr<float>(), table.size(2), table.stride(0), table.stride(1), table.stride(2)};
}

// 0 or -inf, (1 or sentences, 1, 1 or queries, keys); or nothing.
struct Bias {
  const float* data = nullptr;
  int64_t sentence = 0, query = 0;

  Bias(const std::optional<Tensor>& bias, int64_t queries) {
    if (!bias.has_value()) return;
    TORCH_CHECK(bias->stride(-1) == 1 || bias->size(-1) == 1, "a bias of another layout");
    data = bias->const_data_ptr<float>();
    if (bias->dim() == 4 && bias->size(0) > 1) sentence = bias->stride(0);
    if (bias->size(-2) > 1) query = bias->stride(-2);
  }

  const float* of(int64_t s, int64_t q) const { return data == nullptr ? nullptr : data + s * sentence + q * query; }
};

int64_t whole_vectors(int64_t size) { return panels_of(size) * kLanes; }

// softmax(scores + bias), in place; there is room for whole vectors of scores.
void softmax(float* scores, const float* bias, int64_t keys) {
  float largest = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t j = keys; j < whole_vectors(keys); j++) scores[j] = largest;
  if (bias != nullptr)
    for (int64_t j = 0; j < keys; j++) scores[j] += bias[j];
  keys = whole_vectors(keys);
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < keys; j++) largest = std::max(largest, scores[j]);
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < keys; j++) {
    scores[j] = exponential(scores[j] - largest);
    total += scores[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < keys; j++) scores[j] /= total;
}

// The sum of the lanes.
float sum_of(const Lanes& lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof sums);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; i++) sums[i] += sums[i + half];
  return sums[0];
}

// Products of a query with `Keys` keys, of `vectors` vectors each.
template <int Keys>
void dot_products(const float* query, const float* keys, int64_t step, int64_t vectors, float* scores) {
  Lanes sums[Keys] = {};
  for (int64_t c = 0; c < vectors; c++) {
    const Lanes part = load(query + c * kLanes);
    UNROLLED for (int j = 0; j < Keys; j++) sums[j] += part * load(keys + j * step + c * kLanes);
  }
  UNROLLED for (int j = 0; j < Keys; j++) scores[j] = sum_of(sums[j]);
}

constexpr int64_t kQueries = 64;

// Attention of one head: of a sentence's queries (queries, d_h) to its keys and values, (queries, d_h).
struct Head {
  const float *q, *k, *v;
  float* out;
  int64_t queries, keys, width, q_step, k_step, v_step, out_step;

  // For few queries; d_h in whole vectors.
  void attend_few(const Bias& bias, int64_t sentence) const {
    const int64_t step = whole_vectors(keys);
    std::vector<float> scores(queries * step);
    for (int64_t query = 0; query < queries; query++) {
      const float* own = q + query * q_step;
      float* to = &scores[query * step];
      int64_t j = 0;
      for (; j + 4 <= keys; j += 4) dot_products<4>(own, k + j * k_step, k_step, width / kLanes, to + j);
      for (; j < keys; j++) dot_products<1>(own, k + j * k_step, k_step, width / kLanes, to + j);
      softmax(to, bias.of(sentence, query), keys);
    }
    const Blocks blocks(width);
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t begin = blocks.first(block) * kLanes;
      over_tiles(queries, blocks.size(block), [&]<int Rows, int Count>(int64_t query) {
        multiply_tile<Rows, Count>(&scores[query * step], step, keys, v + begin, v_step, nullptr,
                                   out + query * out_step + begin, out_step, width - begin, false);
      });
    }
  }

  // For many: keys and values are put into panels first, and some queries are treated at a time.
  void attend_many(const Bias& bias, int64_t sentence) const {
    const std::vector<float> key_panels = make_panels<float, 1>(k, width, keys, 1, k_step);
    const std::vector<float> value_panels = make_panels<float, 1>(v, keys, width, v_step, 1);
    const int64_t step = whole_vectors(keys);
    std::vector<float> scores(kQueries * step);
    for (int64_t begin = 0; begin < queries; begin += kQueries) {
      const int64_t count = std::min(kQueries, queries - begin);
      for (int64_t block = 0; block < Blocks(keys).count; block++)
        multiply(q + begin * q_step, q_step, count, width, key_panels.data(), nullptr, scores.data(), step, keys, false, block);
      for (int64_t each = 0; each < count; each++) softmax(&scores[each * step], bias.of(sentence, begin + each), keys);
      for (int64_t block = 0; block < Blocks(width).count; block++)
        multiply(scores.data(), step, count, keys, value_panels.data(), nullptr, out + begin * out_step, out_step, width, false,
                 block);
    }
  }
};

// The inputs (n, C) of a block, which become its outputs, and room for what is computed on the way.
struct Rows {
  float* x;
  int64_t count, width;
  std::vector<float> normalized, first, read, second;
};

using Map = c10::intrusive_ptr<LinearMap>;

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
    std::vector<float> inputs, kernels, window((kept + n) * width), mixed(rows * n * width, 0), kernel(whole_vectors(k_));
    first_->product_into(inputs, y, rows * n, false);
    if (glu_) {
      for (int64_t word = 0; word < rows * n; word++)
        for (int64_t c = 0; c < width; c++)
          inputs[word * width + c] = inputs[2 * word * width + c] * sigmoid(inputs[(2 * word + 1) * width + c]);
    }
    if (kernel_map_.has_value()) (*kernel_map_)->product_into(kernels, inputs.data(), rows * n, false);
    for (int64_t row = 0; row < rows; row++) {
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

class SoftmaxLayers : public torch::CustomClassHolder {
 public:
  // Of all maps, and of all norms weights and biases. Where the layers' self-attentions are others, these are given. See
  // decoding/softmax_layers.py.
  SoftmaxLayers(std::vector<Map> maps, std::vector<Tensor> norm_weights, std::vector<Tensor> norm_biases, double eps,
                int64_t heads, bool norm_first, std::vector<c10::intrusive_ptr<SelfAttention>> others)
      : maps_(std::move(maps)), norm_weights_(std::move(norm_weights)), norm_biases_(std::move(norm_biases)),
        others_(std::move(others)), eps_(eps), heads_(heads), norm_first_(norm_first) {}

  // See StepLayers.forward.
  Tensor step(const Tensor& inputs, const Tensor& slots, int64_t end, const std::optional<Tensor>& bias,
              std::vector<Tensor> states, const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
              const std::optional<Tensor>& source_bias) const {
    const int64_t sentences = inputs.size(0), words = inputs.size(1), width = inputs.size(2);
    Tensor out = inputs.clone(at::MemoryFormat::Contiguous);
    Rows rows{out.mutable_data_ptr<float>(), sentences * words, width, {}, {}, {}, {}};
    for (size_t layer = 0; layer < states.size(); layer++) {
      const int64_t block = 3 * layer;
      const Tensor& state = states[layer];
      if (others_.empty()) {
        first_map(rows, block, false);
        write(rows, state, slots, end, words);
        const Table k{state.const_data_ptr<float>(), end, state.stride(0), state.stride(1), state.stride(3)};
        attend(rows, sentences, 3, k, {k.data + state.stride(2), end, k.sentence, k.head, k.position}, bias, false);
        add(rows, block, rows.read);
      } else {
        others_[layer]->own->step(inputs_of(rows, block), words, state, end - words, rows.second);
        add_second(rows, block);
      }
      over_source(rows, block + 1, ks[layer], vs[layer], source_bias, false);
      feed_forward(rows, block + 2);
    }
    return out;
  }

  // See ParallelLayers.forward.
  Tensor parallel(const Tensor& inputs, const std::optional<Tensor>& bias, const std::optional<Tensor>& future,
                  const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
                  const std::optional<Tensor>& source_bias) const {
    const int64_t sentences = inputs.size(0), words = inputs.size(1), width = inputs.size(2);
    Tensor out = inputs.clone(at::MemoryFormat::Contiguous);
    Rows rows{out.mutable_data_ptr<float>(), sentences * words, width, {}, {}, {}, {}};
    for (size_t block = 0, layer = 0; block < norm_weights_.size(); layer++) {
      over_all(rows, block++, sentences, bias);
      if (future.has_value()) over_all(rows, block++, sentences, future);
      if (!ks.empty()) over_source(rows, block++, ks[layer], vs[layer], source_bias, true);
      feed_forward(rows, block++);
    }
    return out;
  }

 private:
  std::vector<Map> maps_;
  std::vector<Tensor> norm_weights_, norm_biases_;
  std::vector<c10::intrusive_ptr<SelfAttention>> others_;
  double eps_;
  int64_t heads_;
  bool norm_first_;

  void normalize_rows(const float* from, float* to, const Rows& rows, int64_t norm) const {
    const int64_t width = rows.width;
    const float *weight = norm_weights_[norm].const_data_ptr<float>(), *bias = norm_biases_[norm].const_data_ptr<float>();
    at::parallel_for(0, rows.count, rows_for_a_thread(4 * width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) normalize(from + r * width, to + r * width, width, weight, bias, eps_);
    });
  }

  // The number of the first of a block's two maps. Other self-attentions have their own.
  int64_t map_of(int64_t block) const { return 2 * (others_.empty() ? block : block - block / 3 - 1); }

  // A block's inputs, or their norm.
  const float* inputs_of(Rows& rows, int64_t block) const {
    if (!norm_first_) return rows.x;
    rows.normalized.resize(rows.count * rows.width);
    normalize_rows(rows.x, rows.normalized.data(), rows, block);
    return rows.normalized.data();
  }

  void first_map(Rows& rows, int64_t block, bool relu) const {
    maps_[map_of(block)]->product_into(rows.first, inputs_of(rows, block), rows.count, relu);
  }

  // A block's second map, of what it has made, added to its inputs.
  void add(Rows& rows, int64_t block, const std::vector<float>& made) const {
    maps_[map_of(block) + 1]->product_into(rows.second, made.data(), rows.count, false);
    add_second(rows, block);
  }

  void add_second(Rows& rows, int64_t block) const {
    const float* from = rows.second.data();
    const int64_t size = rows.count * rows.width;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) rows.x[i] += from[i];
    if (!norm_first_) normalize_rows(rows.x, rows.x, rows, block);
  }

  void feed_forward(Rows& rows, int64_t block) const {
    first_map(rows, block, true);
    add(rows, block, rows.first);
  }

  void over_source(Rows& rows, int64_t block, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                   bool many) const {
    first_map(rows, block, false);
    attend(rows, k.size(0), 1, table_of(k), table_of(v), bias, many);
    add(rows, block, rows.read);
  }

  // Self-attention of all words of a sentence.
  void over_all(Rows& rows, int64_t block, int64_t sentences, const std::optional<Tensor>& bias) const {
    first_map(rows, block, false);
    const int64_t words = rows.count / sentences, width = rows.width, step = 3 * width;
    const float* keys = rows.first.data() + width;
    const Table k{keys, words, words * step, width / heads_, step};
    attend(rows, sentences, 3, k, {keys + width, words, k.sentence, k.head, k.position}, bias, true);
    add(rows, block, rows.read);
  }

  // Keys and values of new words, of the first map's (R n, 3 C), into a buffer (R, H, 2, slots, d_h).
  void write(const Rows& rows, const Tensor& buffer, const Tensor& slots, int64_t end, int64_t words) const {
    const int64_t width = rows.width, head = width / heads_;
    const float* from = rows.first.data();
    float* to = buffer.mutable_data_ptr<float>();
    const int64_t* own = slots.dim() == 2 ? slots.const_data_ptr<int64_t>() : nullptr;
    TORCH_CHECK(buffer.stride(4) == 1 && slots.is_contiguous(), "a buffer of another layout");
    for (int64_t word = 0; word < rows.count; word++) {
      const int64_t row = word / words, slot = own == nullptr ? end - words + word % words : own[word];
      for (int64_t h = 0; h < heads_; h++)
        for (int64_t part = 0; part < 2; part++)
          std::memcpy(to + row * buffer.stride(0) + h * buffer.stride(1) + part * buffer.stride(2) + slot * buffer.stride(3),
                      from + word * 3 * width + (1 + part) * width + h * head, head * sizeof(float));
    }
  }

  // Attention of the first map's first C numbers of each `parts` C, the queries (b n, C), to keys and values (b, H, m, d_h).
  void attend(Rows& rows, int64_t sentences, int64_t parts, const Table& k, const Table& v,
              const std::optional<Tensor>& mask, bool many) const {
    const int64_t channels = rows.width, width = channels / heads_, step = parts * channels, count = rows.count / sentences;
    const Bias bias(mask, count);
    rows.read.resize(rows.count * channels);
    const float* from = rows.first.data();
    float* to = rows.read.data();
    const int64_t work = 4 * count * k.positions * width;
    at::parallel_for(0, sentences * heads_, rows_for_a_thread(work), [&](int64_t begin, int64_t end) {
      for (int64_t each = begin; each < end; each++) {
        const int64_t row = each / heads_, h = each % heads_;
        const Head head{from + row * count * step + h * width, k.at(row, h), v.at(row, h),
                        to + row * count * channels + h * width, count, k.positions, width, step, k.position, v.position,
                        channels};
        many || width % kLanes ? head.attend_many(bias, row) : head.attend_few(bias, row);
      }
    });
  }
};

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

// An operator of ops/search_steps.
template <typename Function>
auto search_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

// What a decoder of softmax attention writes in steps of z slots, all of it in one call.
class Decoder : public torch::CustomClassHolder {
 public:
  // Of its layers; the embedding (V, C) with its scale and the number of slots without words; of the norm behind the layers,
  // if there is one, weight, bias and epsilon; and the map to logits.
  Decoder(c10::intrusive_ptr<SoftmaxLayers> layers, Tensor table, double scale, int64_t starts,
          std::optional<Tensor> norm_weight, std::optional<Tensor> norm_bias, double eps, Map output)
      : layers_(std::move(layers)), output_(std::move(output)), table_(std::move(table)), norm_weight_(std::move(norm_weight)),
        norm_bias_(std::move(norm_bias)), scale_(scale), eps_(eps), starts_(starts) {}

  // The steps of a beam search until one is made in which not all of the best hypotheses go on, but at most `most`.
  //
  // Takes the hypotheses of _Search in search/multiword_beam_search.py: tokens (R, z + T), word_scores (R, T) and
  // scores (b, B); how many ways to continue each are looked at, k, and the other arguments of combine_words; the least
  // words before an end symbol; the slots that are written, T, the encodings (.., C) of all and the bias (.., ..) between
  // them; and the last arguments of StepLayers.forward. Padding is not a word.
  //
  // Returns the hypotheses that have gone on; how many steps were made; and of the last one the ways to continue them, as
  // combine_words gives them, or nothing where they have gone on in that one, too.
  std::tuple<Tensor, Tensor, Tensor, int64_t, std::vector<Tensor>> search(
      Tensor tokens, Tensor word_scores, Tensor scores, int64_t z, int64_t most, int64_t k, int64_t eos, int64_t pad, bool ignore,
      int64_t least, int64_t slots_written, const Tensor& encodings, const std::optional<Tensor>& bias, std::vector<Tensor> states,
      const std::vector<Tensor>& ks, const std::vector<Tensor>& vs, const std::optional<Tensor>& source_bias) const {
    using Ways = std::tuple<Tensor, Tensor, Tensor, Tensor>;
    using OnwardOrNot = std::tuple<Tensor, Tensor, Tensor, Tensor, bool>;
    static const auto combine_words =
        search_operator<Ways(const Tensor&, int64_t, int64_t, int64_t, bool)>("amlp_fairseq::combine_words");
    static const auto continue_all =
        search_operator<OnwardOrNot(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
            "amlp_fairseq::continue_all");
    constexpr float none = -std::numeric_limits<float>::infinity();
    const Tensor slots = at::arange(slots_written, slots_written + most * z, tokens.options());
    for (int64_t made = 0; made < most;) {
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
      const auto [step_scores, step_words, step_word_scores, ends] = combine_words.call(lprobs, k, eos, pad, ignore);
      const auto [kept, rows, next, next_scores, all] =
          continue_all.call(scores, step_scores, ends, step_words, step_word_scores);
      made++;
      if (!all) return {tokens, word_scores, scores, made, {step_scores, step_words, step_word_scores, ends}};
      scores = kept;
      if (moves(rows)) {
        tokens = tokens.index_select(0, rows), word_scores = word_scores.index_select(0, rows);
        for (const Tensor& state : states) permute(state, rows, end);
      }
      tokens = at::cat({tokens, next}, 1), word_scores = at::cat({word_scores, next_scores}, 1);
    }
    return {tokens, word_scores, scores, most, {}};
  }

 private:
  c10::intrusive_ptr<SoftmaxLayers> layers_;
  Map output_;
  Tensor table_;
  std::optional<Tensor> norm_weight_, norm_bias_;
  double scale_, eps_;
  int64_t starts_;

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

TORCH_LIBRARY_FRAGMENT(amlp_fairseq, library) {
  library.def("has_int8() -> bool", &has_int8);
  library.def("embed(Tensor words, Tensor slots, Tensor table, float scale, Tensor encodings, int starts) -> Tensor",
              &embed);
  library.def("log_softmax_(Tensor(a!) logits) -> Tensor(a!)", &log_softmax_);
  library.class_<LinearMap>("LinearMap")
      .def(torch::init<const Tensor&, const Tensor&, const std::optional<Tensor>&, double, int64_t>())
      .def("product", &LinearMap::product);
  library.class_<SelfAttention>("SelfAttention")
      .def_static("average", &SelfAttention::average)
      .def_static("convolution", &SelfAttention::convolution);
  library.class_<SoftmaxLayers>("SoftmaxLayers")
      .def(torch::init<std::vector<Map>, std::vector<Tensor>, std::vector<Tensor>, double, int64_t, bool,
                       std::vector<c10::intrusive_ptr<SelfAttention>>>())
      .def("step", &SoftmaxLayers::step)
      .def("parallel", &SoftmaxLayers::parallel);
  library.class_<Decoder>("Decoder")
      .def(torch::init<c10::intrusive_ptr<SoftmaxLayers>, Tensor, double, int64_t, std::optional<Tensor>,
                       std::optional<Tensor>, double, Map>())
      .def("search", &Decoder::search);
}
