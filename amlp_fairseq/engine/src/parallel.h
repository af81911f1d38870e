// Decoders that write all words of a sentence at a time, and mask-predict (Ghazvininejad et al. 2019; Huang et al. 2022).

#pragma once

#include <numeric>

#include "search.h"

namespace amlp {

constexpr int64_t kOutputPart = 1024;  // words whose logits are computed at a time: so many stay in the cache
constexpr int64_t kCallRows = 256;     // tokens of targets that are read at a time, unless one target has more

struct ParallelDecoder {
  struct Layer {
    SelfAttentionBlock self_attention;
    std::optional<SelfAttentionBlock> causal_attention;  // RePos
    CrossAttentionBlock cross_attention;
    FeedForward feed_forward;
  };

  Embedding embedding;
  std::vector<Layer> layers;
  std::optional<Norm> norm;
  std::vector<std::unique_ptr<Linear>> output;  // to the logits of kOutputPart words each
  std::vector<float> lengths;                   // (lengths, C'): from the mean of the encoder's outputs to logits of lengths
  std::optional<int64_t> length_offset;         // the class of a target that is as long as its source; absent: class n is length n
  bool corrects;                                // an iteration writes all words anew, not only masks
};

struct RefinementOptions {
  int64_t max_iter = 10, beam = 1;  // iterations after the first one, and lengths that are tried
  int64_t words = 0;                // of every target; 0: as predicted
  bool adaptive = true;             // a sentence ends as soon as no later iteration can change it
};

struct RefinementSymbols {
  int32_t bos, pad, eos, unk;
};

struct Word {
  float log_prob;
  int32_t token;
};

// A batch whose targets are read as a whole, again and again.
class ParallelSession {
 public:
  // shortlist: null, or that of the words that outputs may have.
  ParallelSession(const Encoder& encoder, const ParallelDecoder& decoder, RefinementSymbols symbols, ThreadPool& pool,
                  const std::vector<Tokens>& sources, const Shortlist* shortlist)
      : decoder_(decoder), symbols_(symbols), pool_(pool) {
    Starts starts{0};
    for (const Tokens& source : sources) starts.push_back(starts.back() + source.size());
    const Floats outputs = encoder.run(pool, sources, starts);
    for (const ParallelDecoder::Layer& layer : decoder.layers)
      sources_.push_back(layer.cross_attention.attention->prepare(pool, outputs, starts));
    for (size_t i = 0; i < sources.size(); i++)
      lengths_.push_back(length_of(&outputs[starts[i] * encoder.embedding.width], sources[i].size(), encoder.embedding.width));
    if (shortlist == nullptr) return;
    lists_.resize(sources.size(), Listed(0, 0)), outputs_.resize(sources.size());
    for_sentences(pool, sources.size(), [&](ThreadPool& some, int64_t i) {
      lists_[i] = shortlist->of(sources[i], {symbols_.bos, symbols_.pad, symbols_.eos, symbols_.unk}, nullptr);
      outputs_[i] = outputs_of(some, decoder_.output, lists_[i]);
    });
  }

  // The most probable number of tokens of each target, with start and end symbol.
  const std::vector<int64_t>& lengths() const { return lengths_; }

  // The best words at some places of targets, without start and end symbol and padding; of equal ones the first.
  // sentences: of each target.
  // places: in the texts one after the other.
  std::vector<Word> words(const std::vector<Tokens>& targets, const std::vector<int64_t>& sentences,
                          const std::vector<int64_t>& places) {
    if (places.empty()) return {};
    Starts starts{0};
    for (const Tokens& target : targets) starts.push_back(starts.back() + target.size());
    const int64_t width = decoder_.embedding.width, most = longest(targets);
    if (static_cast<int64_t>(encodings_.size()) < most * width) encodings_ = decoder_.embedding.encodings(most);
    rows_.count = starts.back();
    decoder_.embedding.embed(pool_, targets, starts, encodings_, rows_.x);
    std::vector<Group> groups;
    for (size_t i = 0; i < targets.size(); i++) groups.push_back({sentences[i], starts[i], starts[i + 1] - starts[i]});
    for (size_t i = 0; i < decoder_.layers.size(); i++) {
      const ParallelDecoder::Layer& layer = decoder_.layers[i];
      layer.self_attention.full(pool_, rows_, starts);
      if (layer.causal_attention) layer.causal_attention->causal(pool_, rows_, starts);
      layer.cross_attention.apply(pool_, rows_, *sources_[i], groups);
      layer.feed_forward.apply(pool_, rows_);
    }
    std::vector<float> features(places.size() * width);
    for (size_t i = 0; i < places.size(); i++) std::copy_n(&rows_.x[places[i] * width], width, &features[i * width]);
    if (decoder_.norm) decoder_.norm->apply(pool_, features.data(), features.data(), places.size());
    std::vector<Running> running(places.size());
    if (outputs_.empty())
      read_all(features, running);
    else
      read_lists(features, places_of(starts, sentences, places), running);
    std::vector<Word> result;
    for (const Running& each : running) result.push_back({number(each.best - each.highest - std::log(each.total)), each.token});
    return result;
  }

