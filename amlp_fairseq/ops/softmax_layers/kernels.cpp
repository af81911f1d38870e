// Layers of softmax attention and feed-forward networks for CPUs: what decoding/softmax_layers.py computes, with one call for
// all layers. Products of few float32 weights are computed here, others by the operators that are used there. A row's
// result does not depend on the other rows. Notation: docs/glossary.md.

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>

#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

namespace {

using at::Tensor;
using c10::IValue;

constexpr int64_t kLanes = 16;
// Work, in multiplications, from which on other threads help.
constexpr int64_t kGrain = 1 << 17;
// With fewer int8 weights a product takes less time here than by PyTorch's operator.
constexpr int64_t kSmall = 1 << 17;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Store the lanes, or the first `count` if there is room for fewer.
void store(const Lanes& lanes, float* to, int64_t count) {
  if (count >= kLanes)
    std::memcpy(to, &lanes, sizeof lanes);
  else
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

// `Rows` rows of x (…, in) with `Count` panels (in, kLanes), into rows of y: its next `out` columns, all if there are so many.
// An output is its bias and then the sum over the inputs in their order, for any number of rows.
template <int Rows, int Count>
void multiply_tile(const float* x, int64_t x_step, int64_t in, const float* panels, const float* biases, float* y,
                   int64_t y_step, int64_t out, bool relu) {
  Lanes sums[Rows][Count];
  for (int p = 0; p < Count; p++)
    for (int r = 0; r < Rows; r++) sums[r][p] = load(biases + p * kLanes);
  for (int64_t i = 0; i < in; i++)
    for (int p = 0; p < Count; p++) {
      const Lanes weight = load(panels + (p * in + i) * kLanes);
      for (int r = 0; r < Rows; r++) sums[r][p] += x[r * x_step + i] * weight;
    }
  for (int p = 0; p < Count; p++)
    for (int r = 0; r < Rows; r++) {
      const Lanes sum = relu ? (sums[r][p] < 0 ? Lanes{} : sums[r][p]) : sums[r][p];
      store(sum, y + r * y_step + p * kLanes, out - p * kLanes);
    }
}

// Calls tile<Rows, Count>(row, panel) for tiles of up to 4 by 4 that cover so many rows and panels.
// A tile should capture by value: it would read what it refers to again after each row that it writes.
template <typename Tile>
void over_tiles(int64_t rows, int64_t panels, const Tile& tile) {
  const auto over_rows = [&]<int Count>(int64_t panel) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) tile.template operator()<4, Count>(row, panel);
    for (; row < rows; row++) tile.template operator()<1, Count>(row, panel);
  };
  int64_t panel = 0;
  for (; panel + 4 <= panels; panel += 4) over_rows.template operator()<4>(panel);
  for (; panel < panels; panel++) over_rows.template operator()<1>(panel);
}

// Rows of x (rows, in) with a matrix in panels of kLanes outputs (out / kLanes, in, kLanes), into y (rows, out).
void multiply(const float* x, int64_t x_step, int64_t rows, int64_t in, const float* panels, const float* biases, float* y,
              int64_t y_step, int64_t out, bool relu) {
  over_tiles(rows, panels_of(out), [=]<int Rows, int Count>(int64_t row, int64_t panel) {
    const int64_t begin = panel * kLanes;
    multiply_tile<Rows, Count>(x + row * x_step, x_step, in, panels + begin * in, biases + begin, y + row * y_step + begin,
                               y_step, out - begin, relu);
  });
}

// A matrix (in, out) with these steps in panels, which begin at the width of a vector; the last one ends with zeros.
Tensor make_panels(const float* from, int64_t in, int64_t out, int64_t in_step, int64_t out_step) {
  Tensor result = at::zeros({panels_of(out) * in * kLanes}, at::kFloat);
  float* panels = result.mutable_data_ptr<float>();
  for (int64_t p = 0; p < panels_of(out); p++)
    for (int64_t i = 0; i < in; i++)
      for (int64_t o = p * kLanes; o < std::min((p + 1) * kLanes, out); o++)
        panels[(p * in + i) * kLanes + o - p * kLanes] = from[i * in_step + o * out_step];
  return result;
}

