// Softmax attention. Queries are scaled already: the factor is in their weights.

#pragma once

#include "layers.h"

namespace amlp {

// softmax(scores), in place; there is room for whole vectors of scores.
inline void softmax(float* scores, int64_t keys) {
  const int64_t padded_keys = whole_vectors(keys);
  for (int64_t j = keys; j < padded_keys; j++) scores[j] = -INFINITY;
  const float largest = largest_of(scores, padded_keys);
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < padded_keys; j++) {
    scores[j] = exponential(scores[j] - largest);
    total += scores[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < padded_keys; j++) scores[j] /= total;
}

// Keys and values of one head of one sentence in panels, for queries of any number.
class PackedHead {
 public:
  PackedHead() = default;

  // k, v: S rows of d_h numbers with this stride.
  PackedHead(const float* k, const float* v, int64_t keys, int64_t width, int64_t stride)
      : keys_(keys), width_(width), key_panels_(make_panels<float, 1>(k, width, keys, 1, stride)),
        value_panels_(make_panels<float, 1>(v, keys, width, stride, 1)) {}

  // Attention of n queries (n, d_h) to all keys, into out (n, d_h).
  // scores: room.
  // causal: query i attends to keys 0 … i alone.
  void attend(const float* q, int64_t q_stride, int64_t n, float* out, int64_t out_stride, std::vector<float>& scores,
              bool causal = false) const {
    const int64_t stride = whole_vectors(keys_);
    scores.resize(n * stride);
    multiply(q, q_stride, n, width_, key_panels_.data(), nullptr, scores.data(), stride, keys_, false, 0, Blocks(keys_).count);
    for (int64_t i = 0; i < n; i++) {
      const int64_t seen = causal ? i + 1 : keys_;
      softmax(&scores[i * stride], seen);
      std::fill(&scores[i * stride] + seen, &scores[i * stride] + keys_, 0.0f);
    }
    multiply(scores.data(), stride, n, keys_, value_panels_.data(), nullptr, out, out_stride, width_, false, 0,
             Blocks(width_).count);
  }

 private:
  int64_t keys_ = 0, width_ = 0;
  std::vector<float> key_panels_, value_panels_;
};

// The keys and values of the words so far, of one layer. Steps have a table each that is written once: when hypotheses move,
// only their paths through the tables do.
class Cache : public State {
 public:
  // width: C.
  // words: z, words of a step.
  Cache(int64_t width, int64_t words) : width_(width), words_(words) {}

  // The table (rows, z, 2 C) of a new step: of each word the keys of all heads, then the values.
  float* append(int64_t rows) { return steps_.emplace_back(rows * words_ * 2 * width_).data(); }

  // Attention of the n queries of a row to all words on its path, all heads.
  // q, out: (n, C) with these strides.
  // path: row i of step i, of all steps.
  void attend(const float* q, int64_t q_stride, int64_t n, int64_t heads, const int32_t* path, float* out, int64_t out_stride,
              std::vector<float>& scores) const {
    const int64_t keys = steps_.size() * words_, stride = whole_vectors(keys), width = width_ / heads;
    scores.resize(n * heads * stride);
    for (int64_t s = 0, key = 0; s < static_cast<int64_t>(steps_.size()); s++)
      for (int64_t word = 0; word < words_; word++, key++) {
        const float* k = entry(s, path[s], word);
        for (int64_t i = 0; i < n; i++)
          for (int64_t h = 0; h < heads; h++)
            scores[(i * heads + h) * stride + key] = dot(q + i * q_stride + h * width, k + h * width, width);
      }
    for (int64_t i = 0; i < n * heads; i++) softmax(&scores[i * stride], keys);
    for (int64_t i = 0; i < n; i++) std::fill_n(out + i * out_stride, width_, 0.0f);
    for (int64_t s = 0, key = 0; s < static_cast<int64_t>(steps_.size()); s++)
      for (int64_t word = 0; word < words_; word++, key++) {
        const float* v = entry(s, path[s], word) + width_;
        for (int64_t i = 0; i < n; i++)
          for (int64_t h = 0; h < heads; h++) {
            const float weight = scores[(i * heads + h) * stride + key];
            float* to = out + i * out_stride + h * width;
            const float* from = v + h * width;
#pragma omp simd
            for (int64_t c = 0; c < width; c++) to[c] += weight * from[c];
          }
      }
  }

 private:
  int64_t width_, words_;
  std::vector<std::vector<float>> steps_;

  const float* entry(int64_t step, int64_t row, int64_t word) const {
    return steps_[step].data() + (row * words_ + word) * 2 * width_;
  }

  static float dot(const float* x, const float* y, int64_t width) {
    if (width % kLanes == 0) {
      Lanes sum{};
      for (int64_t c = 0; c < width; c += kLanes) sum += load(x + c) * load(y + c);
      return sum_of<kLanes>(sum);
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; c++) sum += x[c] * y[c];
    return sum;
  }
};

}  // namespace amlp
