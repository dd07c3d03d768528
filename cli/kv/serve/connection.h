// SPDX-License-Identifier: Apache-2.0
// One connection: what it has sent, what is done with it, what it is still to be sent.
//
// Place     server.cc tells it when its socket can be read or written; it calls Commands.
// Ownership Has the socket, its replies with their views, and the block that it is filling.
// Threads   The server's.
//
// Invariants
//   C1  a request in the buffer has at most max_block_bytes and what framing takes; a longer value is not kept.
//   C2  with more than output_bytes_max to be sent nothing is read or done for it.
//   C3  a view or an unfinished block is kept no longer than patience_ns without a byte going over the socket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/kv/serve/commands.h"
#include "cli/kv/serve/replies.h"
#include "cli/kv/serve/resp.h"
#include "core/base/unique_fd.h"

namespace terrace::kv_serve {

inline constexpr uint64_t patience_ns = 10'000'000'000;
inline constexpr uint64_t linger_ns = 2'000'000'000;  // for the other side to read the last reply

class Connection {
 public:
  Connection(UniqueFd socket, uint64_t id, Commands& commands, ServerFigures& figures);

  int fd() const { return socket_.get(); }
  void on_readable();
  void on_writable() { flush(); }
  // Does what was asked for, for a while.
  void work();
  // Says that no more is taken, and ends once what is to be sent has been.
  void end();

  bool over() const { return over_; }
  bool wants_input() const;
  bool wants_output() const { return !over_ && !replies_.empty(); }
  bool has_work() const { return !over_ && has_work_ && replies_.bytes() <= output_bytes_max; }
  // Ends it where the other side has not moved for too long.
  void look_at_the_time(uint64_t now_ns);
  // A block's memory was found to be gone.
  bool memory_vanished() const { return vanished_; }

 private:
  // A value on its way from the socket into its block, or to nowhere.
  struct Incoming {
    std::optional<KvWrite> write = std::nullopt;
    std::optional<Error> refused = std::nullopt;  // without a write: why
    uint64_t bytes = 0, received = 0;
  };

  void receive();
  void receive_value();
  void take_buffered_value();
  void value_vanished();
  void handle(RespStep step);
  void begin_value();
  void finish_request();
  void execute();
  void flush();
  void linger();
  std::string_view buffered() const { return std::string_view(input_).substr(begin_); }

  UniqueFd socket_;
  Commands& commands_;
  ServerFigures& figures_;
  ClientState client_;
  RespParser parser_;
  std::string input_;
  size_t begin_ = 0;  // of the request that is being read, in input_
  std::optional<Incoming> incoming_;
  std::vector<std::string_view> arguments_;  // of the command that is being worked at
  Replies replies_;
  bool in_steps_ = false;  // arguments_ are a command's that is not done
  bool has_work_ = false;  // the buffer may have more requests
  bool input_ended_ = false;
  bool lingering_ = false;
  bool over_ = false;
  bool vanished_ = false;
  uint64_t moved_ns_ = 0;
};

}  // namespace terrace::kv_serve