// A linear map.
struct Map {
  virtual ~Map() = default;
  // Inputs (n, in) to outputs (n, out).
  virtual Tensor product(const Tensor& x, bool relu) const = 0;
};

// Of few float32 weights, transposed (in, out).
struct SmallMap : Map {
  int64_t in, out;
  Tensor panels, biases;

  SmallMap(const Tensor& transposed, const Tensor& bias)
      : in(transposed.size(0)), out(transposed.size(1)),
        panels(make_panels(transposed.const_data_ptr<float>(), in, out, transposed.stride(0), transposed.stride(1))),
        biases(make_panels(bias.const_data_ptr<float>(), 1, out, 0, bias.stride(0))) {}

  Tensor product(const Tensor& inputs, bool relu) const override {
    Tensor outputs = at::empty({inputs.size(0), out}, inputs.options());
    const float* x = inputs.const_data_ptr<float>();
    float* y = outputs.mutable_data_ptr<float>();
    at::parallel_for(0, inputs.size(0), std::max<int64_t>(4, rows_for_a_thread(in * out)), [&](int64_t begin, int64_t end) {
      multiply(x + begin * in, in, end - begin, in, panels.const_data_ptr<float>(), biases.const_data_ptr<float>(),
               y + begin * out, out, out, relu);
    });
    return outputs;
  }
};

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

#ifdef __AVX512VNNI__
constexpr int64_t kGroup = 4;  // products that an instruction adds up for each lane

// Of few int8 weights (out, in), see int8_product of decoding/packed_linear.py.
struct SmallInt8Map : Map {
  int64_t in, out, groups;
  float step;
  int32_t zero;
  Tensor panels;  // (out / kLanes, groups, kLanes, kGroup)
  Tensor scales, biases;
  std::vector<int32_t> corrections;

  SmallInt8Map(const Tensor& weight, const Tensor& weight_scales, const Tensor& bias, double step, int64_t zero)
      : in(weight.size(1)), out(weight.size(0)), groups((in + kGroup - 1) / kGroup), step(step), zero(zero),
        panels(at::zeros({panels_of(out) * groups * kLanes * kGroup}, at::kChar)),
        scales(make_panels(weight_scales.const_data_ptr<float>(), 1, out, 0, weight_scales.stride(0))),
        biases(make_panels(bias.const_data_ptr<float>(), 1, out, 0, bias.stride(0))),
        corrections(panels_of(out) * kLanes, 0) {
    const int8_t* from = weight.const_data_ptr<int8_t>();
    for (int64_t o = 0; o < out; o++) {
      scales.mutable_data_ptr<float>()[o] *= this->step;
      for (int64_t i = 0; i < in; i++) {
        const int8_t each = from[o * weight.stride(0) + i * weight.stride(1)];
        const int64_t place = ((o / kLanes * groups + i / kGroup) * kLanes + o % kLanes) * kGroup + i % kGroup;
        panels.mutable_data_ptr<int8_t>()[place] = each;
        corrections[o] += this->zero * each;
      }
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
    for (int p = 0; p < Count; p++)
      for (int r = 0; r < Rows; r++) sums[r][p] = _mm512_setzero_si512();
    const int8_t* panel = panels.const_data_ptr<int8_t>() + first * groups * kLanes * kGroup;
    const float *scale = scales.const_data_ptr<float>(), *bias = biases.const_data_ptr<float>();
    for (int64_t g = 0; g < groups; g++)
      for (int p = 0; p < Count; p++) {
        const __m512i weight = _mm512_loadu_si512(panel + (p * groups + g) * kLanes * kGroup);
        for (int r = 0; r < Rows; r++) {
          int32_t group;
          std::memcpy(&group, units + (r * groups + g) * kGroup, sizeof group);
          sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], _mm512_set1_epi32(group), weight);
        }
      }
    for (int p = 0; p < Count; p++)
      for (int r = 0; r < Rows; r++) {
        const int64_t begin = (first + p) * kLanes;
        const __m512i sum = _mm512_sub_epi32(sums[r][p], _mm512_loadu_si512(&corrections[begin]));
        const Lanes value = Lanes(_mm512_cvtepi32_ps(sum)) * load(scale + begin) * sizes[r] + load(bias + begin);
        store(relu ? (value < 0 ? Lanes{} : value) : value, y + r * out + begin, out - begin);
      }
  }

  Tensor product(const Tensor& inputs, bool relu) const override {
    Tensor outputs = at::empty({inputs.size(0), out}, inputs.options());
    const float* x = inputs.const_data_ptr<float>();
    const int64_t grain = std::max<int64_t>(4, rows_for_a_thread(in * out / 4));
    at::parallel_for(0, inputs.size(0), grain, [&](int64_t begin, int64_t end) {
      const int64_t count = end - begin;
      float* y = outputs.mutable_data_ptr<float>() + begin * out;
      std::vector<uint8_t> units(count * groups * kGroup, 0);
      std::vector<float> sizes(count);
      for (int64_t r = 0; r < count; r++) sizes[r] = quantise(x + (begin + r) * in, &units[r * groups * kGroup]);
      const uint8_t* quantised = units.data();
      const float* own = sizes.data();
      over_tiles(count, panels_of(out), [=, this]<int Rows, int Count>(int64_t row, int64_t panel) {
        tile<Rows, Count>(quantised + row * groups * kGroup, own + row, panel, y + row * out, relu);
      });
    });
    return outputs;
  }
};
#endif

