// Attentions of linear cost, one sentence and head at a time: decoding/compiled_attentions.py. Notation: docs/glossary.md.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "softmax_attention.h"

namespace {

// Numbers (rows, width), whose rows begin at multiples of `step`; each row has room for whole vectors.
struct Matrix {
  int64_t rows, width, step = whole_vectors(width);
  std::vector<float> numbers = std::vector<float>(rows * step, 0);

  float* row(int64_t i) { return numbers.data() + i * step; }
  const float* row(int64_t i) const { return numbers.data() + i * step; }
};

// Rows of `from`, `step` apart, without those that are padding.
Matrix gathered(const float* from, int64_t rows, int64_t width, int64_t step, const Bias& bias, int64_t sentence) {
  Matrix result{rows, width};
  result.rows = 0;
  for (int64_t i = 0; i < rows; i++) {
    const float* own = bias.of(sentence, 0);
    if (own == nullptr || own[i] == 0) std::copy_n(from + i * step, width, result.row(result.rows++));
  }
  return result;
}

// A head's rows of a table, without those that are padding.
Matrix words_of(const Table& table, int64_t s, int64_t h, int64_t width, const Bias& bias) {
  return gathered(table.at(s, h), table.positions, width, table.position, bias, s);
}

// Of a table (H, …, …) the heads' matrices.
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
  for (float& each : x.numbers) each *= factor;
  return x;
}

Matrix product(const Matrix& x, const Matrix& y) {
  Matrix result{x.rows, y.width};
  const Blocks blocks(y.width);
  for (int64_t block = 0; block < blocks.count; block++) {
    const int64_t begin = blocks.first(block) * kLanes;
    over_tiles(x.rows, blocks.size(block), [&]<int Rows, int Count>(int64_t row) {
      multiply_tile<Rows, Count>(x.row(row), x.step, x.width, y.row(0) + begin, y.step, nullptr, result.row(row) + begin,
                                 result.step, y.width - begin, false);
    });
  }
  return result;
}

// softmax(q kᵀ) v, (q.rows, v.width).
Matrix attended(const Matrix& q, const Matrix& k, const Matrix& v) {
  Matrix scores = product(q, transposed(k));
  for (int64_t i = 0; i < q.rows; i++) softmax(scores.row(i), nullptr, k.rows);
  return product(scores, v);
}

// What a head keeps of keys and values, and then the keys and values (c, d_h) that its queries attend to.
struct Memory {
  Matrix k, v;
};

class LinearAttention : public torch::CustomClassHolder {
 public:
  // See make_memory of the attention in Python; of keys and values without padding.
  virtual Memory make_memory(int64_t head, Memory words) const = 0;
  // The keys and values that queries attend to, given these queries without padding.
  virtual Memory slots(int64_t head, const Matrix& q, Memory memory) const = 0;
  // What follows on a head's outputs.
  virtual void finish(float*, int64_t) const {}

  // What cross_attention takes, of keys and values (b, H, S, d_h) with the bias of padding: `k`, `v`, and a bias if they need one.
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
      for (int64_t each = begin; each < end; each++) {
        const Memory memory = memory_of(each / heads, each % heads);
        for (int64_t i = 0; i < rows; i++) {
          std::copy_n(memory.k.row(i), width, result[0].mutable_data_ptr<float>() + each * size + i * width);
          std::copy_n(memory.v.row(i), width, result[1].mutable_data_ptr<float>() + each * size + i * width);
        }
      }
    });
    return result;
  }

  // Self-attention of queries, keys and values, with the bias of padding, to (b n, C).
  virtual void self_attention(const Table& q, const Table& k, const Table& v, int64_t sentences, int64_t heads, int64_t width,
                const Bias& bias, std::vector<float>& out) const {
    over_heads(q, sentences, heads, width, bias, out, [&](int64_t s, int64_t h) {
      return make_memory(h, {words_of(k, s, h, width, bias), words_of(v, s, h, width, bias)});
    });
  }

  // Cross-attention of queries, with the bias of their padding, to the memory of a source, to (b n, C).
  void cross_attention(const Table& q, const Table& k, const Table& v, const Bias& source_bias, int64_t sentences, int64_t heads,
                   int64_t width, const Bias& bias, std::vector<float>& out) const {
    over_heads(q, sentences, heads, width, bias, out, [&](int64_t s, int64_t h) {
      return Memory{words_of(k, s, h, width, source_bias), words_of(v, s, h, width, source_bias)};
    });
  }

 private:
  template <typename MemoryOf>
  void over_heads(const Table& q, int64_t sentences, int64_t heads, int64_t width, const Bias& bias, std::vector<float>& out,
                  const MemoryOf& memory_of) const {
    const int64_t n = q.positions, channels = heads * width;
    out.resize(sentences * n * channels);
    at::parallel_for(0, sentences * heads, rows_for_a_thread(4 * n * width * width), [&](int64_t begin, int64_t end) {
      for (int64_t each = begin; each < end; each++) {
        const int64_t s = each / heads, h = each % heads;
        const Memory read = slots(h, words_of(q, s, h, width, bias), memory_of(s, h));
        float* to = out.data() + s * n * channels + h * width;
        const Head head{q.at(s, h), read.k.row(0), read.v.row(0), to, n, read.k.rows, width, q.position, read.k.step,
                        read.v.step, channels};
        head.attend_large_query(Bias(std::nullopt, 1), 0);
        for (int64_t word = 0; word < n; word++) finish(to + word * channels, width);
      }
    });
  }
};

