// SPDX-License-Identifier: Apache-2.0
// What each command of the redis protocol does to the space.
//
// Place     Between connection.cc, which has requests and is sent replies, and the KvSpace.
// Threads   The server's. Calls of the space can wait, each at most as long as the limits below say: all other
//           connections wait as well. A command of many keys therefore works in steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/kv/serve/key_scan.h"
#include "cli/kv/serve/replies.h"
#include "core/base/result.h"
#include "terrace/kv_space.h"

namespace terrace::kv_serve {

inline constexpr uint64_t put_wait_ns = 20'000'000;
inline constexpr uint64_t erase_wait_ns = 100'000'000;
inline constexpr uint64_t flush_wait_ns = 1'000'000'000;
inline constexpr uint64_t step_ns = 5'000'000;          // of a command of many keys
inline constexpr uint64_t output_bytes_max = 16 << 20;  // more than that waits to be sent: nothing more is done
inline constexpr size_t command_arguments_max = 1024;   // but for MGET

// For INFO.
struct ServerFigures {
  uint64_t started_ns = 0;
  uint64_t connections = 0, connections_total = 0, connections_refused = 0;
  uint64_t commands = 0;
  std::string listening;
  std::string version;
};

// What a connection remembers between its commands, and of one that works in steps.
struct ClientState {
  uint64_t id = 0;
  std::string name;
  bool resp3 = false;    // version 3 of the protocol, by HELLO
  bool closing = false;  // once its replies are sent
  size_t next = 0;       // of a command in steps: its next argument
  int64_t count = 0;     // and what it has counted
};

enum class Progress : uint8_t { done, again };

// How a SET ends: which words are behind its value.
struct SetOptions {
  uint64_t ttl_s = 0;
  bool only_new = false;  // NX
};

class Commands {
 public:
  struct Options {
    KvNamespace name_space;
    bool read_only = false;
    uint64_t max_block_bytes = 0;
  };
  Commands(KvSpace& space, Options options, const ServerFigures& figures);

  using Arguments = std::span<const std::string_view>;
  // `again`: call it again with the same arguments, once there is room for more replies.
  Progress execute(ClientState& client, Arguments arguments, Replies& replies);

  // --- a SET whose value is received straight into its block: connection.cc, incoming.h

  bool takes_value(std::string_view command, uint64_t arguments) const;
  // Why a value of that length is not taken; ok: it may be.
  Status check_value(std::string_view key, uint64_t bytes) const;
  // Errors    as KvSpace::begin_put
  Result<KvWrite> begin(std::string_view key, uint64_t bytes);
  // `trailing`: the words behind the value.
  void finish(KvWrite write, Arguments trailing, Replies& replies);

  Status health() const { return space_.health(); }
  uint64_t max_block_bytes() const { return options_.max_block_bytes; }

 private:
  friend struct CommandTable;
  struct Call {
    ClientState& client;
    Arguments arguments;
    Replies& replies;
    uint64_t until_ns;  // a command in steps stops then
  };
  enum class Stored : uint8_t { stored, exists };

  static bool storable(std::string_view key);
  bool go_on(const Call& call) const;

  // commands_read.cc
  void read(std::string_view key, Replies& replies);
  void read_copy(std::string_view key, Replies& replies);
  bool is_there(std::string_view key);
  Progress get(Call& call);
  Progress mget(Call& call);
  Progress exists(Call& call);
  Progress strlen(Call& call);
  Progress type(Call& call);
  Progress ttl(Call& call);
  Progress dbsize(Call& call);
  Progress keys(Call& call);
  Progress scan(Call& call);

  // commands_write.cc
  Result<Stored> store(std::string_view key, std::string_view value, const SetOptions& options);
  Result<bool> has_bytes(std::string_view key, std::string_view value);
  static bool parse_set(Arguments words, SetOptions& options, Replies& replies);
  Progress set(Call& call);
  Progress setnx(Call& call);
  Progress mset(Call& call);
  Progress del(Call& call);
  Progress flush(Call& call);

  // commands_server.cc
  Progress ping(Call& call);
  Progress echo(Call& call);
  Progress quit(Call& call);
  Progress auth(Call& call);
  Progress select(Call& call);
  Progress command(Call& call);
  Progress hello(Call& call);
  Progress client(Call& call);
  Progress config(Call& call);
  Progress info(Call& call);

  KvSpace& space_;
  const Options options_;
  const ServerFigures& figures_;
  KeyScan scan_;
  std::vector<std::byte> small_;  // where blocks are copied that are not worth a view
};

// Whether both are the same word, of ASCII, in whatever case.
bool same_word(std::string_view word, std::string_view lower_case);
// A whole number and nothing else.
std::optional<int64_t> number_in(std::string_view text);

}  // namespace terrace::kv_serve
