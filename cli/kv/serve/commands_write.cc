// SPDX-License-Identifier: Apache-2.0
// Commands that put and erase blocks. Blocks never change: a SET of other bytes erases the block and puts a new one.
#include <algorithm>

#include "cli/kv/serve/commands.h"
#include "core/base/kernel_clock.h"

namespace terrace::kv_serve {
namespace {

constexpr int replacements_max = 4;  // others may put the key in between, again and again

Error wrong_value(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "kv serve", .detail = std::move(detail)};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// "EX 10" or "PX 10000" in seconds, rounded up; nothing: it is no time.
std::optional<uint64_t> ttl_in(std::string_view number, bool milliseconds) {
  constexpr int64_t most_s = int64_t{1} << 31;
  const std::optional<int64_t> count = number_in(number);
  if (!count || *count <= 0) return std::nullopt;
  const int64_t seconds = milliseconds ? *count / 1000 + (*count % 1000 != 0 ? 1 : 0) : *count;
  return seconds > most_s ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(seconds));
}

}  // namespace

bool Commands::takes_value(std::string_view command, uint64_t arguments) const {
  // A fifth word is a time, which a block is told of before its bytes.
  return same_word(command, "set") && (arguments == 3 || arguments == 4);
}

Status Commands::check_value(std::string_view key, uint64_t bytes) const {
  if (options_.read_only)
    return wrong_value(ErrorCode::permission_denied, "this server only reads (--readonly)");
  if (!storable(key))
    return wrong_value(ErrorCode::invalid_argument, "a key has 1 to " + std::to_string(kv_key_bytes_max) +
                                                        " bytes, this one " + std::to_string(key.size()));
  if (bytes > options_.max_block_bytes)
    return wrong_value(ErrorCode::limit_exceeded, "a value of " + std::to_string(bytes) +
                                                      " bytes: no block of this space has more than " +
                                                      std::to_string(options_.max_block_bytes));
  return {};
}

Result<KvWrite> Commands::begin(std::string_view key, uint64_t bytes) {
  return space_.begin_put(options_.name_space, key, bytes, {.wait_ns = put_wait_ns});
}

void Commands::finish(KvWrite write, Arguments trailing, Replies& replies) {
  SetOptions options;
  if (!parse_set(trailing, options, replies)) return;
  const Status published = write.publish();
  if (published.ok()) return replies.simple("OK");
  // Put by somebody else while these bytes came: as if this SET had been the one before it.
  if (published.error().code == ErrorCode::already_exists)
    return options.only_new ? replies.nil() : replies.simple("OK");
  replies.failure(published.error());
}

bool Commands::parse_set(Arguments words, SetOptions& options, Replies& replies) {
  for (size_t at = 0; at < words.size(); ++at) {
    const bool seconds = same_word(words[at], "ex"), milliseconds = same_word(words[at], "px");
    if (same_word(words[at], "nx")) {
      options.only_new = true;
    } else if ((seconds || milliseconds) && options.ttl_s == 0 && at + 1 < words.size()) {
      const std::optional<uint64_t> ttl_s = ttl_in(words[++at], milliseconds);
      if (!ttl_s) {
        replies.error("ERR invalid expire time in 'set' command");
        return false;
      }
      options.ttl_s = *ttl_s;
    } else if (same_word(words[at], "xx") || same_word(words[at], "get")) {
      replies.error("ERR SET with XX or GET is not supported: blocks of a KV space never change");
      return false;
    } else {
      replies.error("ERR syntax error");
      return false;
    }
  }
  return true;
}

Result<bool> Commands::has_bytes(std::string_view key, std::string_view value) {
  const Result<uint64_t> length = space_.length(options_.name_space, key);
  if (!length.ok()) return length.error();
  if (*length != value.size()) return false;
  std::vector<std::byte> stored(value.size());
  const Result<uint64_t> got = space_.get(options_.name_space, {key, stored});
  if (!got.ok() && got.error().code == ErrorCode::corrupt) return false;  // to be replaced
  if (!got.ok()) return got.error();
  return *got == value.size() && std::ranges::equal(stored, bytes_of(value));
}

