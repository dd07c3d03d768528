// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/resp.h"

#include <algorithm>
#include <charconv>

namespace terrace::kv_serve {
namespace {

constexpr uint64_t header_bytes_max = 32;  // a mark, a number of 64 bits, the end of the line

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

char escaped_byte(char c) {
  switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'b': return '\b';
    case 'a': return '\a';
    default: return c;
  }
}

// A word in quotes, from behind the first of them; `at` ends behind the last one. false: it has none.
bool quoted_word(std::string_view line, size_t& at, char quote, std::string& word) {
  while (at < line.size() && line[at] != quote) {
    if (line[at] != '\\' || at + 1 >= line.size()) {
      word += line[at++];
      continue;
    }
    if (quote == '\'') {
      at += line[at + 1] == '\'' ? 1 : 0;  // the only escape there
      word += line[at++];
      continue;
    }
    const bool is_hex = line[at + 1] == 'x' && at + 3 < line.size() && hex_digit(line[at + 2]) >= 0 &&
                        hex_digit(line[at + 3]) >= 0;
    word += is_hex ? static_cast<char>(hex_digit(line[at + 2]) * 16 + hex_digit(line[at + 3]))
                   : escaped_byte(line[at + 1]);
    at += is_hex ? 4 : 2;
  }
  if (at >= line.size()) return false;
  ++at;
  return at >= line.size() || is_space(line[at]);
}

}  // namespace

RespStep RespParser::wrong(std::string problem) {
  state_ = State::wrong;
  problem_ = "Protocol error: " + std::move(problem);
  return RespStep::wrong;
}

void RespParser::restart() {
  state_ = State::begin;
  position_ = scanned_ = announced_ = pending_bytes_ = 0;
  large_told_ = is_line_ = false;
  arguments_.clear();
  words_.clear();
}

std::string_view RespParser::argument(std::string_view buffer, size_t index) const {
  const Argument& argument = arguments_[index];
  return (is_line_ ? std::string_view(words_) : buffer).substr(argument.offset, argument.bytes);
}

RespStep RespParser::advance(std::string_view buffer) {
  RespStep step = RespStep::more;
  int64_t number = 0;
  for (;;) {
    switch (state_) {
      case State::wrong: return RespStep::wrong;
      case State::done: return RespStep::request;
      case State::begin:
        if (buffer.empty()) return RespStep::more;
        state_ = buffer[0] == '*' ? State::count : State::line;
        continue;
      case State::line: return take_line(buffer);
      case State::count:
        if (!header(buffer, '*', number, step)) return step;
        if (number > limits_.arguments_max)
          return wrong("invalid multibulk length: " + std::to_string(number) + ", at most " +
                       std::to_string(limits_.arguments_max));
        announced_ = static_cast<uint64_t>(std::max<int64_t>(number, 0));
        state_ = announced_ == 0 ? State::done : State::length;
        continue;
      case State::length:
        if (!header(buffer, '$', number, step)) return step;
        if (number < 0 || static_cast<uint64_t>(number) > resp_argument_bytes_limit)
          return wrong("invalid bulk length");
        pending_bytes_ = static_cast<uint64_t>(number);
        large_told_ = pending_bytes_ < limits_.large_bytes;
        state_ = State::bytes;
        continue;
      case State::bytes:
        if (step = take_bytes(buffer); step != RespStep::request) return step;
        continue;
      case State::end_of_bytes:
        if (step = finish_argument(buffer); step != RespStep::request) return step;
        continue;
    }
  }
}

bool RespParser::header(std::string_view buffer, char mark, int64_t& number, RespStep& step) {
  const std::string_view rest = buffer.substr(position_, header_bytes_max);
  step = RespStep::more;
  if (rest.empty()) return false;
  if (rest[0] != mark) {
    const bool shown = rest[0] > ' ' && rest[0] <= '~';
    step = wrong(std::string("expected '") + mark + "', got " +
                 (shown ? std::string("'") + rest[0] + "'" : "a byte that is no text"));
    return false;
  }
  const size_t end = rest.find("\r\n");
  if (end == std::string_view::npos) {
    if (rest.size() == header_bytes_max)
      step = wrong(mark == '*' ? "invalid multibulk length" : "invalid bulk length");
    return false;
  }
  const std::string_view digits = rest.substr(1, end - 1);
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
    step = wrong(mark == '*' ? "invalid multibulk length" : "invalid bulk length");
    return false;
  }
  position_ += end + 2;
  return true;
}

RespStep RespParser::take_line(std::string_view buffer) {
  const size_t end = buffer.find('\n', scanned_);
  if (end == std::string_view::npos || end > limits_.line_bytes_max) {
    scanned_ = buffer.size();
    return scanned_ > limits_.line_bytes_max ? wrong("too big inline request") : RespStep::more;
  }
  is_line_ = true;
  if (!split_words(buffer.substr(0, end))) return wrong("unbalanced quotes in request");
  if (arguments_.size() > limits_.arguments_max) return wrong("too many words in a line");
  announced_ = arguments_.size();
  position_ = end + 1;
  state_ = State::done;
  return RespStep::request;
}

bool RespParser::split_words(std::string_view line) {
  size_t at = 0;
  for (;;) {
    while (at < line.size() && is_space(line[at])) ++at;
    if (at >= line.size()) return true;
    const uint64_t begin = words_.size();
    while (at < line.size() && !is_space(line[at])) {
      const char c = line[at++];
      if (c != '"' && c != '\'') {
        words_ += c;
        continue;
      }
      if (!quoted_word(line, at, c, words_)) return false;
    }
    arguments_.push_back({.offset = begin, .bytes = words_.size() - begin, .diverted = false});
  }
}

RespStep RespParser::take_bytes(std::string_view buffer) {
  const bool complete = buffer.size() - position_ >= pending_bytes_;
  if (!complete && !large_told_) {
    large_told_ = true;
    return RespStep::large;
  }
  if (pending_bytes_ > limits_.request_bytes_max || position_ > limits_.request_bytes_max - pending_bytes_)
    return wrong("a request of more than " + std::to_string(limits_.request_bytes_max) + " bytes");
  if (!complete) return RespStep::more;
  arguments_.push_back({.offset = position_, .bytes = pending_bytes_, .diverted = false});
  position_ += pending_bytes_;
  state_ = State::end_of_bytes;
  return RespStep::request;
}

void RespParser::divert() {
  arguments_.push_back({.offset = position_, .bytes = pending_bytes_, .diverted = true});
  state_ = State::end_of_bytes;
}

RespStep RespParser::finish_argument(std::string_view buffer) {
  const std::string_view rest = buffer.substr(position_, 2);
  if (rest != std::string_view("\r\n").substr(0, rest.size()))
    return wrong("an argument that is longer than its length");
  if (rest.size() < 2) return RespStep::more;
  position_ += 2;
  state_ = arguments_.size() == announced_ ? State::done : State::length;
  if (position_ > limits_.request_bytes_max && state_ != State::done)
    return wrong("a request of more than " + std::to_string(limits_.request_bytes_max) + " bytes");
  return RespStep::request;
}

}  // namespace terrace::kv_serve
