// Linear maps y = x W^T + b with weights in the order in which they are read, in float32 and int8.

#pragma once

#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "amx.h"
#include "memory.h"
#include "simd.h"
#include "threads.h"

namespace amlp {

constexpr int64_t kGrain = 1 << 17;  // multiplications from which on another thread helps
#ifdef AMLP_AMX
constexpr int64_t kRowsPerPart = 4 * amx::kRows, kInputBytes = amx::kBytes;  // inputs of a product of tiles
#else
constexpr int64_t kRowsPerPart = 8 * kTileRows, kInputBytes = 4;  // inputs of a lane
#endif

inline int64_t grain_of(int64_t work) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work)); }

// The outputs of a matrix in panels of kLanes, and these in blocks of kPanels; the rest are blocks of one.
struct Blocks {
  int64_t whole, count;

  explicit Blocks(int64_t out) {
    const int64_t panels = (out + kLanes - 1) / kLanes;
    whole = panels / kPanels, count = whole + panels % kPanels;
  }

  int64_t panels(int64_t block) const { return block < whole ? kPanels : 1; }
  int64_t first_panel(int64_t block) const { return block < whole ? block * kPanels : block + whole * (kPanels - 1); }
};

// Call tile<Rows, Panels>(row) for tiles of Rows <= kTileRows rows that cover `rows` of a block.
template <typename Tile>
void for_tiles(int64_t rows, int64_t panels, const Tile& tile) {
  const auto over_rows = [&]<int Panels, int... Rest>(std::integral_constant<int, Panels>,
                                                      std::integer_sequence<int, Rest...>) {
    int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) tile.template operator()<kTileRows, Panels>(row);
    (void)((rows - row == Rest + 1 && (tile.template operator()<Rest + 1, Panels>(row), true)) || ...);
  };
  const auto rest = std::make_integer_sequence<int, kTileRows - 1>{};
  if (panels == kPanels)
    over_rows(std::integral_constant<int, kPanels>{}, rest);
  else
    over_rows(std::integral_constant<int, 1>{}, rest);
}

template <int Panels>
void prefetch(const void* weights) {
  AMLP_UNROLL for (int p = 0; p < Panels; p++)
    __builtin_prefetch(static_cast<const char*>(weights) + kPrefetch + p * 4 * kLanes);
}

// Where the next weights are: a tile fetches a line, or a few, for each step of its sums. Of one block's first tiles each
// fetches a part of the next block, so that the memory has the time of them all; where there are fewer tiles than parts, a
// tile fetches what comes soon.
struct Ahead {
  static constexpr int64_t kParts = 4;

  const char* from;
  int64_t step;

  // bytes: of a block, which a tile reads in so many steps.
  Ahead(const void* block, int64_t bytes, int64_t steps, int64_t tile, int64_t tiles)
      : from(static_cast<const char*>(block) + (tiles < kParts ? kPrefetch : bytes + tile % kParts * steps * kLine)),
        step(tiles < kParts ? bytes / steps : kLine) {}

  template <int Lines>
  void fetch() {
    AMLP_UNROLL for (int line = 0; line < Lines; line++) __builtin_prefetch(from + line * kLine);
    from += step;
  }

 private:
  static constexpr int64_t kLine = kCacheLine;
};

