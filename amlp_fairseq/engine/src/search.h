// What searches have in common: options, the rules on scores, and the best words of a step.

#pragma once

#include <algorithm>
#include <numeric>

#include "model.h"
#include "ngrams.h"
#include "top_k.h"

namespace amlp {

struct SearchOptions {
  int64_t beam = 5;
  double max_len_a = 0;
  int64_t max_len_b = 200, min_len = 1;
  int64_t max_len = 1 << 30;  // for every source
  bool normalize = true, gnmt = false;
  double length_penalty = 1;
  double unk_penalty = 0, temperature = 1;
  bool count_after_end = false;  // words after the end symbol in its step count in score and length
  bool keep_all = false;         // all hypotheses that end are kept, not only those among the best of their step
  int64_t no_repeat_ngram = 0;   // no n-gram of this size twice in an output; 0: no such rule
  bool align = false;            // hypotheses have alignments
};

struct Symbols {
  int32_t pad, eos, unk;
};

// A translation in reading order, with its end symbol.
struct Hypothesis {
  Tokens tokens;
  std::vector<float> token_scores;  // log-probabilities
  float score;                      // their sum divided by the length penalty
  int64_t steps;                    // decoder calls
  Tokens alignment;                 // the word of the source that each word but the end symbol attends to most, if asked for
};

// z words that may follow a hypothesis, and the sum of their log-probabilities.
struct Continuation {
  float score;
  Tokens tokens;
};

// The indices of the k best, best first; of equal ones the first.
template <typename Scored>
std::vector<int64_t> best_of(const std::vector<Scored>& all, int64_t k) {
  std::vector<int64_t> indices(all.size());
  std::iota(indices.begin(), indices.end(), 0);
  const int64_t count = std::min<int64_t>(k, all.size());
  std::partial_sort(indices.begin(), indices.begin() + count, indices.end(), [&](int64_t one, int64_t other) {
    return all[one].score > all[other].score || (all[one].score == all[other].score && one < other);
  });
  indices.resize(count);
  return indices;
}

// A model with the options of its search.
class Search {
 public:
  Search(const Encoder& encoder, const Decoder& decoder, Symbols symbols, Order order, int64_t max_tokens, SearchOptions options)
      : encoder_(encoder), decoder_(decoder), symbols_(symbols), order_(order), options_(options),
        ngrams_(options.no_repeat_ngram, order), vocab_(decoder.output->out), max_tokens_(max_tokens) {
    // B continuations are exact for Algorithm 1 and for greedy search, unless some may be refused.
    const bool exact = options.no_repeat_ngram == 0 && (options.keep_all || options.beam == 1);
    candidates_ = exact ? options.beam : 2 * options.beam;
  }

 protected:
  // A hypothesis that goes on: its words with their log-probabilities.
  struct Row {
    float score = 0;  // the sum of the log-probabilities
    Path path;
    Tokens tokens;
    std::vector<float> token_scores;
  };

  // A batch in the middle of a search.
  struct Batch {
    ThreadPool& pool;
    const std::vector<Tokens>& sources;  // with their end symbols
    Session session;
    Tokens aligned;  // the word of the source that each word of each row attends to most, (rows, z)
  };

  // Rows that are decoded together, and what may follow them.
  struct Call {
    std::vector<int64_t> sentences, limits;
    std::vector<Path> paths;
    std::vector<Tokens> written;  // the words before
    float* logits;                // (R, z, V), to which the rules are applied
    std::vector<float> normalizers;
    std::vector<std::vector<Continuation>> continuations;

    void add(int64_t sentence, int64_t limit, const Path& path, const Tokens& tokens) {
      sentences.push_back(sentence), limits.push_back(limit), paths.push_back(path), written.push_back(tokens);
    }
  };

  const Encoder& encoder_;
  const Decoder& decoder_;
  Symbols symbols_;
  Order order_;
  SearchOptions options_;
  NoRepeatNgrams ngrams_;
  int64_t vocab_;

