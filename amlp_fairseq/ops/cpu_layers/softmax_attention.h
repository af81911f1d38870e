// Softmax attention of one head.

#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "linear_map.h"

namespace {

// View of a tensor (sentences, heads, positions, d_h), contiguous in its last axis, with the strides of the other axes.
struct Table {
  const float* data;
  int64_t positions, sentence_stride, head_stride, position_stride;

  const float* at(int64_t s, int64_t h) const { return data + s * sentence_stride + h * head_stride; }

  // Prefetches one head: heads are not contiguous, so the hardware prefetcher misses them.
  void prefetch(int64_t s, int64_t h, int64_t width) const {
    for (int64_t j = 0; j < positions; j++)
      for (int64_t c = 0; c < width; c += kLanes) __builtin_prefetch(at(s, h) + j * position_stride + c, 0, 2);
  }
};

Table table_of(const Tensor& table) {
  TORCH_CHECK(table.dim() == 4 && table.stride(3) == 1, "a table must have 4 axes and be contiguous in the last one");
  return {table.const_data_ptr<float>(), table.size(2), table.stride(0), table.stride(1), table.stride(2)};
}

// Bias of scores, 0 or -inf, (1 or sentences, 1, 1 or queries, keys); optional.
struct Bias {
  const float* data = nullptr;
  int64_t sentence_stride = 0, query_stride = 0;

  Bias(const std::optional<Tensor>& bias, int64_t queries) {
    if (!bias.has_value()) return;
    TORCH_CHECK(bias->stride(-1) == 1 || bias->size(-1) == 1, "a bias must be contiguous in its last axis");
    data = bias->const_data_ptr<float>();
    if (bias->dim() == 4 && bias->size(0) > 1) sentence_stride = bias->stride(0);
    if (bias->size(-2) > 1) query_stride = bias->stride(-2);
  }

  // Returns the bias of all keys for a query, or null.
  const float* of(int64_t s, int64_t q) const {
    return data == nullptr ? nullptr : data + s * sentence_stride + q * query_stride;
  }
};

// Rounds a size up to whole vectors.
int64_t whole_vectors(int64_t size) { return panels_of(size) * kLanes; }

// Replaces scores by softmax(scores + bias).
//
// @param scores: scores of the keys, in a buffer of whole vectors.
// @param bias: bias of the keys, or null.
// @param keys: number of keys.
void softmax(float* scores, const float* bias, int64_t keys) {
  float maximum = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t j = keys; j < whole_vectors(keys); j++) scores[j] = maximum;
  if (bias != nullptr)
    for (int64_t j = 0; j < keys; j++) scores[j] += bias[j];
  keys = whole_vectors(keys);
#pragma omp simd reduction(max : maximum)
  for (int64_t j = 0; j < keys; j++) maximum = std::max(maximum, scores[j]);
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < keys; j++) {
    scores[j] = exponential(scores[j] - maximum);
    total += scores[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < keys; j++) scores[j] /= total;
}

// Returns the sum of a vector's numbers, by adding its halves recursively.
template <int Count>
float sum_of(const typename Vector<Count>::Of& numbers) {
  if constexpr (Count == 2) {
    return numbers[0] + numbers[1];
  } else {
    typename Vector<Count / 2>::Of halves[2];
    std::memcpy(halves, &numbers, sizeof halves);
    return sum_of<Count / 2>(halves[0] + halves[1]);
  }
}

// Computes the dot products of a query and `Keys` keys.
//
// @param query: query.
// @param keys: keys.
// @param stride: distance between two keys.
// @param vectors: length of query and key, in vectors.
// @param scores: the products.
template <int Keys>
void dot_products(const float* query, const float* keys, int64_t stride, int64_t vectors, float* scores) {
  Lanes sums[Keys] = {};
  for (int64_t c = 0; c < vectors; c++) {
    const Lanes part = load(query + c * kLanes);
    UNROLLED for (int j = 0; j < Keys; j++) sums[j] += part * load(keys + j * stride + c * kLanes);
  }
  UNROLLED for (int j = 0; j < Keys; j++) scores[j] = sum_of<kLanes>(sums[j]);
}

// Number of queries that attend_large_query processes together.
constexpr int64_t kQueries = 64;

// Attention of one head of a sentence: queries (queries, d_h), keys and values (keys, d_h), outputs (queries, d_h).
struct Head {
  const float *q, *k, *v;
  float* out;
  int64_t queries, keys, width, q_stride, k_stride, v_stride, out_stride;

  // Attention of few queries; d_h must be a multiple of the vector length.
  void attend_small_query(const Bias& bias, int64_t sentence) const {
    const int64_t stride = whole_vectors(keys);
    std::vector<float> scores(queries * stride);
    for (int64_t query = 0; query < queries; query++) {
      const float* row = q + query * q_stride;
      float* to = &scores[query * stride];
      int64_t j = 0;
      for (; j + 4 <= keys; j += 4) dot_products<4>(row, k + j * k_stride, k_stride, width / kLanes, to + j);
      for (; j < keys; j++) dot_products<1>(row, k + j * k_stride, k_stride, width / kLanes, to + j);
      softmax(to, bias.of(sentence, query), keys);
    }
    const Blocks blocks(width);
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t begin = blocks.first(block) * kLanes;
      over_tiles(queries, blocks.size(block), [&]<int Rows, int Count>(int64_t query) {
        multiply_tile<Rows, Count>(&scores[query * stride], stride, keys, v + begin, v_stride, nullptr,
                                   out + query * out_stride + begin, out_stride, width - begin, false);
      });
    }
  }

  // Attention of many queries, kQueries at a time; copies keys and values into panels first.
  void attend_large_query(const Bias& bias, int64_t sentence) const {
    const std::vector<float> key_panels = make_panels<float, 1>(k, width, keys, 1, k_stride);
    const std::vector<float> value_panels = make_panels<float, 1>(v, keys, width, v_stride, 1);
    const int64_t stride = whole_vectors(keys);
    std::vector<float> scores(kQueries * stride);
    for (int64_t begin = 0; begin < queries; begin += kQueries) {
      const int64_t count = std::min(kQueries, queries - begin);
      for (int64_t block = 0; block < Blocks(keys).count; block++)
        multiply(q + begin * q_stride, q_stride, count, width, key_panels.data(), nullptr, scores.data(), stride, keys, false,
                 block);
      for (int64_t i = 0; i < count; i++) softmax(&scores[i * stride], bias.of(sentence, begin + i), keys);
      for (int64_t block = 0; block < Blocks(width).count; block++)
        multiply(scores.data(), stride, count, keys, value_panels.data(), nullptr, out + begin * out_stride, out_stride, width,
                 false, block);
    }
  }
};

}  // namespace