 private:
  const ParallelDecoder& decoder_;
  const RefinementSymbols symbols_;
  ThreadPool& pool_;
  std::vector<std::unique_ptr<State>> sources_;  // of the layers
  std::vector<int64_t> lengths_;
  std::vector<float> encodings_;
  Rows rows_;
  std::vector<Listed> lists_;                     // of each sentence, if there is a shortlist
  std::vector<std::unique_ptr<Linear>> outputs_;  // to the logits of its list

  // outputs: of the encoder, (n, C').
  int64_t length_of(const float* outputs, int64_t n, int64_t width) const {
    std::vector<float> mean(width, 0);
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < width; c++) mean[c] += outputs[i * width + c] / n;
    int64_t best = 0;
    float highest = kNone;
    for (int64_t length = 0; length < static_cast<int64_t>(decoder_.lengths.size()) / width; length++) {
      const float logit = std::inner_product(mean.begin(), mean.end(), &decoder_.lengths[length * width], 0.0f);
      if (logit > highest) highest = logit, best = length;
    }
    if (highest == kNone) throw std::invalid_argument("the model gives no length a finite probability");
    return decoder_.length_offset ? best - *decoder_.length_offset + n : best;
  }

  // What has been seen of the logits of a place.
  struct Running {
    float best = kNone, highest = kNone, total = 0;  // total: of e^(logit - highest), of all words
    int32_t token = 0;

    // row: logits of these words, of which those of `symbols` are excluded.
    void read(float* row, const Listed& words, const RefinementSymbols& symbols) {
      const int64_t size = words.size();
      float largest = largest_of(row, size), more = 0;
      const float before = highest;
      highest = std::max(highest, largest);
#pragma omp simd reduction(+ : more)
      for (int64_t i = 0; i < size; i++) more += exponential(row[i] - highest);
      total = more + (total > 0 ? total * std::exp(before - highest) : 0);
      for (const int32_t symbol : {symbols.pad, symbols.bos, symbols.eos})
        if (const int64_t column = words.column(symbol); column >= 0) row[column] = kNone, largest = largest_of(row, size);
      if (!(largest > best)) return;
      best = largest, token = words.word(std::find(row, row + size, largest) - row);
    }
  };

  // Of each sentence with places the number of its first one among all, and theirs. Places and sentences ascend.
  static std::vector<Group> places_of(const Starts& starts, const std::vector<int64_t>& sentences,
                                      const std::vector<int64_t>& places) {
    std::vector<Group> result;
    size_t target = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(places.size()); i++) {
      while (places[i] >= starts[target + 1]) target++;
      if (result.empty() || result.back().sentence != sentences[target]) result.push_back({sentences[target], i, 0});
      result.back().count++;
    }
    return result;
  }

  // features: (places, C).
  void read_all(const std::vector<float>& features, std::vector<Running>& running) {
    const int64_t count = running.size();
    Floats logits;
    int64_t first = 0;
    for (const std::unique_ptr<Linear>& part : decoder_.output) {
      part->product(pool_, features.data(), count, logits);
      const int64_t size = part->out;
      const Listed words(first, size);
      pool_.run(count, grain_of(16 * size), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) running[r].read(&logits[r * size], words, symbols_);
      });
      first += size;
    }
  }

  // As read_all, of the words of each sentence's list.
  void read_lists(const std::vector<float>& features, const std::vector<Group>& groups, std::vector<Running>& running) {
    for_sentences(pool_, groups.size(), [&](ThreadPool& some, int64_t i) {
      const Group& group = groups[i];
      const Linear& output = *outputs_[group.sentence];
      Floats logits(group.count * output.out);
      output.product(some, &features[group.first * output.in], group.count, logits.data(), false);
      some.run(group.count, grain_of(16 * output.out), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++)
          running[group.first + r].read(&logits[r * output.out], lists_[group.sentence], symbols_);
      });
    });
  }
};

// Mask-predict: all words are predicted, then in each iteration the least probable ones are masked and predicted anew.
class Refinement {
 public:
  Refinement(const Encoder& encoder, const ParallelDecoder& decoder, RefinementSymbols symbols, int64_t max_tokens,
             RefinementOptions options, const Shortlist* shortlist)
      : encoder_(encoder), decoder_(decoder), symbols_(symbols), max_tokens_(max_tokens), options_(options),
        shortlist_(shortlist) {}

