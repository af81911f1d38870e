// The Python module of the engine. Each instruction set has one, named AMLP_MODULE: see engine/isa.py.

#pragma once

#include <pybind11/functional.h>

#include "beam_search.h"
#include "build.h"
#include "drafts.h"
#include "probes.h"
#include "scores.h"

namespace amlp {
namespace {

Order order_of(const py::dict& order) {
  const Order result{get<int64_t>(order, "num_directions"), get<bool>(order, "middle_to_side")};
  if (result.directions < 1 || (result.directions > 1 && result.directions % 2))
    throw std::invalid_argument("no order of generation has so many directions");
  return result;
}

SearchOptions options_of(const py::dict& options) {
  SearchOptions result;
  result.beam = get<int64_t>(options, "beam");
  result.max_len_a = get<double>(options, "max_len_a"), result.max_len_b = get<int64_t>(options, "max_len_b");
  result.max_len = get<int64_t>(options, "max_len"), result.min_len = get<int64_t>(options, "min_len");
  result.normalize = get<bool>(options, "normalize"), result.gnmt = get<bool>(options, "gnmt");
  result.length_penalty = get<double>(options, "length_penalty");
  result.unk_penalty = get<double>(options, "unk_penalty"), result.temperature = get<double>(options, "temperature");
  result.count_after_end = get<bool>(options, "count_after_end"), result.keep_all = get<bool>(options, "keep_all");
  result.no_repeat_ngram = get<int64_t>(options, "no_repeat_ngram"), result.align = get<bool>(options, "align");
  result.alternatives = get<bool>(options, "alternatives"), result.sampling = get<bool>(options, "sampling");
  result.sampling_topk = get<int64_t>(options, "sampling_topk"), result.sampling_topp = get<double>(options, "sampling_topp");
  result.sampling_minp = get<double>(options, "sampling_minp"), result.min_alternative_prob = get<double>(options, "min_alternative_prob");
  result.repetition_penalty = get<double>(options, "repetition_penalty");
  for (const auto& words : get<std::vector<std::vector<std::array<int32_t, 3>>>>(options, "suppressed")) {
    SuppressedText& text = result.suppressed.emplace_back();
    for (const auto& [from, to, token] : words) {
      if (from < 0 || from >= to) throw std::invalid_argument("a suppressed text that is not written forward");
      text.words.push_back({from, to, token});
      text.length = std::max(text.length, to);
    }
  }
  result.seed = get<int64_t>(options, "seed");
  result.start = get<int32_t>(options, "start"), result.end = get<int32_t>(options, "end");
  return result;
}

// Check texts of so many different tokens.
void check(const std::vector<Tokens>& texts, int64_t vocabulary) {
  for (const Tokens& text : texts) {
    if (text.empty()) throw std::invalid_argument("a text without tokens");
    for (const int32_t token : text)
      if (token < 0 || token >= vocabulary) throw std::invalid_argument("no such token: " + std::to_string(token));
  }
}

typedef py::array_t<int64_t, py::array::c_style | py::array::forcecast> Int64Array;
typedef py::array_t<int32_t, py::array::c_style | py::array::forcecast> Int32Array;

// x (rows, in) to (rows, out).
FloatArray product(const Linear& linear, const FloatArray& x, bool relu, int64_t threads) {
  static ThreadPools pools;
  if (x.size() % linear.in) throw std::invalid_argument("inputs for other weights");
  FloatArray y(std::vector<py::ssize_t>{x.size() / linear.in, linear.out});
  float* const out = y.mutable_data();
  const py::gil_scoped_release unlocked;
  pools.with(threads, [&](ThreadPool& pool) { linear.product(pool, x.data(), x.size() / linear.in, out, relu); });
  return y;
}

// q: (heads, d_h); kv: (2, S, heads, d_h).
template <typename Number>
FloatArray cached_attention(const FloatArray& q, const FloatArray& kv) {
  const int64_t heads = q.shape(0), width = q.size(), keys = kv.shape(1);
  Cache<Number> cache(width, 1);
  std::vector<float> entry(2 * width);
  for (int64_t key = 0; key < keys; key++) {
    std::copy_n(kv.data() + key * width, width, entry.data());
    std::copy_n(kv.data() + (keys + key) * width, width, entry.data() + width);
    cache.append(entry.data(), 2 * width, 1);
  }
  FloatArray out(std::vector<py::ssize_t>{heads, width / heads});
  Floats scores;
  Path path(keys);
  std::iota(path.begin(), path.end(), 0);
  cache.attend(q.data(), width, 1, heads, path, out.mutable_data(), width, scores);
  return out;
}

class Engine {
 public:
  Engine(const py::dict& description, const py::object& arrays, bool int8, bool bfloat16)
      : Engine(description, Weights(arrays, int8, bfloat16)) {}