// `Rows` rows of x times a block of `Panels` panels (in, Panels, kLanes), into rows of y: its next `out` columns, all if there
// are so many. An output is its bias, if any, plus the sum over the inputs in their order, in tiles of every size: the result
// of a row does not depend on the rows beside it.
template <int Rows, int Panels, typename Number>
void multiply_tile(const float* x, int64_t x_stride, int64_t in, const Number* block, const float* biases, float* y,
                   int64_t y_stride, int64_t out, bool relu) {
  Lanes sums[Rows][Panels];
  AMLP_UNROLL for (int r = 0; r < Rows; r++)
    AMLP_UNROLL for (int p = 0; p < Panels; p++) sums[r][p] = biases == nullptr ? Lanes{} : load(biases + p * kLanes);
  for (int64_t i = 0; i < in; i++, block += Panels * kLanes) {
    Lanes weights[Panels];
    AMLP_UNROLL for (int p = 0; p < Panels; p++) weights[p] = load(block + p * kLanes);
    AMLP_UNROLL for (int r = 0; r < Rows; r++)
      AMLP_UNROLL for (int p = 0; p < Panels; p++) sums[r][p] += x[r * x_stride + i] * weights[p];
    prefetch<Panels>(block);
  }
  AMLP_UNROLL for (int r = 0; r < Rows; r++)
    AMLP_UNROLL for (int p = 0; p < Panels; p++) {
      const Lanes sum = relu ? (sums[r][p] < 0 ? Lanes{} : sums[r][p]) : sums[r][p];
      store(sum, y + r * y_stride + p * kLanes, out - p * kLanes);
    }
}

// x (rows, in) times a matrix in panels, into y (rows, out).
template <typename Number>
void multiply(const float* x, int64_t x_stride, int64_t rows, int64_t in, const Number* panels, const float* biases,
                     float* y, int64_t y_stride, int64_t out, bool relu, int64_t first_block, int64_t last_block) {
  const Blocks blocks(out);
  for (int64_t block = first_block; block < last_block; block++) {
    const int64_t begin = blocks.first_panel(block) * kLanes;
    for_tiles(rows, blocks.panels(block), [=]<int Rows, int Panels>(int64_t row) {
      multiply_tile<Rows, Panels>(x + row * x_stride, x_stride, in, panels + begin * in,
                                  biases == nullptr ? nullptr : biases + begin, y + row * y_stride + begin, y_stride, out - begin,
                                  relu);
    });
  }
}

// Write a matrix (in, out) with these strides in panels of `groups` groups of inputs, or as few as there are; padding is zero.
template <int64_t Group, typename From, typename Number>
void write_panels(const From* from, int64_t in, int64_t out, int64_t in_stride, int64_t out_stride, Number* to,
                  int64_t groups = 0) {
  constexpr int64_t kTile = 16;  // groups of a panel that stay in the first cache until they are written
  groups = std::max(groups, (in + Group - 1) / Group);
  const Blocks blocks(out);
  for (int64_t block = 0; block < blocks.count; block++) {
    const int64_t first = blocks.first_panel(block) * kLanes, width = blocks.panels(block) * kLanes;
    if constexpr (Group == 1 && std::is_same_v<From, float>)
      if (out_stride == 1 && first + width <= out) {
        for (int64_t i = 0; i < in; i++, to += width) copy_numbers(from + i * in_stride + first, width, to);
        continue;
      }
    for (int64_t begin = 0; begin < groups; begin += kTile)
      for (int64_t o = first; o < first + width; o++) {
        const From* numbers = from + begin * Group * in_stride + o * out_stride;
        Number* group = to + (begin * width + o - first) * Group;
        if (in_stride == 1 && o < out && (begin + kTile) * Group <= in) {
          for (int64_t g = 0; g < kTile; g++, numbers += Group, group += width * Group)
            if constexpr (std::is_same_v<From, Number>)
              std::memcpy(group, numbers, Group * sizeof(Number));
            else
              for (int64_t i = 0; i < Group; i++) group[i] = Number(numbers[i]);
          continue;
        }
        for (int64_t g = begin; g < std::min(begin + kTile, groups); g++, numbers += Group * in_stride, group += width * Group)
          for (int64_t i = 0; i < Group; i++)
            group[i] = o < out && g * Group + i < in ? Number(numbers[i * in_stride]) : Number(0);
      }
    to += width * groups * Group;
  }
}

