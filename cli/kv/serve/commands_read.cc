// SPDX-License-Identifier: Apache-2.0
// Commands that read blocks, or look which there are.
#include <algorithm>
#include <ctime>

#include "cli/kv/serve/commands.h"
#include "cli/kv/serve/glob.h"
#include "core/base/kernel_clock.h"

namespace terrace::kv_serve {
namespace {

constexpr size_t pattern_bytes_max = 4096;
constexpr int64_t scan_count_max = 10'000;

bool check_pattern(std::string_view pattern, Replies& replies) {
  if (pattern.size() <= pattern_bytes_max) return true;
  replies.error("ERR a pattern of more than " + std::to_string(pattern_bytes_max) + " bytes");
  return false;
}

struct ScanWords {
  uint64_t cursor = 0;
  uint64_t count = 10;
  std::string_view pattern = "*";
  bool strings = true;  // TYPE string, or none said
};

// false: they are wrong, which `replies` say.
bool parse_scan(Commands::Arguments words, ScanWords& scan, Replies& replies) {
  const std::optional<int64_t> cursor = number_in(words[0]);
  if (!cursor || *cursor < 0) {
    replies.error("ERR invalid cursor");
    return false;
  }
  scan.cursor = static_cast<uint64_t>(*cursor);
  for (size_t at = 1; at < words.size(); at += 2) {
    if (at + 1 == words.size()) {
      replies.error("ERR syntax error");
      return false;
    }
    const std::optional<int64_t> number = number_in(words[at + 1]);
    if (same_word(words[at], "match") && check_pattern(words[at + 1], replies)) {
      scan.pattern = words[at + 1];
    } else if (same_word(words[at], "type")) {
      scan.strings = same_word(words[at + 1], "string");
    } else if (same_word(words[at], "count") && number && *number > 0) {
      scan.count = static_cast<uint64_t>(std::min(*number, scan_count_max));
    } else if (!same_word(words[at], "match")) {
      replies.error("ERR syntax error");
      return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

// Small ones are copied; one that is sent from its place needs a pin until its last byte has gone.
void Commands::read(std::string_view key, Replies& replies) {
  if (!storable(key)) return replies.nil();
  const Result<uint64_t> got = space_.get(options_.name_space, {key, small_});
  if (got.ok()) return replies.bulk(std::span<const std::byte>(small_).first(*got));
  if (got.error().code == ErrorCode::not_found) return replies.nil();
  if (got.error().code != ErrorCode::invalid_argument) return replies.failure(got.error());
  Result<KvView> view = space_.view(options_.name_space, key);
  if (view.ok()) return replies.bulk(std::move(view).value());
  if (view.error().code == ErrorCode::not_found) return replies.nil();
  // No pin left, or no seat: others read as much in place as they can.
  if (view.error().code == ErrorCode::limit_exceeded || view.error().code == ErrorCode::busy)
    return read_copy(key, replies);
  replies.failure(view.error());
}

void Commands::read_copy(std::string_view key, Replies& replies) {
  for (int attempt = 0; attempt < 3; ++attempt) {  // another block may get the key in between
    const Result<uint64_t> length = space_.length(options_.name_space, key);
    if (!length.ok())
      return length.error().code == ErrorCode::not_found ? replies.nil() : replies.failure(length.error());
    std::vector<std::byte> copy(*length);
    const Result<uint64_t> got = space_.get(options_.name_space, {key, copy});
    if (got.ok()) return replies.bulk(std::span<const std::byte>(copy).first(*got));
    if (got.error().code == ErrorCode::not_found) return replies.nil();
    if (got.error().code != ErrorCode::invalid_argument) return replies.failure(got.error());
  }
  replies.nil();
}

Progress Commands::get(Call& call) {
  read(call.arguments[1], call.replies);
  return Progress::done;
}

Progress Commands::mget(Call& call) {
  if (call.client.next == 0) {
    call.replies.array(call.arguments.size() - 1);
    call.client.next = 1;
  }
  while (call.client.next < call.arguments.size()) {
    if (!go_on(call)) return Progress::again;
    read(call.arguments[call.client.next++], call.replies);
  }
  return Progress::done;
}

// A listing is older than the call that gives it out.
bool Commands::is_there(std::string_view key) {
  bool found = false;
  return space_.exists(options_.name_space, {&key, 1}, {&found, 1}).ok() && found;
}

Progress Commands::exists(Call& call) {
  std::vector<std::string_view> keys;
  for (const std::string_view key : call.arguments.subspan(1))
    if (storable(key)) keys.push_back(key);
  const auto found = std::make_unique<bool[]>(keys.size());
  const std::span<bool> all(found.get(), keys.size());
  if (const Status looked = keys.empty() ? Status() : space_.exists(options_.name_space, keys, all);
      !looked.ok())
    call.replies.failure(looked.error());
  else
    call.replies.integer(std::count(all.begin(), all.end(), true));
  return Progress::done;
}

Progress Commands::strlen(Call& call) {
  const std::string_view key = call.arguments[1];
  const Result<uint64_t> length = storable(key) ? space_.length(options_.name_space, key) : uint64_t{0};
  if (length.ok() || length.error().code == ErrorCode::not_found)
    call.replies.integer(length.ok() ? static_cast<int64_t>(*length) : 0);
  else
    call.replies.failure(length.error());
  return Progress::done;
}

Progress Commands::type(Call& call) {
  const std::string_view key = call.arguments[1];
  bool found = false;
  const Status looked = storable(key) ? space_.exists(options_.name_space, {&key, 1}, {&found, 1}) : Status();
  if (looked.ok())
    call.replies.simple(found ? "string" : "none");
  else
    call.replies.failure(looked.error());
  return Progress::done;
}

// TTL and PTTL. Only a listing of all blocks says when one ends, so those that are not there are not looked for.
Progress Commands::ttl(Call& call) {
  const std::string_view key = call.arguments[1];
  bool found = false;
  Status looked = storable(key) ? space_.exists(options_.name_space, {&key, 1}, {&found, 1}) : Status();
  int64_t rest_s = found ? -1 : -2;
  if (looked.ok() && found) {
    looked = list_keys(space_, options_.name_space, [&](const KvBlockInfo& block) {
      if (block.key != key) return true;
      if (block.expires_unix_s != 0)
        rest_s = std::max<int64_t>(static_cast<int64_t>(block.expires_unix_s) - ::time(nullptr), 0);
      return false;
    });
  }
  if (!looked.ok())
    call.replies.failure(looked.error());
  else
    call.replies.integer(rest_s > 0 && same_word(call.arguments[0], "pttl") ? rest_s * 1000 : rest_s);
  return Progress::done;
}

Progress Commands::dbsize(Call& call) {
  int64_t count = 0;
  const Status listed = list_keys(space_, options_.name_space, [&](const KvBlockInfo&) { return ++count > 0; });
  if (listed.ok())
    call.replies.integer(count);
  else
    call.replies.failure(listed.error());
  return Progress::done;
}

Progress Commands::keys(Call& call) {
  if (!check_pattern(call.arguments[1], call.replies)) return Progress::done;
  Replies found;
  uint64_t count = 0;
  const Status listed = list_keys(space_, options_.name_space, [&](const KvBlockInfo& block) {
    if (!glob_matches(call.arguments[1], block.key)) return true;
    found.bulk(block.key);
    ++count;
    return found.bytes() <= output_bytes_max;
  });
  if (!listed.ok()) {
    call.replies.failure(listed.error());
  } else if (found.bytes() > output_bytes_max) {
    call.replies.error("ERR more keys than one reply has room for; use SCAN");
  } else {
    call.replies.array(count);
    call.replies.append_all(std::move(found));
  }
  return Progress::done;
}

Progress Commands::scan(Call& call) {
  ScanWords words;
  if (!parse_scan(call.arguments.subspan(1), words, call.replies)) return Progress::done;
  Result<KeyScan::Step> step = scan_.next(words.cursor, words.count, monotonic_ns());
  if (!step.ok()) {
    call.replies.failure(step.error());
    return Progress::done;
  }
  std::erase_if(step->keys, [&](const std::string& key) {
    return !words.strings || !glob_matches(words.pattern, key) || !is_there(key);
  });
  call.replies.array(2);
  call.replies.bulk(std::to_string(step->cursor));
  call.replies.array(step->keys.size());
  for (const std::string& key : step->keys) call.replies.bulk(key);
  return Progress::done;
}

}  // namespace terrace::kv_serve