  // The models of several engines, which stay in memory as long as this one does.
  explicit Engine(const std::vector<const Engine*>& members) : Engine(*members.at(0), Models()) {
    for (const Engine* const member : members) {
      models_.insert(models_.end(), member->models_.begin(), member->models_.end());
      max_tokens_ = std::min(max_tokens_, member->max_tokens_);
      const EncoderDecoder &one = *models_[0], &other = *models_.back();
      const bool same = member->order_ == order_ && member->source_vocab_ == source_vocab_ && member->symbols_ == symbols_ &&
                        other.decoder.words == one.decoder.words && other.decoder.output->out == one.decoder.output->out;
      if (!same) throw std::invalid_argument("models that do not write alike");
    }
  }

  typedef std::vector<std::vector<Hypothesis>> Found;  // of each source

  // prefixes: of each source, or none.
  // watch: or null.
  // shortlist: null, or that of the words that outputs may have.
  Found search(const std::vector<Tokens>& sources, const py::dict& options, int64_t threads,
               const std::vector<std::vector<Prefix::State>>& prefixes, const Watch& watch, const Shortlist* shortlist) const {
    const std::vector<Prefix> begun(prefixes.begin(), prefixes.end());
    if (!begun.empty() && begun.size() != sources.size()) throw std::invalid_argument("prefixes of another number of sources");
    for (const Prefix& prefix : begun) {
      prefix.check(words());
      if (models_[0]->decoder.words > 1 && !prefix.is_chain()) throw std::invalid_argument("a prefix with several ways");
    }
    if (shortlist != nullptr) shortlist->check(source_vocab_, words());
    const BeamSearch search = made<BeamSearch>(sources, options, begun.empty() ? nullptr : &begun, shortlist);
    const py::gil_scoped_release unlocked;
    return pools_.with(threads, [&](ThreadPool& pool) { return search.run(pool, sources, watch); });
  }

  // propose: as DraftSearch::Propose.
  Found search_drafted(const std::vector<Tokens>& sources, const py::dict& options, const py::function& propose, int64_t words,
                       int64_t threads, const Shortlist* shortlist) const {
    check_left_to_right();
    if (shortlist != nullptr) shortlist->check(source_vocab_, this->words());
    const DraftSearch search = made<DraftSearch>(sources, options, nullptr, shortlist);
    const py::gil_scoped_release unlocked;
    const DraftSearch::Propose next = [&](int64_t sentence, const Tokens& written, int64_t count) {
      const py::gil_scoped_acquire locked;
      return py::cast<Tokens>(propose(sentence, written, count));
    };
    return pools_.with(threads, [&](ThreadPool& pool) { return search.run(pool, sources, next, words); });
  }

  Found score(const std::vector<Tokens>& sources, const std::vector<std::vector<Tokens>>& texts, const py::dict& options,
              int64_t threads) const {
    check_left_to_right();
    if (texts.size() != sources.size()) throw std::invalid_argument("texts of another number of sources");
    for (const std::vector<Tokens>& of_source : texts) check(of_source, words());
    const Scorer scorer = made<Scorer>(sources, options);
    const py::gil_scoped_release unlocked;
    return pools_.with(threads, [&](ThreadPool& pool) { return scorer.run(pool, sources, texts); });
  }

 private:
  Models models_;
  Symbols symbols_;
  Order order_;
  int64_t max_tokens_, source_vocab_;
  mutable ThreadPools pools_;

  int64_t words() const { return models_[0]->decoder.output->out; }

  template <typename Kind, typename... More>
  Kind made(const std::vector<Tokens>& sources, const py::dict& options, const More&... more) const {
    check(sources, source_vocab_);
    const SearchOptions chosen = options_of(options);
    Tokens named{chosen.start, chosen.end};
    for (const SuppressedText& text : chosen.suppressed)
      for (const SuppressedText::Word& word : text.words) named.push_back(word.token);
    check({named}, words());
    return Kind(models_, symbols_, order_, max_tokens_, chosen, more...);
  }

