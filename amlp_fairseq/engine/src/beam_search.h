// Beam search that writes z words a step (Zhang et al. 2020, Algorithm 1).

#pragma once

#include "search.h"

namespace amlp {

class BeamSearch : public Search {
 public:
  using Search::Search;

  // Of each source (with its end symbol) at most `beam` hypotheses, best first.
  // watch: may be null.
  std::vector<std::vector<Hypothesis>> run(ThreadPool& pool, const std::vector<Tokens>& sources, const Watch& watch = nullptr) const {
    Batch batch = begin(pool, sources);
    std::vector<Sentence> open;
    std::vector<std::vector<Hypothesis>> result(sources.size());
    const std::vector<Row> rows(options_.sampling ? options_.beam : 1);
    for (size_t i = 0; i < sources.size(); i++) open.push_back({static_cast<int64_t>(i), max_length(sources[i]), rows, {}});
    while (!open.empty()) {
      Call call;
      for (Sentence& sentence : open)
        for (Row& row : sentence.rows) {
          row.path.push_back(batch.next_row() + call.paths.size());
          call.add(sentence.index, sentence.limit, row.path, row.tokens);
        }
      decode(batch, call);
      std::vector<Sentence> remaining;
      int64_t row = 0;
      for (Sentence& sentence : open) {
        const int64_t first = row;
        row += sentence.rows.size();
        if (refuses_ends()) drop_ends(sentence, &call.continuations[first]);
        if (options_.sampling || options_.alternatives ? advance_alone(batch, sentence, call, first)
                                                       : advance(batch, sentence, call, first))
          result[sentence.index] = sorted(std::move(sentence.finished));
        else
          remaining.push_back(std::move(sentence));
      }
      if (watch)
        for (const Sentence& sentence : remaining) watch(sentence.index, sentence.rows[0].tokens);
      open = std::move(remaining);
    }
    return result;
  }

 private:
  struct Sentence {
    int64_t index, limit;
    std::vector<Row> rows;
    std::vector<Hypothesis> finished;
    bool branched = false;  // into alternatives
  };

  // Exclude continuations that end a hypothesis with a repeated n-gram or a suppressed text, where two directions meet. From the
  // rule against repetitions hypotheses at the length limit are exempt, and all of a sentence that would have none: every
  // sentence needs one.
  void drop_ends(const Sentence& sentence, std::vector<Continuation>* continuations) const {
    std::vector<std::pair<float*, float>> dropped;
    bool any = !sentence.finished.empty();
    for (size_t row = 0; row < sentence.rows.size(); row++)
      for (Continuation& continuation : continuations[row]) {
        const int64_t end = end_of(continuation);
        const Tokens& written = sentence.rows[row].tokens;
        if (end < words_ && continuation.score > kNone) {
          Tokens all = written;
          all.insert(all.end(), continuation.tokens.begin(), continuation.tokens.begin() + end);
          if (suppressed_.occur(all, prefix_of(sentence.index))) {
            continuation.score = kNone;
          } else if (static_cast<int64_t>(all.size()) < sentence.limit && ngrams_.repeats(all)) {
            dropped.push_back({&continuation.score, continuation.score});
            continuation.score = kNone;
          }
        }
        any |= continuation.score > kNone;
      }
    if (!any)
      for (const auto& [score, before] : dropped) *score = before;
  }

  // A row with a continuation of the call's row r.
  Row extended(const Batch& batch, const Row& before, const Call& call, int64_t r, const Continuation& continuation) const {
    Row row{before.score + continuation.score, before.path, before.tokens, before.token_scores, before.alternative};
    for (int64_t slot = 0; slot < words_; slot++) {
      const int32_t token = continuation.tokens[slot];
      row.tokens.push_back(token);
      row.token_scores.push_back(token == symbols_.pad ? 0 : score_of(batch, call, r, slot, token));  // padding after an end symbol
    }
    return row;
  }

  // Continue each hypothesis by itself, with its best words or a sample; the first one after a prefix in `beam` ways, if they
  // are asked for. Returns true if the sentence is finished.
  // first: the call's first row of the sentence.
  bool advance_alone(const Batch& batch, Sentence& sentence, const Call& call, int64_t first) const {
    const Prefix& prefix = prefix_of(sentence.index);
    const bool branches = options_.alternatives && !sentence.branched && prefix.after(sentence.rows[0].tokens) == prefix.size();
    sentence.branched |= branches;
    std::vector<Row> rows;
    for (size_t i = 0; i < sentence.rows.size(); i++) {
      const int64_t r = first + i, count = branches ? options_.beam : 1;
      int64_t chosen = 0;
      for (const Continuation& continuation : call.continuations[r]) {
        if (chosen == count) break;
        if (!(continuation.score > kNone)) continue;
        if (branches && chosen > 0 && continuation.score < std::log(options_.min_alternative_prob)) break;
        Row row = extended(batch, sentence.rows[i], call, r, continuation);
        if (branches) row.alternative = chosen;
        chosen++;
        if (const int64_t end = end_of(continuation); end < words_)
          sentence.finished.push_back(finish(batch, sentence.index, row, end, call.paths[first].size()));
        else
          rows.push_back(std::move(row));
      }
    }
    sentence.rows = std::move(rows);
    return sentence.rows.empty();
  }

  // Choose the hypotheses that go on, and those that end (lines 15-24). Returns true if the sentence is finished.
  // first: the call's first row of the sentence.
  bool advance(const Batch& batch, Sentence& sentence, const Call& call, int64_t first) const {
    const int64_t z = words_;
    const std::vector<Continuation>* const continuations = &call.continuations[first];
    struct Option {
      float score;
      int64_t row, index;
    };
    std::vector<Option> all;
    for (size_t row = 0; row < sentence.rows.size(); row++)
      for (size_t i = 0; i < continuations[row].size(); i++)
        all.push_back({sentence.rows[row].score + continuations[row][i].score, static_cast<int64_t>(row),
                       static_cast<int64_t>(i)});
    const auto row_of = [&](const Option& option) {
      return extended(batch, sentence.rows[option.row], call, first + option.row, continuations[option.row][option.index]);
    };
    const int64_t beam = options_.beam;
    bool any = false;
    for (const int64_t i : best_of(all, options_.keep_all ? all.size() : beam)) {
      const int64_t end = end_of(continuations[all[i].row][all[i].index]);
      if (end == z) continue;
      any = true;
      const bool room = options_.keep_all || static_cast<int64_t>(sentence.finished.size()) < beam;
      if (all[i].score > kNone && room) sentence.finished.push_back(finish(batch, sentence.index, row_of(all[i]), end, call.paths[first].size()));
    }
    if (any)
      for (Option& option : all)
        if (end_of(continuations[option.row][option.index]) < z) option.score = kNone;
    std::vector<Row> rows;
    for (const int64_t i : best_of(all, beam))
      if (all[i].score > kNone) rows.push_back(row_of(all[i]));
    sentence.rows = std::move(rows);
    return static_cast<int64_t>(sentence.finished.size()) >= beam || sentence.rows.empty();
  }

  std::vector<Hypothesis> sorted(std::vector<Hypothesis> hypotheses) const {
    std::stable_sort(hypotheses.begin(), hypotheses.end(),
                     [&](const Hypothesis& one, const Hypothesis& other) {
                       return options_.alternatives ? one.alternative < other.alternative : one.score > other.score;
                     });
    if (static_cast<int64_t>(hypotheses.size()) > options_.beam) hypotheses.resize(options_.beam);
    return hypotheses;
  }
};

}  // namespace amlp
