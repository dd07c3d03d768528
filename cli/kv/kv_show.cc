// SPDX-License-Identifier: Apache-2.0
// `terrace kv stat`, `list` and `verify`: what is in a space.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "cli/kv/key_text.h"
#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

struct KvShowArguments {
  std::string where, name_space, spill;
  uint64_t limit = 0;  // 0: all
  bool chooses = false;
};

const char* kv_coherence_name(SpaceCoherence coherence) {
  return coherence == SpaceCoherence::coherent ? "coherent" : "noncoherent";
}

nlohmann::json kv_stat_json(const KvStat& stat) {
  nlohmann::json parts = nlohmann::json::array();
  for (const KvPartInfo& part : stat.parts)
    parts.push_back({{"part", part.part},
                     {"host", part.host},
                     {"state", part.state},
                     {"blocks", part.blocks},
                     {"block_bytes", part.block_bytes},
                     {"chunk_bytes", part.chunk_bytes},
                     {"member", part.member}});
  nlohmann::json members = nlohmann::json::array();
  for (const KvMemberInfo& member : stat.members)
    members.push_back({{"where", member.where},
                       {"state", member.state},
                       {"loss", member.loss},
                       {"data_bytes", member.data_bytes},
                       {"free_bytes", member.free_bytes},
                       {"blocks", member.blocks},
                       {"block_bytes", member.block_bytes},
                       {"older_policy", member.older_policy}});
  nlohmann::json budgets = nlohmann::json::array();
  for (const KvBudgetUse& use : stat.budgets)
    budgets.push_back(
        {{"namespaces", use.budget.namespaces}, {"bytes", use.budget.bytes}, {"used_bytes", use.used_bytes}});
  return {{"budgets", budgets},
          {"kept_bytes", stat.kept_bytes},
          {"data_bytes", stat.data_bytes},
          {"free_bytes", stat.free_bytes},
          {"blocks", stat.blocks},
          {"block_bytes", stat.block_bytes},
          {"blocks_max", stat.blocks_max},
          {"max_block_bytes", stat.max_block_bytes},
          {"checksums", stat.checksums},
          {"coherence", kv_coherence_name(stat.coherence)},
          {"members", members},
          {"parts", parts}};
}

nlohmann::json kv_spill_json(const KvSpillStat& stat) {
  return {{"budget_bytes", stat.budget_bytes},
          {"blocks", stat.blocks},
          {"block_bytes", stat.block_bytes},
          {"segments", stat.segments},
          {"segment_bytes", stat.segment_bytes},
          {"free_segments", stat.free_segments},
          {"index_bytes", stat.index_bytes},
          {"max_block_bytes", stat.max_block_bytes},
          {"slots", stat.slots},
          {"slots_open", stat.slots_open},
          {"direct", stat.direct},
          {"io_uring", stat.io_uring}};
}

void print_kv_spill(const std::string& folder, const KvSpillStat& spilled) {
  print_text(format_block(
                 {{"spill", printable(folder)},
                  {"blocks", std::to_string(spilled.blocks)},
                  {"bytes", format_size(spilled.block_bytes) + " of " + format_size(spilled.budget_bytes)},
                  {"segments", std::to_string(spilled.segments) + " of " + format_size(spilled.segment_bytes) +
                                   ", " + std::to_string(spilled.free_segments) + " free"},
                  {"processes", std::to_string(spilled.slots_open) + ", of " + std::to_string(spilled.slots) +
                                    " that there were at most"}}) +
             "\n");
}

// A folder that some space has, or had: of no space.
Status kv_show_spill(const Context& context, const std::string& folder) {
  TERRACE_ASSIGN_OR_RETURN(const auto spill, open_kv_spill(folder, false));
  TERRACE_ASSIGN_OR_RETURN(const KvSpillStat stat, spill->stat());
  if (context.json)
    print_json({{"spill", kv_spill_json(stat)}});
  else
    print_kv_spill(folder, stat);
  return {};
}

Status kv_show_stat(const Context& context, const KvShowArguments& arguments) {
  if (arguments.where.empty() && arguments.spill.empty())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace kv stat",
                 .detail = "of what? Give WHERE, a space, or --spill DIR, or both"};
  if (arguments.where.empty()) return kv_show_spill(context, arguments.spill);
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, "terrace kv stat"));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::reads));
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, space->stat());
  TERRACE_ASSIGN_OR_RETURN(const auto spill, open_kv_spill(arguments.spill, false));
  KvSpillStat spilled;
  if (spill != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(spilled, spill->stat());
  }
  if (context.json) {
    nlohmann::json document = kv_stat_json(stat);
    if (spill != nullptr) document["spill"] = kv_spill_json(spilled);
    print_json(document);
    return {};
  }
  print_text(
      format_block({{"space", printable(place.shown())},
                    {"blocks", std::to_string(stat.blocks) + " of at most " + std::to_string(stat.blocks_max)},
                    {"bytes", format_size(stat.block_bytes) + " of " + format_size(stat.data_bytes)},
                    {"of no part", format_size(stat.free_bytes)},
                    {"largest block", format_size(stat.max_block_bytes)},
                    {"checksums", stat.checksums ? "yes" : "no"},
                    {"coherence", kv_coherence_name(stat.coherence)}}) +
      "\n");
  std::vector<std::vector<std::string>> rows;
  for (size_t index = 0; index < stat.members.size(); ++index) {
    const KvMemberInfo& member = stat.members[index];
    rows.push_back({std::to_string(index), printable(member.where), member.state, std::to_string(member.blocks),
                    format_size(member.block_bytes), format_size(member.data_bytes),
                    format_size(member.free_bytes)});
  }
  print_table({"MEMBER", "WHERE", "STATE", "BLOCKS", "BYTES", "OF", "OF NO PART"}, rows);
  for (const KvMemberInfo& member : stat.members)
    if (!member.loss.empty()) print_text(printable(member.where + " is lost: " + member.loss) + "\n");
  for (const KvMemberInfo& member : stat.members)
    if (member.older_policy)
      print_text(printable(member.where +
                           " has an older policy than the space: a program with a part of it gives it "
                           "the newer one, or set that again") +
                 "\n");
  print_text("\n");
  rows.clear();
  for (const KvPartInfo& part : stat.parts)
    rows.push_back({std::to_string(part.member), std::to_string(part.part), part.state,
                    or_dash(part.host == 0 ? "" : std::to_string(part.host)), std::to_string(part.blocks),
                    format_size(part.block_bytes), format_size(part.chunk_bytes)});
  print_table({"MEMBER", "PART", "STATE", "HOST", "BLOCKS", "BYTES", "HAS"}, rows);
  if (spill == nullptr) return {};
  print_text("\n");
  print_kv_spill(arguments.spill, spilled);
  return {};
}