// Copy an output of a matrix in panels of so many groups of inputs to a place in another one. A group has 4 bytes.
template <typename Number>
void copy_output(const Numbers<Number>& from, int64_t outputs, int64_t output, int64_t groups, Numbers<Number>& to,
                 int64_t places, int64_t place) {
  struct Column {
    int64_t first, width;  // in groups, and between them

    Column(int64_t out, int64_t o, int64_t groups) {
      const int64_t panel = o / kLanes, whole = Blocks(out).whole * kPanels;
      const int64_t first_panel = panel < whole ? panel / kPanels * kPanels : panel;
      width = (panel < whole ? kPanels : 1) * kLanes, first = first_panel * kLanes * groups + o - first_panel * kLanes;
    }
  };
  const Column source(outputs, output, groups), target(places, place, groups);
  const char* read = reinterpret_cast<const char*>(from.data()) + 4 * source.first;
  char* write = reinterpret_cast<char*>(to.data()) + 4 * target.first;
  for (int64_t g = 0; g < groups; g++, read += 4 * source.width, write += 4 * target.width) std::memcpy(write, read, 4);
}

inline Floats make_panels(const float* from, int64_t in, int64_t out, int64_t in_stride, int64_t out_stride) {
  Floats result(whole_vectors(out) * in);
  write_panels<1>(from, in, out, in_stride, out_stride, result.data());
  return result;
}

inline std::vector<float> padded(const std::vector<float>& vector) {
  std::vector<float> result = vector;
  result.resize(whole_vectors(vector.size()), 0);
  return result;
}

// Rows for which there is memory: tiles are read whole.
inline int64_t whole_tiles(int64_t rows) {
#ifdef AMLP_AMX
  return (rows + amx::kRows - 1) / amx::kRows * amx::kRows;
#else
  return rows;
#endif
}

// Call part(block, begin, end) for all blocks of outputs and parts of the rows, in threads with tiles where it uses them.
template <typename Part>
void for_blocks(ThreadPool& pool, int64_t rows, int64_t work_of_row, int64_t blocks, const Part& part, bool tiles = false) {
  const int64_t parts = (rows + kRowsPerPart - 1) / kRowsPerPart;
  const int64_t work = std::min(rows, kRowsPerPart) * work_of_row / std::max<int64_t>(1, blocks);
  pool.run(blocks * parts, grain_of(work), [&](int64_t begin, int64_t end) {
    const amx::Session session(tiles);
    for (int64_t i = begin; i < end; i++) {
      const int64_t first = i % parts * kRowsPerPart;
      part(i / parts, first, std::min(first + kRowsPerPart, rows));
    }
  });
}

class Linear {
 public:
  int64_t in, out;

  Linear(int64_t in, int64_t out) : in(in), out(out) {}
  virtual ~Linear() = default;

  // x (rows, in) to y (rows, out), and max(0, y) with `relu`.
  virtual void product(ThreadPool& pool, const float* x, int64_t rows, float* y, bool relu) const = 0;

  // True if the weights are rounded, so that what is computed with them may be, too.
  virtual bool rounded() const = 0;

  // A map of as many inputs to so many outputs, all 0.
  virtual std::unique_ptr<Linear> blank(int64_t outputs) const = 0;

  // Copy an output to a place in a map that is `blank`'s.
  virtual void copy(int64_t output, Linear& to, int64_t place) const = 0;

  template <typename Memory>
  void product(ThreadPool& pool, const float* x, int64_t rows, std::vector<float, Memory>& y, bool relu = false) const {
    y.resize(rows * out);
    product(pool, x, rows, y.data(), relu);
  }
};

class FloatLinear : public Linear {
 public:
  // weight: W (out, in).
  // bias: b (out,).
  FloatLinear(std::span<const float> weight, const std::vector<float>& bias)
      : Linear(weight.size() / bias.size(), bias.size()), panels_(make_panels(weight.data(), in, out, 1, in)),
        biases_(padded(bias)) {}

  FloatLinear(int64_t in, int64_t out) : Linear(in, out), panels_(whole_vectors(out) * in, 0), biases_(whole_vectors(out), 0) {}

  bool rounded() const override { return false; }

  std::unique_ptr<Linear> blank(int64_t outputs) const override {
    return std::make_unique<FloatLinear>(in, outputs);
  }

