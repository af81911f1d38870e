// Products of int8 and bfloat16 numbers in the eight tiles of Intel's AMX, of 16 rows of 64 bytes each. They are there, as
// AMLP_AMX says, for processors with AMX; with AMLP_EMULATE_AMX functions do on any processor what the pseudocode of the
// instructions in Intel's manual (Software Developer's Manual, volume 2) says: for tests.

#pragma once

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "simd.h"

#if defined(AMLP_EMULATE_AMX) || (defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__))
#define AMLP_AMX
#endif

namespace amlp::amx {

#ifdef AMLP_AMX
constexpr int64_t kRows = 16, kBytes = 64;
static_assert(kLanes * 4 == kBytes);

// All tiles are whole: what an operand lacks is memory that it may read, and sums that nobody reads.
struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, kBytes};
  uint8_t rows[16] = {kRows, kRows, kRows, kRows, kRows, kRows, kRows, kRows};
};
static_assert(sizeof(Configuration) == 64);

#ifdef AMLP_EMULATE_AMX
struct Tiles {
  Configuration configuration;
  uint8_t bytes[8][kRows][kBytes];

  template <typename Number>
  Number* row(int number, int64_t index) {
    if (configuration.palette != 1) throw std::logic_error("tiles without a configuration");
    return reinterpret_cast<Number*>(bytes[number][index]);
  }

  // Call sum(row, group, column) for the rows and columns of tile `to` and the groups of 4 bytes of a row of `left`.
  template <typename Sum>
  void for_products(int to, int left, const Sum& sum) const {
    for (int64_t m = 0; m < configuration.rows[to]; m++)
      for (int64_t k = 0; k < configuration.bytes[left] / 4; k++)
        for (int64_t n = 0; n < configuration.bytes[to] / 4; n++) sum(m, k, n);
  }

  void clear(int number, int64_t first_row = 0, int64_t first_byte = 0) {
    for (int64_t m = 0; m < kRows; m++)
      for (int64_t i = m < first_row ? first_byte : 0; i < kBytes; i++) row<uint8_t>(number, m)[i] = 0;
  }
};
inline thread_local Tiles tiles{{0}, {}};

inline float without_denormals(float number) { return std::abs(number) < 0x1p-126f ? std::copysign(0.0f, number) : number; }
inline float sum_without_denormals(float one, float other) {
  return without_denormals(without_denormals(one) + without_denormals(other));
}

inline void configure(const Configuration& configuration) {
  if (tiles.configuration.palette != 0) throw std::logic_error("tiles that were not released");  // no processor sees it
  tiles.configuration = configuration;
  for (int number = 0; number < 8; number++) tiles.clear(number);
}
inline void release() { tiles.configuration.palette = 0; }

template <int Tile>
void load(const void* from, int64_t stride) {
  const int64_t rows = tiles.configuration.rows[Tile], bytes = tiles.configuration.bytes[Tile];
  for (int64_t m = 0; m < rows; m++)
    std::memcpy(tiles.row<uint8_t>(Tile, m), static_cast<const char*>(from) + m * stride, bytes);
  tiles.clear(Tile, rows, bytes);
}

template <int Tile>
void save(void* to, int64_t stride) {
  for (int64_t m = 0; m < tiles.configuration.rows[Tile]; m++)
    std::memcpy(static_cast<char*>(to) + m * stride, tiles.row<uint8_t>(Tile, m), tiles.configuration.bytes[Tile]);
}

// TDPBUSD: left is unsigned, right signed, and sums wrap around.
template <int To, int Left, int Right>
void add_products(int32_t) {
  tiles.for_products(To, Left, [](int64_t m, int64_t k, int64_t n) {
    uint32_t sum = tiles.row<uint32_t>(To, m)[n];
    for (int64_t i = 0; i < 4; i++)
      sum += tiles.row<uint8_t>(Left, m)[4 * k + i] * tiles.row<int8_t>(Right, k)[4 * n + i];
    tiles.row<uint32_t>(To, m)[n] = sum;
  });
  tiles.clear(To, tiles.configuration.rows[To], tiles.configuration.bytes[To]);
}

// TDPBF16PS: the products of even and of odd numbers are added up from zero, and these sums, added, to `To`. Denormal numbers
// are zero.
template <int To, int Left, int Right>
void add_products(float) {
  float sums[kRows][2][kLanes] = {};
  const auto number = [](int tile, int64_t row, int64_t index) {
    const uint32_t bits = static_cast<uint32_t>(tiles.row<uint16_t>(tile, row)[index]) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return without_denormals(result);
  };
  tiles.for_products(To, Left, [&](int64_t m, int64_t k, int64_t n) {
    for (int64_t i = 0; i < 2; i++)
      sums[m][i][n] =
          without_denormals(std::fma(number(Left, m, 2 * k + i), number(Right, k, 2 * n + i), sums[m][i][n]));
  });
  for (int64_t m = 0; m < tiles.configuration.rows[To]; m++)
    for (int64_t n = 0; n < tiles.configuration.bytes[To] / 4; n++) {
      float& sum = tiles.row<float>(To, m)[n];
      sum = sum_without_denormals(sum, sum_without_denormals(sums[m][0][n], sums[m][1][n]));
    }
  tiles.clear(To, tiles.configuration.rows[To], tiles.configuration.bytes[To]);
}
#else
// GCC's intrinsics are the same lines, but take no numbers of tiles that templates have, and do not say that memory is read.
inline void configure(const Configuration& configuration) { asm volatile("ldtilecfg %0" ::"m"(configuration)); }
inline void release() { asm volatile("tilerelease"); }

