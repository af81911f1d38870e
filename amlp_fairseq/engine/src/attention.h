// Softmax attention. Queries are scaled already: the factor is in their weights. Keys and values are of type float or Half.

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
template <typename Number>
class PackedHead {
 public:
  // Numbers that it takes.
  static int64_t size(int64_t keys, int64_t width) { return whole_vectors(keys) * width + whole_vectors(width) * keys; }

  // memory: of so many numbers, which is filled by `pack`.
  PackedHead(Number* memory, int64_t keys, int64_t width)
      : keys_(keys), width_(width), key_panels_(memory), value_panels_(memory + whole_vectors(keys) * width) {}

  // k, v: S rows of d_h numbers with this stride.
  void pack(const float* k, const float* v, int64_t stride) {
    write_panels<1>(k, width_, keys_, 1, stride, key_panels_);
    write_panels<1>(v, keys_, width_, stride, 1, value_panels_);
  }

  int64_t keys() const { return keys_; }

  // Attention of n queries (n, d_h) to all keys, into out (n, d_h).
  // scores: is filled with the weights (n, S, rounded up to whole vectors).
  // causal: query i attends to keys 0 … i alone.
  void attend(const float* q, int64_t q_stride, int64_t n, float* out, int64_t out_stride, Floats& scores,
              bool causal = false) const {
    const int64_t stride = whole_vectors(keys_);
    scores.resize(n * stride);
    multiply(q, q_stride, n, width_, key_panels_, nullptr, scores.data(), stride, keys_, false, 0, Blocks(keys_).count);
    for (int64_t i = 0; i < n; i++) {
      const int64_t seen = causal ? i + 1 : keys_;
      softmax(&scores[i * stride], seen);
      std::fill(&scores[i * stride] + seen, &scores[i * stride] + keys_, 0.0f);
    }
    multiply(scores.data(), stride, n, keys_, value_panels_, nullptr, out, out_stride, width_, false, 0, Blocks(width_).count);
  }

 private:
  int64_t keys_, width_;
  Number *key_panels_, *value_panels_;
};

// The keys and values of the words so far, of one layer, which are written once: when hypotheses move, only their paths do.
template <typename Number>
class Cache : public State {
 public:
  // width: C.
  // words: z, words of a step.
  Cache(int64_t width, int64_t words) : width_(width), words_(words) {}

  // Keep new rows' keys of all heads, then values, of each word: `words` of 2 C numbers with this stride.
  void append(const float* from, int64_t stride, int64_t words) {
    const int64_t size = words * 2 * width_;
    if (memory_.empty() || static_cast<int64_t>(memory_.back().size()) - used_ < size) {
      memory_.emplace_back(std::max(size, std::min(kStepsAtOnce * size, kMostAtOnce)));
      used_ = 0;
    }
    Number* const to = memory_.back().data() + used_;
    used_ += size;
    for (int64_t word = 0; word < words; word++) copy_numbers(from + word * stride, 2 * width_, to + word * 2 * width_);
    for (int64_t word = 0; word < words; word += words_) rows_.push_back(to + word * 2 * width_);
  }

  // Attention of the n queries of a row to all words on its path, all heads.
  // q, out: (n, C) with these strides.
  void attend(const float* q, int64_t q_stride, int64_t n, int64_t heads, const Path& path, float* out, int64_t out_stride,
              Floats& scores) const {
    const int64_t steps = path.size(), keys = steps * words_, stride = whole_vectors(keys), width = width_ / heads;
    scores.resize(n * heads * stride);
    fetch(rows_[path[0]]);
    for (int64_t s = 0, key = 0; s < steps; s++) {
      if (s + 1 < steps) fetch(rows_[path[s + 1]]);
      for (int64_t word = 0; word < words_; word++, key++) {
        const Number* k = rows_[path[s]] + word * 2 * width_;
        for (int64_t i = 0; i < n; i++)
          for (int64_t h = 0; h < heads; h++)
            scores[(i * heads + h) * stride + key] = dot(q + i * q_stride + h * width, k + h * width, width);
      }
    }
    for (int64_t i = 0; i < n; i++)
      for (int64_t h = 0; h < heads; h++) {
        float* const weights = &scores[(i * heads + h) * stride];
        softmax(weights, keys);
        float* const to = out + i * out_stride + h * width;
        int64_t c = 0;
        for (; c + kPanels * kLanes <= width; c += kPanels * kLanes) mean<kPanels>(weights, path, h * width + c, to + c);
        for (; c + kLanes <= width; c += kLanes) mean<1>(weights, path, h * width + c, to + c);
        for (; c < width; c++) {
          float sum = 0;
          for (int64_t key = 0; key < keys; key++) sum += weights[key] * value(path, key)[h * width + c];
          to[c] = sum;
        }
      }
  }

 private:
  static constexpr int64_t kStepsAtOnce = 8, kMostAtOnce = 1 << 22;  // whose numbers are in one piece of memory

  int64_t width_, words_, used_ = 0;
  std::vector<Numbers<Number>> memory_;
  std::vector<const Number*> rows_;

  const Number* value(const Path& path, int64_t key) const {
    const int64_t step = words_ == 1 ? key : key / words_;
    return rows_[path[step]] + (2 * (key - step * words_) + 1) * width_;
  }

  void fetch(const Number* row) const {
    const char* const from = reinterpret_cast<const char*>(row);
    for (size_t byte = 0; byte < words_ * 2 * width_ * sizeof(Number); byte += kCacheLine) __builtin_prefetch(from + byte);
  }

  // The sums, in the order of the keys, of weighted values from `column` on.
  template <int Panels>
  void mean(const float* weights, const Path& path, int64_t column, float* to) const {
    Lanes sums[Panels]{};
    int64_t key = 0;
    for (const int32_t row : path) {
      const Number* from = rows_[row] + width_ + column;
      for (int64_t word = 0; word < words_; word++, key++, from += 2 * width_)
        AMLP_UNROLL for (int p = 0; p < Panels; p++) sums[p] += weights[key] * load(from + p * kLanes);
    }
    AMLP_UNROLL for (int p = 0; p < Panels; p++) store(sums[p], to + p * kLanes, kLanes);
  }

  static float dot(const float* x, const Number* y, int64_t width) {
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
