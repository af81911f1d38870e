// ABC, attention with bounded-memory control (Peng et al. 2022): attention/abc.py. Queries are scaled already.

#pragma once

#include "heads.h"

namespace amlp {

struct Controls {
  std::vector<float> keys, values;  // W_φ of each, (c, d_h)
};

class BoundedMemoryHead : public HeadAttention {
 public:
  // width: d_h.
  BoundedMemoryHead(int64_t width, Controls controls) : width_(width), controls_(std::move(controls)) {}

  // The c means of the keys and of the values.
  std::unique_ptr<State> memory(int64_t, const HeadRows& k, const HeadRows& v) const override {
    const std::vector<float> keys = means(k, controls_.keys), values = means(v, controls_.values);
    const int64_t slots = keys.size() / width_;
    return std::make_unique<Slots>(HeadRows{keys.data(), slots, width_}, HeadRows{values.data(), slots, width_}, width_);
  }

  void attend(int64_t, const HeadRows& q, const State& memory, float* out, int64_t stride) const override {
    static_cast<const Slots&>(memory).attend(q, out, stride);
  }

 private:
  int64_t width_;
  Controls controls_;

  std::vector<float> means(const HeadRows& x, const std::vector<float>& control) const {
    std::vector<float> result(control.size());
    const int64_t slots = control.size() / width_;
    Slots(x, x, width_).attend({control.data(), slots, width_}, result.data(), width_);
    return result;
  }
};

// With the causal form for decoders, of the sums up to each step.
class BoundedMemorySelfAttention : public MultiHeadSelfAttention {
 public:
  // words: z, words of a step.
  BoundedMemorySelfAttention(std::unique_ptr<Linear> qkv, std::unique_ptr<Linear> out, int64_t heads, int64_t words,
                             const Controls& controls)
      : MultiHeadSelfAttention(std::move(qkv), std::move(out), heads, nullptr), words_(words), controls_(controls) {
    attention_ = std::make_unique<BoundedMemoryHead>(width_ / heads, controls);
  }

  void causal(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    qkv_->product(pool, y, rows.count, rows.inner);
    const int64_t head = width_ / heads_, part = slots() * (head + 1), sentences = starts.size() - 1;
    rows.attended.resize(rows.count * width_);
    pool.run(sentences * heads_, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> sums, scores(whole_vectors(slots()));
      for (int64_t i = begin; i < end; i++) {
        sums.assign(2 * part, 0);
        for (int64_t word = starts[i / heads_]; word < starts[i / heads_ + 1]; word++) {
          const float* const q = rows.inner.data() + word * 3 * width_ + i % heads_ * head;
          add(q + width_, controls_.keys, &sums[0]);
          add(q + 2 * width_, controls_.values, &sums[part]);
          attend(q, &sums[0], &sums[part], rows.attended.data() + word * width_ + i % heads_ * head, scores);
        }
      }
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

  std::unique_ptr<State> begin() const override { return std::make_unique<Sums>(); }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    std::vector<float>& sums = static_cast<Sums&>(state).of_heads;
    qkv_->product(pool, y, rows.count, rows.inner);
    const int64_t head = width_ / heads_, part = slots() * (head + 1);
    std::vector<float> next(step.paths.size() * heads_ * 2 * part, 0);
    rows.attended.resize(rows.count * width_);
    pool.run(step.paths.size() * heads_, grain_of(6 * words_ * part), [&](int64_t begin, int64_t end) {
      std::vector<float> scores(whole_vectors(slots()));
      for (int64_t i = begin; i < end; i++) {
        const int64_t r = i / heads_, h = i % heads_;
        float* const keys = &next[i * 2 * part];
        if (step.steps() > 1)
          std::copy_n(&sums[(step.row(r, step.steps() - 2) * heads_ + h) * 2 * part], 2 * part, keys);
        const float* const first = rows.inner.data() + r * words_ * 3 * width_ + h * head;
        for (int64_t word = 0; word < words_; word++) {
          const float* const q = first + word * 3 * width_;
          add(q + width_, controls_.keys, keys);
          add(q + 2 * width_, controls_.values, keys + part);
        }
        for (int64_t word = 0; word < words_; word++)
          attend(first + word * 3 * width_, keys, keys + part,
                 rows.attended.data() + (r * words_ + word) * width_ + h * head, scores);
      }
    });
    sums = std::move(next);
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  // Of the rows of the last step, their heads, and keys and values, Σ φ_i ⊗ x_i (c, d_h) and Σ φ_i (c,).
  struct Sums : State {
    std::vector<float> of_heads;
  };

  int64_t words_;
  Controls controls_;

  // c.
  int64_t slots() const { return controls_.keys.size() / (width_ / heads_); }

  static float dot(const float* x, const float* y, int64_t width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < width; d++) sum += x[d] * y[d];
    return sum;
  }

  static void add_scaled(float factor, const float* x, float* to, int64_t width) {
#pragma omp simd
    for (int64_t d = 0; d < width; d++) to[d] += factor * x[d];
  }

  // Add a key or value to the sums.
  void add(const float* x, const std::vector<float>& control, float* sums) const {
    const int64_t head = width_ / heads_, slots = control.size() / head;
    for (int64_t c = 0; c < slots; c++) {
      const float phi = std::exp(std::min(std::max(dot(&control[c * head], x, head), -20.0f), 20.0f));
      add_scaled(phi, x, sums + c * head, head);
      sums[slots * head + c] += phi;
    }
  }

  void attend(const float* q, const float* keys, const float* values, float* out, std::vector<float>& scores) const {
    const int64_t head = width_ / heads_, slots = controls_.keys.size() / head;
    for (int64_t c = 0; c < slots; c++)
      scores[c] = dot(q, keys + c * head, head) / std::max(keys[slots * head + c], 1e-12f);
    softmax(scores.data(), slots);
    std::fill_n(out, head, 0.0f);
    for (int64_t c = 0; c < slots; c++)
      add_scaled(scores[c] / std::max(values[slots * head + c], 1e-12f), values + c * head, out, head);
  }
};

}  // namespace amlp