  Batch begin(ThreadPool& pool, const std::vector<Tokens>& sources) const {
    return {pool, sources, Session(encoder_, decoder_, pool, sources), {}};
  }

  // The largest number of words of an output, for a source with its end symbol.
  int64_t max_length(const Tokens& source) const {
    const int64_t most = std::min(max_tokens_ - 1, options_.max_len);
    return std::min<int64_t>(options_.max_len_a * source.size() + options_.max_len_b, most);
  }

  // Read a call's words; returns its attention to the words of the sources, if hypotheses have alignments.
  std::vector<float> read(Batch& batch, Call& call) const {
    const int64_t z = decoder_.words;
    Tokens tokens;
    for (const Tokens& written : call.written)
      if (written.empty())
        tokens.insert(tokens.end(), z, symbols_.eos);
      else
        tokens.insert(tokens.end(), written.end() - z, written.end());
    std::vector<float> weights;
    call.logits = batch.session.step(tokens, call.sentences, call.paths, options_.align ? &weights : nullptr).data();
    return weights;
  }

  // Read a call's words and find what may follow them.
  void decode(Batch& batch, Call& call) const {
    const int64_t z = decoder_.words, rows = call.paths.size();
    const std::vector<float> weights = read(batch, call);
    if (options_.align) align(batch, call, weights.data());
    call.normalizers.resize(rows * z);
    call.continuations.resize(rows);
    batch.pool.run(rows, grain_of(16 * z * vocab_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++)
        call.continuations[r] =
            expand(call.logits + r * z * vocab_, &call.normalizers[r * z], call.written[r], call.limits[r]);
    });
  }

  // The log-probability of a word.
  float score_of(const Call& call, int64_t row, int64_t slot, int32_t token) const {
    const int64_t at = row * decoder_.words + slot;
    return number(call.logits[at * vocab_ + token] - call.normalizers[at]);
  }

  // The index of the first end symbol in a step; z if there is none.
  int64_t end_of(const Continuation& continuation) const {
    const Tokens& tokens = continuation.tokens;
    return std::find(tokens.begin(), tokens.end(), symbols_.eos) - tokens.begin();
  }

  // row: with the words of its last step, of which word `end` is the end symbol.
  Hypothesis finish(const Batch& batch, const Row& row, int64_t end, int64_t steps) const {
    const int64_t z = decoder_.words, length = row.tokens.size() - z + end;
    double total = 0;
    for (const float score : row.token_scores) total += score;
    const double counted = options_.count_after_end ? (length / z + 1) * z : length + 1;
    Hypothesis result{{}, {}, normalized(total, counted), steps, {}};
    std::vector<int64_t> slots = order_.slots(length);
    if (options_.align)
      for (const int64_t slot : slots) result.alignment.push_back(batch.aligned[row.path[slot / z] * z + slot % z]);
    slots.push_back(length);
    for (const int64_t slot : slots) {
      result.tokens.push_back(row.tokens[slot]);
      result.token_scores.push_back(row.token_scores[slot]);
    }
    return result;
  }

  // The sum of the log-probabilities of so many words, with the end symbol, divided by the length penalty.
  float normalized(double total, double counted) const {
    const double base = options_.gnmt ? (5 + counted) / 6 : counted;
    return total / (options_.normalize ? std::pow(base, options_.length_penalty) : 1);
  }

 private:
  int64_t max_tokens_, candidates_;

  // weights: of a call's rows.
  void align(Batch& batch, const Call& call, const float* weights) const {
    for (const int64_t sentence : call.sentences)
      for (int64_t slot = 0; slot < decoder_.words; slot++) {
        int32_t word = -1, best = -1;
        float largest = kNone;
        for (const int32_t token : batch.sources[sentence]) {
          const float weight = *weights++;
          if (token == symbols_.pad || token == symbols_.eos) continue;
          word++;
          if (best < 0 || weight > largest) best = word, largest = weight;
        }
        batch.aligned.push_back(best);
      }
  }

