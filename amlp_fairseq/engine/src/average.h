// Average attention (Zhang, Xiong and Su 2018): attention/average.py.

#pragma once

#include "layers.h"

namespace amlp {

class AverageAttention : public SelfAttention {
 public:
  // width: C.
  // words: z, words of a step.
  // inner, outer: the feed-forward network, or none.
  // gates: (2 C, 2 C), or none.
  AverageAttention(int64_t width, int64_t words, std::unique_ptr<Linear> inner, std::unique_ptr<Linear> outer,
                   std::unique_ptr<Linear> gates)
      : width_(width), words_(words), inner_(std::move(inner)), outer_(std::move(outer)), gates_(std::move(gates)) {}

  void full(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    rows.attended.resize(rows.count * width_);
    for (size_t s = 0; s + 1 < starts.size(); s++) {
      float* const means = rows.attended.data() + starts[s] * width_;
      const int64_t n = starts[s + 1] - starts[s];
      std::fill_n(means, width_, 0.0f);
      for (int64_t i = 0; i < n; i++) add(y + (starts[s] + i) * width_, means);
      divide(means, n, n);
    }
    finish(pool, y, rows);
  }

  std::unique_ptr<State> begin() const override { return std::make_unique<Sums>(); }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    Sums& sums = static_cast<Sums&>(state);
    const int64_t count = step.paths.size();
    std::vector<float> next(count * width_, 0);
    rows.attended.resize(rows.count * width_);
    for (int64_t r = 0; r < count; r++) {
      float* const sum = &next[r * width_];
      if (step.steps() > 1) std::copy_n(&sums.of_rows[step.row(r, step.steps() - 2) * width_], width_, sum);
      for (int64_t i = 0; i < words_; i++) add(y + (r * words_ + i) * width_, sum);
      float* const means = rows.attended.data() + r * words_ * width_;
      std::copy_n(sum, width_, means);
      divide(means, step.steps() * words_, words_);
    }
    sums.of_rows = std::move(next);
    finish(pool, y, rows);
  }

 private:
  // Of the rows of the last step the sums (C,) of their inputs.
  struct Sums : State {
    std::vector<float> of_rows;
  };

  int64_t width_, words_;
  std::unique_ptr<Linear> inner_, outer_, gates_;

  void add(const float* x, float* sum) const {
#pragma omp simd
    for (int64_t c = 0; c < width_; c++) sum[c] += x[c];
  }

  // Make of a sum of `total` inputs the mean, for n words.
  void divide(float* means, int64_t total, int64_t n) const {
    for (int64_t c = 0; c < width_; c++) means[c] /= total;
    for (int64_t i = 1; i < n; i++) std::copy_n(means, width_, means + i * width_);
  }

  // The outputs, of inputs y and means in rows.attended.
  void finish(ThreadPool& pool, const float* y, Rows& rows) const {
    if (inner_) {
      inner_->product(pool, rows.attended.data(), rows.count, rows.inner, true);
      outer_->product(pool, rows.inner.data(), rows.count, rows.outer);
    } else {
      std::swap(rows.outer, rows.attended);
    }
    if (!gates_) return;
    std::vector<float> both(rows.count * 2 * width_);
    for (int64_t i = 0; i < rows.count; i++) {
      std::copy_n(y + i * width_, width_, &both[2 * i * width_]);
      std::copy_n(&rows.outer[i * width_], width_, &both[(2 * i + 1) * width_]);
    }
    gates_->product(pool, both.data(), rows.count, rows.inner);
    pool.run(rows.count, grain_of(8 * width_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const float *gate = &rows.inner[2 * i * width_], *input = y + i * width_;
        float* const to = &rows.outer[i * width_];
#pragma omp simd
        for (int64_t c = 0; c < width_; c++) to[c] = sigmoid(gate[c]) * input[c] + sigmoid(gate[width_ + c]) * to[c];
      }
    });
  }
};

}  // namespace amlp
