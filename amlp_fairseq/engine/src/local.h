// Softmax attention within windows: attention/local.py. Queries are scaled already.

#pragma once

#include "attention.h"
#include "heads.h"
#include "window.h"

namespace amlp {

// Attention of a query of one head to the words first … last - 1.
// key(j), value(j): of a word, (d_h,).
template <typename Key, typename Value>
void attend_to_window(const float* q, int64_t width, int64_t first, int64_t last, const Key& key, const Value& value, float* out,
                      std::vector<float>& scores) {
  scores.resize(whole_vectors(last - first));
  for (int64_t j = first; j < last; j++) {
    const float* const k = key(j);
    float score = 0;
#pragma omp simd reduction(+ : score)
    for (int64_t d = 0; d < width; d++) score += q[d] * k[d];
    scores[j - first] = score;
  }
  softmax(scores.data(), last - first);
  std::fill_n(out, width, 0.0f);
  for (int64_t j = first; j < last; j++) {
    const float* const v = value(j);
    const float weight = scores[j - first];
#pragma omp simd
    for (int64_t d = 0; d < width; d++) out[d] += weight * v[d];
  }
}

// A window around the word at the same relative position as the query, which in self-attention is its own.
class LocalHead : public HeadAttention {
 public:
  // width: d_h.
  // left, right: words beside the middle of a window.
  LocalHead(int64_t width, int64_t left, int64_t right) : width_(width), left_(left), right_(right) {}

  std::unique_ptr<State> memory(int64_t, const HeadRows& k, const HeadRows& v) const override {
    auto result = std::make_unique<Memory>();
    for (int64_t i = 0; i < k.rows; i++) {
      result->keys.insert(result->keys.end(), k.row(i), k.row(i) + width_);
      result->values.insert(result->values.end(), v.row(i), v.row(i) + width_);
    }
    return result;
  }

  void attend(int64_t, const HeadRows& q, const State& memory, float* out, int64_t stride) const override {
    const Memory& source = static_cast<const Memory&>(memory);
    const int64_t count = source.keys.size() / width_;
    std::vector<float> scores;
    for (int64_t i = 0; i < q.rows; i++) {
      const int64_t middle = (2 * i + 1) * count / (2 * q.rows);
      attend_to_window(
          q.row(i), width_, std::max<int64_t>(middle - left_, 0), std::min(middle + right_ + 1, count),
          [&](int64_t j) { return &source.keys[j * width_]; }, [&](int64_t j) { return &source.values[j * width_]; },
          out + i * stride, scores);
    }
  }

 private:
  struct Memory : State {
    std::vector<float> keys, values;  // (S, d_h)
  };

  int64_t width_, left_, right_;
};

class LocalSelfAttention : public MultiHeadSelfAttention {
 public:
  // words: z, words of a step, which in decoders all see the last left + 1 words.
  LocalSelfAttention(std::unique_ptr<Linear> qkv, std::unique_ptr<Linear> out, int64_t heads, int64_t words, int64_t left,
                     int64_t right)
      : MultiHeadSelfAttention(std::move(qkv), std::move(out), heads, nullptr), words_(words), reach_(left + 1) {
    attention_ = std::make_unique<LocalHead>(width_ / heads, left, right);
  }

  std::unique_ptr<State> begin() const override { return std::make_unique<Window>(2 * width_, words_, reach_); }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    Window& window = static_cast<Window&>(state);
    qkv_->product(pool, y, rows.count, rows.inner);
    std::vector<float> table(rows.count * 2 * width_);
    for (int64_t i = 0; i < rows.count; i++) std::copy_n(&rows.inner[(3 * i + 1) * width_], 2 * width_, &table[i * 2 * width_]);
    window.append(std::move(table));
    const int64_t head = width_ / heads_, last = window.words(), first = std::max<int64_t>(last - reach_, 0);
    rows.attended.resize(rows.count * width_);
    pool.run(rows.count * heads_, grain_of(4 * (last - first) * head), [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t i = begin; i < end; i++) {
        const int64_t row = i / heads_, offset = i % heads_ * head;
        const auto at = [&](int64_t j) { return window.at(step, row / words_, j) + offset; };
        attend_to_window(&rows.inner[3 * row * width_ + offset], head, first, last, at,
                         [&](int64_t j) { return at(j) + width_; }, &rows.attended[row * width_ + offset], scores);
      }
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  int64_t words_, reach_;
};

}  // namespace amlp
