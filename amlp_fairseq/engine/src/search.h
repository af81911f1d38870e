// Beam search that writes z words a step (Zhang et al. 2020, Algorithm 1).

#pragma once

#include <algorithm>
#include <numeric>

#include "model.h"
#include "top_k.h"

namespace amlp {

struct SearchOptions {
  int64_t beam = 5;
  double max_len_a = 0;
  int64_t max_len_b = 200, min_len = 1;
  bool normalize = true, gnmt = false;
  double length_penalty = 1;
  double unk_penalty = 0, temperature = 1;
  bool count_after_end = false;  // words after the end symbol in its step count in score and length
  bool keep_all = false;         // all hypotheses that end are kept, not only those among the best of their step
};

struct Symbols {
  int32_t pad, eos, unk;
};

// A translation in generation order, with its end symbol.
struct Hypothesis {
  Tokens tokens;
  std::vector<float> token_scores;  // log-probabilities
  float score;                      // their sum divided by the length penalty
  int64_t steps;                    // decoder calls
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

class BeamSearch {
 public:
  BeamSearch(const Encoder& encoder, const Decoder& decoder, Symbols symbols, int64_t max_tokens, SearchOptions options)
      : encoder_(encoder), decoder_(decoder), symbols_(symbols), max_tokens_(max_tokens), options_(options),
        vocab_(decoder.output->out) {
    candidates_ = options.keep_all || options.beam == 1 ? options.beam : 2 * options.beam;
  }

  // Of each source (with its end symbol) at most `beam` hypotheses, best first.
  std::vector<std::vector<Hypothesis>> run(ThreadPool& pool, const std::vector<Tokens>& sources) const {
    Session session(encoder_, decoder_, pool, sources);
    std::vector<Sentence> open;
    std::vector<std::vector<Hypothesis>> result(sources.size());
    for (size_t i = 0; i < sources.size(); i++)
      open.push_back({static_cast<int64_t>(i), max_length(sources[i].size()), {Row{0, {}, {}, {}}}, {}});
    const int64_t z = decoder_.words;
    while (!open.empty()) {
      Tokens tokens;
      std::vector<int64_t> sentences;
      std::vector<const Row*> rows;
      std::vector<const int32_t*> paths;
      std::vector<int64_t> limits;
      for (Sentence& sentence : open)
        for (Row& row : sentence.rows) {
          row.path.push_back(sentences.size());
          if (row.tokens.empty())
            tokens.insert(tokens.end(), z, symbols_.eos);
          else
            tokens.insert(tokens.end(), row.tokens.end() - z, row.tokens.end());
          sentences.push_back(sentence.index), rows.push_back(&row), limits.push_back(sentence.limit);
          paths.push_back(row.path.data());
        }
      Floats& logits = session.step(tokens, sentences, paths);
      std::vector<std::vector<Continuation>> continuations(rows.size());
      std::vector<float> normalizers(rows.size() * z);
      pool.run(rows.size(), grain_of(16 * z * vocab_), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++)
          continuations[r] = expand(&logits[r * z * vocab_], &normalizers[r * z], rows[r]->tokens.size(), limits[r]);
      });
      std::vector<Sentence> remaining;
      for (size_t i = 0, row = 0; i < open.size(); i++) {
        Sentence& sentence = open[i];
        const size_t count = sentence.rows.size();
        const bool ends = advance(sentence, &continuations[row], &logits[row * z * vocab_], &normalizers[row * z]);
        row += count;
        if (!ends)
          remaining.push_back(std::move(sentence));
        else
          result[sentence.index] = sorted(std::move(sentence.finished));
      }
      open = std::move(remaining);
    }
    return result;
  }

 private:
  // A hypothesis that goes on: the sum of its log-probabilities, its row in each step, its words and their log-probabilities.
  struct Row {
    float score;
    Tokens path, tokens;
    std::vector<float> token_scores;
  };

  struct Sentence {
    int64_t index, limit;
    std::vector<Row> rows;
    std::vector<Hypothesis> finished;
  };

  const Encoder& encoder_;
  const Decoder& decoder_;
  Symbols symbols_;
  int64_t max_tokens_;
  SearchOptions options_;
  int64_t vocab_, candidates_;

  // The largest number of words of an output, for a source with its end symbol.
  int64_t max_length(int64_t source) const {
    return std::min<int64_t>(options_.max_len_a * source + options_.max_len_b, max_tokens_ - 1);
  }

  // The best continuations of a row, from the logits (z, V) of the next step, to which the rules on scores are applied.
  // normalizers: is filled with the log of the sum of each word's exponentials, (z,).
  std::vector<Continuation> expand(float* logits, float* normalizers, int64_t written, int64_t limit) const {
    const int64_t z = decoder_.words;
    for (int64_t slot = 0; slot < z; slot++) {
      float* const row = logits + slot * vocab_;
      if (options_.temperature != 1)
        for (int64_t i = 0; i < vocab_; i++) row[i] /= options_.temperature;
      normalizers[slot] = log_sum_exp(row, vocab_);
      row[symbols_.pad] = kNone;
      row[symbols_.unk] -= options_.unk_penalty;
      if (written + slot < options_.min_len) row[symbols_.eos] = kNone;
      if (written + slot == limit) {
        const float end = row[symbols_.eos];
        std::fill_n(row, vocab_, kNone);
        row[symbols_.eos] = end;
      }
    }
    return z == 1 ? best_words(logits, normalizers[0]) : best_combinations(logits, normalizers);
  }

