// What searches have in common: options, the rules on scores, and the best words of a step.

#pragma once

#include <algorithm>
#include <functional>
#include <numeric>

#include "model.h"
#include "ngrams.h"
#include "prefix.h"
#include "sampling.h"
#include "suppressed.h"
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
  double repetition_penalty = 1;  // logits of words that have been written are divided by it, or multiplied if they are negative
  std::vector<SuppressedText> suppressed;
  bool align = false;            // hypotheses have alignments
  bool alternatives = false;     // after the prefix the best `beam` words, each continued by greedy search
  double min_alternative_prob = 0;  // of further ones those of this probability at least
  bool sampling = false;         // `beam` samples
  int64_t sampling_topk = 0;     // of the k best words; 0: of all
  double sampling_topp = 0;      // of the best words whose probabilities sum to this; 0: of all
  double sampling_minp = 0;      // of words with this share of the best one's probability; 0: of all
  int64_t seed = 1;
  int32_t start, end;            // symbols
};

struct Symbols {
  int32_t pad, eos, unk;

  bool operator==(const Symbols&) const = default;
};

// A translation in reading order, with its end symbol.
struct Hypothesis {
  Tokens tokens;
  std::vector<float> token_scores;  // log-probabilities
  float score;                      // their sum divided by the length penalty
  int64_t steps;                    // decoder calls
  Tokens alignment;                 // the word of the source that each word but the end symbol attends to most, if asked for
  std::vector<std::vector<float>> attention;  // of each word to those of the source, end symbols included, if asked for
  int64_t alternative;              // its number
};