nlohmann::json kv_block_json(const KvBlockInfo& block) {
  return {{"namespace", block.name_space},
          {"key", text_of_key(block.key)},
          {"bytes", block.bytes},
          {"part", block.part},
          {"member", block.member},
          {"expires_unix_s", block.expires_unix_s},
          {"used_unix_s", block.used_unix_s},
          {"has_parent", block.has_parent},
          {"has_checksum", block.has_checksum}};
}

std::string kv_time_text(uint64_t unix_s) {
  return unix_s == 0 ? "-" : format_moment(unix_s * ns_per_s);
}

std::vector<std::string> kv_block_row(const KvBlockInfo& block) {
  return {or_dash(block.name_space),  text_of_key(block.key),          format_size(block.bytes),
          std::to_string(block.part), kv_time_text(block.used_unix_s), kv_time_text(block.expires_unix_s)};
}

Status kv_show_list(const Context& context, const KvShowArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const KvNamespace name_space, KvNamespace::of(arguments.name_space));
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, "terrace kv list"));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::reads));
  std::vector<KvBlockInfo> blocks;
  TERRACE_RETURN_IF_ERROR(space->list([&](const KvBlockInfo& block) {
    if (!arguments.chooses || block.name_space == name_space.name()) blocks.push_back(block);
    return arguments.limit == 0 || blocks.size() < arguments.limit;
  }));
  const auto before = [](const KvBlockInfo& a, const KvBlockInfo& b) {
    return std::tie(a.name_space, a.key) < std::tie(b.name_space, b.key);
  };
  std::sort(blocks.begin(), blocks.end(), before);
  if (context.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const KvBlockInfo& block : blocks) rows.push_back(kv_block_json(block));
    print_json({{"blocks", rows}});
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const KvBlockInfo& block : blocks) rows.push_back(kv_block_row(block));
  print_table({"NAMESPACE", "KEY", "SIZE", "PART", "USED", "EXPIRES"}, rows);
  return {};
}

Status kv_show_verified(Context& context, const KvShowArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, "terrace kv verify"));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::reads));
  TERRACE_ASSIGN_OR_RETURN(const KvVerified verified, space->verify());
  if (!verified.wrong.empty()) context.exit_code = exit_mismatch;
  if (context.json) {
    nlohmann::json wrong = nlohmann::json::array();
    for (const KvBlockInfo& block : verified.wrong) wrong.push_back(kv_block_json(block));
    print_json({{"blocks", verified.blocks},
                {"bytes", verified.bytes},
                {"without_checksum", verified.without_checksum},
                {"changed", verified.changed},
                {"wrong", wrong}});
    return {};
  }
  std::string text;
  for (const KvBlockInfo& block : verified.wrong) {
    text += "block " + quoted_name(text_of_key(block.key));
    if (!block.name_space.empty()) text += " of " + quoted_name(block.name_space);
    text +=
        ", " + format_size(block.bytes) + " in part " + std::to_string(block.part) + ", is not as it was put\n";
  }
  const std::string all = count_text(verified.blocks, "block") + ", " + format_size(verified.bytes);
  text += verified.wrong.empty() ? all + ", nothing wrong"
                                 : std::to_string(verified.wrong.size()) + " of " + all + ", wrong";
  if (verified.without_checksum > 0)
    text += "; " + std::to_string(verified.without_checksum) +
            " of them without a checksum: their names alone were compared";
  print_text(text + "\n");
  return {};
}

}  // namespace

void add_kv_show_verbs(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvShowArguments>();
  Command stat = kv.add_subcommand("stat", "How full a space is, and who owns its parts");
  add_kv_where(stat, arguments->where).required(false);
  stat.add_option("--spill", arguments->spill, "What is in this spill folder; also without WHERE")
      .type_name("DIR");
  on_verb(stat, context, [&context, arguments] { return kv_show_stat(context, *arguments); });

  Command list = kv.add_subcommand("list", "The blocks of a space");
  list.footer("Keys that are no text are shown as 0x and hex digits; --key takes them in the same way.");
  add_kv_where(list, arguments->where);
  const Option name = add_kv_namespace(list, arguments->name_space);
  list.add_option("--limit", arguments->limit, "At most so many").type_name("N");
  on_verb(list, context, [&context, arguments, name] {
    arguments->chooses = name.count() > 0;
    return kv_show_list(context, *arguments);
  });

  Command verify =
      kv.add_subcommand("verify", "Compare every block with its checksum; exit 8 when one is wrong");
  add_kv_where(verify, arguments->where);
  on_verb(verify, context, [&context, arguments] { return kv_show_verified(context, *arguments); });
}

}  // namespace terrace::cli
