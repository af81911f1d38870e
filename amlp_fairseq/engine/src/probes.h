// Attentions by themselves, for tests.

#pragma once

#include "kinds.h"

namespace amlp {
namespace {

namespace probes {

template <typename Memory>
FloatArray array_of(const std::vector<float, Memory>& numbers, int64_t width) {
  FloatArray result(std::vector<py::ssize_t>{static_cast<py::ssize_t>(numbers.size()) / width, width});
  std::copy(numbers.begin(), numbers.end(), result.mutable_data());
  return result;
}

Floats vector_of(const FloatArray& array) { return {array.data(), array.data() + array.size()}; }

// Self-attention of whole texts x (rows, C), which begin in rows `starts` but the last, their number.
// causal: words see those before them alone.
FloatArray full(const py::dict& attention, const py::dict& arrays, bool int8, const FloatArray& x, const Starts& starts,
                bool causal, int64_t threads) {
  const int64_t width = x.shape(1);
  ThreadPool pool(threads);
  Rows rows;
  rows.x = vector_of(x), rows.count = starts.back();
  const auto layer = self_attention_of(attention, Weights(arrays, int8), "x", width, 1);
  if (causal)
    layer->causal(pool, rows.x.data(), rows, starts);
  else
    layer->full(pool, rows.x.data(), rows, starts);
  return array_of(rows.outer, width);
}

// Decoding.
// inputs: of each step those of all hypotheses, (R z, C).
// parents: of each step the hypotheses of the step before which its hypotheses continue; ignored in the first step.
std::vector<FloatArray> steps(const py::dict& attention, const py::dict& arrays, bool int8, const std::vector<FloatArray>& inputs,
                              const std::vector<std::vector<int32_t>>& parents, int64_t words, int64_t threads) {
  const int64_t width = inputs[0].shape(1);
  ThreadPool pool(threads);
  const auto layer = self_attention_of(attention, Weights(arrays, int8), "x", width, words);
  const auto state = layer->begin();
  std::vector<FloatArray> result;
  std::vector<Path> paths;
  std::vector<int32_t> starts;
  int32_t count = 0;
  for (size_t s = 0; s < inputs.size(); s++) {
    std::vector<Path> next;
    starts.push_back(count);
    for (size_t r = 0; r < parents[s].size(); r++) {
      next.push_back(s == 0 ? Path{} : paths[parents[s][r]]);
      next.back().push_back(count++);
    }
    paths = std::move(next);
    Rows rows;
    rows.count = inputs[s].shape(0);
    layer->step(pool, inputs[s].data(), rows, {words, paths, starts}, *state);
    result.push_back(array_of(rows.outer, width));
  }
  return result;
}

// Cross-attention of texts x to sources, of which each has as many texts; `starts` as in `full`.
FloatArray cross(const py::dict& attention, const py::dict& arrays, bool int8, const FloatArray& x, const Starts& starts,
                 const FloatArray& source, const Starts& source_starts, int64_t threads) {
  const int64_t width = x.shape(1), texts = starts.size() - 1, sources = source_starts.size() - 1;
  ThreadPool pool(threads);
  Rows rows;
  rows.count = starts.back();
  const auto layer = cross_attention_of(attention, Weights(arrays, int8), "x", width, source.shape(1));
  const auto memory = layer->prepare(pool, vector_of(source), source_starts);
  std::vector<Group> groups;
  for (int64_t t = 0; t < texts; t++) groups.push_back({t / (texts / sources), starts[t], starts[t + 1] - starts[t]});
  layer->apply(pool, x.data(), rows, *memory, groups, nullptr);
  return array_of(rows.outer, width);
}

}  // namespace probes

void define_probes(py::module_& module) {
  module.def("full_attention", &probes::full);
  module.def("attention_steps", &probes::steps);
  module.def("cross_attention", &probes::cross);
}

}  // namespace
}  // namespace amlp
