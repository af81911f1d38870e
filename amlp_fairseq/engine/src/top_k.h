// The best words of a row of logits, and the log of the sum of its exponentials.

#pragma once

#include "memory.h"
#include "simd.h"

namespace amlp {

constexpr float kNone = -INFINITY;

// NaN counts as -inf.
inline float number(float score) { return score > kNone ? score : kNone; }

struct Candidate {
  float score;
  int32_t token;
};

// log(sum(e^x)) of a row, which is read once: the sum so far is scaled anew where larger numbers come.
inline float log_sum_exp(const float* x, int64_t count) {
  constexpr int64_t kBlock = 512;
  float largest = kNone, total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    for (int64_t i = begin; i < end; i += kCacheLine / sizeof(float)) __builtin_prefetch(x + i + 2 * kBlock);
    const float before = largest;
    largest = std::max(largest, largest_of(x + begin, end - begin));
    if (!(largest > kNone)) continue;
    float more = 0;
#pragma omp simd reduction(+ : more)
    for (int64_t i = begin; i < end; i++) more += exponential(x[i] - largest);
    total = total * exponential(before - largest) + more;
  }
  return largest > kNone ? largest + std::log(total) : kNone;
}

// The m largest of V logits, best first; of equal ones the first.
inline std::vector<Candidate> largest(const float* logits, int64_t vocab, int64_t m) {
  constexpr int64_t kBlock = 64;  // entries that are first looked at as one
  std::vector<Candidate> best;
  const auto better = [](const Candidate& one, const Candidate& other) { return one.score > other.score; };
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, vocab);
    const bool full = static_cast<int64_t>(best.size()) == m;
    if (full && !(largest_of(logits + begin, end - begin) > best.back().score)) continue;
    for (int64_t i = begin; i < end; i++) {
      const Candidate candidate{number(logits[i]), static_cast<int32_t>(i)};
      if (static_cast<int64_t>(best.size()) == m) {
        if (!better(candidate, best.back())) continue;
        best.pop_back();
      }
      best.insert(std::upper_bound(best.begin(), best.end(), candidate, better), candidate);
    }
  }
  return best;
}

}  // namespace amlp
