// Attentions of linear cost, one sentence and head at a time: decoding/compiled_attentions.py. Notation: docs/glossary.md.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "softmax_attention.h"

namespace {

// Matrix (rows, width), with rows padded to whole vectors.
struct Matrix {
  int64_t rows, width, stride = whole_vectors(width);
  std::vector<float> numbers = std::vector<float>(rows * stride, 0);

  float* row(int64_t i) { return numbers.data() + i * stride; }
  const float* row(int64_t i) const { return numbers.data() + i * stride; }
};

// Returns the rows that are not padding.
//
// @param from: matrix (rows, width), with rows `stride` apart.
// @param bias: 0 at words, -inf at padding.
// @param sentence: index of the sentence in the bias.
Matrix gathered(const float* from, int64_t rows, int64_t width, int64_t stride, const Bias& bias, int64_t sentence) {
  Matrix result{rows, width};
  result.rows = 0;
  for (int64_t i = 0; i < rows; i++) {
    const float* padding = bias.of(sentence, 0);
    if (padding == nullptr || padding[i] == 0) std::copy_n(from + i * stride, width, result.row(result.rows++));
  }
  return result;
}

// Returns one head of a table without padding, (words, d_h).
Matrix words_of(const Table& table, int64_t s, int64_t h, int64_t width, const Bias& bias) {
  return gathered(table.at(s, h), table.positions, width, table.position_stride, bias, s);
}

// Splits a tensor (H, …, …) into one matrix per head.
std::vector<Matrix> heads_of(const Tensor& table) {
  std::vector<Matrix> result;
  for (int64_t h = 0; h < table.size(0); h++)
    result.push_back(gathered(table.const_data_ptr<float>() + h * table.stride(0), table.size(1), table.size(2), table.stride(1),
                              Bias(std::nullopt, 1), 0));
  return result;
}

Matrix transposed(const Matrix& x) {
  Matrix result{x.width, x.rows};
  for (int64_t i = 0; i < x.rows; i++)
    for (int64_t j = 0; j < x.width; j++) result.row(j)[i] = x.row(i)[j];
  return result;
}

Matrix scaled(Matrix x, float factor) {
  for (float& number : x.numbers) number *= factor;
  return x;
}

Matrix product(const Matrix& x, const Matrix& y) {
  Matrix result{x.rows, y.width};
  const Blocks blocks(y.width);
  for (int64_t block = 0; block < blocks.count; block++) {
    const int64_t begin = blocks.first(block) * kLanes;
    over_tiles(x.rows, blocks.size(block), [&]<int Rows, int Count>(int64_t row) {
      multiply_tile<Rows, Count>(x.row(row), x.stride, x.width, y.row(0) + begin, y.stride, nullptr, result.row(row) + begin,
                                 result.stride, y.width - begin, false);
    });
  }
  return result;
}

// Returns softmax(q kᵀ) v, (q.rows, v.width).
Matrix attended(const Matrix& q, const Matrix& k, const Matrix& v) {
  Matrix scores = product(q, transposed(k));
  for (int64_t i = 0; i < q.rows; i++) softmax(scores.row(i), nullptr, k.rows);
  return product(scores, v);
}

// Memory of a head's keys and values, or the keys and values (c, d_h) computed from it, to which queries attend.
struct KVMemory {
  Matrix k, v;
};

// Attention of linear cost.
class LinearAttention : public torch::CustomClassHolder {
 public:
  // Memory of keys and values without padding; see make_memory in Python.
  //
  // @param head: index of the head.
  // @param words: keys and values (S, d_h).
  virtual KVMemory make_memory(int64_t head, KVMemory words) const = 0;
  // Keys and values (c, d_h) to which the queries attend.
  //
  // @param head: index of the head.
  // @param q: queries without padding, (n, d_h).
  // @param memory: result of make_memory.
  virtual KVMemory slots(int64_t head, const Matrix& q, KVMemory memory) const = 0;
  // Normalises a head's output of one query in place.
  virtual void finish(float*, int64_t) const {}

