// Vector types, and functions of single numbers and rows.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

using at::Tensor;

// Number of multiplications per thread, below which no further thread is used.
constexpr int64_t kGrain = 1 << 17;

#ifdef __AVX512F__
constexpr int64_t kLanes = 16;  // numbers in a vector
constexpr int kPanels = 4;      // outputs of a tile, in vectors
#else
constexpr int64_t kLanes = 8;
constexpr int kPanels = 2;
#endif
constexpr int kRows = 6;  // rows of a tile: all sums fit into the registers
constexpr int64_t kRowsPerTask = 8 * kRows;  // rows of a block in one task of a thread
// Prefetch distance of weights, in bytes.
constexpr int64_t kAhead = 4096;
template <int Count>
struct Vector {
  typedef float Of __attribute__((vector_size(4 * Count)));
};
typedef Vector<kLanes>::Of Lanes;

// Unrolls loops over a tile's sums: otherwise the compiler does not keep the sums in registers.
#define UNROLLED _Pragma("GCC unroll 8")

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Stores the first min(count, kLanes) lanes.
void store(const Lanes& lanes, float* to, int64_t count) {
  if (count >= kLanes)
    std::memcpy(to, &lanes, sizeof lanes);
  else if (count > 0)
    std::memcpy(to, &lanes, count * sizeof(float));
}

// Returns the minimum number of rows per thread.
int64_t rows_for_a_thread(int64_t work_of_a_row) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_of_a_row));
}

// Returns e^x for x <= 0, within 2 units in the last place; 0 below -87. Has no branches, so that the compiler vectorises it.
inline float exponential(float x) {
  const float bounded = std::max(x, -87.0f);
  const float power = std::nearbyint(bounded * 1.44269504f);
  const float rest = (bounded - power * 0.693359375f) + power * 2.12194440e-4f;
  float series = 1.9875691500e-4f;
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(power) + 127) << 23;
  float scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return x < -87.0f ? 0.0f : series * scale;
}

inline float sigmoid(float x) {
  const float power = exponential(-std::abs(x));
  return (x < 0 ? power : 1.0f) / (1.0f + power);
}

// LayerNorm of a row x (width) into `out`, which may be x.
void normalize(const float* x, float* out, int64_t width, const float* weight, const float* bias, float eps) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; i++) sum += x[i];
  const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1 / std::sqrt(squares / width + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

}  // namespace
