// AMLP, the attentive multi-layer perceptron (Jiang et al. 2023), with softmax as its activation: attention/amlp.py.

#pragma once

#include <optional>

#include "heads.h"

namespace amlp {

// Equation 8: softmax attention to c rows of L and W, which queries, keys and values determine, and a norm of the outputs.
class AmlpHead : public HeadAttention {
 public:
  struct Weights {
    std::vector<float> c_q, c_k;  // C_q and C_k, (H, c, d_h)
    float scale;                  // of the argument of σ₁
    std::optional<Norm> norm;     // of a head's outputs
  };

  // width: d_h.
  AmlpHead(int64_t width, int64_t inner, Weights weights) : width_(width), inner_(inner), weights_(std::move(weights)) {}

  void attend(int64_t h, const HeadRows& q, const State& memory, float* out, int64_t stride) const override {
    std::vector<float> l, w;
    adaptive_weights(h, q, memory, l, w);
    for (int64_t i = 0; i < inner_ && weights_.norm; i++) {  // the norm does the same, after rounding
      float mean = 0;
      for (int64_t c = 0; c < width_; c++) mean += w[i * width_ + c];
      mean /= width_;
      for (int64_t c = 0; c < width_; c++) w[i * width_ + c] -= mean;
    }
    for (float& number : l) number *= weights_.scale;
    Slots(rows_of(l), rows_of(w), width_).attend(q, out, stride);
    for (int64_t i = 0; i < q.rows && weights_.norm; i++) {
      const Norm& norm = *weights_.norm;
      normalize(out + i * stride, out + i * stride, width_, norm.weight.data(), norm.bias.data(), norm.eps);
    }
  }

 protected:
  int64_t width_, inner_;
  Weights weights_;

  // Lᵀ and W, (c, d_h).
  virtual void adaptive_weights(int64_t h, const HeadRows& q, const State& memory, std::vector<float>& l,
                                std::vector<float>& w) const = 0;

  HeadRows c_q(int64_t h) const { return {&weights_.c_q[h * inner_ * width_], inner_, width_}; }
  HeadRows c_k(int64_t h) const { return {&weights_.c_k[h * inner_ * width_], inner_, width_}; }
  HeadRows rows_of(const std::vector<float>& x) const { return {x.data(), static_cast<int64_t>(x.size()) / width_, width_}; }
};

// AMLP-Cov, Eq. 9 and 10.
class AmlpCovHead : public AmlpHead {
 public:
  // temperatures: of the covariances, (3, H).
  // normalized: channels have a norm of 1.
  // published: --amlp-published-contraction.
  AmlpCovHead(int64_t width, int64_t inner, Weights weights, std::vector<float> temperatures, bool normalized, bool published)
      : AmlpHead(width, inner, std::move(weights)), temperatures_(std::move(temperatures)), normalized_(normalized),
        published_(published) {}

  std::unique_ptr<State> memory(int64_t h, const HeadRows& k, const HeadRows& v) const override {
    auto result = std::make_unique<Memory>();
    result->l = times(c_k(h), panels_of(covariance(1, h, k, k), false));
    result->cov_kv = panels_of(covariance(2, h, k, v), published_);
    return result;
  }

 protected:
  void adaptive_weights(int64_t h, const HeadRows& q, const State& memory, std::vector<float>& l,
                        std::vector<float>& w) const override {
    const Memory& source = static_cast<const Memory&>(memory);
    l = times(c_q(h), panels_of(covariance(0, h, q, q), false));
    for (size_t i = 0; i < l.size(); i++) {
      l[i] += source.l[i];
      if (published_) l[i] = std::max(l[i], 0.0f);
    }
    w = times(rows_of(l), source.cov_kv);
  }

 private:
  struct Memory : State {
    std::vector<float> l;
    Floats cov_kv;  // C_k softmax(KᵀK), (c, d_h), and softmax(KᵀV) in panels
  };

  std::vector<float> temperatures_;
  bool normalized_, published_;

  Floats panels_of(const std::vector<float>& square, bool transposed) const {
    const int64_t stride = whole_vectors(width_);
    return make_panels(square.data(), width_, width_, transposed ? 1 : stride, transposed ? stride : 1);
  }

  // x (c, d_h) times a square.
  std::vector<float> times(const HeadRows& x, const Floats& panels) const {
    std::vector<float> result(inner_ * width_);
    multiply(x.data, x.stride, inner_, width_, panels.data(), nullptr, result.data(), width_, width_, false, 0, Blocks(width_).count);
    return result;
  }

