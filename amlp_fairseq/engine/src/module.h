// The Python module of the engine. Each instruction set has one, named AMLP_MODULE: see engine/isa.py.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "search.h"

namespace py = pybind11;

namespace amlp {
namespace {

typedef py::array_t<float, py::array::c_style | py::array::forcecast> FloatArray;
typedef py::array_t<int8_t, py::array::c_style> Int8Array;

// The weights of a model by name: float32 arrays, or pairs of an int8 matrix and the scales of its rows.
class Weights {
 public:
  Weights(py::dict arrays, bool int8) : arrays_(std::move(arrays)), int8_(int8) {}

  std::vector<float> floats(const std::string& name) const {
    const py::object value = find(name);
    if (!py::isinstance<py::tuple>(value)) return copy<float>(py::cast<FloatArray>(value));
    const auto [matrix, scales] = py::cast<std::pair<Int8Array, FloatArray>>(value);
    const int64_t rows = scales.size(), columns = matrix.size() / std::max<int64_t>(rows, 1);
    std::vector<float> result(matrix.size());
    for (int64_t i = 0; i < rows * columns; i++) result[i] = matrix.data()[i] * scales.data()[i / columns];
    return result;
  }

  bool has(const std::string& name) const { return arrays_.contains(name.c_str()); }

  // The maps of these names, one below the other, in the type for decoding.
  // in, out: the numbers of inputs and of all outputs.
  // scale: of the first map's outputs.
  // nonnegative: no input is below 0.
  std::unique_ptr<Linear> linear(const std::vector<std::string>& names, int64_t in, int64_t out, float scale = 1,
                                 bool nonnegative = false) const {
    std::vector<float> biases, weights, scales;
    std::vector<int8_t> units;
    for (size_t i = 0; i < names.size(); i++) {
      const float factor = i == 0 ? scale : 1;
      const py::object value = find(names[i] + ".weight");
      if (int8_ && py::isinstance<py::tuple>(value)) {
        const auto [matrix, row_scales] = py::cast<std::pair<Int8Array, FloatArray>>(value);
        units.insert(units.end(), matrix.data(), matrix.data() + matrix.size());
        for (const float row_scale : copy<float>(row_scales)) scales.push_back(row_scale * factor);
      } else {
        std::vector<float> matrix = floats(names[i] + ".weight");
        for (float& weight : matrix) weight *= factor;
        const int64_t rows = py::len(has(names[i] + ".bias") ? find(names[i] + ".bias") : value);
        if (rows == 0 || matrix.size() % rows) throw std::invalid_argument(names[i] + " has weights and biases of another size");
        if (int8_)
          quantize(matrix, rows, units, scales);
        else
          weights.insert(weights.end(), matrix.begin(), matrix.end());
      }
      if (has(names[i] + ".bias")) {
        for (const float bias : floats(names[i] + ".bias")) biases.push_back(bias * factor);
      } else {
        biases.resize(int8_ ? scales.size() : py::len(value), 0);
      }
    }
    const int64_t size = int8_ ? units.size() : weights.size(), rows = int8_ ? scales.size() : biases.size();
    if (rows != out || static_cast<int64_t>(biases.size()) != out || size != in * out)
      throw std::invalid_argument(names[0] + " has another size than the model");
    if (int8_) return std::make_unique<Int8Linear>(units, scales, biases, nonnegative);
    return std::make_unique<FloatLinear>(weights, biases);
  }

  Norm norm(const std::string& name, int64_t width) const {
    return {vector(name + ".weight", width), vector(name + ".bias", width)};
  }

  // Weights of which there are so many.
  std::vector<float> vector(const std::string& name, int64_t size) const {
    std::vector<float> result = floats(name);
    if (static_cast<int64_t>(result.size()) != size) throw std::invalid_argument(name + " has another size than the model");
    return result;
  }

 private:
  py::dict arrays_;
  bool int8_;