// An operator, called by its schema: its C++ signature differs between versions of torch.
struct Operator {
  c10::OperatorHandle handle;

  explicit Operator(const char* name) : handle(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")) {}

  template <typename... Arguments>
  Tensor operator()(Arguments&&... arguments) const {
    torch::jit::Stack stack{IValue(std::forward<Arguments>(arguments))...};
    handle.callBoxed(&stack);
    return stack[0].toTensor();
  }
};

// Of float32 weights in oneDNN's layout.
struct OneDnnMap : Map {
  Tensor packed, bias;

  OneDnnMap(const Tensor& packed, const Tensor& bias) : packed(packed), bias(bias) {}

  Tensor product(const Tensor& x, bool relu) const override {
    static const Operator linear("mkldnn::_linear_pointwise");
    static const c10::impl::GenericList none{c10::OptionalType::create(c10::NumberType::get())};
    return linear(x, packed, bias, relu ? "relu" : "none", none, "");
  }
};

// Of int8 weights that PyTorch has packed, see int8_product of decoding/packed_linear.py.
struct Int8Map : Map {
  IValue packed;
  Tensor bias;
  double step;
  int64_t zero;

  Int8Map(const IValue& packed, const Tensor& bias, double step, int64_t zero)
      : packed(packed), bias(bias), step(step), zero(zero) {}

  Tensor product(const Tensor& x, bool relu) const override {
    static const Operator linear("quantized::linear_with_input_q_dq_qweight_dq_output_fp32");
    const int64_t count = x.size(0), in = x.size(1);
    const float* inputs = x.const_data_ptr<float>();
    Tensor units = at::empty({count, in}, x.options());
    float* scaled = units.mutable_data_ptr<float>();
    std::vector<float> sizes(count);
    at::parallel_for(0, count, rows_for_a_thread(2 * in), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        sizes[r] = size_of(inputs + r * in, in);
        const float factor = 1 / sizes[r];
#pragma omp simd
        for (int64_t i = 0; i < in; i++) scaled[r * in + i] = inputs[r * in + i] * factor;
      }
    });
    Tensor y = linear(units, step, zero, packed);
    const int64_t out = y.size(1);
    float* outputs = y.mutable_data_ptr<float>();
    const float* biases = bias.const_data_ptr<float>();
    at::parallel_for(0, count, rows_for_a_thread(2 * out), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++)
#pragma omp simd
        for (int64_t o = 0; o < out; o++) {
          const float value = outputs[r * out + o] * sizes[r] + biases[o];
          outputs[r * out + o] = relu ? std::max(value, 0.0f) : value;
        }
    });
    return y;
  }
};