  // Memory of a source for cross_attention: k, v, and a bias if padding remains.
  //
  // @param k: keys (b, H, S, d_h).
  // @param v: values (b, H, S, d_h).
  // @param mask: bias of the padding.
  virtual std::vector<Tensor> source_memory(const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask) const {
    const int64_t sentences = k.size(0), heads = k.size(1), width = k.size(3);
    const Table keys = table_of(k), values = table_of(v);
    const Bias bias(mask, 1);
    const auto memory_of = [&](int64_t s, int64_t h) {
      return make_memory(h, {words_of(keys, s, h, width, bias), words_of(values, s, h, width, bias)});
    };
    const int64_t rows = sentences == 0 ? 0 : memory_of(0, 0).k.rows, size = rows * width;
    std::vector<Tensor> result;
    for (int i = 0; i < 2; i++) result.push_back(at::empty({sentences, heads, rows, width}, k.options()));
    at::parallel_for(0, sentences * heads, rows_for_a_thread(2 * keys.positions * size), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const KVMemory memory = memory_of(task / heads, task % heads);
        for (int64_t i = 0; i < rows; i++) {
          std::copy_n(memory.k.row(i), width, result[0].mutable_data_ptr<float>() + task * size + i * width);
          std::copy_n(memory.v.row(i), width, result[1].mutable_data_ptr<float>() + task * size + i * width);
        }
      }
    });
    return result;
  }

  // Self-attention; q, k and v are (b, H, n, d_h), `bias` is the bias of the padding, `out` is overwritten with (b n, C).
  virtual void self_attention(const Table& q, const Table& k, const Table& v, int64_t sentences, int64_t heads, int64_t width,
                const Bias& bias, std::vector<float>& out) const {
    over_heads(q, sentences, heads, width, bias, out, [&](int64_t s, int64_t h) {
      return make_memory(h, {words_of(k, s, h, width, bias), words_of(v, s, h, width, bias)});
    });
  }

  // Cross-attention.
  //
  // @param q: queries (b, H, n, d_h).
  // @param k: k of source_memory.
  // @param v: v of source_memory.
  // @param source_bias: bias of source_memory.
  // @param bias: bias of the queries' padding.
  // @param out: overwritten with (b n, C).
  void cross_attention(const Table& q, const Table& k, const Table& v, const Bias& source_bias, int64_t sentences, int64_t heads,
                   int64_t width, const Bias& bias, std::vector<float>& out) const {
    over_heads(q, sentences, heads, width, bias, out, [&](int64_t s, int64_t h) {
      return KVMemory{words_of(k, s, h, width, source_bias), words_of(v, s, h, width, source_bias)};
    });
  }

 private:
  template <typename MemoryOf>
  void over_heads(const Table& q, int64_t sentences, int64_t heads, int64_t width, const Bias& bias, std::vector<float>& out,
                  const MemoryOf& memory_of) const {
    const int64_t n = q.positions, channels = heads * width;
    out.resize(sentences * n * channels);
    at::parallel_for(0, sentences * heads, rows_for_a_thread(4 * n * width * width), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const int64_t s = task / heads, h = task % heads;
        const KVMemory attended = slots(h, words_of(q, s, h, width, bias), memory_of(s, h));
        float* to = out.data() + s * n * channels + h * width;
        const Head head{q.at(s, h), attended.k.row(0), attended.v.row(0), to, n, attended.k.rows, width, q.position_stride,
                        attended.k.stride, attended.v.stride, channels};
        head.attend_large_query(Bias(std::nullopt, 1), 0);
        for (int64_t word = 0; word < n; word++) finish(to + word * channels, width);
      }
    });
  }
};

// ABC, see attention/abc.py.
class BoundedMemory : public LinearAttention {
 public:
  // @param k_control: W_φ of the keys, (c, d_h).
  // @param v_control: W_φ of the values, (c, d_h).
  // @param scaling: 1/√d_h.
  BoundedMemory(const Tensor& k_control, const Tensor& v_control, double scaling)
      : k_control_(heads_of(k_control.unsqueeze(0)).front()), v_control_(heads_of(v_control.unsqueeze(0)).front()),
        scaling_(scaling) {}

