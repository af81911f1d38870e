// The weights of a model, and layers that are built of them.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>

#include "embedding.h"

namespace amlp {
namespace {

namespace py = pybind11;

typedef py::array_t<float, py::array::c_style | py::array::forcecast> FloatArray;
typedef py::array_t<int8_t, py::array::c_style> Int8Array;

template <typename Number, int Flags>
std::span<const Number> numbers_of(const py::array_t<Number, Flags>& array) {
  return {array.data(), static_cast<size_t>(array.size())};
}

std::vector<float> floats_of(const FloatArray& array) { return {array.data(), array.data() + array.size()}; }

// The weights of a model by name: float32 arrays, or pairs of an int8 matrix and the scales of its rows.
class Weights {
 public:
  // arrays: of Python, with `in` and `[]`. Each is asked for when it is needed and, but for tables, not kept.
  Weights(py::object arrays, bool int8, bool bfloat16 = false) : arrays_(std::move(arrays)), int8_(int8), bfloat16_(bfloat16) {}

  std::vector<float> floats(const std::string& name) const { return floats_of(float_array(find(name))); }

  // It keeps the array of Python, so that it is deleted where Python's lock is held.
  Table table(const std::string& name, int64_t rows, int64_t width) const {
    Table result{rows, width, {}, {}, {}};
    const py::object value = find(name);
    const auto keep = [&]<typename Array>(const Array& array, auto& numbers) {
      if (array.size() != rows * width) wrong_size(name);
      numbers = {array.data(), [array](const void*) {}};
    };
    if (py::isinstance<py::tuple>(value)) {
      const auto [matrix, scales] = py::cast<std::pair<Int8Array, FloatArray>>(value);
      keep(matrix, result.units);
      result.scales = floats_of(scales);
      if (static_cast<int64_t>(result.scales.size()) != rows) wrong_size(name);
    } else {
      keep(py::cast<FloatArray>(value), result.numbers);
    }
    return result;
  }

  bool has(const std::string& name) const { return arrays_.contains(name.c_str()); }

  // The maps of these names, one below the other, in the type for decoding.
  // in, out: the numbers of inputs and of all outputs.
  // scale: of the first map's outputs.
  // nonnegative: no input is below 0.
  std::unique_ptr<Linear> linear(const std::vector<std::string>& names, int64_t in, int64_t out, float scale = 1,
                                 bool nonnegative = false) const {
    std::vector<float> biases, scales;
    Floats weights;
    Numbers<int8_t> units;
    py::object only;  // the matrix, if there is one map, in the type in which it is stored
    std::span<const float> numbers;
    std::span<const int8_t> stored;
    for (size_t i = 0; i < names.size(); i++) {
      const float factor = i == 0 ? scale : 1;
      const py::object value = find(names[i] + ".weight");
      const py::object bias = has(names[i] + ".bias") ? find(names[i] + ".bias") : py::none();
      if (int8_ && py::isinstance<py::tuple>(value)) {
        const auto [matrix, row_scales] = py::cast<std::pair<Int8Array, FloatArray>>(value);
        if (names.size() == 1)
          only = matrix, stored = numbers_of(matrix);
        else
          units.insert(units.end(), matrix.data(), matrix.data() + matrix.size());
        for (const float row_scale : numbers_of(row_scales)) scales.push_back(row_scale * factor);
      } else {
        const FloatArray matrix = float_array(value);
        const int64_t rows = py::len(bias.is_none() ? value : bias);
        if (rows == 0 || matrix.size() % rows) throw std::invalid_argument(names[i] + " has weights and biases of another size");
        if (int8_)
          quantize(matrix.data(), matrix.size() / rows, rows, factor, units, scales);
        else if (names.size() == 1 && factor == 1)
          only = matrix, numbers = numbers_of(matrix);
        else
          std::transform(matrix.data(), matrix.data() + matrix.size(), std::back_inserter(weights),
                         [=](float weight) { return weight * factor; });
      }
      if (bias.is_none())
        biases.resize(int8_ ? scales.size() : biases.size() + py::len(value), 0);
      else
        for (const float number : floats_of(float_array(bias))) biases.push_back(number * factor);
    }
    if (!units.empty()) stored = units;
    if (!weights.empty()) numbers = weights;
    const int64_t size = int8_ ? stored.size() : numbers.size(), rows = int8_ ? scales.size() : biases.size();
    if (rows != out || static_cast<int64_t>(biases.size()) != out || size != in * out)
      wrong_size(names[0]);
    if (int8_) return std::make_unique<Int8Linear>(stored, scales, biases, nonnegative);
#ifdef AMLP_BFLOAT16
    if (bfloat16_) return std::make_unique<Bfloat16Linear>(numbers, biases);
#endif
    return std::make_unique<FloatLinear>(numbers, biases);
  }