Result<Commands::Stored> Commands::store(std::string_view key, std::string_view value,
                                         const SetOptions& options) {
  TERRACE_RETURN_IF_ERROR(check_value(key, value.size()));
  Status put;
  for (int attempt = 0; attempt < replacements_max; ++attempt) {
    put = space_.put(options_.name_space,
                     {key, bytes_of(value), {.ttl_s = options.ttl_s, .wait_ns = put_wait_ns}});
    if (put.ok()) return Stored::stored;
    if (put.error().code != ErrorCode::already_exists) return put.error();
    if (options.only_new) return Stored::exists;
    const Result<bool> same = has_bytes(key, value);
    if (same.ok() && *same) return Stored::stored;
    if (!same.ok() && same.error().code == ErrorCode::not_found) continue;
    if (!same.ok()) return same.error();
    const Status erased = space_.erase(options_.name_space, key, erase_wait_ns);
    if (!erased.ok() && erased.error().code != ErrorCode::not_found) return erased.error();
  }
  return put.error();
}

Progress Commands::set(Call& call) {
  SetOptions options;
  if (!parse_set(call.arguments.subspan(3), options, call.replies)) return Progress::done;
  const Result<Stored> stored = store(call.arguments[1], call.arguments[2], options);
  if (!stored.ok())
    call.replies.failure(stored.error());
  else if (*stored == Stored::exists)
    call.replies.nil();
  else
    call.replies.simple("OK");
  return Progress::done;
}

Progress Commands::setnx(Call& call) {
  const Result<Stored> stored = store(call.arguments[1], call.arguments[2], {.only_new = true});
  if (!stored.ok())
    call.replies.failure(stored.error());
  else
    call.replies.integer(*stored == Stored::stored ? 1 : 0);
  return Progress::done;
}

Progress Commands::mset(Call& call) {
  if (call.arguments.size() % 2 == 0) {
    call.replies.error("ERR wrong number of arguments for 'mset' command");
    return Progress::done;
  }
  size_t& next = call.client.next;
  for (next = std::max<size_t>(next, 1); next < call.arguments.size(); next += 2) {
    if (!go_on(call)) return Progress::again;
    const Result<Stored> stored = store(call.arguments[next], call.arguments[next + 1], {});
    if (!stored.ok()) {
      Error error = stored.error();
      error.detail = "MSET ended at pair " + std::to_string(next / 2 + 1) + " of " +
                     std::to_string(call.arguments.size() / 2) + ", those before it are set: " + error.detail;
      call.replies.failure(error);
      return Progress::done;
    }
  }
  call.replies.simple("OK");
  return Progress::done;
}

Progress Commands::del(Call& call) {
  size_t& next = call.client.next;
  for (next = std::max<size_t>(next, 1); next < call.arguments.size(); ++next) {
    if (!go_on(call)) return Progress::again;
    if (!storable(call.arguments[next])) continue;
    const Status erased = space_.erase(options_.name_space, call.arguments[next], erase_wait_ns);
    if (erased.ok()) {
      ++call.client.count;
    } else if (erased.error().code != ErrorCode::not_found) {
      call.replies.failure(erased.error());
      return Progress::done;
    }
  }
  call.replies.integer(call.client.count);
  return Progress::done;
}

// FLUSHDB and FLUSHALL: of the server's namespace alone, which is all that its clients see.
Progress Commands::flush(Call& call) {
  if (call.arguments.size() == 2 && !same_word(call.arguments[1], "sync") &&
      !same_word(call.arguments[1], "async")) {
    call.replies.error("ERR syntax error");
    return Progress::done;
  }
  const Result<uint64_t> gone = space_.flush(options_.name_space, flush_wait_ns);
  if (gone.ok())
    call.replies.simple("OK");
  else
    call.replies.failure(gone.error());
  return Progress::done;
}

}  // namespace terrace::kv_serve