  void copy(int64_t output, Linear& to, int64_t place) const override {
    FloatLinear& other = static_cast<FloatLinear&>(to);
    copy_output(panels_, out, output, in, other.panels_, other.out, place);
    other.biases_[place] = biases_[output];
  }

  void product(ThreadPool& pool, const float* x, int64_t rows, float* y, bool relu) const override {
    for_blocks(pool, rows, in * out, Blocks(out).count, [&](int64_t block, int64_t begin, int64_t end) {
      multiply(x + begin * in, in, end - begin, in, panels_.data(), biases_.data(), y + begin * out, out, out, relu, block,
               block + 1);
    });
  }

 private:
  Floats panels_;
  std::vector<float> biases_;
};

constexpr int64_t kGroup = 4;  // int8 products that are added up for each lane
typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));

inline Integers load_integers(const void* from) {
  Integers result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(AMLP_AMX) || defined(AMLP_NEON)
constexpr int32_t kMaxUnit = 255;
#else
constexpr int32_t kMaxUnit = 127;  // two products are added up in 16 bits
#endif

// What add_products takes off the inputs.
#ifdef AMLP_NEON
constexpr int32_t kInputShift = 128;
#else
constexpr int32_t kInputShift = 0;
#endif

// Add to the sum of each lane the products of its four unsigned inputs, less kInputShift, with its four weights.
inline void add_products(Integers& sum, Integers inputs, Integers weights) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(inputs), "v"(weights));  // GCC 12 moves sums of the intrinsic to memory and back
#elif defined(__AVXVNNI__)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(inputs), "x"(weights));
#elif defined(__AVX512F__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)inputs, (__m512i)weights);
  sum += (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)inputs, (__m256i)weights);
  sum += (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(AMLP_NEON)
  const int8x16_t x = (int8x16_t)veorq_u8((uint8x16_t)inputs, vdupq_n_u8(kInputShift)), w = (int8x16_t)weights;
#ifdef __ARM_FEATURE_DOTPROD
  sum = (Integers)vdotq_s32((int32x4_t)sum, x, w);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(w))), high = vpaddlq_s16(vmull_high_s8(x, w));
  sum += (Integers)vpaddq_s32(low, high);
#endif
#else
  uint8_t x[4 * kLanes];
  int8_t w[4 * kLanes];
  std::memcpy(x, &inputs, sizeof x), std::memcpy(w, &weights, sizeof w);
  for (int64_t lane = 0; lane < kLanes; lane++)
    for (int64_t i = lane * kGroup; i < (lane + 1) * kGroup; i++) sum[lane] += x[i] * w[i];
#endif
}

// int8 weights with a scale per output. Inputs are divided by the largest magnitude of their row and rounded to kMaxUnit
// steps, so that the result of a row does not depend on the rows beside it.
class Int8Linear : public Linear {
 public:
  // weight: W (out, in) in int8.
  // scales: of the outputs, (out,).
  // bias: b (out,).
  // nonnegative: no input is below 0, which halves the step.
  Int8Linear(std::span<const int8_t> weight, const std::vector<float>& scales, const std::vector<float>& bias,
             bool nonnegative)
      : Linear(weight.size() / bias.size(), bias.size()), row_bytes_((in + kInputBytes - 1) / kInputBytes * kInputBytes),
        zero_(nonnegative ? 0 : kMaxUnit / 2 + 1), units_(kMaxUnit - zero_),
        panels_(whole_vectors(out) * row_bytes_), scales_(padded(scales)), biases_(padded(bias)),
        initial_(scales_.size(), 0) {
    write_panels<kGroup>(weight.data(), in, out, 1, in, panels_.data(), row_bytes_ / kGroup);
    for (float& scale : scales_) scale /= units_;
    for (int64_t o = 0; o < out; o++) {
      int32_t sum = 0;
      for (int64_t i = 0; i < in; i++) sum += weight[o * in + i];
      initial_[o] = (kInputShift - zero_) * sum;
    }
  }

