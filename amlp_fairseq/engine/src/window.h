// What attentions with windows keep of the words so far.

#pragma once

#include "layers.h"

namespace amlp {

// The numbers of the last words, a table (rows, z, width) per step that is written once.
class Window : public State {
 public:
  // words: z, words of a step.
  // reach: words that a step reads, its own included.
  Window(int64_t width, int64_t words, int64_t reach) : width_(width), words_(words), reach_(reach) {}

  // A new step.
  void append(std::vector<float> table) {
    steps_.push_back(std::move(table));
    const int64_t unread = (words() - reach_) / words_;  // steps of which this one reads no word, nor any later one
    if (words() >= reach_ && unread > 0) std::vector<float>().swap(steps_[unread - 1]);
  }

  int64_t words() const { return steps_.size() * words_; }

  // A word of a hypothesis, one of the last `reach`.
  const float* at(const Step& step, int64_t hypothesis, int64_t word) const {
    return &steps_[word / words_][(step.row(hypothesis, word / words_) * words_ + word % words_) * width_];
  }

 private:
  int64_t width_, words_, reach_;
  std::vector<std::vector<float>> steps_;
};

}  // namespace amlp
