// Inputs of the layers: words and their positions.

#pragma once

#include <optional>
#include <stdexcept>

#include "layers.h"

namespace amlp {

typedef std::vector<int32_t> Tokens;

// Positions p = 0, 1, … of the words of a text.
class Positions {
 public:
  enum class Kind { kNone, kSinusoidal, kLearned, kInterleaved };

  // kind: kInterleaved: the signed positions of Zhang et al. (2020), Eq. 7 and 10, for h directions.
  // width: C.
  // offset: of the first position, in kSinusoidal and in `learned`.
  // learned: (positions, C), or of kInterleaved for h > 2 (h, C).
  Positions(Kind kind, int64_t width, int64_t offset, int64_t directions, std::vector<float> learned)
      : kind_(kind), width_(width), offset_(offset), directions_(directions), learned_(std::move(learned)) {
    if (kind == Kind::kInterleaved && directions < 1) throw std::invalid_argument("positions in no direction");
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++)
      frequencies_.push_back(std::exp(i * -(std::log(10000.0f) / std::max<int64_t>(half - 1, 1))));
    if (kind == Kind::kNone || kind == Kind::kLearned) return;
    first_.resize(kFirst * width, 0);
    for (int64_t p = 0; p < kFirst; p++) add_waves(p, &first_[p * width]);
  }

  // Add the encoding of position p to x (C,).
  void add(int64_t p, float* x) const {
    if (kind_ == Kind::kNone) return;
    if (kind_ == Kind::kLearned) {
      add_row((p + offset_) * width_, x);
      return;
    }
    if (kind_ == Kind::kInterleaved && directions_ > 2) add_row(p % directions_ * width_, x);
    if (p < kFirst)
      for (int64_t c = 0; c < width_; c++) x[c] += first_[p * width_ + c];
    else
      add_waves(p, x);
  }

 private:
  static constexpr int64_t kFirst = 256;  // positions whose waves are kept

  Kind kind_;
  int64_t width_, offset_, directions_;
  std::vector<float> learned_, frequencies_, first_;

  void add_waves(int64_t p, float* x) const {
    float position = p + offset_;
    if (kind_ == Kind::kInterleaved) {
      const int64_t round = p / directions_;
      position = directions_ == 2 ? (round + 1) * (p % 2 ? -1 : 1) : round;
    }
    const int64_t half = width_ / 2;
    for (int64_t i = 0; i < half; i++) {
      const float angle = position * frequencies_[i];
      x[i] += std::sin(angle), x[half + i] += std::cos(angle);
    }
  }

  void add_row(int64_t begin, float* x) const {
    if (begin + width_ > static_cast<int64_t>(learned_.size())) throw std::out_of_range("no such position");
    for (int64_t c = 0; c < width_; c++) x[c] += learned_[begin + c];
  }
};

// A matrix (V, C) in float32, or in int8 with a scale for each row.
struct Table {
  int64_t rows, width;
  std::shared_ptr<const float> numbers;
  std::shared_ptr<const int8_t> units;
  std::vector<float> scales;

  // A row times a factor.
  void read(int64_t row, float factor, float* to) const {
    const int64_t begin = row * width;
    if (units == nullptr)
      for (int64_t c = 0; c < width; c++) to[c] = factor * numbers.get()[begin + c];
    else
      for (int64_t c = 0; c < width; c++) to[c] = factor * (units.get()[begin + c] * scales[row]);
  }
};

struct Embedding {
  Table table;
  float scale;
  Positions positions;
  std::unique_ptr<Linear> join;  // of a word and its position, 2 C, to C; where there is none they are added
  std::optional<Norm> norm;
  int64_t width;

  // The encodings of the first positions, (count, C).
  std::vector<float> encodings(int64_t count) const {
    std::vector<float> result(count * width, 0);
    for (int64_t p = 0; p < count; p++) positions.add(p, &result[p * width]);
    return result;
  }

  // Inputs x (words, C) of whole texts.
  // encodings: of as many positions as the longest text has.
  void embed(ThreadPool& pool, const std::vector<Tokens>& texts, const Starts& starts, const std::vector<float>& encodings,
             Floats& x) const {
    const int64_t wide = join ? 2 * width : width;
    Floats both(join ? starts.back() * wide : 0);
    x.resize(starts.back() * width);
    for (size_t text = 0; text < texts.size(); text++)
      for (size_t p = 0; p < texts[text].size(); p++) {
        float* to = (join ? both.data() : x.data()) + (starts[text] + p) * wide;
        const float* position = encodings.data() + p * width;
        table.read(texts[text][p], scale, to);
        if (join)
          std::copy_n(position, width, to + width);
        else
          for (int64_t c = 0; c < width; c++) to[c] += position[c];
      }
    if (join) join->product(pool, both.data(), starts.back(), x);
    if (norm) norm->apply(pool, x.data(), x.data(), starts.back());
  }

  // Inputs of tokens at positions p, p + 1, …; those before `starts` have no word.
  void embed(const int32_t* tokens, int64_t count, int64_t p, int64_t starts, float* x) const {
    for (int64_t i = 0; i < count; i++, x += width) {
      if (p + i < starts)
        std::fill_n(x, width, 0.0f);
      else
        table.read(tokens[i], scale, x);
      positions.add(p + i, x);
    }
  }
};

}  // namespace amlp