// Is told the words of a source's best hypothesis so far, in the order in which they are written, after each step but the last
// one. What it throws ends the search.
typedef std::function<void(int64_t sentence, const Tokens& written)> Watch;

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
  // prefixes: null, or of each source.
  // shortlist: null, or that of the words that outputs may have.
  Search(const Models& models, Symbols symbols, Order order, int64_t max_tokens, SearchOptions options,
         const std::vector<Prefix>* prefixes = nullptr, const Shortlist* shortlist = nullptr)
      : models_(models), symbols_(symbols), order_(order), options_(options), ngrams_(options.no_repeat_ngram, order),
        suppressed_(options.suppressed, order), words_(models[0]->decoder.words), vocab_(models[0]->decoder.output->out),
        prefixes_(prefixes), shortlist_(shortlist), max_tokens_(max_tokens) {
    symbols_.eos = options.end;
    // B continuations are exact for Algorithm 1 and for greedy search, unless some may be refused.
    const bool exact = !refuses_ends() && options.no_repeat_ngram == 0 &&
                       (options.keep_all || options.alternatives || options.beam == 1);
    candidates_ = exact ? options.beam : 2 * options.beam;
  }

 protected:
  // A hypothesis that goes on: its words with their log-probabilities.
  struct Row {
    float score = 0;  // the sum of the log-probabilities
    Path path;
    Tokens tokens;
    std::vector<float> token_scores;
    int64_t alternative = 0;
  };

  // A batch in the middle of a search.
  struct Batch {
    ThreadPool& pool;
    const std::vector<Tokens>& sources;  // with their end symbols
    std::vector<Listed> lists;           // the words that each output may have
    std::vector<Session> sessions;       // of each model
    std::vector<std::vector<float>> attention;  // of each word of each row (rows z) to those of the source, if asked for

    // The number of the first row of the next step.
    int32_t next_row() const { return sessions[0].next_row(); }
  };

  // Rows that are decoded together, and what may follow them.
  struct Call {
    std::vector<int64_t> sentences, limits;
    std::vector<Path> paths;
    std::vector<Tokens> written;  // the words before
    std::vector<float*> logits;   // of each model; of the first one, to which the rules are applied, for all of them
    std::vector<int64_t> begins;  // where each row's logits begin, (z, words of its list)
    std::vector<float> normalizers;
    std::vector<std::vector<Continuation>> continuations;

    void add(int64_t sentence, int64_t limit, const Path& path, const Tokens& tokens) {
      sentences.push_back(sentence), limits.push_back(limit), paths.push_back(path), written.push_back(tokens);
    }
  };

  const Models& models_;
  Symbols symbols_;
  Order order_;
  SearchOptions options_;
  NoRepeatNgrams ngrams_;
  Suppressed suppressed_;
  int64_t words_, vocab_;  // z, V

  // True if a complete output may be refused, for what it has where two directions meet.
  bool refuses_ends() const { return order_.directions > 1 && (options_.no_repeat_ngram > 0 || suppressed_.count() > 0); }

  Batch begin(ThreadPool& pool, const std::vector<Tokens>& sources) const {
    Batch batch{pool, sources, {}, {}, {}};
    for (size_t i = 0; i < sources.size(); i++) batch.lists.push_back(list_of(sources[i], i));
    batch.sessions.reserve(models_.size());
    for (const auto& model : models_) batch.sessions.emplace_back(*model, pool, sources, batch.lists);
    return batch;
  }

  // What the output of a source must begin with.
  const Prefix& prefix_of(int64_t sentence) const {
    static const Prefix none;
    return prefixes_ == nullptr ? none : (*prefixes_)[sentence];
  }

  // The largest number of words of an output, for a source with its end symbol.
  int64_t max_length(const Tokens& source) const {
    const int64_t most = std::min(max_tokens_ - 1, options_.max_len);
    return std::min<double>(options_.max_len_a * source.size() + options_.max_len_b, most);
  }

  // Read a call's words; returns its attention to the words of the sources, if hypotheses have alignments.
  std::vector<float> read(Batch& batch, Call& call) const {
    const int64_t z = words_;
    Tokens tokens;
    for (const Tokens& written : call.written)
      if (written.empty())
        tokens.insert(tokens.end(), z, options_.start);
      else
        tokens.insert(tokens.end(), written.end() - z, written.end());
    std::vector<float> weights, of_model;
    for (Session& session : batch.sessions) {
      call.logits.push_back(session.step(tokens, call.sentences, call.paths, options_.align ? &of_model : nullptr).data());
      weights.resize(of_model.size());
      for (size_t i = 0; i < of_model.size(); i++) weights[i] += of_model[i];
    }
    call.normalizers.resize(call.paths.size() * z);
    int64_t begin = 0;
    for (const int64_t sentence : call.sentences) {
      call.begins.push_back(begin);
      begin += z * batch.lists[sentence].size();
    }
    return weights;
  }

  // Find the normalizer of a slot of a row, the log of the sum of its exponentials. The mean of several models' probabilities
  // is put into the row of the first, as logarithms.
  void normalize(const Batch& batch, Call& call, int64_t r, int64_t slot) const {
    const int64_t at = r * words_ + slot, size = list_of(batch, call, r).size(), begin = call.begins[r] + slot * size;
    float* const first = call.logits[0] + begin;
    std::vector<float> normalizers;
    for (float* const logits : call.logits) {
      float* const row = logits + begin;
      if (options_.repetition_penalty != 1) penalize(row, list_of(batch, call, r), call.written[r]);
      if (options_.temperature != 1)
        for (int64_t i = 0; i < size; i++) row[i] /= options_.temperature;
      normalizers.push_back(log_sum_exp(row, size));
    }
    call.normalizers[at] = normalizers[0];
    if (call.logits.size() == 1) return;
    call.normalizers[at] = std::log(static_cast<float>(call.logits.size()));
    for (int64_t i = 0; i < size; i++) first[i] = number(first[i] - normalizers[0]);
    for (size_t model = 1; model < call.logits.size(); model++) {
      const float* const row = call.logits[model] + begin;
#pragma omp simd
      for (int64_t i = 0; i < size; i++) {
        const float other = row[i] - normalizers[model], more = std::max(first[i], other), less = std::min(first[i], other);
        first[i] = more + logarithm(1 + exponential(less - more));
      }
    }
  }

  // Keskar et al. 2019, who have positive logits.
  void penalize(float* logits, const Listed& words, const Tokens& written) const {
    for (const int32_t token : std::set<int32_t>(written.begin(), written.end()))
      if (const int64_t column = words.column(token); column >= 0)
        logits[column] *= logits[column] < 0 ? options_.repetition_penalty : 1 / options_.repetition_penalty;
  }

  static void exclude(float* logits, const Listed& words, int32_t token) {
    if (const int64_t column = words.column(token); column >= 0) logits[column] = kNone;
  }

  // Read a call's words and find what may follow them.
  void decode(Batch& batch, Call& call) const {
    const int64_t z = words_, rows = call.paths.size();
    const std::vector<float> weights = read(batch, call);
    if (options_.align) keep_attention(batch, call, weights.data());
    call.continuations.resize(rows);
    batch.pool.run(rows, grain_of(16 * z * batch.lists[0].size()), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        for (int64_t slot = 0; slot < z; slot++) normalize(batch, call, r, slot);
        call.continuations[r] = expand(batch, call, r);
      }
    });
  }

  // The log-probability of a word.
  float score_of(const Batch& batch, const Call& call, int64_t row, int64_t slot, int32_t token) const {
    const Listed& words = list_of(batch, call, row);
    const float logit = call.logits[0][call.begins[row] + slot * words.size() + words.column(token)];
    return number(logit - call.normalizers[row * words_ + slot]);
  }

  // The index of the first end symbol in a step; z if there is none.
  int64_t end_of(const Continuation& continuation) const {
    const Tokens& tokens = continuation.tokens;
    return std::find(tokens.begin(), tokens.end(), symbols_.eos) - tokens.begin();
  }

  // row: of a sentence, with the words of its last step, of which word `end` is the end symbol.
  Hypothesis finish(const Batch& batch, int64_t sentence, const Row& row, int64_t end, int64_t steps) const {
    const int64_t z = words_, length = row.tokens.size() - z + end;
    double total = 0;
    for (const float score : row.token_scores) total += score;
    const double counted = options_.count_after_end ? (length / z + 1) * z : length + 1;
    Hypothesis result{{}, {}, normalized(total, counted), steps, {}, {}, row.alternative};
    std::vector<int64_t> slots = order_.slots(length);
    slots.push_back(length);
    for (const int64_t slot : slots) {
      if (options_.align) {
        result.attention.push_back(batch.attention[row.path[slot / z] * z + slot % z]);
        if (slot < length) result.alignment.push_back(aligned(batch.sources[sentence], result.attention.back()));
      }
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
  const std::vector<Prefix>* prefixes_;
  const Shortlist* shortlist_;
  int64_t max_tokens_, candidates_;

  // The words that the output of a source may have.
  Listed list_of(const Tokens& source, int64_t sentence) const {
    if (shortlist_ == nullptr) return {0, vocab_};
    return shortlist_->of(source, {symbols_.pad, symbols_.unk, symbols_.eos, options_.start}, &prefix_of(sentence));
  }

  // The words that a row's output may have.
  const Listed& list_of(const Batch& batch, const Call& call, int64_t r) const { return batch.lists[call.sentences[r]]; }

  // weights: of a call's rows, sums over the models.
  void keep_attention(Batch& batch, const Call& call, const float* weights) const {
    for (const int64_t sentence : call.sentences)
      for (int64_t slot = 0; slot < words_; slot++) {
        std::vector<float>& kept = batch.attention.emplace_back(batch.sources[sentence].size());
        for (float& weight : kept) weight = *weights++ / models_.size();
      }
  }

  // The word of a source, from 0 and without symbols, that is attended to most.
  int32_t aligned(const Tokens& source, const std::vector<float>& attention) const {
    int32_t word = -1, best = -1;
    float largest = kNone;
    for (size_t i = 0; i < source.size(); i++) {
      if (source[i] == symbols_.pad || source[i] == symbols_.eos) continue;
      word++;
      if (best < 0 || attention[i] > largest) best = word, largest = attention[i];
    }
    return best;
  }

  // What follows a row: the best continuations, or a sample, by the logits (z, V) of the next step, to which the rules on
  // scores are applied.
  std::vector<Continuation> expand(const Batch& batch, const Call& call, int64_t r) const {
    const Tokens& written = call.written[r];
    const int64_t z = words_, length = written.size();
    const Listed& words = list_of(batch, call, r);
    float* const logits = call.logits[0] + call.begins[r];
    const int64_t end = words.column(symbols_.eos);
    const Prefix& prefix = prefix_of(call.sentences[r]);
    const int32_t state = prefix.after(written);
    std::vector<bool> given(z);  // slots whose word is the prefix'
    for (int64_t slot = 0; slot < z; slot++) {
      float* const row = logits + slot * words.size();
      row[words.column(symbols_.pad)] = kNone;
      row[words.column(symbols_.unk)] -= options_.unk_penalty;
      given[slot] = state + slot < prefix.size() && prefix.apply(state + slot, row, words, symbols_.eos);
      if (given[slot]) continue;
      if (length + slot < options_.min_len) row[end] = kNone;
      if (slot < order_.directions)  // no other word of its direction is in the step before it
        for (const int32_t token : suppressed_.banned(written, Tokens(slot))) exclude(row, words, token);
      if (length + slot == call.limits[r]) {
        const float score = row[end];
        std::fill_n(row, words.size(), kNone);
        row[end] = score;
      }
    }
    const float* const normalizers = &call.normalizers[r * z];
    if (options_.sampling) return {sample(batch, call, r, given)};
    return z == 1 ? best_words(words, logits, normalizers[0], written, given[0])
                  : best_combinations(words, logits, normalizers, written, given);
  }

  // The words that must not come next, but for those that the logits exclude.
  Tokens banned(const Tokens& written, const Tokens& more, bool given) const {
    if (given) return {};
    Tokens result = ngrams_.banned(written, more);
    if (static_cast<int64_t>(more.size()) < order_.directions) return result;
    const Tokens suppressed = suppressed_.banned(written, more);
    result.insert(result.end(), suppressed.begin(), suppressed.end());
    return result;
  }

  // A sample of each word up to the end symbol. It depends on the seed, the source, the words before and the row's place
  // among those of its sentence.
  Continuation sample(const Batch& batch, const Call& call, int64_t r, const std::vector<bool>& given) const {
    const int64_t first = std::lower_bound(call.sentences.begin(), call.sentences.end(), call.sentences[r]) - call.sentences.begin();
    Random random(options_.seed, batch.sources[call.sentences[r]], {r - first, static_cast<int64_t>(call.written[r].size())});
    Continuation result{0, {}};
    const Listed& words = list_of(batch, call, r);
    for (int64_t slot = 0; slot < words_; slot++) {
      if (!result.tokens.empty() && result.tokens.back() == symbols_.eos && !options_.count_after_end) break;
      float* const row = call.logits[0] + call.begins[r] + slot * words.size();
      for (const int32_t token : banned(call.written[r], result.tokens, given[slot])) exclude(row, words, token);
      const DrawnFrom from{options_.sampling_topk, options_.sampling_topp, options_.sampling_minp};
      const int32_t token = words.word(sampled(row, words.size(), call.normalizers[r * words_ + slot], from, random.uniform()));
      result.score += score_of(batch, call, r, slot, token);
      result.tokens.push_back(token);
    }
    result.tokens.resize(words_, symbols_.pad);
    return result;
  }

  // The number of words of a slot that are enough for k continuations: each word before it ends at most one n-gram that
  // forbids one, and a suppressed text of so many characters ends in as many words.
  int64_t enough(int64_t k, const Tokens& written) const {
    int64_t forbidden = options_.no_repeat_ngram > 0 ? written.size() + words_ : 0;
    if (words_ > order_.directions)
      for (const SuppressedText& text : options_.suppressed) forbidden += text.length;
    return std::min<int64_t>(k + forbidden, vocab_);
  }

  // The m best words of a row, best first.
  static std::vector<Candidate> best_of_row(const Listed& words, const float* row, int64_t m) {
    std::vector<Candidate> result = largest(row, words.size(), std::min(m, words.size()));
    for (Candidate& candidate : result) candidate.token = words.word(candidate.token);
    return result;
  }

  std::vector<Continuation> best_words(const Listed& words, const float* logits, float normalizer, const Tokens& written,
                                       bool given) const {
    const Tokens refused = banned(written, {}, given);
    std::vector<Continuation> result;
    for (const Candidate& candidate : best_of_row(words, logits, enough(candidates_, written))) {
      if (contains(refused, candidate.token)) continue;
      result.push_back({number(candidate.score - normalizer), {candidate.token}});
      if (static_cast<int64_t>(result.size()) == candidates_) break;
    }
    return result;
  }

  // The best combinations of z words: by outer addition, pruned after each word (Algorithm 1, lines 10-14).
  std::vector<Continuation> best_combinations(const Listed& words, const float* logits, const float* normalizers,
                                              const Tokens& written, const std::vector<bool>& given) const {
    const int64_t z = words_, k = candidates_;
    const bool ignore = !options_.count_after_end;
    const int64_t first = enough(k + ignore, written);  // words of a slot, and beginnings of one word
    std::vector<Continuation> begun{{0, {}}}, ended;
    for (int64_t slot = 0; slot < z; slot++) {
      const float* const row = logits + slot * words.size();
      // A step that ends before its last word is complete; it competes with the others at the end.
      const bool may_end = ignore && slot < z - 1;
      std::vector<Tokens> refused;
      for (const Continuation& before : begun) {
        refused.push_back(banned(written, before.tokens, given[slot]));
        if (!may_end) continue;
        ended.push_back({before.score + number(row[words.column(symbols_.eos)] - normalizers[slot]), before.tokens});
        ended.back().tokens.push_back(symbols_.eos);
        ended.back().tokens.resize(z, symbols_.pad);
      }
      struct Longer {
        float score;
        int64_t before;
        int32_t token;
      };
      std::vector<Longer> all;
      for (const Candidate& candidate : best_of_row(words, row, first)) {
        const bool excluded = may_end && candidate.token == symbols_.eos;
        const float score = excluded ? kNone : number(candidate.score - normalizers[slot]);
        for (size_t i = 0; i < begun.size(); i++)
          if (!contains(refused[i], candidate.token))
            all.push_back({begun[i].score + score, static_cast<int64_t>(i), candidate.token});
      }
      std::vector<Continuation> longer;
      for (const int64_t i : best_of(all, slot == 0 ? first : k)) {
        longer.push_back({all[i].score, begun[all[i].before].tokens});
        longer.back().tokens.push_back(all[i].token);
      }
      begun = std::move(longer);
    }
    begun.insert(begun.end(), ended.begin(), ended.end());
    std::vector<Continuation> result;
    for (const int64_t i : best_of(begun, k)) result.push_back(std::move(begun[i]));
    return result;
  }
};

}  // namespace amlp