  KVMemory make_memory(int64_t, KVMemory words) const override {
    return {attended(k_control_, words.k, words.k), attended(v_control_, words.v, words.v)};
  }
  KVMemory slots(int64_t, const Matrix&, KVMemory memory) const override {
    return {scaled(std::move(memory.k), scaling_), std::move(memory.v)};
  }

 protected:
  const Matrix k_control_, v_control_;
  const float scaling_;
};

// Causal ABC of one word per step, with the sums of ABCAttention._block up to each position.
class CausalBoundedMemory : public BoundedMemory {
 public:
  using BoundedMemory::BoundedMemory;

  void self_attention(const Table& q, const Table& k, const Table& v, int64_t sentences, int64_t heads, int64_t width,
                const Bias& bias, std::vector<float>& out) const override {
    const int64_t n = q.positions, channels = heads * width;
    out.resize(sentences * n * channels);
    at::parallel_for(0, sentences * heads, rows_for_a_thread(6 * n * k_control_.rows * width), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const int64_t s = task / heads, h = task % heads;
        Sums keys(k_control_, k, s, h, width), values(v_control_, v, s, h, width);
        const float *padding = bias.of(s, 0), *query = q.at(s, h);
        float* to = out.data() + s * n * channels + h * width;
        for (int64_t i = 0; i < n; i++, query += q.position_stride, to += channels) {
          if (padding == nullptr || padding[i] == 0)
            for (Sums* sums : {&keys, &values}) sums->add(i);
          attend(keys, values, query, width, to);
        }
      }
    });
  }

 private:
  // Control φ (n, c) of a head's keys or values x, and Σ φ_i ⊗ x_i (c, d_h) and Σ φ_i (c) over the words added so far.
  struct Sums {
    const float* words;
    int64_t stride;
    Matrix control, totals;
    std::vector<float> norms;

    Sums(const Matrix& map, const Table& table, int64_t s, int64_t h, int64_t width)
        : words(table.at(s, h)), stride(table.position_stride),
          control(product(words_of(table, s, h, width, Bias(std::nullopt, 1)), transposed(map))), totals{map.rows, width},
          norms(map.rows, 0) {
      for (float& number : control.numbers) number = std::exp(std::clamp(number, -20.0f, 20.0f));
    }

    void add(int64_t i) {
      const float* word = words + i * stride;
      for (int64_t c = 0; c < totals.rows; c++) {
        const float factor = control.row(i)[c];
        float* sum = totals.row(c);
        norms[c] += factor;
#pragma omp simd
        for (int64_t d = 0; d < totals.width; d++) sum[d] += factor * word[d];
      }
    }
  };

  // Output of one query from the sums.
  void attend(const Sums& keys, const Sums& values, const float* query, int64_t width, float* to) const {
    Matrix weights{1, keys.totals.rows};
    for (int64_t c = 0; c < weights.width; c++) {
      float score = 0;
      const float* key = keys.totals.row(c);
#pragma omp simd reduction(+ : score)
      for (int64_t d = 0; d < width; d++) score += query[d] * key[d];
      weights.row(0)[c] = scaling_ * score / std::max(keys.norms[c], 1e-12f);
    }
    softmax(weights.row(0), nullptr, weights.width);
    std::fill_n(to, width, 0.0f);
    for (int64_t c = 0; c < weights.width; c++) {
      const float weight = weights.row(0)[c] / std::max(values.norms[c], 1e-12f), *value = values.totals.row(c);
#pragma omp simd
      for (int64_t d = 0; d < width; d++) to[d] += weight * value[d];
    }
  }
};

// Base class of AMLP-Cov and AMLP-PQuery with softmax as σ₁, see AMLP in attention/amlp.py.
class AMLP : public LinearAttention {
 public:
  // @param c_q: C_q (H, c, d_h).
  // @param c_k: C_k (H, c, d_h).
  // @param scaling: factor of Lᵀ.
  // @param weight: weight of the output norm, optional.
  // @param bias: bias of the output norm, optional.
  // @param eps: epsilon of the output norm.
  AMLP(const Tensor& c_q, const Tensor& c_k, double scaling, std::optional<Tensor> weight, std::optional<Tensor> bias,
       double eps)
      : c_q_(heads_of(c_q)), c_k_(heads_of(c_k)), scaling_(scaling), weight_(std::move(weight)), bias_(std::move(bias)),
        eps_(eps) {}