// A table (sentences, heads, positions, d_h) in which the d_h stand together.
struct Table {
  const float* data;
  int64_t sentence, head, position;

  explicit Table(const Tensor& table)
      : data(table.const_data_ptr<float>()), sentence(table.stride(0)), head(table.stride(1)), position(table.stride(2)) {
    TORCH_CHECK(table.dim() == 4 && table.stride(3) == 1, "a table of another layout");
  }

  const float* at(int64_t s, int64_t h) const { return data + s * sentence + h * head; }
};

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

// softmax(scores + bias), in place.
void softmax(float* scores, const float* bias, int64_t keys) {
  float largest = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t j = 0; j < keys; j++) {
    if (bias != nullptr) scores[j] += bias[j];
    largest = std::max(largest, scores[j]);
  }
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < keys; j++) {
    scores[j] = exponential(scores[j] - largest);
    total += scores[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < keys; j++) scores[j] /= total;
}

constexpr int64_t kQueries = 64;

// Attention of one head: of a sentence's queries (queries, d_h) to its keys and values, (queries, d_h).
struct Head {
  const float *q, *k, *v;
  float* out;
  int64_t queries, keys, width, q_step, k_step, v_step, out_step;

  // For few queries.
  void attend_few(const Bias& bias, int64_t sentence) const {
    std::vector<float> scores(keys);
    for (int64_t query = 0; query < queries; query++) {
      const float* own = q + query * q_step;
      for (int64_t j = 0; j < keys; j++) {
        const float* key = k + j * k_step;
        float score = 0;
#pragma omp simd reduction(+ : score)
        for (int64_t i = 0; i < width; i++) score += own[i] * key[i];
        scores[j] = score;
      }
      softmax(scores.data(), bias.of(sentence, query), keys);
      float* read = out + query * out_step;
      std::memset(read, 0, width * sizeof(float));
      for (int64_t j = 0; j < keys; j++) {
        const float* value = v + j * v_step;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) read[i] += scores[j] * value[i];
      }
    }
  }

  // For many: keys and values are put into panels first, and some queries are treated at a time.
  void attend_many(const Bias& bias, int64_t sentence) const {
    const Tensor key_panels = make_panels(k, width, keys, 1, k_step), value_panels = make_panels(v, keys, width, v_step, 1);
    const std::vector<float> zeros(kLanes * panels_of(std::max(keys, width)), 0);
    std::vector<float> scores(kQueries * keys);
    for (int64_t begin = 0; begin < queries; begin += kQueries) {
      const int64_t count = std::min(kQueries, queries - begin);
      multiply(q + begin * q_step, q_step, count, width, key_panels.const_data_ptr<float>(), zeros.data(), scores.data(), keys,
               keys, false);
      for (int64_t each = 0; each < count; each++) softmax(&scores[each * keys], bias.of(sentence, begin + each), keys);
      multiply(scores.data(), keys, count, keys, value_panels.const_data_ptr<float>(), zeros.data(), out + begin * out_step,
               out_step, width, false);
    }
  }
};

class SoftmaxLayers : public torch::CustomClassHolder {
 public:
  // Of all norms weights and biases. Maps are added in their order. See decoding/softmax_layers.py.
  SoftmaxLayers(std::vector<Tensor> norm_weights, std::vector<Tensor> norm_biases, double eps, int64_t heads,
                bool norm_first)
      : norm_weights_(std::move(norm_weights)), norm_biases_(std::move(norm_biases)), eps_(eps), heads_(heads),
        norm_first_(norm_first) {}