  std::vector<Continuation> best_words(const float* logits, float normalizer) const {
    std::vector<Continuation> result;
    for (const Candidate& candidate : largest(logits, vocab_, std::min(candidates_, vocab_)))
      result.push_back({number(candidate.score - normalizer), {candidate.token}});
    return result;
  }

  // The best combinations of z words: by outer addition, pruned after each word (Algorithm 1, lines 10-14).
  std::vector<Continuation> best_combinations(const float* logits, const float* normalizers) const {
    const int64_t z = decoder_.words, k = candidates_;
    const bool ignore = !options_.count_after_end;
    std::vector<Continuation> prefixes{{0, {}}}, ended;
    for (int64_t slot = 0; slot < z; slot++) {
      const float* const row = logits + slot * vocab_;
      // A step that ends before its last word is complete; it competes with the others at the end.
      const bool may_end = ignore && slot < z - 1;
      if (may_end)
        for (const Continuation& prefix : prefixes) {
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
      for (const Candidate& candidate : largest(row, vocab_, std::min(k + ignore, vocab_))) {
        const bool excluded = may_end && candidate.token == symbols_.eos;
        const float score = excluded ? kNone : number(candidate.score - normalizers[slot]);
        for (size_t i = 0; i < prefixes.size(); i++)
          all.push_back({prefixes[i].score + score, static_cast<int64_t>(i), candidate.token});
      }
      std::vector<Continuation> longer;
      for (const int64_t i : best_of(all, slot == 0 ? k + ignore : k)) {
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

  // Choose the hypotheses that go on, and those that end (lines 15-24). Returns true if the sentence is finished.
  bool advance(Sentence& sentence, const std::vector<Continuation>* continuations, const float* logits,
               const float* normalizers) const {
    const int64_t z = decoder_.words;
    struct Option {
      float score;
      int64_t row, index;
    };
    std::vector<Option> all;
    for (size_t row = 0; row < sentence.rows.size(); row++)
      for (size_t i = 0; i < continuations[row].size(); i++)
        all.push_back({sentence.rows[row].score + continuations[row][i].score, static_cast<int64_t>(row),
                       static_cast<int64_t>(i)});
    const auto extended = [&](const Option& option, int64_t count) {
      const Row& before = sentence.rows[option.row];
      const Tokens& tokens = continuations[option.row][option.index].tokens;
      Row row{option.score, before.path, before.tokens, before.token_scores};
      for (int64_t slot = 0; slot < count; slot++) {
        row.tokens.push_back(tokens[slot]);
        const int64_t at = option.row * z + slot;
        // 0 for padding after an end symbol
        row.token_scores.push_back(tokens[slot] == symbols_.pad ? 0 : number(logits[at * vocab_ + tokens[slot]] - normalizers[at]));
      }
      return row;
    };
    const auto end_of = [&](const Option& option) {
      const Tokens& tokens = continuations[option.row][option.index].tokens;
      return std::find(tokens.begin(), tokens.end(), symbols_.eos) - tokens.begin();
    };
    const int64_t beam = options_.beam;
    bool any = false;
    for (const int64_t i : best_of(all, options_.keep_all ? all.size() : beam)) {
      const int64_t end = end_of(all[i]);
      if (end == z) continue;
      any = true;
      const bool room = options_.keep_all || static_cast<int64_t>(sentence.finished.size()) < beam;
      if (all[i].score > kNone && room) sentence.finished.push_back(finish(extended(all[i], z), end));
    }
    if (any)
      for (Option& option : all)
        if (end_of(option) < z) option.score = kNone;
    std::vector<Row> rows;
    for (const int64_t i : best_of(all, beam))
      if (all[i].score > kNone) rows.push_back(extended(all[i], z));
    sentence.rows = std::move(rows);
    return static_cast<int64_t>(sentence.finished.size()) >= beam || sentence.rows.empty();
  }

  // row: with the words of its last step, of which word `end` is the end symbol.
  Hypothesis finish(Row row, int64_t end) const {
    const int64_t z = decoder_.words, length = row.tokens.size() - z + end;
    double total = 0;
    for (const float score : row.token_scores) total += score;
    row.tokens.resize(length + 1), row.token_scores.resize(length + 1);
    const double counted = options_.count_after_end ? (length / z + 1) * z : length + 1;
    const double base = options_.gnmt ? (5 + counted) / 6 : counted;
    const double penalty = options_.normalize ? std::pow(base, options_.length_penalty) : 1;
    return {std::move(row.tokens), std::move(row.token_scores), static_cast<float>(total / penalty), length / z + 1};
  }

  std::vector<Hypothesis> sorted(std::vector<Hypothesis> hypotheses) const {
    std::stable_sort(hypotheses.begin(), hypotheses.end(),
                     [](const Hypothesis& one, const Hypothesis& other) { return one.score > other.score; });
    if (static_cast<int64_t>(hypotheses.size()) > options_.beam) hypotheses.resize(options_.beam);
    return hypotheses;
  }
};

}  // namespace amlp
