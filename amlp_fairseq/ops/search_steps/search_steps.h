// What a search step does with the probabilities of its words, for CPUs. Source: Zhang et al. (2020), Algorithm 1, lines 10-14
// and 16. Notation: docs/glossary.md.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

constexpr float kNone = -std::numeric_limits<float>::infinity();
// Entries of the dictionary that are first looked at as one.
constexpr int64_t kBlock = 64;

// What is not a number counts as -inf.
float number(float score) { return score > kNone ? score : kNone; }

struct Candidate {
  float score;
  int64_t word;
};

// The m largest of a slot's V entries, best first.
std::vector<Candidate> largest(const float* table, int64_t vocab, int64_t m) {
  std::vector<Candidate> best;
  const auto better = [](const Candidate& one, const Candidate& other) { return one.score > other.score; };
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, vocab);
    float most = kNone;
#pragma omp simd reduction(max : most)
    for (int64_t i = begin; i < end; i++) most = table[i] > most ? table[i] : most;
    const bool full = static_cast<int64_t>(best.size()) == m;
    if (full && !(most > best.back().score)) continue;
    for (int64_t i = begin; i < end; i++) {
      const Candidate each{number(table[i]), i};
      if (static_cast<int64_t>(best.size()) == m) {
        if (!better(each, best.back())) continue;
        best.pop_back();
      }
      best.insert(std::upper_bound(best.begin(), best.end(), each, better), each);
    }
  }
  return best;
}

// The words chosen for the first slots of a step.
struct Prefix {
  float score;
  std::vector<int64_t> words;
};

// A prefix, by its number, and the word that may follow it.
struct Continuation {
  float score;
  int64_t prefix, word;
};

// The indices of the k best, best first; of equal ones the first.
template <typename Scored>
std::vector<int64_t> best_of(const std::vector<Scored>& all, int64_t k) {
  std::vector<int64_t> indices(all.size());
  for (size_t i = 0; i < all.size(); i++) indices[i] = i;
  const int64_t kept = std::min<int64_t>(k, all.size());
  std::partial_sort(indices.begin(), indices.begin() + kept, indices.end(), [&](int64_t one, int64_t other) {
    return all[one].score > all[other].score || (all[one].score == all[other].score && one < other);
  });
  indices.resize(kept);
  return indices;
}

// The k best ways to fill the z slots of a row.
std::vector<Prefix> best_ways(const float* lprobs, int64_t z, int64_t vocab, int64_t k, int64_t eos, int64_t pad,
                              bool ignore) {
  std::vector<Prefix> prefixes{{0, {}}}, ended;
  for (int64_t slot = 0; slot < z; slot++) {
    // A step that ends before its last slot is complete; it competes with the others at the end.
    const bool ends_here = ignore && slot < z - 1;
    if (ends_here)
      for (const Prefix& prefix : prefixes) {
        ended.push_back({prefix.score + number(lprobs[slot * vocab + eos]), prefix.words});
        ended.back().words.push_back(eos);
        ended.back().words.resize(z, pad);
      }
    std::vector<Continuation> all;
    for (const Candidate& each : largest(lprobs + slot * vocab, vocab, std::min(k + ignore, vocab)))
      for (size_t i = 0; i < prefixes.size(); i++)
        all.push_back({prefixes[i].score + (ends_here && each.word == eos ? kNone : each.score), int64_t(i), each.word});
    std::vector<Prefix> longer;
    for (const int64_t index : best_of(all, slot == 0 ? k + ignore : k)) {
      longer.push_back({all[index].score, prefixes[all[index].prefix].words});
      longer.back().words.push_back(all[index].word);
    }
    prefixes = std::move(longer);
  }
  prefixes.insert(prefixes.end(), ended.begin(), ended.end());
  std::vector<Prefix> best;
  for (const int64_t index : best_of(prefixes, k)) best.push_back(std::move(prefixes[index]));
  return best;
}

// Of R hypotheses the scores of k ways to continue each (R, k), their words and word scores (R, k, z) and ends (R, k).
using Continuations = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// See combine_words of search/search_steps.py.
Continuations combine_words(const Tensor& table, int64_t k, int64_t eos, int64_t pad, bool ignore) {
  const Tensor lprobs = table.contiguous();
  const int64_t rows = lprobs.size(0), z = lprobs.size(1), vocab = lprobs.size(2);
  ignore = ignore && z > 1;
  const float* from = lprobs.const_data_ptr<float>();
  std::vector<std::vector<Prefix>> found(rows);
  at::parallel_for(0, rows, std::max<int64_t>(1, (1 << 15) / (z * vocab)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      found[row] = best_ways(from + row * z * vocab, z, vocab, k, eos, pad, ignore);
  });
  const int64_t count = rows == 0 ? 0 : found[0].size();
  const auto integers = lprobs.options().dtype(at::kLong);
  Tensor scores = at::empty({rows, count}, lprobs.options()), words = at::empty({rows, count, z}, integers);
  Tensor word_scores = at::empty({rows, count, z}, lprobs.options()), ends = at::empty({rows, count}, integers);
  for (int64_t row = 0, each = 0; row < rows; row++)
    for (const Prefix& way : found[row]) {
      int64_t first_end = z;
      for (int64_t slot = z - 1; slot >= 0; slot--)
        if (way.words[slot] == eos) first_end = slot;
      scores.mutable_data_ptr<float>()[each] = way.score;
      ends.mutable_data_ptr<int64_t>()[each] = first_end;
      for (int64_t slot = 0; slot < z; slot++) {
        const bool behind = ignore && slot > first_end;
        words.mutable_data_ptr<int64_t>()[each * z + slot] = way.words[slot];
        word_scores.mutable_data_ptr<float>()[each * z + slot] =
            behind ? 0 : number(from[(row * z + slot) * vocab + way.words[slot]]);
      }
      each++;
    }
  return {scores, words, word_scores, ends};
}