  void finish(float* row, int64_t width) const override {
    if (weight_.has_value())
      normalize(row, row, width, weight_->const_data_ptr<float>(), bias_->const_data_ptr<float>(), eps_);
  }

 protected:
  const std::vector<Matrix> c_q_, c_k_;

  // See prepare_weights in Python.
  KVMemory prepare_weights(Matrix l_t, Matrix w) const {
    if (weight_.has_value())
      for (int64_t i = 0; i < w.rows; i++) {
        float sum = 0;
        for (int64_t c = 0; c < w.width; c++) sum += w.row(i)[c];
        for (int64_t c = 0; c < w.width; c++) w.row(i)[c] -= sum / w.width;
      }
    return {scaled(std::move(l_t), scaling_), std::move(w)};
  }

 private:
  const float scaling_;
  const std::optional<Tensor> weight_, bias_;
  const float eps_;
};

// AMLP-Cov, see AMLPCov in attention/amlp.py.
class AMLPCov : public AMLP {
 public:
  // Parameters in addition to AMLP's:
  //
  // @param temperatures: temperatures of the three covariances, (3, H).
  // @param normalized: normalise the channels.
  // @param published: --amlp-published-contraction.
  AMLPCov(const Tensor& c_q, const Tensor& c_k, double scaling, std::optional<Tensor> weight, std::optional<Tensor> bias,
          double eps, Tensor temperatures, bool normalized, bool published)
      : AMLP(c_q, c_k, scaling, std::move(weight), std::move(bias), eps),
        temperatures_(std::move(temperatures)), normalized_(normalized), published_(published) {}

  KVMemory make_memory(int64_t head, KVMemory words) const override {
    return {covariance(1, head, words.k, words.k), covariance(2, head, words.k, words.v)};
  }

  KVMemory slots(int64_t head, const Matrix& q, KVMemory memory) const override {
    Matrix l_t = product(c_q_[head], covariance(0, head, q, q));
    const Matrix l_k = product(c_k_[head], memory.k);
    for (size_t i = 0; i < l_t.numbers.size(); i++) {
      l_t.numbers[i] += l_k.numbers[i];
      if (published_) l_t.numbers[i] = std::max(l_t.numbers[i], 0.0f);
    }
    Matrix w = product(l_t, published_ ? transposed(memory.v) : memory.v);
    return prepare_weights(std::move(l_t), std::move(w));
  }

 private:
  const Tensor temperatures_;
  const bool normalized_, published_;

  // Covariance of x and y, see cross_covariance; `index` is the index of its temperatures.
  Matrix covariance(int64_t index, int64_t head, const Matrix& x, const Matrix& y) const {
    Matrix result = product(transposed(x), y);
    const float temperature = temperatures_.const_data_ptr<float>()[index * temperatures_.size(1) + head];
    const std::vector<float> x_norms = norms(x), y_norms = norms(y);
    for (int64_t d = 0; d < result.rows; d++) {
      float* scores = result.row(d);
      for (int64_t e = 0; e < result.width; e++) scores[e] *= temperature / (x_norms[d] * y_norms[e]);
      softmax(scores, nullptr, result.width);
    }
    return result;
  }

  // Norms of the channels, or 1 if the channels are not normalised.
  std::vector<float> norms(const Matrix& x) const {
    std::vector<float> result(x.width, normalized_ ? 0.0f : 1.0f);
    if (!normalized_) return result;
    for (int64_t i = 0; i < x.rows; i++)
      for (int64_t c = 0; c < x.width; c++) result[c] += x.row(i)[c] * x.row(i)[c];
    for (float& norm : result) norm = std::max(std::sqrt(norm), 1e-12f);
    return result;
  }
};