  // softmax(XᵀY) (d_h, d_h), with rows of whole vectors.
  std::vector<float> covariance(int64_t index, int64_t h, const HeadRows& x, const HeadRows& y) const {
    const int64_t n = x.rows, stride = whole_vectors(width_);
    std::vector<float> transposed(width_ * n), result(width_ * stride);
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < width_; c++) transposed[c * n + i] = x.row(i)[c];
    multiply(transposed.data(), n, width_, n, make_panels(y.data, n, width_, y.stride, 1).data(), nullptr,
             result.data(), stride, width_, false, 0, Blocks(width_).count);
    const std::vector<float> x_norms = norms(x), y_norms = norms(y);
    const float temperature = temperatures_[index * (temperatures_.size() / 3) + h];
    for (int64_t d = 0; d < width_; d++) {
      float* const scores = &result[d * stride];
      for (int64_t e = 0; e < width_; e++) scores[e] *= temperature / (x_norms[d] * y_norms[e]);
      softmax(scores, width_);
    }
    return result;
  }

  // Of the channels.
  std::vector<float> norms(const HeadRows& x) const {
    std::vector<float> result(width_, normalized_ ? 0.0f : 1.0f);
    if (!normalized_) return result;
    for (int64_t i = 0; i < x.rows; i++)
      for (int64_t c = 0; c < width_; c++) result[c] += x.row(i)[c] * x.row(i)[c];
    for (float& norm : result) norm = std::max(std::sqrt(norm), 1e-12f);
    return result;
  }
};

// AMLP-PQuery, Eq. 11 and 12.
class AmlpPQueryHead : public AmlpHead {
 public:
  struct Options {
    float pool_scale;  // of the arguments of the softmaxes over positions
    double beta;       // β of the moving average
    bool corrected;    // --amlp-ema-bias-correction
  };

  // fuse: W_o and b.
  AmlpPQueryHead(int64_t width, int64_t inner, Weights weights, std::unique_ptr<Linear> fuse, const Options& options)
      : AmlpHead(width, inner, std::move(weights)), fuse_(std::move(fuse)), options_(options) {
    for (std::vector<float>* shared : {&weights_.c_q, &weights_.c_k})
      for (float& number : *shared) number *= options.pool_scale;
  }

  std::unique_ptr<State> memory(int64_t h, const HeadRows& k, const HeadRows& v) const override {
    return std::make_unique<Memory>(pooled(c_k(h), Slots(k, k, width_)), Slots(k, v, width_));
  }

 protected:
  void adaptive_weights(int64_t h, const HeadRows& q, const State& memory, std::vector<float>& l,
                        std::vector<float>& w) const override {
    const Memory& source = static_cast<const Memory&>(memory);
    const std::vector<float> averages = moving_average(q);
    const std::vector<float> from_q = pooled(c_q(h), Slots(rows_of(averages), rows_of(averages), width_));
    std::vector<float> both(2 * from_q.size());
    for (int64_t i = 0; i < inner_; i++) {
      std::copy_n(&from_q[i * width_], width_, &both[2 * i * width_]);
      std::copy_n(&source.from_k[i * width_], width_, &both[(2 * i + 1) * width_]);
    }
    ThreadPool alone(1);
    fuse_->product(alone, both.data(), inner_, l);
    std::vector<float> queries = l;
    for (float& number : queries) number *= options_.pool_scale;
    w = pooled(rows_of(queries), source.kv);
  }

 private:
  struct Memory : State {
    std::vector<float> from_k;  // softmax(C_k Kᵀ) K, (c, d_h)
    Slots kv;

    Memory(std::vector<float> from_k, Slots kv) : from_k(std::move(from_k)), kv(std::move(kv)) {}
  };

  std::unique_ptr<Linear> fuse_;
  Options options_;

  // Attention of c queries.
  std::vector<float> pooled(const HeadRows& queries, const Slots& slots) const {
    std::vector<float> result(inner_ * width_);
    slots.attend(queries, result.data(), width_);
    return result;
  }

  std::vector<float> moving_average(const HeadRows& q) const {
    std::vector<float> result(q.rows * width_);
    const float beta = options_.beta, weight = 1 - options_.beta;
    for (int64_t i = 0; i < q.rows; i++) {
      float* const to = &result[i * width_];
      for (int64_t c = 0; c < width_; c++) to[c] = weight * q.row(i)[c] + (i == 0 ? 0 : beta * to[c - width_]);
    }
    for (int64_t i = 0; i < q.rows && options_.corrected; i++) {
      const float divisor = 1 - std::pow(options_.beta, i + 1);
      for (int64_t c = 0; c < width_; c++) result[i * width_ + c] /= divisor;
    }
    return result;
  }
};

}  // namespace amlp
