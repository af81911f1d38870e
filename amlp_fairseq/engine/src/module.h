// The Python module of the engine. Each instruction set has one, named AMLP_MODULE: see engine/isa.py.

#pragma once

#include "build.h"
#include "probes.h"
#include "search.h"

namespace amlp {
namespace {

SearchOptions options_of(const py::dict& options) {
  SearchOptions result;
  result.beam = get<int64_t>(options, "beam");
  result.max_len_a = get<double>(options, "max_len_a"), result.max_len_b = get<int64_t>(options, "max_len_b");
  result.min_len = get<int64_t>(options, "min_len");
  result.normalize = get<bool>(options, "normalize"), result.gnmt = get<bool>(options, "gnmt");
  result.length_penalty = get<double>(options, "length_penalty");
  result.unk_penalty = get<double>(options, "unk_penalty"), result.temperature = get<double>(options, "temperature");
  result.count_after_end = get<bool>(options, "count_after_end"), result.keep_all = get<bool>(options, "keep_all");
  return result;
}

// Check sources of a model with so many source tokens.
void check(const std::vector<Tokens>& sources, int64_t vocabulary) {
  for (const Tokens& source : sources) {
    if (source.empty()) throw std::invalid_argument("a source without tokens");
    for (const int32_t token : source)
      if (token < 0 || token >= vocabulary) throw std::invalid_argument("no such token: " + std::to_string(token));
  }
}

class Engine {
 public:
  Engine(const py::dict& description, const py::dict& arrays, bool int8)
      : Engine(description, Weights(arrays, int8)) {}

  std::vector<std::vector<Hypothesis>> search(const std::vector<Tokens>& sources, const py::dict& options, int64_t threads) const {
    check(sources, source_vocab_);
    const BeamSearch search(encoder_, decoder_, symbols_, max_tokens_, options_of(options));
    const py::gil_scoped_release unlocked;
    ThreadPool pool(threads);
    return search.run(pool, sources);
  }

 private:
  Encoder encoder_;
  Decoder decoder_;
  Symbols symbols_;
  int64_t max_tokens_, source_vocab_;

  Engine(const py::dict& description, const Weights& weights)
      : encoder_(encoder_of(get<py::dict>(description, "encoder"), weights)),
        decoder_(decoder_of(get<py::dict>(description, "decoder"), weights, encoder_.embedding.width)),
        symbols_{get<int32_t>(description, "pad"), get<int32_t>(description, "eos"), get<int32_t>(description, "unk")},
        max_tokens_(get<int64_t>(get<py::dict>(description, "decoder"), "max_positions")),
        source_vocab_(encoder_.embedding.table.size() / encoder_.embedding.width) {
    for (const int32_t symbol : {symbols_.pad, symbols_.eos, symbols_.unk})
      if (symbol >= decoder_.output->out) throw std::invalid_argument("symbols outside the vocabulary");
  }
};

// A model whose decoder writes all words at a time.
class ParallelEngine {
 public:
  ParallelEngine(const py::dict& description, const py::dict& arrays, bool int8)
      : ParallelEngine(description, Weights(arrays, int8)) {}

  std::vector<Hypothesis> refine(const std::vector<Tokens>& sources, const py::dict& options, int64_t threads) const {
    check(sources, source_vocab_);
    const RefinementOptions chosen{get<int64_t>(options, "max_iter"), get<int64_t>(options, "beam"),
                                   get<int64_t>(options, "words"), get<bool>(options, "adaptive")};
    const Refinement refinement(encoder_, decoder_, symbols_, max_tokens_, chosen);
    const py::gil_scoped_release unlocked;
    ThreadPool pool(threads);
    return refinement.run(pool, sources);
  }

 private:
  Encoder encoder_;
  ParallelDecoder decoder_;
  RefinementSymbols symbols_;
  int64_t max_tokens_, source_vocab_;

  ParallelEngine(const py::dict& description, const Weights& weights)
      : encoder_(encoder_of(get<py::dict>(description, "encoder"), weights)),
        decoder_(parallel_decoder_of(get<py::dict>(description, "decoder"), weights, encoder_.embedding.width)),
        symbols_{get<int32_t>(description, "bos"), get<int32_t>(description, "pad"), get<int32_t>(description, "eos"),
                 get<int32_t>(description, "unk")},
        max_tokens_(get<int64_t>(get<py::dict>(description, "decoder"), "max_positions")),
        source_vocab_(encoder_.embedding.table.size() / encoder_.embedding.width) {
    check({{symbols_.bos, symbols_.pad, symbols_.eos, symbols_.unk}}, decoder_.embedding.table.size() / decoder_.embedding.width);
    if (max_tokens_ < 2) throw std::invalid_argument("a decoder without positions");
  }
};

}  // namespace
}  // namespace amlp

PYBIND11_MODULE(AMLP_MODULE, module) {
  using namespace amlp;
  // Steps from the zero point to the largest int8 input, and a product with int8 weights, for tests.
  module.attr("INT8_INPUT_STEPS") = kMaxUnit;
  module.def("int8_product", [](const Int8Array& weight, const FloatArray& scales, const FloatArray& bias, const FloatArray& x,
                                bool nonnegative, bool relu) {
    const auto floats = [](const FloatArray& array) { return std::vector<float>(array.data(), array.data() + array.size()); };
    const Int8Linear linear({weight.data(), weight.data() + weight.size()}, floats(scales), floats(bias), nonnegative);
    if (x.size() % linear.in) throw std::invalid_argument("inputs for other weights");
    FloatArray y(std::vector<py::ssize_t>{x.size() / linear.in, linear.out});
    ThreadPool pool(1);
    linear.product(pool, x.data(), x.size() / linear.in, y.mutable_data(), relu);
    return y;
  });
  define_probes(module);
  py::class_<Hypothesis>(module, "Hypothesis", py::module_local())
      .def_readonly("tokens", &Hypothesis::tokens)
      .def_readonly("token_scores", &Hypothesis::token_scores)
      .def_readonly("score", &Hypothesis::score)
      .def_readonly("steps", &Hypothesis::steps);
  py::class_<Engine>(module, "Engine", py::module_local())
      .def(py::init<const py::dict&, const py::dict&, bool>(), py::arg("description"), py::arg("weights"), py::arg("int8"))
      .def("search", &Engine::search, py::arg("sources"), py::arg("options"), py::arg("threads"));
  py::class_<ParallelEngine>(module, "ParallelEngine", py::module_local())
      .def(py::init<const py::dict&, const py::dict&, bool>(), py::arg("description"), py::arg("weights"), py::arg("int8"))
      .def("refine", &ParallelEngine::refine, py::arg("sources"), py::arg("options"), py::arg("threads"));
}