  // The best continuations of a row, from the logits (z, V) of the next step, to which the rules on scores are applied.
  // normalizers: is filled with the log of the sum of each word's exponentials, (z,).
  std::vector<Continuation> expand(float* logits, float* normalizers, const Tokens& written, int64_t limit) const {
    const int64_t z = decoder_.words, length = written.size();
    for (int64_t slot = 0; slot < z; slot++) {
      float* const row = logits + slot * vocab_;
      if (options_.temperature != 1)
        for (int64_t i = 0; i < vocab_; i++) row[i] /= options_.temperature;
      normalizers[slot] = log_sum_exp(row, vocab_);
      row[symbols_.pad] = kNone;
      row[symbols_.unk] -= options_.unk_penalty;
      if (length + slot < options_.min_len) row[symbols_.eos] = kNone;
      if (length + slot == limit) {
        const float end = row[symbols_.eos];
        std::fill_n(row, vocab_, kNone);
        row[symbols_.eos] = end;
      }
    }
    return z == 1 ? best_words(logits, normalizers[0], written) : best_combinations(logits, normalizers, written);
  }

  // The number of words of a slot that are enough for k continuations: each word before it ends at most one n-gram that
  // forbids one.
  int64_t enough(int64_t k, const Tokens& written) const {
    const int64_t forbidden = options_.no_repeat_ngram > 0 ? written.size() + decoder_.words : 0;
    return std::min<int64_t>(k + forbidden, vocab_);
  }

  std::vector<Continuation> best_words(const float* logits, float normalizer, const Tokens& written) const {
    const Tokens banned = ngrams_.banned(written);
    std::vector<Continuation> result;
    for (const Candidate& candidate : largest(logits, vocab_, enough(candidates_, written))) {
      if (contains(banned, candidate.token)) continue;
      result.push_back({number(candidate.score - normalizer), {candidate.token}});
      if (static_cast<int64_t>(result.size()) == candidates_) break;
    }
    return result;
  }

  // The best combinations of z words: by outer addition, pruned after each word (Algorithm 1, lines 10-14).
  std::vector<Continuation> best_combinations(const float* logits, const float* normalizers, const Tokens& written) const {
    const int64_t z = decoder_.words, k = candidates_;
    const bool ignore = !options_.count_after_end;
    const int64_t first = enough(k + ignore, written);  // words of a slot, and prefixes of one word
    std::vector<Continuation> prefixes{{0, {}}}, ended;
    for (int64_t slot = 0; slot < z; slot++) {
      const float* const row = logits + slot * vocab_;
      // A step that ends before its last word is complete; it competes with the others at the end.
      const bool may_end = ignore && slot < z - 1;
      std::vector<Tokens> banned;
      for (const Continuation& prefix : prefixes) {
        banned.push_back(ngrams_.banned(written, prefix.tokens));
        if (!may_end) continue;
        ended.push_back({prefix.score + number(row[symbols_.eos] - normalizers[slot]), prefix.tokens});
        ended.back().tokens.push_back(symbols_.eos);
        ended.back().tokens.resize(z, symbols_.pad);
      }
      struct Longer {
        float score;
        int64_t prefix;
        int32_t token;
      };
      std::vector<Longer> all;
      for (const Candidate& candidate : largest(row, vocab_, first)) {
        const bool excluded = may_end && candidate.token == symbols_.eos;
        const float score = excluded ? kNone : number(candidate.score - normalizers[slot]);
        for (size_t i = 0; i < prefixes.size(); i++)
          if (!contains(banned[i], candidate.token))
            all.push_back({prefixes[i].score + score, static_cast<int64_t>(i), candidate.token});
      }
      std::vector<Continuation> longer;
      for (const int64_t i : best_of(all, slot == 0 ? first : k)) {
        longer.push_back({all[i].score, prefixes[all[i].prefix].tokens});
        longer.back().tokens.push_back(all[i].token);
      }
      prefixes = std::move(longer);
    }
    prefixes.insert(prefixes.end(), ended.begin(), ended.end());
    std::vector<Continuation> result;
    for (const int64_t i : best_of(prefixes, k)) result.push_back(std::move(prefixes[i]));
    return result;
  }
};

}  // namespace amlp