  // All 0; inputs are rounded as another's.
  Int8Linear(const Int8Linear& other, int64_t out)
      : Linear(other.in, out), row_bytes_(other.row_bytes_), zero_(other.zero_), units_(other.units_),
        panels_(whole_vectors(out) * row_bytes_, 0), scales_(whole_vectors(out), 0), biases_(scales_), initial_(scales_.size(), 0) {}

  bool rounded() const override { return true; }

  std::unique_ptr<Linear> blank(int64_t outputs) const override { return std::make_unique<Int8Linear>(*this, outputs); }

  void copy(int64_t output, Linear& to, int64_t place) const override {
    Int8Linear& other = static_cast<Int8Linear&>(to);
    copy_output(panels_, out, output, row_bytes_ / kGroup, other.panels_, other.out, place);
    other.scales_[place] = scales_[output], other.biases_[place] = biases_[output], other.initial_[place] = initial_[output];
  }

  void product(ThreadPool& pool, const float* x, int64_t rows, float* y, bool relu) const override {
    thread_local std::vector<uint8_t> inputs;
    thread_local std::vector<float> sizes;
    inputs.resize(whole_tiles(rows) * row_bytes_), sizes.resize(rows);
    uint8_t* const units = inputs.data();
    float* const size = sizes.data();
    pool.run(rows, grain_of(2 * in), [=, this](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) size[r] = quantize(x + r * in, units + r * row_bytes_);
    });
    const Blocks blocks(out);
    const auto part = [=, this](int64_t block, int64_t begin, int64_t end) {
      const int64_t panels = blocks.panels(block), first_panel = blocks.first_panel(block);
#ifdef AMLP_AMX
      const int64_t in_tiles = rows_in_tiles(end - begin), first_output = first_panel * kLanes;
      amx::multiply(units + begin * row_bytes_, row_bytes_, in_tiles, &panels_[first_output * row_bytes_], panels,
                    &initial_[first_output], begin == 0, [=, this](int64_t row, int64_t panel, const int32_t* sums) {
                      finish(load_integers(sums), first_output + panel * kLanes, size[begin + row], y + (begin + row) * out, relu);
                    });
      begin += in_tiles;
#endif
      for_tiles(end - begin, panels, [=, this]<int Rows, int Panels>(int64_t row) {
        const int64_t first = begin + row;
        tile<Rows, Panels>(units + first * row_bytes_, size + first, first_panel, y + first * out, relu, first / kTileRows,
                           rows / kTileRows);
      });
    };
    for_blocks(pool, rows, in * out / kGroup, blocks.count, part, rows_in_tiles(rows) > 0);
  }

 private:
  int64_t row_bytes_;
  int32_t zero_, units_;
  Numbers<int8_t> panels_;
  std::vector<float> scales_, biases_;
  std::vector<int32_t> initial_;  // sums of no inputs: their zero is not 0

  // How many of the rows AMX multiplies: a tile takes as long with few rows as with all 16, in which VNNI multiplies 2. That
  // is little where memory is what takes long; half a tile is where it pays in any case, by reckoning: it was never measured.
  static int64_t rows_in_tiles(int64_t rows) {
#ifdef AMLP_AMX
    const int64_t rest = rows % amx::kRows;
    return rest < amx::kRows / 2 ? rows - rest : rows;
#else
    return 0;
#endif
  }

  // A row of x in steps; returns the largest magnitude of its numbers, NaN if one of them is not finite.
  float quantize(const float* x, uint8_t* units) const {
    float size = 0, wrong = 0;
#pragma omp simd reduction(max : size) reduction(+ : wrong)
    for (int64_t i = 0; i < in; i++) {
      size = std::max(size, std::abs(x[i]));
      wrong += x[i] * 0;
    }
    if (wrong != 0) {
      std::fill_n(units, row_bytes_, 0);
      return wrong;
    }
    const float factor = size >= std::numeric_limits<float>::min() ? 1 / size : 0, steps = units_;
#pragma omp simd
    for (int64_t i = 0; i < in; i++) {
      const int32_t unit = static_cast<int32_t>(std::nearbyint(x[i] * factor * steps)) + zero_;
      units[i] = std::min(std::max(unit, 0), 255);
    }
    for (int64_t i = in; i < row_bytes_; i++) units[i] = 0;
    return size;
  }

  template <int Rows, int Panels>
  void tile(const uint8_t* units, const float* sizes, int64_t first_panel, float* y, bool relu, int64_t tile_number,
            int64_t tiles) const {
    Integers sums[Rows][Panels];
    AMLP_UNROLL for (int r = 0; r < Rows; r++)
      AMLP_UNROLL for (int p = 0; p < Panels; p++) sums[r][p] = load_integers(&initial_[(first_panel + p) * kLanes]);
    const int64_t groups = row_bytes_ / kGroup;
    const int8_t* block = panels_.data() + first_panel * row_bytes_ * kLanes;
    Ahead ahead(block, row_bytes_ * Panels * kLanes, groups, tile_number, tiles);
    for (int64_t g = 0; g < groups; g++, block += Panels * kLanes * kGroup) {
      Integers weights[Panels];
      AMLP_UNROLL for (int p = 0; p < Panels; p++) weights[p] = load_integers(block + p * kLanes * kGroup);
      AMLP_UNROLL for (int r = 0; r < Rows; r++) {
        int32_t group;
        std::memcpy(&group, units + r * row_bytes_ + g * kGroup, sizeof group);
        const Integers inputs = Integers{} + group;
        AMLP_UNROLL for (int p = 0; p < Panels; p++) add_products(sums[r][p], inputs, weights[p]);
      }
      ahead.fetch<Panels * kLanes * kGroup / kCacheLine>();
    }
    AMLP_UNROLL for (int r = 0; r < Rows; r++)
      AMLP_UNROLL for (int p = 0; p < Panels; p++)
        finish(sums[r][p], (first_panel + p) * kLanes, sizes[r], y + r * out, relu);
  }

  // Write the outputs of a row from `begin` on.
  void finish(Integers sums, int64_t begin, float size, float* y, bool relu) const {
    const Lanes value = __builtin_convertvector(sums, Lanes) * load(&scales_[begin]) * size + load(&biases_[begin]);
    store(relu ? (value < 0 ? Lanes{} : value) : value, y + begin, out - begin);
  }
};

