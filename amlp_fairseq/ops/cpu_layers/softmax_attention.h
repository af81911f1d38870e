// Softmax attention of one head.

#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "linear_map.h"

namespace {

// A table (sentences, heads, positions, d_h) in which the d_h stand together, with the steps of the other axes.
struct Table {
  const float* data;
  int64_t positions, sentence, head, position;

  const float* at(int64_t s, int64_t h) const { return data + s * sentence + h * head; }

  // Let the cache have a head's numbers soon: each head's stand apart, where the processor does not expect them.
  void fetch(int64_t s, int64_t h, int64_t width) const {
    for (int64_t j = 0; j < positions; j++)
      for (int64_t c = 0; c < width; c += kLanes) __builtin_prefetch(at(s, h) + j * position + c, 0, 2);
  }
};

Table table_of(const Tensor& table) {
  TORCH_CHECK(table.dim() == 4 && table.stride(3) == 1, "a table of another layout");
  return {table.const_data_ptr<float>(), table.size(2), table.stride(0), table.stride(1), table.stride(2)};
}

// 0 or -inf, (1 or sentences, 1, 1 or queries, keys); or nothing.
struct Bias {
  const float* data = nullptr;
  int64_t sentence = 0, query = 0;

  Bias(const std::optional<Tensor>& bias, int64_t queries) {
    if (!bias.has_value()) return;
    TORCH_CHECK(bias->stride(-1) == 1 || bias->size(-1) == 1, "a bias of another layout");
    data = bias->const_data_ptr<float>();
    if (bias->dim() == 4 && bias->size(0) > 1) sentence = bias->stride(0);
    if (bias->size(-2) > 1) query = bias->stride(-2);
  }

  const float* of(int64_t s, int64_t q) const { return data == nullptr ? nullptr : data + s * sentence + q * query; }
};

int64_t whole_vectors(int64_t size) { return panels_of(size) * kLanes; }

// softmax(scores + bias), in place; there is room for whole vectors of scores.
void softmax(float* scores, const float* bias, int64_t keys) {
  float largest = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t j = keys; j < whole_vectors(keys); j++) scores[j] = largest;
  if (bias != nullptr)
    for (int64_t j = 0; j < keys; j++) scores[j] += bias[j];
  keys = whole_vectors(keys);
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < keys; j++) largest = std::max(largest, scores[j]);
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < keys; j++) {
    scores[j] = exponential(scores[j] - largest);
    total += scores[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < keys; j++) scores[j] /= total;
}

// The sum of numbers in a vector, which is halved until one is left.
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

// Products of a query with `Keys` keys, of `vectors` vectors each.
template <int Keys>
void dot_products(const float* query, const float* keys, int64_t step, int64_t vectors, float* scores) {
  Lanes sums[Keys] = {};
  for (int64_t c = 0; c < vectors; c++) {
    const Lanes part = load(query + c * kLanes);
    UNROLLED for (int j = 0; j < Keys; j++) sums[j] += part * load(keys + j * step + c * kLanes);
  }
  UNROLLED for (int j = 0; j < Keys; j++) scores[j] = sum_of<kLanes>(sums[j]);
}

constexpr int64_t kQueries = 64;

// Attention of one head: of a sentence's queries (queries, d_h) to its keys and values, (queries, d_h).
struct Head {
  const float *q, *k, *v;
  float* out;
  int64_t queries, keys, width, q_step, k_step, v_step, out_step;

  // For few queries; d_h in whole vectors.
  void attend_small_query(const Bias& bias, int64_t sentence) const {
    const int64_t step = whole_vectors(keys);
    std::vector<float> scores(queries * step);
    for (int64_t query = 0; query < queries; query++) {
      const float* own = q + query * q_step;
      float* to = &scores[query * step];
      int64_t j = 0;
      for (; j + 4 <= keys; j += 4) dot_products<4>(own, k + j * k_step, k_step, width / kLanes, to + j);
      for (; j < keys; j++) dot_products<1>(own, k + j * k_step, k_step, width / kLanes, to + j);
      softmax(to, bias.of(sentence, query), keys);
    }
    const Blocks blocks(width);
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t begin = blocks.first(block) * kLanes;
      over_tiles(queries, blocks.size(block), [&]<int Rows, int Count>(int64_t query) {
        multiply_tile<Rows, Count>(&scores[query * step], step, keys, v + begin, v_step, nullptr,
                                   out + query * out_step + begin, out_step, width - begin, false);
      });
    }
  }

  // For many: keys and values are put into panels first, and some queries are treated at a time.
  void attend_large_query(const Bias& bias, int64_t sentence) const {
    const std::vector<float> key_panels = make_panels<float, 1>(k, width, keys, 1, k_step);
    const std::vector<float> value_panels = make_panels<float, 1>(v, keys, width, v_step, 1);
    const int64_t step = whole_vectors(keys);
    std::vector<float> scores(kQueries * step);
    for (int64_t begin = 0; begin < queries; begin += kQueries) {
      const int64_t count = std::min(kQueries, queries - begin);
      for (int64_t block = 0; block < Blocks(keys).count; block++)
        multiply(q + begin * q_step, q_step, count, width, key_panels.data(), nullptr, scores.data(), step, keys, false, block);
      for (int64_t each = 0; each < count; each++) softmax(&scores[each * step], bias.of(sentence, begin + each), keys);
      for (int64_t block = 0; block < Blocks(width).count; block++)
        multiply(scores.data(), step, count, keys, value_panels.data(), nullptr, out + begin * out_step, out_step, width, false,
                 block);
    }
  }
};

}  // namespace
