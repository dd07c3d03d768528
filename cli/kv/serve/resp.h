// SPDX-License-Identifier: Apache-2.0
// Requests of the redis protocol, as they arrive: arrays of bulk strings, and lines of words.
//
// Place     Pure: it sees the bytes of one connection and touches nothing else. connection.cc feeds it.
// Threads   A plain object.
//
// Invariants
//   P1  every byte is looked at once, however the request is cut into pieces.
//   P2  what is announced and has not arrived costs no memory here: an argument is an offset into the buffer.
//   P3  a problem is final: the stream has lost its place, and the connection ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::kv_serve {

struct RespLimits {
  uint32_t arguments_max = 4097;
  uint64_t request_bytes_max = 20ull << 20;  // of one request in the buffer, with its framing
  uint64_t line_bytes_max = 64ull << 10;     // of a request that is a line of words
  uint64_t large_bytes = 64ull << 10;        // an argument as long as that is announced: RespStep::large
};

// No argument can be longer, whoever takes it.
inline constexpr uint64_t resp_argument_bytes_limit = 512ull << 20;

enum class RespStep : uint8_t {
  more,     // the request is not complete
  request,  // it is: argument(), then restart()
  large,    // a long argument begins, which is not all in the buffer: divert() it, or just go on
  wrong,    // it never will be: problem()
};

class RespParser {
 public:
  explicit RespParser(const RespLimits& limits = {}) : limits_(limits) {}

  // `buffer` begins with the request's first byte, and has what it had at the call before, and maybe more.
  RespStep advance(std::string_view buffer);

  // How many arguments the request has, by its header, and how many of them are known.
  uint64_t announced() const { return announced_; }
  size_t arguments() const { return arguments_.size(); }
  // One that is known and was not diverted; `buffer` as in the last advance().
  std::string_view argument(std::string_view buffer, size_t index) const;
  bool diverted(size_t index) const { return arguments_[index].diverted; }
  uint64_t argument_bytes(size_t index) const { return arguments_[index].bytes; }

  // After `large`. The argument's bytes begin at position() in the buffer.
  uint64_t large_bytes() const { return pending_bytes_; }
  uint64_t position() const { return position_; }
  // The caller takes the argument's bytes: in the buffer, what is behind them follows position() from now on.
  void divert();

  // After `request`: the bytes of the buffer that were it.
  uint64_t request_bytes() const { return position_; }
  void restart();

  const std::string& problem() const { return problem_; }

 private:
  enum class State : uint8_t { begin, line, count, length, bytes, end_of_bytes, done, wrong };
  struct Argument {
    uint64_t offset, bytes;
    bool diverted;
  };

  RespStep wrong(std::string problem);
  // The number behind the mark at position_; false: it has not arrived or is wrong, and `step` says which.
  bool header(std::string_view buffer, char mark, int64_t& number, RespStep& step);
  RespStep take_line(std::string_view buffer);
  bool split_words(std::string_view line);
  RespStep take_bytes(std::string_view buffer);
  RespStep finish_argument(std::string_view buffer);

  RespLimits limits_;
  State state_ = State::begin;
  uint64_t position_ = 0;  // in the buffer: everything before it was understood
  uint64_t scanned_ = 0;   // of a line: no end before it
  uint64_t announced_ = 0;
  uint64_t pending_bytes_ = 0;  // of the argument that is under way
  bool large_told_ = false;
  std::vector<Argument> arguments_;
  std::string words_;  // a line's words, without their quotes
  bool is_line_ = false;
  std::string problem_;
};

}  // namespace terrace::kv_serve
