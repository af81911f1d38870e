// What an output must begin with.

#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>

#include "listed.h"
#include "simd.h"
#include "top_k.h"

namespace amlp {

// An automaton that reads the words of an output in the order in which they are written. A state is a number of slots: it
// allows the tokens that it has, each with a later state, or, if it has none, every word but the end symbol. When the last
// state has been left, any word may follow.
class Prefix {
 public:
  typedef std::map<int32_t, int32_t> State;

  explicit Prefix(std::vector<State> states = {}) : states_(std::move(states)) {
    for (size_t i = 0; i < states_.size(); i++)
      for (const auto& [token, next] : states_[i])
        if (next <= static_cast<int32_t>(i) || next > size()) throw std::invalid_argument("a prefix with a state that leads back");
  }

  int32_t size() const { return states_.size(); }

  // True if each state has one successor, whatever is written.
  bool is_chain() const {
    for (int32_t i = 0; i < size(); i++)
      for (const auto& [token, next] : states_[i])
        if (next != i + 1) return false;
    return true;
  }

  // True if the word of a slot is given, in a prefix that is a chain.
  bool gives(int64_t slot) const { return slot < size() && states_[slot].size() == 1; }

  // The state after words that it allows.
  int32_t after(const std::vector<int32_t>& words) const {
    int32_t state = 0;
    for (size_t i = 0; i < words.size() && state < size(); i++) {
      const auto next = states_[state].find(words[i]);
      state = next == states_[state].end() ? state + 1 : next->second;
    }
    return state;
  }

  // Exclude from a row of logits what a state does not allow. Returns true if it has tokens.
  bool apply(int32_t state, float* logits, const Listed& words, int32_t end) const {
    if (states_[state].empty()) {
      logits[words.column(end)] = kNone;
      return false;
    }
    std::vector<std::pair<int64_t, float>> kept;
    for (const auto& [token, next] : states_[state])
      if (const int64_t column = words.column(token); column >= 0) kept.push_back({column, logits[column]});
    std::fill_n(logits, words.size(), kNone);
    for (const auto& [column, logit] : kept) logits[column] = logit;
    return true;
  }

  // Add to a list the words of each state that has words, none of which is in it.
  // listed: of each word of the vocabulary.
  void allow(std::vector<bool>& listed) const {
    for (const State& state : states_) {
      const auto is_listed = [&](const State::value_type& way) { return listed[way.first]; };
      if (std::any_of(state.begin(), state.end(), is_listed)) continue;
      for (const auto& [token, next] : state) listed[token] = true;
    }
  }

  void check(int64_t vocab) const {
    for (const State& state : states_)
      for (const auto& [token, next] : state)
        if (token < 0 || token >= vocab) throw std::invalid_argument("a prefix with an unknown token: " + std::to_string(token));
  }

 private:
  std::vector<State> states_;
};

}  // namespace amlp