  void check_left_to_right() const {
    if (order_.directions > 1 || models_[0]->decoder.words > 1) throw std::invalid_argument("the model does not write from left to right");
  }

  // As another, with other models.
  Engine(const Engine& other, Models models)
      : models_(std::move(models)), symbols_(other.symbols_), order_(other.order_), max_tokens_(other.max_tokens_),
        source_vocab_(other.source_vocab_) {}

  Engine(const py::dict& description, const Weights& weights)
      : models_{encoder_decoder_of(description, weights)},
        symbols_{get<int32_t>(description, "pad"), get<int32_t>(description, "eos"), get<int32_t>(description, "unk")},
        order_(order_of(get<py::dict>(description, "order"))),
        max_tokens_(get<int64_t>(get<py::dict>(description, "decoder"), "max_positions")),
        source_vocab_(models_[0]->encoder.embedding.table.rows) {
    for (const int32_t symbol : {symbols_.pad, symbols_.eos, symbols_.unk})
      if (symbol >= words()) throw std::invalid_argument("symbols outside the vocabulary");
  }
};

// A model whose decoder writes all words at a time.
class ParallelEngine {
 public:
  ParallelEngine(const py::dict& description, const py::object& arrays, bool int8, bool bfloat16)
      : ParallelEngine(description, Weights(arrays, int8, bfloat16)) {}

  // watch: or null.
  // shortlist: null, or that of the words that outputs may have.
  std::vector<Hypothesis> refine(const std::vector<Tokens>& sources, const py::dict& options, int64_t threads,
                                 const Watch& watch, const Shortlist* shortlist) const {
    check(sources, source_vocab_);
    if (shortlist != nullptr) shortlist->check(source_vocab_, decoder_.embedding.table.rows);
    const RefinementOptions chosen{get<int64_t>(options, "max_iter"), get<int64_t>(options, "beam"),
                                   get<int64_t>(options, "words"), get<bool>(options, "adaptive")};
    const Refinement refinement(encoder_, decoder_, symbols_, max_tokens_, chosen, shortlist);
    const py::gil_scoped_release unlocked;
    return pools_.with(threads, [&](ThreadPool& pool) { return refinement.run(pool, sources, watch); });
  }

 private:
  Encoder encoder_;
  ParallelDecoder decoder_;
  RefinementSymbols symbols_;
  int64_t max_tokens_, source_vocab_;
  mutable ThreadPools pools_;

  ParallelEngine(const py::dict& description, const Weights& weights)
      : encoder_(encoder_of(get<py::dict>(description, "encoder"), weights)),
        decoder_(parallel_decoder_of(get<py::dict>(description, "decoder"), weights, encoder_.embedding.width)),
        symbols_{get<int32_t>(description, "bos"), get<int32_t>(description, "pad"), get<int32_t>(description, "eos"),
                 get<int32_t>(description, "unk")},
        max_tokens_(get<int64_t>(get<py::dict>(description, "decoder"), "max_positions")),
        source_vocab_(encoder_.embedding.table.rows) {
    check({{symbols_.bos, symbols_.pad, symbols_.eos, symbols_.unk}}, decoder_.embedding.table.rows);
    if (max_tokens_ < 2) throw std::invalid_argument("a decoder without positions");
  }
};

}  // namespace
}  // namespace amlp