  // Of each source (with start and end symbol) the candidate with the best mean log-probability of its words; of equal ones
  // the shortest.
  // watch: may be null; is told the words of a candidate after each iteration.
  std::vector<Hypothesis> run(ThreadPool& pool, const std::vector<Tokens>& sources, const Watch& watch = nullptr) const {
    ParallelSession session(encoder_, decoder_, symbols_, pool, sources, shortlist_);
    std::vector<Target> open;
    for (size_t i = 0; i < sources.size(); i++)
      for (const int64_t length : candidates(options_.words ? options_.words + 2 : session.lengths()[i])) {
        open.push_back({static_cast<int64_t>(i), Tokens(length, symbols_.unk), std::vector<float>(length, 0)});
        open.back().tokens.front() = symbols_.bos, open.back().tokens.back() = symbols_.eos;
      }
    std::vector<Hypothesis> result(sources.size());
    for (int64_t iteration = 0; !open.empty(); iteration++) {
      std::vector<Target> remaining;
      for (auto first = open.begin(); first != open.end();) {
        auto last = first;
        for (int64_t rows = 0; last != open.end() && (rows == 0 || rows + last->size() <= kCallRows); ++last) rows += last->size();
        const std::vector<bool> converged = predict(session, first, last, iteration);
        for (const bool ends : converged) {
          if (iteration == options_.max_iter || (options_.adaptive && ends))
            finish(std::move(*first), iteration + 1, result[first->sentence]);
          else
            remaining.push_back(std::move(*first));
          ++first;
        }
      }
      open = std::move(remaining);
      if (watch)
        for (size_t i = 0; i < open.size(); i++)
          if (i == 0 || open[i].sentence != open[i - 1].sentence)
            watch(open[i].sentence, {open[i].tokens.begin() + 1, open[i].tokens.end() - 1});
    }
    return result;
  }

 private:
  // A candidate for a translation, with start and end symbol.
  struct Target {
    int64_t sentence;
    Tokens tokens;
    std::vector<float> scores;  // log-probabilities

    int64_t size() const { return tokens.size(); }
  };

  const Encoder& encoder_;
  const ParallelDecoder& decoder_;
  const RefinementSymbols symbols_;
  const int64_t max_tokens_;
  const RefinementOptions options_;
  const Shortlist* const shortlist_;

  // The lengths that are tried, around the most probable one, each once, ascending.
  std::vector<int64_t> candidates(int64_t length) const {
    length = std::min(std::max<int64_t>(length, 2), max_tokens_);
    std::vector<int64_t> result;
    for (int64_t i = 0; i < options_.beam; i++) {
      const int64_t near = length > 2 ? std::max<int64_t>(length + i - options_.beam / 2, 3) : length;
      const int64_t possible = std::min(near, max_tokens_);
      if (result.empty() || result.back() != possible) result.push_back(possible);
    }
    return result;
  }

  // The number of words that an iteration masks, of a target with so many tokens.
  int64_t masked_words(int64_t tokens, int64_t iteration) const {
    const int64_t calls = options_.max_iter + 1;
    return (tokens - 2) * (calls - iteration) / calls;
  }

  // The input of an iteration: the words with the lowest scores are masked; of equal ones the first.
  Tokens masked(const Target& target, int64_t iteration) const {
    Tokens result = target.tokens;
    std::vector<int64_t> words(target.size() - 2);
    std::iota(words.begin(), words.end(), 1);
    std::stable_sort(words.begin(), words.end(), [&](int64_t one, int64_t other) { return target.scores[one] < target.scores[other]; });
    words.resize(masked_words(target.size(), iteration));
    for (const int64_t word : words) result[word] = symbols_.unk;
    return result;
  }

  // Run an iteration for some targets. Returns which of them no later iteration can change.
  template <typename Iterator>
  std::vector<bool> predict(ParallelSession& session, Iterator first, Iterator last, int64_t iteration) const {
    std::vector<Tokens> texts;
    std::vector<int64_t> sentences, places;
    int64_t begin = 0;
    for (Iterator target = first; target != last; ++target) {
      texts.push_back(masked(*target, iteration)), sentences.push_back(target->sentence);
      for (int64_t i = 1; i + 1 < target->size(); i++)
        if (is_predicted(texts.back()[i])) places.push_back(begin + i);
      begin += target->size();
    }
    const std::vector<Word> words = session.words(texts, sentences, places);
    const Word* word = words.data();
    std::vector<bool> converged;
    for (const Tokens& text : texts) {
      Target& target = *first++;
      bool changed = false, masks = false;  // an unknown word looks like a mask
      for (int64_t i = 1; i + 1 < target.size(); i++) {
        if (is_predicted(text[i])) {
          changed |= word->token != target.tokens[i];
          target.tokens[i] = word->token, target.scores[i] = word->log_prob;
          word++;
        }
        masks |= target.tokens[i] == symbols_.unk;
      }
      converged.push_back(decoder_.corrects ? !changed && masked_words(target.size(), iteration) == 0
                                            : !masks && masked_words(target.size(), iteration + 1) == 0);
    }
    return converged;
  }

  bool is_predicted(int32_t token) const { return decoder_.corrects || token == symbols_.unk; }

  // Make a candidate the result of its sentence, if it is the best so far.
  void finish(Target target, int64_t calls, Hypothesis& result) const {
    const double total = std::accumulate(target.scores.begin() + 1, target.scores.end() - 1, 0.0);
    const float score = target.size() > 2 ? total / (target.size() - 2) : 0;
    const bool shorter = target.tokens.size() - 1 < result.tokens.size();
    if (!result.tokens.empty() && (score < result.score || (score == result.score && !shorter))) return;
    target.tokens.erase(target.tokens.begin()), target.scores.erase(target.scores.begin());
    result = {std::move(target.tokens), std::move(target.scores), score, calls};
  }
};

}  // namespace amlp