  // Of float32 weights transposed (in, out) or in oneDNN's layout, one of the two without elements.
  void add_float(const Tensor& transposed, const Tensor& packed, const Tensor& bias) {
    if (transposed.numel() > 0)
      maps_.push_back(std::make_unique<SmallMap>(transposed, bias));
    else
      maps_.push_back(std::make_unique<OneDnnMap>(packed, bias));
  }

  // Of int8 weights packed and (out, in), with the scales of the outputs and the step size and zero point of the inputs.
  void add_int8(const IValue& packed, const Tensor& weight, const Tensor& scales, const Tensor& bias, double step,
                int64_t zero) {
#ifdef __AVX512VNNI__
    if (weight.numel() < kSmall) {
      maps_.push_back(std::make_unique<SmallInt8Map>(weight, scales, bias, step, zero));
      return;
    }
#endif
    maps_.push_back(std::make_unique<Int8Map>(packed, bias, step, zero));
  }

  // See StepLayers.forward.
  Tensor step(const Tensor& inputs, const Tensor& slots, int64_t end, const std::optional<Tensor>& bias,
              std::vector<Tensor> kvs, const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
              const std::optional<Tensor>& source_bias) const {
    const int64_t rows = inputs.size(0), count = inputs.size(1), width = inputs.size(2);
    Tensor x = inputs.reshape({rows * count, width}).clone();
    for (size_t layer = 0; layer < kvs.size(); layer++) {
      const int64_t block = 3 * layer;
      const Tensor qkv = product(before(x, block), 2 * block, false);
      write(qkv, kvs[layer], slots, end, count);
      const Tensor kv = kvs[layer].narrow(3, 0, end);
      added(x, block, attend(qkv, rows, kv.select(2, 0), kv.select(2, 1), bias, false));
      over_source(x, block + 1, ks[layer], vs[layer], source_bias, false);
      feed_forward(x, block + 2);
    }
    return x.view({rows, count, width});
  }

  // See ParallelLayers.forward.
  Tensor parallel(const Tensor& inputs, const std::optional<Tensor>& bias, const std::optional<Tensor>& future,
                  const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
                  const std::optional<Tensor>& source_bias) const {
    const int64_t rows = inputs.size(0), count = inputs.size(1), width = inputs.size(2);
    Tensor x = inputs.reshape({rows * count, width}).clone();
    for (size_t block = 0, layer = 0; block < norm_weights_.size(); layer++) {
      over_all(x, block++, rows, bias);
      if (future.has_value()) over_all(x, block++, rows, future);
      if (!ks.empty()) over_source(x, block++, ks[layer], vs[layer], source_bias, true);
      feed_forward(x, block++);
    }
    return x.view({rows, count, width});
  }

 private:
  std::vector<std::unique_ptr<const Map>> maps_;
  std::vector<Tensor> norm_weights_, norm_biases_;
  double eps_;
  int64_t heads_;
  bool norm_first_;

  Tensor product(const Tensor& x, int64_t index, bool relu) const { return maps_[index]->product(x, relu); }