// See attention/abc.py.
class BoundedMemory : public LinearAttention {
 public:
  // W_φ of keys and of values, (c, d_h), and 1/√d_h.
  BoundedMemory(const Tensor& of_k, const Tensor& of_v, double scaling)
      : of_k_(heads_of(of_k.unsqueeze(0)).front()), of_v_(heads_of(of_v.unsqueeze(0)).front()), scaling_(scaling) {}

  Memory make_memory(int64_t, Memory words) const override {
    return {attended(of_k_, words.k, words.k), attended(of_v_, words.v, words.v)};
  }
  Memory slots(int64_t, const Matrix&, Memory memory) const override {
    return {scaled(std::move(memory.k), scaling_), std::move(memory.v)};
  }

 protected:
  const Matrix of_k_, of_v_;
  const float scaling_;
};

// Its causal form, of one word a step: it has the sums of _block up to each position.
class CausalBoundedMemory : public BoundedMemory {
 public:
  using BoundedMemory::BoundedMemory;

  void self_attention(const Table& q, const Table& k, const Table& v, int64_t sentences, int64_t heads, int64_t width,
                const Bias& bias, std::vector<float>& out) const override {
    const int64_t n = q.positions, channels = heads * width;
    out.resize(sentences * n * channels);
    at::parallel_for(0, sentences * heads, rows_for_a_thread(6 * n * of_k_.rows * width), [&](int64_t begin, int64_t end) {
      for (int64_t each = begin; each < end; each++) {
        const int64_t s = each / heads, h = each % heads;
        Sums keys(of_k_, k, s, h, width), values(of_v_, v, s, h, width);
        const float *hidden = bias.of(s, 0), *query = q.at(s, h);
        float* to = out.data() + s * n * channels + h * width;
        for (int64_t i = 0; i < n; i++, query += q.position, to += channels) {
          if (hidden == nullptr || hidden[i] == 0)
            for (Sums* sums : {&keys, &values}) sums->add(i);
          read(keys, values, query, width, to);
        }
      }
    });
  }

 private:
  // The control of a head's words, φ (n, c), and Σ φ_i ⊗ x_i (c, d_h) and Σ φ_i (c) of those that have been added.
  struct Sums {
    const float* words;
    int64_t step;
    Matrix control, of_words;
    std::vector<float> norms;

    Sums(const Matrix& map, const Table& table, int64_t s, int64_t h, int64_t width)
        : words(table.at(s, h)), step(table.position),
          control(product(words_of(table, s, h, width, Bias(std::nullopt, 1)), transposed(map))), of_words{map.rows, width},
          norms(map.rows, 0) {
      for (float& each : control.numbers) each = std::exp(std::clamp(each, -20.0f, 20.0f));
    }

    void add(int64_t i) {
      const float* word = words + i * step;
      for (int64_t c = 0; c < of_words.rows; c++) {
        const float factor = control.row(i)[c];
        float* sum = of_words.row(c);
        norms[c] += factor;
#pragma omp simd
        for (int64_t d = 0; d < of_words.width; d++) sum[d] += factor * word[d];
      }
    }
  };

  void read(const Sums& keys, const Sums& values, const float* query, int64_t width, float* to) const {
    Matrix weights{1, keys.of_words.rows};
    for (int64_t c = 0; c < weights.width; c++) {
      float score = 0;
      const float* key = keys.of_words.row(c);
#pragma omp simd reduction(+ : score)
      for (int64_t d = 0; d < width; d++) score += query[d] * key[d];
      weights.row(0)[c] = scaling_ * score / std::max(keys.norms[c], 1e-12f);
    }
    softmax(weights.row(0), nullptr, weights.width);
    std::fill_n(to, width, 0.0f);
    for (int64_t c = 0; c < weights.width; c++) {
      const float weight = weights.row(0)[c] / std::max(values.norms[c], 1e-12f), *value = values.of_words.row(c);
#pragma omp simd
      for (int64_t d = 0; d < width; d++) to[d] += weight * value[d];
    }
  }
};

