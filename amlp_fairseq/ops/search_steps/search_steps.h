// A search step for CPUs, from the log-probabilities of the words to the next hypotheses. Source: Zhang et al. (2020),
// Algorithm 1, lines 10-14 and 16. Notation: docs/glossary.md.

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
// Number of dictionary entries in a block; only blocks with a large maximum are searched.
constexpr int64_t kBlock = 64;

// The score, or -inf for NaN.
float without_nan(float score) { return score > kNone ? score : kNone; }

// A word with its score.
struct Candidate {
  float score;
  int64_t word;
};

// Returns the m best words of a slot, best first.
//
// @param table: scores of the words, (V).
// @param vocab: V.
// @param m: number of words.
std::vector<Candidate> best_words(const float* table, int64_t vocab, int64_t m) {
  std::vector<Candidate> best;
  const auto better = [](const Candidate& a, const Candidate& b) { return a.score > b.score; };
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, vocab);
    float maximum = kNone;
#pragma omp simd reduction(max : maximum)
    for (int64_t i = begin; i < end; i++) maximum = table[i] > maximum ? table[i] : maximum;
    const bool full = static_cast<int64_t>(best.size()) == m;
    if (full && !(maximum > best.back().score)) continue;
    for (int64_t i = begin; i < end; i++) {
      const Candidate candidate{without_nan(table[i]), i};
      if (static_cast<int64_t>(best.size()) == m) {
        if (!better(candidate, best.back())) continue;
        best.pop_back();
      }
      best.insert(std::upper_bound(best.begin(), best.end(), candidate, better), candidate);
    }
  }
  return best;
}

// Words of the first slots of a step, with the sum of their scores.
struct Prefix {
  float score;
  std::vector<int64_t> words;
};

// Index of a prefix, a word after the prefix, and the sum of their scores.
struct PrefixExtension {
  float score;
  int64_t prefix, word;
};

// Returns the indices of the k best scores, best first; equal scores in the order of their indices.
template <typename Scored>
std::vector<int64_t> best_of(const std::vector<Scored>& items, int64_t k) {
  std::vector<int64_t> indices(items.size());
  for (size_t i = 0; i < items.size(); i++) indices[i] = i;
  const int64_t count = std::min<int64_t>(k, items.size());
  std::partial_sort(indices.begin(), indices.begin() + count, indices.end(), [&](int64_t a, int64_t b) {
    return items[a].score > items[b].score || (items[a].score == items[b].score && a < b);
  });
  indices.resize(count);
  return indices;
}

// Returns the k best continuations of a hypothesis, words for all z slots of a step, best first.
//
// @param lprobs: log-probabilities of the words in each slot, (z, V).
// @param z: number of slots.
// @param vocab: V.
// @param k: number of continuations.
// @param eos: index of the end symbol.
// @param pad: index of the padding symbol.
// @param ignore: ignore the slots after an end symbol.
std::vector<Prefix> best_continuations(const float* lprobs, int64_t z, int64_t vocab, int64_t k, int64_t eos, int64_t pad,
                                       bool ignore) {
  std::vector<Prefix> prefixes{{0, {}}}, ended;
  for (int64_t slot = 0; slot < z; slot++) {
    // A continuation that ends before the last slot is complete; it is compared with the other continuations at the end.
    const bool ends_here = ignore && slot < z - 1;
    if (ends_here)
      for (const Prefix& prefix : prefixes) {
        ended.push_back({prefix.score + without_nan(lprobs[slot * vocab + eos]), prefix.words});
        ended.back().words.push_back(eos);
        ended.back().words.resize(z, pad);
      }
    std::vector<PrefixExtension> extensions;
    for (const Candidate& candidate : best_words(lprobs + slot * vocab, vocab, std::min(k + ignore, vocab)))
      for (size_t i = 0; i < prefixes.size(); i++)
        extensions.push_back(
            {prefixes[i].score + (ends_here && candidate.word == eos ? kNone : candidate.score), int64_t(i), candidate.word});
    std::vector<Prefix> longer;
    for (const int64_t index : best_of(extensions, slot == 0 ? k + ignore : k)) {
      longer.push_back({extensions[index].score, prefixes[extensions[index].prefix].words});
      longer.back().words.push_back(extensions[index].word);
    }
    prefixes = std::move(longer);
  }
  prefixes.insert(prefixes.end(), ended.begin(), ended.end());
  std::vector<Prefix> best;
  for (const int64_t index : best_of(prefixes, k)) best.push_back(std::move(prefixes[index]));
  return best;
}