  py::object find(const std::string& name) const {
    if (!has(name)) throw std::invalid_argument("the model has no weights named " + name);
    return arrays_[name.c_str()];
  }

  template <typename Number, typename Array>
  static std::vector<Number> copy(const Array& array) {
    return {array.data(), array.data() + array.size()};
  }

  static void quantize(const std::vector<float>& matrix, int64_t rows, std::vector<int8_t>& units, std::vector<float>& scales) {
    const int64_t columns = matrix.size() / rows;
    for (int64_t row = 0; row < rows; row++) {
      const float* from = &matrix[row * columns];
      float size = 1e-8f;
      for (int64_t i = 0; i < columns; i++) size = std::max(size, std::abs(from[i]));
      const float scale = size / 127;
      for (int64_t i = 0; i < columns; i++) units.push_back(std::nearbyint(from[i] / scale));
      scales.push_back(scale);
    }
  }
};

Activation activation_of(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_accurate" || name == "gelu_fast") return Activation::kGeluAccurate;
  if (name == "tanh") return Activation::kTanh;
  if (name == "linear") return Activation::kLinear;
  throw std::invalid_argument("the activation " + name + " is unknown");
}

template <typename Type>
Type get(const py::dict& description, const char* name) {
  if (!description.contains(name)) throw std::invalid_argument(std::string("the description has no ") + name);
  return py::cast<Type>(description[name]);
}

Shape shape_of(const py::dict& side) {
  const Shape shape{get<int64_t>(side, "width"), get<int64_t>(side, "heads"), get<bool>(side, "norm_first")};
  if (shape.width < 2 || shape.heads < 1 || shape.width % shape.heads)
    throw std::invalid_argument("heads that do not divide the width");
  return shape;
}

Embedding embedding_of(const py::dict& side, const Weights& weights, const std::string& prefix) {
  const std::string kind = get<std::string>(side, "positions");
  const int64_t width = get<int64_t>(side, "width"), directions = get<int64_t>(side, "directions");
  Positions::Kind positions = Positions::Kind::kNone;
  std::string learned;
  if (kind == "sinusoidal") positions = Positions::Kind::kSinusoidal;
  if (kind == "learned") positions = Positions::Kind::kLearned, learned = prefix + ".embed_positions.weight";
  if (kind == "interleaved") {
    positions = Positions::Kind::kInterleaved;
    if (directions > 2) learned = prefix + ".embed_directions.weight";
  }
  std::optional<Norm> norm;
  if (get<bool>(side, "embedding_norm")) norm = weights.norm(prefix + ".layernorm_embedding", width);
  return {weights.vector(prefix + ".embed_tokens.weight", width * get<int64_t>(side, "vocabulary")), get<float>(side, "scale"),
          Positions(positions, width, get<int64_t>(side, "position_offset"), directions,
                    learned.empty() ? std::vector<float>{} : weights.floats(learned)),
          norm, width};
}

FeedForward feed_forward_of(const py::dict& side, const Weights& weights, const std::string& prefix) {
  const Activation activation = activation_of(get<std::string>(side, "activation"));
  const int64_t width = get<int64_t>(side, "width"), inner = get<int64_t>(side, "inner_width");
  return {{weights.norm(prefix + ".final_layer_norm", width)},
          weights.linear({prefix + ".fc1"}, width, inner),
          weights.linear({prefix + ".fc2"}, inner, width, 1, activation == Activation::kRelu),
          activation};
}

float query_scale(const Shape& shape) { return 1 / std::sqrt(static_cast<float>(shape.width / shape.heads)); }

std::unique_ptr<Linear> projections(const Shape& shape, const Weights& weights, const std::string& prefix) {
  return weights.linear({prefix + ".q_proj", prefix + ".k_proj", prefix + ".v_proj"}, shape.width, 3 * shape.width,
                        query_scale(shape));
}

Encoder encoder_of(const py::dict& side, const Weights& weights) {
  Encoder encoder{shape_of(side), embedding_of(side, weights, "encoder"), {}, {}};
  const int64_t width = encoder.shape.width;
  for (int64_t i = 0; i < get<int64_t>(side, "layers"); i++) {
    const std::string prefix = "encoder.layers." + std::to_string(i);
    encoder.layers.push_back({{{weights.norm(prefix + ".self_attn_layer_norm", width)},
                               projections(encoder.shape, weights, prefix + ".self_attn"),
                               weights.linear({prefix + ".self_attn.out_proj"}, width, width)},
                              feed_forward_of(side, weights, prefix)});
  }
  if (get<bool>(side, "final_norm")) encoder.norm = weights.norm("encoder.layer_norm", width);
  return encoder;
}

// source_width: C of the encoder.
Decoder decoder_of(const py::dict& side, const Weights& weights, int64_t source_width) {
  Decoder decoder{shape_of(side), embedding_of(side, weights, "decoder"), {}, {}, {}, get<int64_t>(side, "words_per_step"),
                  get<int64_t>(side, "starts")};
  const int64_t width = decoder.shape.width;
  if (decoder.words < 1) throw std::invalid_argument("steps without words");
  for (int64_t i = 0; i < get<int64_t>(side, "layers"); i++) {
    const std::string prefix = "decoder.layers." + std::to_string(i), cross = prefix + ".encoder_attn";
    decoder.layers.push_back({{{weights.norm(prefix + ".self_attn_layer_norm", width)},
                               projections(decoder.shape, weights, prefix + ".self_attn"),
                               weights.linear({prefix + ".self_attn.out_proj"}, width, width)},
                              {{weights.norm(prefix + ".encoder_attn_layer_norm", width)},
                               weights.linear({cross + ".q_proj"}, width, width, query_scale(decoder.shape)),
                               weights.linear({cross + ".k_proj", cross + ".v_proj"}, source_width, 2 * width),
                               weights.linear({cross + ".out_proj"}, width, width)},
                              feed_forward_of(side, weights, prefix)});
  }
  if (get<bool>(side, "final_norm")) decoder.norm = weights.norm("decoder.layer_norm", width);
  decoder.output = weights.linear({get<std::string>(side, "output")}, width, get<int64_t>(side, "vocabulary"));
  return decoder;
}

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

class Engine {
 public:
  Engine(const py::dict& description, const py::dict& arrays, bool int8)
      : Engine(description, Weights(arrays, int8)) {}