// See AMLP of attention/amlp.py, with softmax as σ₁.
class AMLP : public LinearAttention {
 public:
  // C_q and C_k (H, c, d_h), what scales Lᵀ, and the norm's weights, if there is one.
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

  // See ready_weights.
  Memory ready(Matrix l_t, Matrix w) const {
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

// See AMLPCov.
class AMLPCov : public AMLP {
 public:
  // The temperatures (3, H), whether channels are normalised, and --amlp-published-contraction.
  AMLPCov(const Tensor& c_q, const Tensor& c_k, double scaling, std::optional<Tensor> weight, std::optional<Tensor> bias,
          double eps, Tensor temperatures, bool normalized, bool published)
      : AMLP(c_q, c_k, scaling, std::move(weight), std::move(bias), eps),
        temperatures_(std::move(temperatures)), normalized_(normalized), published_(published) {}

  Memory make_memory(int64_t head, Memory words) const override {
    return {covariance(1, head, words.k, words.k), covariance(2, head, words.k, words.v)};
  }

  Memory slots(int64_t head, const Matrix& q, Memory memory) const override {
    Matrix l_t = product(c_q_[head], covariance(0, head, q, q));
    const Matrix of_k = product(c_k_[head], memory.k);
    for (size_t i = 0; i < l_t.numbers.size(); i++) {
      l_t.numbers[i] += of_k.numbers[i];
      if (published_) l_t.numbers[i] = std::max(l_t.numbers[i], 0.0f);
    }
    Matrix w = product(l_t, published_ ? transposed(memory.v) : memory.v);
    return ready(std::move(l_t), std::move(w));
  }

 private:
  const Tensor temperatures_;
  const bool normalized_, published_;

  // See cross_covariance.
  Matrix covariance(int64_t number, int64_t head, const Matrix& x, const Matrix& y) const {
    Matrix result = product(transposed(x), y);
    const float temperature = temperatures_.const_data_ptr<float>()[number * temperatures_.size(1) + head];
    const std::vector<float> of_x = norms(x), of_y = norms(y);
    for (int64_t d = 0; d < result.rows; d++) {
      float* scores = result.row(d);
      for (int64_t e = 0; e < result.width; e++) scores[e] *= temperature / (of_x[d] * of_y[e]);
      softmax(scores, nullptr, result.width);
    }
    return result;
  }

  // Of the channels, or 1 if they are not normalised.
  std::vector<float> norms(const Matrix& x) const {
    std::vector<float> result(x.width, normalized_ ? 0.0f : 1.0f);
    if (!normalized_) return result;
    for (int64_t i = 0; i < x.rows; i++)
      for (int64_t c = 0; c < x.width; c++) result[c] += x.row(i)[c] * x.row(i)[c];
    for (float& each : result) each = std::max(std::sqrt(each), 1e-12f);
    return result;
  }
};

// See AMLPPQuery.
class AMLPPQuery : public AMLP {
 public:
  // W_o and b as a map, β, whether averages are corrected, and what scales the pools' queries.
  AMLPPQuery(const Tensor& c_q, const Tensor& c_k, double scaling, std::optional<Tensor> weight, std::optional<Tensor> bias,
             double eps, Map fuse, double beta, bool corrected, double pool_scaling)
      : AMLP(c_q, c_k, scaling, std::move(weight), std::move(bias), eps), fuse_(std::move(fuse)),
        beta_(beta), corrected_(corrected), pool_scaling_(pool_scaling) {}

  Memory make_memory(int64_t, Memory words) const override { return words; }
  std::vector<Tensor> source_memory(const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask) const override {
    return mask.has_value() ? std::vector<Tensor>{k, v, *mask} : std::vector<Tensor>{k, v};
  }

  Memory slots(int64_t head, const Matrix& q, Memory memory) const override {
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
    return ready(std::move(l_t), std::move(w));
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
    const float beta = beta_, rest = 1 - beta_;
    for (int64_t i = 0; i < q.rows; i++) {
      const float* before = i == 0 ? nullptr : result.row(i - 1);
      for (int64_t c = 0; c < q.width; c++)
        result.row(i)[c] = rest * q.row(i)[c] + (before == nullptr ? 0 : beta * before[c]);
    }
    if (!corrected_) return result;
    for (int64_t i = 0; i < q.rows; i++) {
      const float divisor = 1 - std::pow(beta_, i + 1);
      for (int64_t c = 0; c < q.width; c++) result.row(i)[c] /= divisor;
    }
    return result;
  }
};

c10::intrusive_ptr<LinearAttention> bounded_memory(const Tensor& of_k, const Tensor& of_v, double scaling, bool causal) {
  if (causal) return c10::make_intrusive<CausalBoundedMemory>(of_k, of_v, scaling);
  return c10::make_intrusive<BoundedMemory>(of_k, of_v, scaling);
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