  void normalized(const Tensor& x, Tensor& out, int64_t norm) const {
    const int64_t width = x.size(1);
    const float* from = x.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    const float *weight = norm_weights_[norm].const_data_ptr<float>(), *bias = norm_biases_[norm].const_data_ptr<float>();
    at::parallel_for(0, x.size(0), rows_for_a_thread(4 * width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) normalize(from + r * width, to + r * width, width, weight, bias, eps_);
    });
  }

  Tensor before(const Tensor& x, int64_t norm) const {
    if (!norm_first_) return x;
    Tensor out = at::empty(x.sizes(), x.options());
    normalized(x, out, norm);
    return out;
  }

  // A block's second map of what it has made, added to its inputs.
  void added(Tensor& x, int64_t block, const Tensor& inner) const {
    const Tensor more = product(inner, 2 * block + 1, false);
    const float* from = more.const_data_ptr<float>();
    float* to = x.mutable_data_ptr<float>();
    const int64_t size = x.numel();
#pragma omp simd
    for (int64_t i = 0; i < size; i++) to[i] += from[i];
    if (!norm_first_) normalized(x, x, block);
  }

  void feed_forward(Tensor& x, int64_t block) const {
    added(x, block, product(before(x, block), 2 * block, true));
  }

  void over_source(Tensor& x, int64_t block, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                   bool many) const {
    added(x, block, attend(product(before(x, block), 2 * block, false), k.size(0), k, v, bias, many));
  }

  // Self-attention of inputs (b n, C), `rows` = b.
  void over_all(Tensor& x, int64_t block, int64_t rows, const std::optional<Tensor>& bias) const {
    const Tensor qkv = product(before(x, block), 2 * block, false);
    const Tensor parts = qkv.view({rows, x.size(0) / rows, 3, heads_, -1});
    added(x, block, attend(qkv, rows, parts.select(2, 1).transpose(1, 2), parts.select(2, 2).transpose(1, 2), bias,
                           true));
  }

  // Keys and values of new words, (R n, 3 C), into a buffer (R, H, 2, slots, d_h).
  void write(const Tensor& qkv, Tensor& buffer, const Tensor& slots, int64_t end, int64_t count) const {
    const int64_t width = qkv.size(1) / 3, head = width / heads_;
    const float* from = qkv.const_data_ptr<float>();
    float* to = buffer.mutable_data_ptr<float>();
    const int64_t* own = slots.dim() == 2 ? slots.const_data_ptr<int64_t>() : nullptr;
    TORCH_CHECK(buffer.stride(4) == 1 && slots.is_contiguous(), "a buffer of another layout");
    for (int64_t word = 0; word < qkv.size(0); word++) {
      const int64_t row = word / count, slot = own == nullptr ? end - count + word % count : own[word];
      for (int64_t h = 0; h < heads_; h++)
        for (int64_t part = 0; part < 2; part++)
          std::memcpy(to + row * buffer.stride(0) + h * buffer.stride(1) + part * buffer.stride(2) + slot * buffer.stride(3),
                      from + word * 3 * width + (1 + part) * width + h * head, head * sizeof(float));
    }
  }

  // Attention of queries (b n, C), or of the first third of (b n, 3 C), to keys and values (b, H, m, d_h): (b n, C).
  Tensor attend(const Tensor& queries, int64_t rows, const Tensor& keys, const Tensor& values,
                const std::optional<Tensor>& mask, bool many) const {
    const Table k(keys), v(values);
    const int64_t width = keys.size(3), channels = heads_ * width, step = queries.size(1), count = queries.size(0) / rows;
    const Bias bias(mask, count);
    Tensor read = at::empty({queries.size(0), channels}, queries.options());
    const float* from = queries.const_data_ptr<float>();
    float* to = read.mutable_data_ptr<float>();
    const int64_t work = 4 * count * keys.size(2) * width;
    at::parallel_for(0, rows * heads_, rows_for_a_thread(work), [&](int64_t begin, int64_t end) {
      for (int64_t each = begin; each < end; each++) {
        const int64_t row = each / heads_, h = each % heads_;
        const Head head{from + row * count * step + h * width, k.at(row, h), v.at(row, h),
                        to + row * count * channels + h * width, count, keys.size(2), width, step, k.position, v.position,
                        channels};
        many ? head.attend_many(bias, row) : head.attend_few(bias, row);
      }
    });
    return read;
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(amlp_fairseq, library) {
  library.class_<SoftmaxLayers>("SoftmaxLayers")
      .def(torch::init<std::vector<Tensor>, std::vector<Tensor>, double, int64_t, bool>())
      .def("add_float", &SoftmaxLayers::add_float)
      .def("add_int8", &SoftmaxLayers::add_int8)
      .def("step", &SoftmaxLayers::step)
      .def("parallel", &SoftmaxLayers::parallel);
}
