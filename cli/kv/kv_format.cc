// SPDX-License-Identifier: Apache-2.0
// `terrace kv format`: an empty space, of memory that nobody needs.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/verb.h"
#include "core/os/fault_guard.h"

namespace terrace::cli {
namespace {

constexpr const char* kv_format_verb = "terrace kv format";
constexpr uint32_t kv_holders_max = 64;  // parts and seats

struct KvFormatArguments {
  std::string where;
  uint64_t file_bytes = 0;  // not 0: make the file first
  KvFormatOptions options;
  uint32_t seats = kv_holders_max;  // not said: as many as usual, or what the parts leave
  uint64_t max_block_bytes = 0;
  bool checksums = false;
  bool force = false;
};

Error kv_format_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = kv_format_verb, .detail = std::move(detail)};
}

// true: the begin is all zeros, as new memory is.
Result<bool> kv_is_blank(const KvPlace& place) {
  const std::span<const std::byte> begin =
      std::span<const std::byte>(place.memory()).first(std::min<size_t>(place.memory().size(), 4096));
  bool blank = true;
  const auto look = [&] {
    blank = std::all_of(begin.begin(), begin.end(), [](std::byte byte) { return byte == std::byte{0}; });
  };
  if (!os::guarded({begin}, look))
    return kv_format_error(ErrorCode::lease_expired, place.shown() + ": its memory is gone");
  return blank;
}

// A space that is there goes only by --force, and never from under those who use it.
Status kv_check_replaceable(const KvPlace& place, bool force) {
  const Result<std::unique_ptr<KvSpace>> space = attach_kv_member(place);
  if (space.ok()) {
    TERRACE_ASSIGN_OR_RETURN(const KvStat stat, (*space)->stat());
    for (const KvPartInfo& part : stat.parts)
      if (part.state == "owned")
        return kv_format_error(ErrorCode::busy,
                               place.shown() + " has a KV space whose part " + std::to_string(part.part) +
                                   " is owned by a program that uses it; end that first ('terrace kv stat " +
                                   place.where() + "' shows the parts)");
    if (force) return {};
    return kv_format_error(ErrorCode::already_exists, place.shown() + " has a KV space with " +
                                                          count_text(stat.blocks, "block") +
                                                          " already; --force makes an empty one of it");
  }
  if (force) return {};
  TERRACE_ASSIGN_OR_RETURN(const bool blank, kv_is_blank(place));
  if (blank) return {};
  return kv_format_error(ErrorCode::already_exists,
                         place.shown() + " has bytes of something else; --force overwrites them");
}

void kv_print_formatted(const Context& context, const KvPlace& place, const KvStat& stat, uint32_t seats) {
  const size_t parts = stat.parts.size();
  if (context.json) {
    print_json({{"formatted", place.where()},
                {"bytes", place.memory().size()},
                {"data_bytes", stat.data_bytes},
                {"parts", parts},
                {"seats", seats},
                {"blocks_max", stat.blocks_max},
                {"max_block_bytes", stat.max_block_bytes},
                {"checksums", stat.checksums}});
    return;
  }
  print_text("made a KV space of " + place.shown() + ": " + format_size(stat.data_bytes) + " for " +
             std::to_string(stat.blocks_max) + " blocks of at most " + format_size(stat.max_block_bytes) +
             ", " + count_text(parts, "part") + (stat.checksums ? ", with checksums" : "") + "\n");
}

Result<KvPlace> kv_place_to_format(const Context& context, const KvFormatArguments& arguments) {
  if (arguments.file_bytes == 0) return KvPlace::open(context, arguments.where, kv_format_verb);
  if (arguments.where.find('/') == std::string::npos)
    return kv_format_error(ErrorCode::invalid_argument, "--bytes makes a file, and " + arguments.where +
                                                            " is a lease's id or label; write ./" +
                                                            arguments.where + " for a file here");
  struct stat there {};
  if (::stat(arguments.where.c_str(), &there) == 0)
    return kv_format_error(ErrorCode::already_exists,
                           arguments.where + " is there already; without --bytes it is used as it is");
  return KvPlace::create(context, arguments.where, arguments.file_bytes, kv_format_verb);
}

Status kv_format_place(const Context& context, const KvFormatArguments& arguments, const KvPlace& place) {
  KvFormatOptions options = arguments.options;
  options.seats = arguments.seats != kv_holders_max ? arguments.seats
                                                    : std::min(options.seats, kv_holders_max - options.parts);
  options.ownership = place.ownership()->kind();
  options.lease_epoch = place.lease_epoch();
  if (arguments.max_block_bytes != 0) options.max_block_bytes = arguments.max_block_bytes;
  if (arguments.checksums) options.checksums = true;
  TERRACE_RETURN_IF_ERROR(kv_check_replaceable(place, arguments.force));
  if (Status made = KvSpace::format(place.memory(), options); !made.ok())
    return kv_error_at(place, std::move(made).error());
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv_member(place));
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, space->stat());
  kv_print_formatted(context, place, stat, options.seats);
  return {};
}

Status kv_format(const Context& context, const KvFormatArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, kv_place_to_format(context, arguments));
  Status made = kv_format_place(context, arguments, place);
  if (!made.ok() && arguments.file_bytes != 0) ::unlink(arguments.where.c_str());  // it was made here
  return made;
}

}  // namespace

void add_kv_format_verb(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvFormatArguments>();
  Command verb = kv.add_subcommand("format", "Make an empty space of a lease's or a file's memory");
  add_kv_where(verb, arguments->where);
  add_size_option(verb, "--bytes", arguments->file_bytes,
                  "Make the file first, of that size, for this user alone");
  verb.add_option("--parts", arguments->options.parts, "Programs that put blocks at once (default 8)")
      .in_range(uint32_t{1}, kv_holders_max)
      .type_name("N");
  verb.add_option("--seats", arguments->seats,
                  "Programs that only read in place at once (default 24); with the parts at most 64")
      .in_range(uint32_t{0}, kv_holders_max - 1)
      .type_name("N");
  add_size_option(verb, "--block", arguments->options.block_bytes,
                  "The size that most blocks have (default 64K): how many there is room for");
  add_size_option(verb, "--max-block", arguments->max_block_bytes,
                  "No block can be larger (default 16M, or a 64th of the memory if that is less)");
  verb.add_flag("--checksums", arguments->checksums, "Every block has a checksum, which each reader compares");
  verb.add_flag("--force", arguments->force,
                "Also over another space or other bytes; never over a space whose parts have living owners");
  on_verb(verb, context, [&context, arguments] { return kv_format(context, *arguments); });
}

}  // namespace terrace::cli
