// SPDX-License-Identifier: Apache-2.0
// `terrace kv evict` and `flush`: room for other blocks.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

struct KvRoomArguments {
  std::string where, name_space;
  uint64_t bytes = 0;
  bool all = false;
};

Status kv_evict(const Context& context, const KvRoomArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, "terrace kv evict"));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::writes));
  Result<uint64_t> evicted = space->evict(arguments.bytes);
  if (!evicted.ok()) return kv_error_at(place, std::move(evicted).error());
  if (context.json)
    print_json({{"evicted", *evicted}, {"wanted_bytes", arguments.bytes}});
  else
    print_text("evicted " + count_text(*evicted, "block") + " for the " + format_size(arguments.bytes) +
               " asked for\n");
  return {};
}

Status kv_flush(const Context& context, const KvRoomArguments& arguments) {
  std::optional<KvNamespace> name_space;
  if (!arguments.all) {
    TERRACE_ASSIGN_OR_RETURN(name_space, KvNamespace::of(arguments.name_space));
  }
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, "terrace kv flush"));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::writes));
  Result<uint64_t> erased = space->flush(name_space);
  if (!erased.ok()) return kv_error_at(place, std::move(erased).error());
  if (context.json)
    print_json({{"flushed", *erased}});
  else
    print_text("erased " + count_text(*erased, "block") + "\n");
  return {};
}

}  // namespace

void add_kv_room_verbs(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvRoomArguments>();
  Command evict = kv.add_subcommand("evict", "Erase the blocks that were not used for longest");
  add_kv_where(evict, arguments->where);
  add_size_option(evict, "bytes", arguments->bytes, "How much of them").required();
  on_verb(evict, context, [&context, arguments] { return kv_evict(context, *arguments); });

  Command flush = kv.add_subcommand("flush", "Erase all blocks of a namespace, or of all of them");
  add_kv_where(flush, arguments->where);
  const Option name = add_kv_namespace(flush, arguments->name_space);
  flush.add_flag("--all", arguments->all, "Those of every namespace").excludes(name);
  on_verb(flush, context, [&context, arguments] { return kv_flush(context, *arguments); });
}

}  // namespace terrace::cli