  // As `linear`, of one name, in parts of at most so many outputs.
  std::vector<std::unique_ptr<Linear>> parts(const std::string& name, int64_t in, int64_t out, int64_t size) const {
    std::vector<std::unique_ptr<Linear>> result;
    py::dict whole;
    for (const std::string& each : {name + ".weight", name + ".bias"})
      if (has(each)) whole[each.c_str()] = find(each);
    for (int64_t begin = 0; begin < out; begin += size) {
      const int64_t end = std::min(begin + size, out);
      const py::slice rows(begin, end == out ? std::numeric_limits<py::ssize_t>::max() : end, 1);
      py::dict part;
      for (const auto& [key, value] : whole)
        part[key] = py::isinstance<py::tuple>(value) ? py::make_tuple(value[py::int_(0)][rows], value[py::int_(1)][rows])
                                                     : py::object(value[rows]);
      result.push_back(Weights(part, int8_, bfloat16_).linear({name}, in, end - begin));
    }
    return result;
  }

  Norm norm(const std::string& name, int64_t width) const {
    return {vector(name + ".weight", width), vector(name + ".bias", width)};
  }

  // Weights of which there are so many.
  std::vector<float> vector(const std::string& name, int64_t size) const {
    std::vector<float> result = floats(name);
    if (static_cast<int64_t>(result.size()) != size) wrong_size(name);
    return result;
  }

  // Round the rows of a matrix (rows, columns), times a factor, to int8; units and scales are added to those that are there.
  static void quantize(const float* matrix, int64_t columns, int64_t rows, float factor, Numbers<int8_t>& units,
                       std::vector<float>& scales) {
    const int64_t before = units.size();
    units.resize(before + rows * columns);
    for (int64_t row = 0; row < rows; row++) {
      const float* const from = matrix + row * columns;
      int8_t* const to = &units[before + row * columns];
      float size = 1e-8f, wrong = 0;  // NaN if a weight is not finite, and then all outputs are NaN
#pragma omp simd reduction(max : size) reduction(+ : wrong)
      for (int64_t i = 0; i < columns; i++) {
        size = std::max(size, std::abs(from[i] * factor));
        wrong += from[i] * 0;
      }
      const float scale = size / 127 + wrong;
      scales.push_back(scale);
      if (wrong != 0) continue;
#pragma omp simd
      for (int64_t i = 0; i < columns; i++) to[i] = static_cast<int32_t>(std::nearbyint(from[i] * factor / scale));
    }
  }

 private:
  py::object arrays_;
  bool int8_, bfloat16_;

  [[noreturn]] static void wrong_size(const std::string& name) {
    throw std::invalid_argument(name + " has another size than the model");
  }

  py::object find(const std::string& name) const {
    if (!has(name)) throw std::invalid_argument("the model has no weights named " + name);
    return arrays_[name.c_str()];
  }

  // An array in float32.
  static FloatArray float_array(const py::object& value) {
    if (!py::isinstance<py::tuple>(value)) return py::cast<FloatArray>(value);
    const auto [matrix, scales] = py::cast<std::pair<Int8Array, FloatArray>>(value);
    const int64_t rows = scales.size(), columns = matrix.size() / std::max<int64_t>(rows, 1);
    FloatArray result(matrix.size());
    float* const to = result.mutable_data();
    for (int64_t i = 0; i < rows * columns; i++) to[i] = matrix.data()[i] * scales.data()[i / columns];
    return result;
  }
};

constexpr int64_t kMost = INT32_MAX;  // of whole numbers in descriptions and options: products of two do not overflow

// An entry of a description or of options. Whole numbers are 0 … kMost.
template <typename Type>
Type get(const py::dict& entries, const char* name) {
  if (!entries.contains(name)) throw std::invalid_argument(std::string("there is no ") + name);
  const auto wrong = [&] {
    return std::invalid_argument(std::string(name) + " has a wrong value: " + py::cast<std::string>(py::repr(entries[name])));
  };
  try {
    const Type value = py::cast<Type>(entries[name]);
    if constexpr (std::is_integral_v<Type> && !std::is_same_v<Type, bool>)
      if (value < 0 || value > kMost) throw wrong();
    return value;
  } catch (const py::cast_error&) {
    throw wrong();
  }
}

}  // namespace
}  // namespace amlp
