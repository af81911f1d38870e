// SSRU (Kim et al. 2019): attention/ssru.py.

#pragma once

#include "layers.h"

namespace amlp {

class Ssru : public SelfAttention {
 public:
  // width: C.
  // words: z, words of a step.
  // directions: h, which divides z.
  // gates: W_f and W, (2 C, C).
  // others: u, (C,), unless h is 1.
  Ssru(int64_t width, int64_t words, int64_t directions, std::unique_ptr<Linear> gates, std::vector<float> others)
      : width_(width), words_(words), directions_(directions), gates_(std::move(gates)), others_(std::move(others)) {}

  void full(ThreadPool&, const float*, Rows&, const Starts&) const override {
    throw std::invalid_argument("an SSRU does not see later words");
  }

  void causal(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    gates_->product(pool, y, rows.count, rows.inner);
    rows.outer.resize(rows.count * width_);
    pool.run(starts.size() - 1, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> cells;
      for (int64_t s = begin; s < end; s++) {
        cells.assign(directions_ * width_, 0);
        for (int64_t row = starts[s]; row < starts[s + 1]; row += words_) advance(rows, row, cells.data());
      }
    });
  }

  std::unique_ptr<State> begin() const override { return std::make_unique<Cells>(); }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    Cells& cells = static_cast<Cells&>(state);
    const int64_t count = step.paths.size(), size = directions_ * width_;
    gates_->product(pool, y, rows.count, rows.inner);
    rows.outer.resize(rows.count * width_);
    std::vector<float> next(count * size, 0);
    pool.run(count, grain_of(8 * words_ * width_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        float* const own = &next[r * size];
        if (step.steps() > 1) std::copy_n(&cells.of_rows[step.row(r, step.steps() - 2) * size], size, own);
        advance(rows, r * words_, own);
      }
    });
    cells.of_rows = std::move(next);
  }

 private:
  // Of the rows of the last step the cells, (h, C).
  struct Cells : State {
    std::vector<float> of_rows;
  };

  int64_t width_, words_, directions_;
  std::unique_ptr<Linear> gates_;
  std::vector<float> others_;

  // The cells after a step, and its outputs.
  // row: of its first word.
  void advance(Rows& rows, int64_t row, float* cells) const {
    for (int64_t i = 0; i < words_; i++) {
      const float *gate = &rows.inner[2 * (row + i) * width_], *candidate = gate + width_;
      float* const cell = cells + i % directions_ * width_;
#pragma omp simd
      for (int64_t c = 0; c < width_; c++) {
        const float forget = sigmoid(gate[c]);
        cell[c] = forget * cell[c] + (1 - forget) * candidate[c];
      }
    }
    for (int64_t i = 0; i < words_; i++) output(cells, i % directions_, &rows.outer[(row + i) * width_]);
  }

  void output(const float* cells, int64_t direction, float* to) const {
    std::fill_n(to, width_, 0.0f);
    for (int64_t other = 0; other < directions_; other++) {
      if (other == direction) continue;
      const float* const cell = cells + other * width_;
#pragma omp simd
      for (int64_t c = 0; c < width_; c++) to[c] += others_[c] * cell[c];
    }
    const float* const own = cells + direction * width_;
#pragma omp simd
    for (int64_t c = 0; c < width_; c++) to[c] = std::max(to[c] + own[c], 0.0f);  // NaN stays
  }
};

}  // namespace amlp