  std::vector<std::vector<Hypothesis>> search(const std::vector<Tokens>& sources, const py::dict& options, int64_t threads) const {
    for (const Tokens& source : sources) {
      if (source.empty()) throw std::invalid_argument("a source without tokens");
      for (const int32_t token : source)
        if (token < 0 || token >= source_vocab_) throw std::invalid_argument("no such token: " + std::to_string(token));
    }
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
        decoder_(decoder_of(get<py::dict>(description, "decoder"), weights, encoder_.shape.width)),
        symbols_{get<int32_t>(description, "pad"), get<int32_t>(description, "eos"), get<int32_t>(description, "unk")},
        max_tokens_(get<int64_t>(get<py::dict>(description, "decoder"), "max_positions")),
        source_vocab_(encoder_.embedding.table.size() / encoder_.shape.width) {}
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
  py::class_<Hypothesis>(module, "Hypothesis", py::module_local())
      .def_readonly("tokens", &Hypothesis::tokens)
      .def_readonly("token_scores", &Hypothesis::token_scores)
      .def_readonly("score", &Hypothesis::score)
      .def_readonly("steps", &Hypothesis::steps);
  py::class_<Engine>(module, "Engine", py::module_local())
      .def(py::init<const py::dict&, const py::dict&, bool>(), py::arg("description"), py::arg("weights"), py::arg("int8"))
      .def("search", &Engine::search, py::arg("sources"), py::arg("options"), py::arg("threads"));
}