#if defined(__AVX512BF16__) || defined(AMLP_AMX)
#define AMLP_BFLOAT16

// A number rounded to bfloat16.
struct Bfloat16 {
  uint16_t bits;

  Bfloat16() = default;
  explicit Bfloat16(float number) {
    std::memcpy(&bits, reinterpret_cast<const char*>(&number) + 2, 2);  // NaN stays NaN
    uint32_t all;
    std::memcpy(&all, &number, sizeof all);
    if (number == number) bits = (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
};

// Weights and inputs in bfloat16; sums are float32. AMX adds up in another order than AVX-512 and takes all rows, however few,
// so that the result of a row does not depend on the rows beside it.
class Bfloat16Linear : public Linear {
 public:
  // weight: W (out, in).
  // bias: b (out,).
  Bfloat16Linear(std::span<const float> weight, const std::vector<float>& bias)
      : Linear(weight.size() / bias.size(), bias.size()), row_numbers_((2 * in + kInputBytes - 1) / kInputBytes * kInputBytes / 2),
        panels_(whole_vectors(out) * row_numbers_), biases_(padded(bias)) {
    write_panels<2>(weight.data(), in, out, 1, in, panels_.data(), row_numbers_ / 2);
  }

  Bfloat16Linear(int64_t in, int64_t out)
      : Linear(in, out), row_numbers_((2 * in + kInputBytes - 1) / kInputBytes * kInputBytes / 2),
        panels_(whole_vectors(out) * row_numbers_, Bfloat16(0)), biases_(whole_vectors(out), 0) {}

  bool rounded() const override { return true; }

  std::unique_ptr<Linear> blank(int64_t outputs) const override { return std::make_unique<Bfloat16Linear>(in, outputs); }

  void copy(int64_t output, Linear& to, int64_t place) const override {
    Bfloat16Linear& other = static_cast<Bfloat16Linear&>(to);
    copy_output(panels_, out, output, row_numbers_ / 2, other.panels_, other.out, place);
    other.biases_[place] = biases_[output];
  }

  void product(ThreadPool& pool, const float* x, int64_t rows, float* y, bool relu) const override {
    thread_local Numbers<Bfloat16> memory;
    memory.resize(whole_tiles(rows) * row_numbers_);
    Bfloat16* const inputs = memory.data();
    pool.run(rows, grain_of(2 * in), [=, this](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        Bfloat16* const to = inputs + r * row_numbers_;
        for (int64_t i = 0; i < in; i++) to[i] = Bfloat16(x[r * in + i]);
        std::fill(to + in, to + row_numbers_, Bfloat16(0));
      }
    });
    const Blocks blocks(out);
    const auto part = [=, this](int64_t block, int64_t begin, int64_t end) {
      const int64_t panels = blocks.panels(block), first_output = blocks.first_panel(block) * kLanes;
#ifdef AMLP_AMX
      amx::multiply(inputs + begin * row_numbers_, 2 * row_numbers_, end - begin, &panels_[first_output * row_numbers_], panels,
                    &biases_[first_output], begin == 0, [=, this](int64_t row, int64_t panel, const float* sums) {
                      finish(load(sums), first_output + panel * kLanes, y + (begin + row) * out, relu);
                    });
#else
      for_tiles(end - begin, panels, [=, this]<int Rows, int Panels>(int64_t row) {
        tile<Rows, Panels>(inputs + (begin + row) * row_numbers_, first_output, y + (begin + row) * out, relu);
      });
#endif
    };
    for_blocks(pool, rows, in * out / 2, blocks.count, part, true);
  }

 private:
  int64_t row_numbers_;
  Numbers<Bfloat16> panels_;
  std::vector<float> biases_;

  // Write the outputs of a row from `begin` on.
  void finish(Lanes sums, int64_t begin, float* y, bool relu) const {
    store(relu ? (sums < 0 ? Lanes{} : sums) : sums, y + begin, out - begin);
  }

#ifndef AMLP_AMX
  template <int Rows, int Panels>
  void tile(const Bfloat16* inputs, int64_t first_output, float* y, bool relu) const {
    Lanes sums[Rows][Panels];
    AMLP_UNROLL for (int r = 0; r < Rows; r++)
      AMLP_UNROLL for (int p = 0; p < Panels; p++) sums[r][p] = load(&biases_[first_output + p * kLanes]);
    const Bfloat16* block = panels_.data() + first_output * row_numbers_;
    for (int64_t i = 0; i < row_numbers_; i += 2, block += Panels * kLanes * 2) {
      Integers weights[Panels];
      AMLP_UNROLL for (int p = 0; p < Panels; p++) weights[p] = load_integers(block + p * kLanes * 2);
      AMLP_UNROLL for (int r = 0; r < Rows; r++) {
        int32_t pair;
        std::memcpy(&pair, inputs + r * row_numbers_ + i, sizeof pair);
        const Integers pairs = Integers{} + pair;
        AMLP_UNROLL for (int p = 0; p < Panels; p++) asm("vdpbf16ps %2, %1, %0" : "+v"(sums[r][p]) : "v"(pairs), "v"(weights[p]));
      }
      prefetch<Panels>(block);
    }
    AMLP_UNROLL for (int r = 0; r < Rows; r++)
      AMLP_UNROLL for (int p = 0; p < Panels; p++) finish(sums[r][p], first_output + p * kLanes, y + r * out, relu);
  }
#endif
};
#endif

}  // namespace amlp
