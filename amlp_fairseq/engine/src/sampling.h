// Words drawn at random.

#pragma once

#include <numeric>

#include "top_k.h"

namespace amlp {

// Numbers that depend on a seed, a source and a place alone (SplitMix64: Steele et al. 2014).
class Random {
 public:
  Random(int64_t seed, const std::vector<int32_t>& source, const std::vector<int64_t>& place) : state_(seed) {
    for (const int32_t token : source) state_ = next() ^ token;
    for (const int64_t number : place) state_ = next() ^ number;
  }

  // From 0 to 1, without 1.
  double uniform() { return (next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;

  uint64_t next() {
    uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
};

// What is drawn from, unless it is 0: the k best; the best whose probabilities sum to p, with the one that reaches it (Holtzman
// et al. 2020); those with a share `minp` of the best one's probability.
struct DrawnFrom {
  int64_t k;
  double p, minp;
};

// A token, drawn in proportion to the exponentials of its logits.
// normalizer: the log of the sum of the exponentials before some words were excluded.
// place: in the sum of what is drawn from, from 0 to 1.
inline int32_t sampled(const float* logits, int64_t vocab, float normalizer, const DrawnFrom& from, double place) {
  const auto [k, p, minp] = from;
  std::vector<Candidate> candidates;
  if (k > 0 && p <= 0) {
    candidates = largest(logits, vocab, std::min(k, vocab));
  } else {
    for (int64_t i = 0; i < vocab; i++) candidates.push_back({number(logits[i]), static_cast<int32_t>(i)});
    if (p > 0)
      std::stable_sort(candidates.begin(), candidates.end(),
                       [](const Candidate& one, const Candidate& other) { return one.score > other.score; });
  }
  double least = kNone;
  if (minp > 0) {
    const auto less = [](const Candidate& one, const Candidate& other) { return one.score < other.score; };
    least = std::max_element(candidates.begin(), candidates.end(), less)->score + std::log(minp);
  }
  std::vector<double> sums;
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    if (p > 0 && sum >= p) break;
    if (candidate.score >= least) sum += std::exp(static_cast<double>(candidate.score) - normalizer);
    sums.push_back(sum);
  }
  const auto found = std::upper_bound(sums.begin(), sums.end(), place * sum);
  return candidates[std::min<size_t>(found - sums.begin(), sums.size() - 1)].token;
}

}  // namespace amlp