// k continuations of each of R hypotheses: scores (R, k), words and word scores (R, k, z), and slots of the end symbols (R, k).
using Continuations = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// See combine_words in search/search_steps.py.
//
// @param table: log-probabilities (R, z, V).
// @param k: number of continuations.
// @param eos: index of the end symbol.
// @param pad: index of the padding symbol.
// @param ignore: ignore the slots after an end symbol.
Continuations combine_words(const Tensor& table, int64_t k, int64_t eos, int64_t pad, bool ignore) {
  const Tensor lprobs = table.contiguous();
  const int64_t rows = lprobs.size(0), z = lprobs.size(1), vocab = lprobs.size(2);
  ignore = ignore && z > 1;
  const float* values = lprobs.const_data_ptr<float>();
  std::vector<std::vector<Prefix>> continuations(rows);
  at::parallel_for(0, rows, std::max<int64_t>(1, (1 << 15) / (z * vocab)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      continuations[row] = best_continuations(values + row * z * vocab, z, vocab, k, eos, pad, ignore);
  });
  const int64_t count = rows == 0 ? 0 : continuations[0].size();
  const auto integers = lprobs.options().dtype(at::kLong);
  Tensor scores = at::empty({rows, count}, lprobs.options()), words = at::empty({rows, count, z}, integers);
  Tensor word_scores = at::empty({rows, count, z}, lprobs.options()), ends = at::empty({rows, count}, integers);
  for (int64_t row = 0, index = 0; row < rows; row++)
    for (const Prefix& continuation : continuations[row]) {
      int64_t first_end = z;
      for (int64_t slot = z - 1; slot >= 0; slot--)
        if (continuation.words[slot] == eos) first_end = slot;
      scores.mutable_data_ptr<float>()[index] = continuation.score;
      ends.mutable_data_ptr<int64_t>()[index] = first_end;
      for (int64_t slot = 0; slot < z; slot++) {
        const bool after_end = ignore && slot > first_end;
        words.mutable_data_ptr<int64_t>()[index * z + slot] = continuation.words[slot];
        word_scores.mutable_data_ptr<float>()[index * z + slot] =
            after_end ? 0 : without_nan(values[(row * z + slot) * vocab + continuation.words[slot]]);
      }
      index++;
    }
  return {scores, words, word_scores, ends};
}

// Orders the chosen continuations so that as many hypotheses as possible remain in their rows; see row_permutation in
// search/search_steps.py.
//
// @param chosen: indices of continuations, k per row.
// @param k: number of continuations per row.
std::vector<int64_t> row_permutation(const std::vector<int64_t>& chosen, int64_t k) {
  std::vector<int64_t> rows(chosen.size(), -1), moving;
  for (const int64_t continuation : chosen) {
    int64_t& row = rows[continuation / k];
    if (row < 0)
      row = continuation;
    else
      moving.push_back(continuation);
  }
  for (int64_t& row : rows)
    if (row < 0) row = moving.back(), moving.pop_back();
  return rows;
}

// Finished hypotheses: parent rows, numbers of words before the end symbol, sums of log-probabilities, words with the end
// symbol, and log-probabilities of these words; in generation order.
using FinishedHypotheses = std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<double>, std::vector<Tensor>,
                                      std::vector<Tensor>>;

// Result of a search step: scores of the unfinished hypotheses (b, B), their parent rows (b B,), their new words and the words'
// log-probabilities (b B, z), the unfinished sentences, and the finished hypotheses.
using BeamUpdate = std::tuple<Tensor, Tensor, Tensor, Tensor, std::vector<int64_t>, FinishedHypotheses>;

// Returns the first `count` values of a row and its continuation, joined.
//
// @param previous: values of the previous steps, (R, starts + T).
// @param starts: number of start symbols, which are skipped.
// @param row: index of the row.
// @param next: values of the continuation.
// @param count: number of values.
template <typename Number>
Tensor joined(const Tensor& previous, int64_t starts, int64_t row, const Number* next, int64_t count) {
  Tensor result = at::empty({count}, previous.options());
  const int64_t written = std::min(previous.size(1) - starts, count);
  Number* out = result.mutable_data_ptr<Number>();
  std::copy_n(previous.const_data_ptr<Number>() + row * previous.size(1) + starts, written, out);
  std::copy_n(next, count - written, out + written);
  return result;
}