// AMLP-PQuery, see AMLPPQuery in attention/amlp.py.
class AMLPPQuery : public AMLP {
 public:
  // Parameters in addition to AMLP's:
  //
  // @param fuse: map with W_o and b.
  // @param beta: β.
  // @param corrected: --amlp-ema-bias-correction.
  // @param pool_scaling: factor of the arguments of the softmaxes over positions.
  AMLPPQuery(const Tensor& c_q, const Tensor& c_k, double scaling, std::optional<Tensor> weight, std::optional<Tensor> bias,
             double eps, Map fuse, double beta, bool corrected, double pool_scaling)
      : AMLP(c_q, c_k, scaling, std::move(weight), std::move(bias), eps), fuse_(std::move(fuse)),
        beta_(beta), corrected_(corrected), pool_scaling_(pool_scaling) {}

  KVMemory make_memory(int64_t, KVMemory words) const override { return words; }
  std::vector<Tensor> source_memory(const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask) const override {
    return mask.has_value() ? std::vector<Tensor>{k, v, *mask} : std::vector<Tensor>{k, v};
  }

  KVMemory slots(int64_t head, const Matrix& q, KVMemory memory) const override {
    const Matrix averages = moving_average(q);
    const Matrix from_q = pool(c_q_[head], averages, averages), from_k = pool(c_k_[head], memory.k, memory.k);
    const int64_t c = from_q.rows, width = from_q.width;
    std::vector<float> both(2 * c * width), fused;
    for (int64_t i = 0; i < c; i++) {
      std::copy_n(from_q.row(i), width, &both[2 * i * width]);
      std::copy_n(from_k.row(i), width, &both[(2 * i + 1) * width]);
    }
    fuse_->product_into(fused, both.data(), c, false);
    Matrix l_t = gathered(fused.data(), c, width, width, Bias(std::nullopt, 1), 0);
    Matrix w = pool(l_t, memory.k, memory.v);
    return prepare_weights(std::move(l_t), std::move(w));
  }

 private:
  const Map fuse_;
  const double beta_;
  const bool corrected_;
  const float pool_scaling_;

  Matrix pool(const Matrix& queries, const Matrix& k, const Matrix& v) const {
    return attended(scaled(queries, pool_scaling_), k, v);
  }

  Matrix moving_average(const Matrix& q) const {
    Matrix result{q.rows, q.width};
    const float beta = beta_, weight = 1 - beta_;
    for (int64_t i = 0; i < q.rows; i++) {
      const float* previous = i == 0 ? nullptr : result.row(i - 1);
      for (int64_t c = 0; c < q.width; c++)
        result.row(i)[c] = weight * q.row(i)[c] + (previous == nullptr ? 0 : beta * previous[c]);
    }
    if (!corrected_) return result;
    for (int64_t i = 0; i < q.rows; i++) {
      const float divisor = 1 - std::pow(beta_, i + 1);
      for (int64_t c = 0; c < q.width; c++) result.row(i)[c] /= divisor;
    }
    return result;
  }
};

c10::intrusive_ptr<LinearAttention> bounded_memory(const Tensor& k_control, const Tensor& v_control, double scaling,
                                                   bool causal) {
  if (causal) return c10::make_intrusive<CausalBoundedMemory>(k_control, v_control, scaling);
  return c10::make_intrusive<BoundedMemory>(k_control, v_control, scaling);
}

c10::intrusive_ptr<LinearAttention> amlp_cov(const Tensor& c_q, const Tensor& c_k, double scaling,
                                             std::optional<Tensor> weight, std::optional<Tensor> bias, double eps,
                                             Tensor temperatures, bool normalized, bool published) {
  return c10::make_intrusive<AMLPCov>(c_q, c_k, scaling, weight, bias, eps, temperatures, normalized, published);
}

c10::intrusive_ptr<LinearAttention> amlp_pquery(const Tensor& c_q, const Tensor& c_k, double scaling,
                                                std::optional<Tensor> weight, std::optional<Tensor> bias, double eps, Map fuse,
                                                double beta, bool corrected, double pool_scaling) {
  return c10::make_intrusive<AMLPPQuery>(c_q, c_k, scaling, weight, bias, eps, fuse, beta, corrected, pool_scaling);
}

}  // namespace
