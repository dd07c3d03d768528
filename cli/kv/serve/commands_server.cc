// SPDX-License-Identifier: Apache-2.0
// Commands about the connection and the server, as far as clients ask for them before they do anything else.
#include <utility>

#include "cli/kv/serve/commands.h"
#include "core/base/kernel_clock.h"

namespace terrace::kv_serve {
namespace {

constexpr size_t client_name_bytes_max = 128;

bool is_name(std::string_view name) {
  if (name.size() > client_name_bytes_max) return false;
  for (const char c : name)
    if (c < '!' || c > '~') return false;
  return true;
}

constexpr std::string_view only_user = "default";
constexpr std::string_view no_such_user = "WRONGPASS invalid username-password pair or user is disabled.";
constexpr std::string_view no_client_name =
    "ERR Client names cannot contain spaces, newlines or special characters.";

struct HelloWords {
  bool resp3 = false;
  bool names_itself = false;
  std::string name = {};
};

// VERSION [AUTH user password] [SETNAME name], or nothing. false: they are wrong, which `replies` say.
bool parse_hello(Commands::Arguments words, HelloWords& hello, Replies& replies) {
  const auto refuse = [&](std::string_view why) {
    replies.error(why);
    return false;
  };
  if (words.empty()) return true;
  const std::optional<int64_t> version = number_in(words[0]);
  if (!version) return refuse("ERR Protocol version is not an integer or out of range");
  if (*version != 2 && *version != 3) return refuse("NOPROTO unsupported protocol version");
  hello.resp3 = *version == 3;
  for (size_t at = 1; at < words.size();) {
    const size_t left = words.size() - at;
    if (same_word(words[at], "auth") && left >= 3) {
      if (words[at + 1] != only_user) return refuse(no_such_user);
      at += 3;
    } else if (same_word(words[at], "setname") && left >= 2) {
      if (!is_name(words[at + 1])) return refuse(no_client_name);
      hello.names_itself = true;
      hello.name = words[at + 1];
      at += 2;
    } else {
      return refuse("ERR Syntax error in HELLO option '" + std::string(words[at].substr(0, 64)) + "'");
    }
  }
  return true;
}

std::string line(std::string_view name, uint64_t value) {
  return std::string(name) + ":" + std::to_string(value) + "\r\n";
}

}  // namespace

Progress Commands::ping(Call& call) {
  if (call.arguments.size() == 2)
    call.replies.bulk(call.arguments[1]);
  else
    call.replies.simple("PONG");
  return Progress::done;
}

Progress Commands::echo(Call& call) {
  call.replies.bulk(call.arguments[1]);
  return Progress::done;
}

Progress Commands::quit(Call& call) {
  call.replies.simple("OK");
  call.client.closing = true;
  return Progress::done;
}

Progress Commands::select(Call& call) {
  const std::optional<int64_t> number = number_in(call.arguments[1]);
  if (number && *number == 0)
    call.replies.simple("OK");
  else
    call.replies.error(
        number ? "ERR DB index is out of range: there is only 0; another --namespace is another server"
               : "ERR invalid DB index");
  return Progress::done;
}

// What clients complete and route by: they do without.
Progress Commands::command(Call& call) {
  const bool counted = call.arguments.size() == 2 && same_word(call.arguments[1], "count");
  if (counted)
    call.replies.integer(0);
  else if (call.arguments.size() >= 2 && same_word(call.arguments[1], "docs"))
    call.replies.map(0);
  else
    call.replies.array(0);
  return Progress::done;
}

// As a redis without passwords: its one user has any.
Progress Commands::auth(Call& call) {
  if (call.arguments.size() == 2)
    call.replies.error("ERR AUTH <password> called without any password configured: there are none here");
  else if (call.arguments[1] != only_user)
    call.replies.error(std::string(no_such_user));
  else
    call.replies.simple("OK");
  return Progress::done;
}

// Nothing of a HELLO that is refused holds.
Progress Commands::hello(Call& call) {
  HelloWords words{.resp3 = call.client.resp3};
  if (!parse_hello(call.arguments.subspan(1), words, call.replies)) return Progress::done;
  call.client.resp3 = words.resp3;
  if (words.names_itself) call.client.name = std::move(words.name);
  Replies& replies = call.replies;
  replies.set_resp3(words.resp3);
  replies.map(7);
  replies.bulk("server");
  replies.bulk("terrace");
  replies.bulk("version");
  replies.bulk(figures_.version);
  replies.bulk("proto");
  replies.integer(words.resp3 ? 3 : 2);
  replies.bulk("id");
  replies.integer(static_cast<int64_t>(call.client.id));
  replies.bulk("mode");
  replies.bulk("standalone");
  replies.bulk("role");
  replies.bulk("master");
  replies.bulk("modules");
  replies.array(0);
  return Progress::done;
}

Progress Commands::client(Call& call) {
  const std::string_view word = call.arguments[1];
  const size_t count = call.arguments.size();
  if (same_word(word, "setname") && count == 3 && is_name(call.arguments[2])) {
    call.client.name = call.arguments[2];
    call.replies.simple("OK");
  } else if (same_word(word, "setname") && count == 3) {
    call.replies.error(no_client_name);
  } else if (same_word(word, "setinfo") && count == 4) {
    call.replies.simple("OK");
  } else if (same_word(word, "getname") && count == 2) {
    if (call.client.name.empty())
      call.replies.nil();
    else
      call.replies.bulk(call.client.name);
  } else if (same_word(word, "id") && count == 2) {
    call.replies.integer(static_cast<int64_t>(call.client.id));
  } else {
    call.replies.error("ERR CLIENT takes SETNAME, GETNAME, SETINFO and ID here");
  }
  return Progress::done;
}

Progress Commands::config(Call& call) {
  if (same_word(call.arguments[1], "get"))
    call.replies.map(0);
  else
    call.replies.error("ERR CONFIG takes GET here, and has nothing to get");
  return Progress::done;
}

Progress Commands::info(Call& call) {
  const Result<KvStat> stat = space_.stat();
  if (!stat.ok()) {
    call.replies.failure(stat.error());
    return Progress::done;
  }
  const KvCounters counted = space_.counters();
  std::string text =
      "# Server\r\nterrace_version:" + figures_.version + "\r\nlistening:" + figures_.listening + "\r\n";
  text += line("uptime_in_seconds", (monotonic_ns() - figures_.started_ns) / 1'000'000'000);
  text += "\r\n# Clients\r\n" + line("connected_clients", figures_.connections);
  text += "\r\n# Memory\r\n" + line("used_memory", stat->block_bytes) + line("maxmemory", stat->data_bytes) +
          line("free_memory", stat->free_bytes) + line("max_block_bytes", stat->max_block_bytes) +
          line("local_memory", stat->local_bytes) + line("local_maxmemory", stat->local_max_bytes);
  text += "\r\n# Stats\r\n" + line("total_connections_received", figures_.connections_total) +
          line("rejected_connections", figures_.connections_refused) +
          line("total_commands_processed", figures_.commands) + line("keyspace_hits", counted.hits) +
          line("keyspace_misses", counted.misses) + line("keyspace_hit_bytes", counted.hit_bytes) +
          line("puts", counted.puts) + line("put_bytes", counted.put_bytes) +
          line("puts_refused", counted.puts_refused) + line("evicted_keys", counted.evicted) +
          line("expired_keys", counted.expired) + line("erased_keys", counted.erased) +
          line("local_hits", counted.local_hits) + line("local_hit_bytes", counted.local_hit_bytes) +
          line("local_copied", counted.local_copied) + line("local_evicted", counted.local_evicted) +
          line("local_stale", counted.local_stale);
  text += "\r\n# Space\r\nnamespace:" + options_.name_space.name() + "\r\n" + line("blocks", stat->blocks) +
          line("blocks_max", stat->blocks_max) + line("read_only", options_.read_only ? 1 : 0);
  call.replies.text_for_people(text);
  return Progress::done;
}

}  // namespace terrace::kv_serve
