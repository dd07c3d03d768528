// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/store_tools.h"

#include <cstdio>

#include "daemon/fsck/command.h"
#include "daemon/fsck/store_copy.h"
#include "daemon/store/backup/restore.h"
#include "daemon/store/backup/store_copy_file.h"

namespace terrace::daemon {
namespace {

struct ToolOutcome {
  StoreContents contents;
  std::string set_aside = {};          // of a restore
  std::vector<std::string> lost = {};  // of a salvage
};

Result<ToolOutcome> use_tool(const DaemonConfig& config, StoreTool tool, const std::string& file) {
  ToolOutcome outcome;
  if (tool == StoreTool::backup) {
    TERRACE_ASSIGN_OR_RETURN(const StoreBackup made, back_up_stopped(config.state_path));
    TERRACE_RETURN_IF_ERROR(copy_file_bytes("/proc/self/fd/" + std::to_string(made.file.get()), file));
    outcome.contents = made.contents;
  } else if (tool == StoreTool::verify) {
    TERRACE_ASSIGN_OR_RETURN(outcome.contents, verify_backup(file));
  } else if (tool == StoreTool::salvage) {
    TERRACE_ASSIGN_OR_RETURN(SalvagedBackup made, salvage_stopped(config.state_path, file));
    outcome = {.contents = made.contents, .lost = std::move(made.lost)};
  } else {
    TERRACE_ASSIGN_OR_RETURN(RestoredStore restored, restore_store(file, config.state_path));
    outcome = {restored.contents, std::move(restored.set_aside)};
  }
  return outcome;
}

void print_tool_json(const ToolOutcome& outcome, const DaemonConfig& config, StoreTool tool) {
  const StoreContents& contents = outcome.contents;
  std::string out = "{\"store_id\": " + json_quoted(store_id_text(contents.id));
  const auto number = [&out](const char* name, uint64_t value) {
    out += std::string(", \"") + name + "\": " + std::to_string(value);
  };
  number("sequence", contents.sequence);
  number("bytes", contents.bytes);
  number("leases", contents.leases);
  number("devices", contents.devices);
  number("pools", contents.pools);
  if (tool == StoreTool::restore)
    out += ", \"state\": " + json_quoted(config.state_path) +
           ", \"set_aside\": " + (outcome.set_aside.empty() ? "null" : json_quoted(outcome.set_aside));
  if (tool == StoreTool::salvage) {
    std::string list;
    for (const std::string& one : outcome.lost) list += (list.empty() ? "" : ", ") + json_quoted(one);
    out += ", \"lost\": [" + list + "]";
  }
  std::puts((out + "}").c_str());
}

void print_tool_text(const ToolOutcome& outcome, const DaemonConfig& config, StoreTool tool) {
  const StoreContents& contents = outcome.contents;
  std::printf("store %s: %llu commits, %llu leases, %llu devices, %llu pools; %llu bytes\n",
              store_id_text(contents.id).c_str(), static_cast<unsigned long long>(contents.sequence),
              static_cast<unsigned long long>(contents.leases),
              static_cast<unsigned long long>(contents.devices),
              static_cast<unsigned long long>(contents.pools), static_cast<unsigned long long>(contents.bytes));
  for (const std::string& one : outcome.lost) std::printf("lost: %s\n", one.c_str());
  if (tool != StoreTool::restore) return;
  std::printf("restored to %s\n", config.state_path.c_str());
  if (!outcome.set_aside.empty()) std::printf("what was there is in %s\n", outcome.set_aside.c_str());
}

}  // namespace

int run_store_tool(const DaemonConfig& config, StoreTool tool, const std::string& file, bool json) {
  const auto outcome = use_tool(config, tool, file);
  if (!outcome.ok()) {
    const Error& error = outcome.error();
    if (json) {
      std::puts(("{\"error\": {\"code\": " + std::to_string(static_cast<unsigned>(error.code)) +
                 ", \"os_errno\": " + std::to_string(error.os_errno) +
                 ", \"detail\": " + json_quoted(error.detail) + "}}")
                    .c_str());
    } else {
      std::fprintf(stderr, "terraced: %s\n", error.to_string().c_str());
    }
    return 1;
  }
  json ? print_tool_json(*outcome, config, tool) : print_tool_text(*outcome, config, tool);
  return 0;
}

}  // namespace terrace::daemon