PYBIND11_MODULE(AMLP_MODULE, module) {
  using namespace amlp;
  module.attr("SOURCES") = AMLP_SOURCES;  // isa.py compares it
  module.attr("INT8_INPUT_STEPS") = kMaxUnit;  // from the zero point to the largest int8 input
  // Linear maps by themselves, in int8 also with weights that are still to be rounded. The last one is there if the engine has
  // bfloat16.
  py::class_<Linear>(module, "Linear", py::module_local())
      .def("product", &product, py::arg("x"), py::arg("relu") = false, py::arg("threads") = 1);
  typedef std::unique_ptr<Linear> Made;
  module.def("float32_linear", [](const FloatArray& weight, const FloatArray& bias) -> Made {
    return std::make_unique<FloatLinear>(numbers_of(weight), floats_of(bias));
  });
  module.def("int8_linear", [](const Int8Array& weight, const FloatArray& scales, const FloatArray& bias, bool nonnegative) -> Made {
    return std::make_unique<Int8Linear>(numbers_of(weight), floats_of(scales), floats_of(bias), nonnegative);
  }, py::arg("weight"), py::arg("scales"), py::arg("bias"), py::arg("nonnegative") = false);
  module.def("int8_linear", [](const FloatArray& weight, const FloatArray& bias, bool nonnegative) -> Made {
    Numbers<int8_t> units;
    std::vector<float> scales;
    Weights::quantize(weight.data(), weight.size() / std::max<int64_t>(bias.size(), 1), bias.size(), 1, units, scales);
    return std::make_unique<Int8Linear>(units, scales, floats_of(bias), nonnegative);
  }, py::arg("weight"), py::arg("bias"), py::arg("nonnegative") = false);
#ifdef AMLP_BFLOAT16
  module.def("bfloat16_linear", [](const FloatArray& weight, const FloatArray& bias) -> Made {
    return std::make_unique<Bfloat16Linear>(numbers_of(weight), floats_of(bias));
  });
#endif
  define_probes(module);
  // Attention of queries (heads, d_h), as one row, to S keys and values (S, heads, d_h), kept in float32 or as int8 models do.
  module.def("cached_attention", [](const FloatArray& q, const FloatArray& kv, bool half) {
    return half ? cached_attention<Half>(q, kv) : cached_attention<float>(q, kv);
  });
  module.def("slots", [](int64_t length, int64_t directions, bool middle_to_side) {
    return Order{directions, middle_to_side}.slots(length);
  }, py::arg("length"), py::arg("directions"), py::arg("middle_to_side"));
  // The m largest of a row, and the log of the sum of its exponentials.
  module.def("best_of_row", [](const FloatArray& row, int64_t m) {
    std::vector<int32_t> tokens;
    for (const Candidate& candidate : largest(row.data(), row.size(), m)) tokens.push_back(candidate.token);
    return std::make_pair(tokens, log_sum_exp(row.data(), row.size()));
  });
  py::class_<Hypothesis>(module, "Hypothesis", py::module_local())
      .def_readonly("tokens", &Hypothesis::tokens)
      .def_readonly("token_scores", &Hypothesis::token_scores)
      .def_readonly("score", &Hypothesis::score)
      .def_readonly("steps", &Hypothesis::steps)
      .def_readonly("alignment", &Hypothesis::alignment)
      .def_readonly("attention", &Hypothesis::attention);
  py::class_<Shortlist>(module, "Shortlist", py::module_local())
      .def(py::init([](const Int64Array& starts, const Int32Array& words, const Int32Array& always, int64_t vocabulary) {
             return Shortlist({starts.data(), starts.data() + starts.size()}, {words.data(), words.data() + words.size()},
                              {always.data(), always.data() + always.size()}, vocabulary);
           }), py::arg("starts"), py::arg("words"), py::arg("always"), py::arg("vocabulary"));
  py::class_<Engine>(module, "Engine", py::module_local())
      .def(py::init<const py::dict&, const py::object&, bool, bool>(), py::arg("description"), py::arg("weights"), py::arg("int8"),
           py::arg("bfloat16") = false)
      .def(py::init<const std::vector<const Engine*>&>(), py::arg("members"))
      .def("search", &Engine::search, py::arg("sources"), py::arg("options"), py::arg("threads"),
           py::arg("prefixes") = std::vector<std::vector<Prefix::State>>(), py::arg("watch") = py::none(),
           py::arg("shortlist") = nullptr)
      .def("search_drafted", &Engine::search_drafted, py::arg("sources"), py::arg("options"), py::arg("propose"),
           py::arg("words"), py::arg("threads"), py::arg("shortlist") = nullptr)
      .def("score", &Engine::score, py::arg("sources"), py::arg("texts"), py::arg("options"), py::arg("threads"));
  py::class_<ParallelEngine>(module, "ParallelEngine", py::module_local())
      .def(py::init<const py::dict&, const py::object&, bool, bool>(), py::arg("description"), py::arg("weights"), py::arg("int8"),
           py::arg("bfloat16") = false)
      .def("refine", &ParallelEngine::refine, py::arg("sources"), py::arg("options"), py::arg("threads"),
           py::arg("watch") = py::none(), py::arg("shortlist") = nullptr);
}