// See advance in search/search_steps.py.
//
// @param all_tokens: start symbols and words, (R, z + T).
// @param all_word_scores: log-probabilities of the words, (R, T).
// @param scores: scores of the hypotheses, (b, B).
// @param finished_counts: number of finished hypotheses of each sentence, (b).
// @param continuations: result of combine_words.
// @param keep_all: keep all finished hypotheses, not only the best B.
BeamUpdate advance(const Tensor& all_tokens, const Tensor& all_word_scores, const Tensor& scores,
                   std::vector<int64_t> finished_counts, const Continuations& continuations, bool keep_all) {
  const auto& [new_scores, new_words, new_word_scores, new_ends] = continuations;
  const int64_t sentences = scores.size(0), beam = scores.size(1), k = new_scores.size(1), z = new_words.size(2);
  const Tensor tokens = all_tokens.contiguous(), word_scores = all_word_scores.contiguous(), previous = scores.contiguous();
  const int64_t written = word_scores.size(1);
  const float* previous_scores = previous.const_data_ptr<float>();
  const float *step_scores = new_scores.const_data_ptr<float>(), *step_word_scores = new_word_scores.const_data_ptr<float>();
  const int64_t *words = new_words.const_data_ptr<int64_t>(), *ends = new_ends.const_data_ptr<int64_t>();
  const auto integers = tokens.options();
  Tensor next_scores = at::empty({sentences, beam}, previous.options()), parents = at::empty({sentences * beam}, integers);
  Tensor next_words = at::empty({sentences * beam, z}, integers);
  Tensor next_word_scores = at::empty({sentences * beam, z}, previous.options());
  std::vector<int64_t> remaining;
  FinishedHypotheses finished;
  auto& [finished_parents, lengths, sums, finished_words, finished_word_scores] = finished;
  std::vector<Candidate> totals(beam * k);
  for (int64_t sentence = 0, row = 0; sentence < sentences; sentence++) {
    const int64_t first_row = sentence * beam, offset = first_row * k;
    for (int64_t i = 0; i < beam * k; i++) totals[i] = {previous_scores[first_row + i / k] + step_scores[offset + i], i};
    std::vector<int64_t> best = best_of(totals, keep_all ? beam * k : beam);
    bool any_finished = false;
    for (const int64_t index : best) {
      const int64_t continuation = offset + index, end = ends[continuation], parent = first_row + index / k;
      if (end == z) continue;
      any_finished = true;
      if (!(totals[index].score > kNone) || (finished_counts[sentence] >= beam && !keep_all)) continue;
      finished_counts[sentence]++;
      finished_parents.push_back(parent), lengths.push_back(written + end);
      finished_words.push_back(joined(tokens, z, parent, words + continuation * z, written + end + 1));
      finished_word_scores.push_back(joined(word_scores, 0, parent, step_word_scores + continuation * z, written + end + 1));
      double sum = 0;
      for (int64_t i = 0; i < written; i++) sum += word_scores.const_data_ptr<float>()[parent * written + i];
      for (int64_t i = 0; i < z; i++) sum += step_word_scores[continuation * z + i];
      sums.push_back(sum);
    }
    if (any_finished || keep_all) {
      for (int64_t i = 0; i < beam * k; i++)
        if (ends[offset + i] < z) totals[i].score = kNone;
      best = best_of(totals, beam);
    }
    if (finished_counts[sentence] < beam && totals[best[0]].score > kNone) remaining.push_back(sentence);
    for (const int64_t index : row_permutation(best, k)) {
      next_scores.mutable_data_ptr<float>()[row] = totals[index].score;
      parents.mutable_data_ptr<int64_t>()[row] = first_row + index / k;
      std::copy_n(words + (offset + index) * z, z, next_words.mutable_data_ptr<int64_t>() + row * z);
      std::copy_n(step_word_scores + (offset + index) * z, z, next_word_scores.mutable_data_ptr<float>() + row * z);
      row++;
    }
  }
  return {next_scores, parents, next_words, next_word_scores, remaining, finished};
}

}  // namespace