// The rows that go on, as in row_permutation of search/search_steps.py: as many as possible stay where they were.
std::vector<int64_t> in_place(const std::vector<int64_t>& chosen, int64_t k) {
  std::vector<int64_t> rows(chosen.size(), -1), moving;
  for (const int64_t each : chosen) {
    int64_t& place = rows[each / k];
    if (place < 0)
      place = each;
    else
      moving.push_back(each);
  }
  for (int64_t& place : rows)
    if (place < 0) place = moving.back(), moving.pop_back();
  return rows;
}

// Hypotheses that end: of each the row that it continues, its words before the end symbol, the sum of its log-probabilities,
// its words with the end symbol, and their log-probabilities; in generation order.
using FinishedHypotheses = std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<double>, std::vector<Tensor>, std::vector<Tensor>>;

// What becomes of a search's hypotheses in a step: the scores of those that go on (b, B), of each the row that it continues
// (b B,), its words and their log-probabilities (b B, z); the sentences that go on; and the hypotheses that end.
using BeamUpdate = std::tuple<Tensor, Tensor, Tensor, Tensor, std::vector<int64_t>, FinishedHypotheses>;

// A row's numbers before this step and those of one of its continuations in this step, but only the first `count`.
template <typename Number>
Tensor joined(const Tensor& before, int64_t starts, int64_t row, const Number* now, int64_t count) {
  Tensor all = at::empty({count}, before.options());
  const int64_t written = std::min(before.size(1) - starts, count);
  Number* to = all.mutable_data_ptr<Number>();
  std::copy_n(before.const_data_ptr<Number>() + row * before.size(1) + starts, written, to);
  std::copy_n(now, count - written, to + written);
  return all;
}

// See advance of search/search_steps.py.
BeamUpdate advance(const Tensor& all_tokens, const Tensor& all_word_scores, const Tensor& scores, std::vector<int64_t> found,
               const Continuations& ways, bool keep_all) {
  const auto& [way_scores, way_words, way_word_scores, way_ends] = ways;
  const int64_t sentences = scores.size(0), beam = scores.size(1), k = way_scores.size(1), z = way_words.size(2);
  const Tensor tokens = all_tokens.contiguous(), word_scores = all_word_scores.contiguous(), before = scores.contiguous();
  const int64_t written = word_scores.size(1);
  const float* own = before.const_data_ptr<float>();
  const float *more = way_scores.const_data_ptr<float>(), *numbers = way_word_scores.const_data_ptr<float>();
  const int64_t *words = way_words.const_data_ptr<int64_t>(), *ends = way_ends.const_data_ptr<int64_t>();
  const auto integers = tokens.options();
  Tensor kept = at::empty({sentences, beam}, before.options()), rows = at::empty({sentences * beam}, integers);
  Tensor next = at::empty({sentences * beam, z}, integers), next_scores = at::empty({sentences * beam, z}, before.options());
  std::vector<int64_t> remaining;
  FinishedHypotheses ended;
  auto& [ended_rows, lengths, sums, ended_words, ended_scores] = ended;
  std::vector<Candidate> totals(beam * k);
  for (int64_t sentence = 0, row = 0; sentence < sentences; sentence++) {
    const int64_t first = sentence * beam, ways_before = first * k;
    for (int64_t each = 0; each < beam * k; each++) totals[each] = {own[first + each / k] + more[ways_before + each], each};
    std::vector<int64_t> best = best_of(totals, keep_all ? beam * k : beam);
    bool any = false;
    for (const int64_t each : best) {
      const int64_t way = ways_before + each, end = ends[way], from = first + each / k;
      if (end == z) continue;
      any = true;
      if (!(totals[each].score > kNone) || (found[sentence] >= beam && !keep_all)) continue;
      found[sentence]++;
      ended_rows.push_back(from), lengths.push_back(written + end);
      ended_words.push_back(joined(tokens, z, from, words + way * z, written + end + 1));
      ended_scores.push_back(joined(word_scores, 0, from, numbers + way * z, written + end + 1));
      double sum = 0;
      for (int64_t i = 0; i < written; i++) sum += word_scores.const_data_ptr<float>()[from * written + i];
      for (int64_t i = 0; i < z; i++) sum += numbers[way * z + i];
      sums.push_back(sum);
    }
    if (any || keep_all) {
      for (int64_t each = 0; each < beam * k; each++)
        if (ends[ways_before + each] < z) totals[each].score = kNone;
      best = best_of(totals, beam);
    }
    if (found[sentence] < beam && totals[best[0]].score > kNone) remaining.push_back(sentence);
    for (const int64_t each : in_place(best, k)) {
      kept.mutable_data_ptr<float>()[row] = totals[each].score;
      rows.mutable_data_ptr<int64_t>()[row] = first + each / k;
      std::copy_n(words + (ways_before + each) * z, z, next.mutable_data_ptr<int64_t>() + row * z);
      std::copy_n(numbers + (ways_before + each) * z, z, next_scores.mutable_data_ptr<float>() + row * z);
      row++;
    }
  }
  return {kept, rows, next, next_scores, remaining, ended};
}

}  // namespace