template <int Tile>
void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(from), "r"(stride) : "memory");
}

template <int Tile>
void save(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(to), "r"(stride) : "memory");
}

template <int To, int Left, int Right>
void add_products(int32_t) {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(To), "i"(Left), "i"(Right));
}

template <int To, int Left, int Right>
void add_products(float) {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(To), "i"(Left), "i"(Right));
}
#endif

// The tiles of a thread, while it uses them: a processor with tiles in use is slower to switch threads and to sleep.
struct Session {
  const bool used;

  explicit Session(bool used) : used(used) {
    if (used) configure(Configuration());
  }
  ~Session() {
    if (used) release();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

// Call each<0>() … each<Count - 1>().
template <int Count, typename Each>
inline void repeat(const Each& each) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (each.template operator()<I>(), ...);
  }(std::make_integer_sequence<int, Count>{});
}

// The sums of RowTiles times 16 rows of inputs with `Panels` panels of weights, (rows, Panels, kLanes), from `initial` on,
// (Panels, kLanes).
// inputs: rows of so many bytes.
// weights: panels of 64 bytes of which the next are `stride` bytes on, 16 for each step.
// ahead: how many bytes on weights are fetched that come later, if not 0.
template <int RowTiles, int Panels, typename Sum>
void sum_tiles(const char* inputs, int64_t row_bytes, const char* weights, int64_t stride, int64_t steps, const Sum* initial,
               int64_t ahead, Sum* sums) {
  static_assert(RowTiles * Panels <= 4 && RowTiles <= 2);
  repeat<RowTiles>([&]<int R>() {
    repeat<Panels>([&]<int P>() { load<R * Panels + P>(initial + P * kLanes, 0); });
  });
  for (int64_t step = 0; step < steps; step++, inputs += kBytes, weights += kRows * stride) {
    repeat<RowTiles>([&]<int R>() { load<4 + R>(inputs + R * kRows * row_bytes, row_bytes); });
    repeat<Panels>([&]<int P>() {
      load<6 + P % 2>(weights + P * kBytes, stride);
      repeat<RowTiles>([&]<int R>() { add_products<R * Panels + P, 4 + R, 6 + P % 2>(Sum()); });
    });
    if (ahead != 0)
      for (int64_t row = 0; row < kRows; row++)
        repeat<Panels>([&]<int P>() { __builtin_prefetch(weights + ahead + row * stride + P * kBytes, 0, 2); });
  }
  repeat<RowTiles>([&]<int R>() {
    repeat<Panels>([&]<int P>() { save<R * Panels + P>(sums + (R * kRows * Panels + P) * kLanes, Panels * kBytes); });
  });
}

// Call finish(row, panel, sums) with the sums of each of the rows with each of the panels of a block; see `sum_tiles`.
// Rows are read up to a multiple of 16.
template <typename Sum, typename Finish>
void multiply(const void* inputs, int64_t row_bytes, int64_t rows, const void* block, int64_t panels, const Sum* initial,
              bool fetch, const Finish& finish) {
  const int64_t steps = row_bytes / kBytes, stride = panels * kBytes;
  const auto part = [&]<int RowTiles, int Panels>(int64_t row) {
    alignas(64) Sum sums[RowTiles * kRows][Panels][kLanes];
    for (int64_t panel = 0; panel < panels; panel += Panels) {
      sum_tiles<RowTiles, Panels>(static_cast<const char*>(inputs) + row * row_bytes, row_bytes,
                                  static_cast<const char*>(block) + panel * kBytes, stride, steps, initial + panel * kLanes,
                                  fetch && row == 0 ? steps * kRows * stride : 0, &sums[0][0][0]);
      for (int64_t r = 0; r < std::min(RowTiles * kRows, rows - row); r++)
        for (int64_t p = 0; p < Panels; p++) finish(row + r, panel + p, sums[r][p]);
    }
  };
  for (int64_t row = 0; row < rows; row += 2 * kRows) {
    const bool two = rows - row > kRows;
    if (panels == kPanels)
      two ? part.template operator()<2, 2>(row) : part.template operator()<1, kPanels>(row);
    else
      two ? part.template operator()<2, 1>(row) : part.template operator()<1, 1>(row);
  }
}
#else
struct Session {
  explicit Session(bool) {}
};
#endif

}  // namespace amlp::amx
