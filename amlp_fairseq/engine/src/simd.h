// Vectors of numbers for the processor that this file is compiled for, and functions of single numbers and rows.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef AMLP_NEON
#include <arm_neon.h>
#endif

namespace amlp {

#if defined(__AVX512F__) || defined(AMLP_EMULATE_AMX)
constexpr int64_t kLanes = 16;  // numbers in a vector
constexpr int kPanels = 4;      // outputs of a tile, in vectors
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
constexpr int kPanels = 2;
#elif defined(AMLP_NEON)
constexpr int64_t kLanes = 4;
constexpr int kPanels = 4;
#else
constexpr int64_t kLanes = 4;
constexpr int kPanels = 2;
#endif
constexpr int kTileRows = 6;  // rows of a tile: as many sums as there are registers
constexpr int64_t kPrefetch = 4096;  // how far ahead weights are fetched, in bytes

template <int Count>
struct Vector {
  typedef float Type __attribute__((vector_size(4 * Count)));
};
typedef Vector<kLanes>::Type Lanes;

// Loops over the sums of a tile are unrolled: only then does the compiler keep the sums in registers.
#define AMLP_UNROLL _Pragma("GCC unroll 8")

inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Keys and values of models in int8 are kept in float16 where the processor converts it, of magnitudes up to its largest.
#if defined(__F16C__) || defined(AMLP_NEON)
struct Half {
#ifdef AMLP_NEON
  __fp16 number;

  Half() = default;
  explicit Half(float number) : number(std::min(std::max(number, -65504.0f), 65504.0f)) {}
  operator float() const { return number; }
#else
  uint16_t bits;

  Half() = default;
  explicit Half(float number) : bits(_cvtss_sh(std::min(std::max(number, -65504.0f), 65504.0f), _MM_FROUND_TO_NEAREST_INT)) {}
  operator float() const { return _cvtsh_ss(bits); }
#endif
};

inline Lanes load(const Half* from) {
#if defined(AMLP_NEON)
  return vcvt_f32_f16(vld1_f16(&from->number));
#elif defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}

inline void copy_numbers(const float* from, int64_t count, Half* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes, to += kLanes) {
    const Lanes lanes = load(from + i), most = Lanes{} + 65504.0f;
    const Lanes bounded = lanes > most ? most : lanes < -most ? -most : lanes;
#if defined(AMLP_NEON)
    vst1_f16(&to->number, vcvt_f16_f32(bounded));
#elif defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(bounded, _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(bounded, _MM_FROUND_TO_NEAREST_INT));
#endif
  }
  for (; i < count; i++) *to++ = Half(from[i]);
}
#else
typedef float Half;
#endif

inline void copy_numbers(const float* from, int64_t count, float* to) { std::copy_n(from, count, to); }

// Store the lanes, or the first `count` where there is room for fewer.
inline void store(const Lanes& lanes, float* to, int64_t count) {
  if (count >= kLanes)
    std::memcpy(to, &lanes, sizeof lanes);
  else if (count > 0)
    std::memcpy(to, &lanes, count * sizeof(float));
}

// The sum of the numbers in a vector, which is halved until one is left.
template <int Count>
float sum_of(const typename Vector<Count>::Type& numbers) {
  if constexpr (Count == 2) {
    return numbers[0] + numbers[1];
  } else {
    typename Vector<Count / 2>::Type halves[2];
    std::memcpy(halves, &numbers, sizeof halves);
    return sum_of<Count / 2>(halves[0] + halves[1]);
  }
}

// e^x for x <= 0, within 2 units in the last place; 0 below -87, NaN for NaN. Without branches, so that the compiler
// vectorises it.
inline float exponential(float x) {
  const float bounded = std::max(-87.0f, x);  // -87 for NaN
  const float power = std::nearbyint(bounded * 1.44269504f);
  const float rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;
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

// ln x for normal x > 0, within 2 units in the last place, or 2^-24 where that is more. Without branches, too.
inline float logarithm(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int32_t power = (bits - 0x3f3504f3) >> 23;  // x = 2^power m, with m from sqrt(1/2) to sqrt(2)
  bits -= power << 23;
  float rest;
  std::memcpy(&rest, &bits, sizeof rest);
  rest -= 1;
  float series = 7.0376836292e-2f;
  series = series * rest - 1.1514610310e-1f;
  series = series * rest + 1.1676998740e-1f;
  series = series * rest - 1.2420140846e-1f;
  series = series * rest + 1.4249322787e-1f;
  series = series * rest - 1.6668057665e-1f;
  series = series * rest + 2.0000714765e-1f;
  series = series * rest - 2.4999993993e-1f;
  series = series * rest + 3.3333331174e-1f;
  const float square = rest * rest;
  return power * 0.693359375f + (rest - (0.5f * square - rest * square * series) - power * 2.12194440e-4f);
}

inline float sigmoid(float x) {
  const float power = exponential(-std::abs(x));
  return (x < 0 ? power : 1.0f) / (1 + power);
}

inline float largest_of(const float* x, int64_t count) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; i++) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// Layer norm of a row of `width` numbers; `out` may be `x`.
inline void normalize(const float* x, float* out, int64_t width, const float* weight, const float* bias, float eps) {
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

inline int64_t whole_vectors(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

}  // namespace amlp
