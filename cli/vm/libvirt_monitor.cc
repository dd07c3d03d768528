// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/program/find_program.h"
#include "cli/program/run_program.h"
#include "cli/vm/monitor.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr uint64_t virsh_ns = 60 * ns_per_s;

// Without the line's end. Errors: unavailable, in virsh's words.
Result<std::string> ask_virsh(const std::string& virsh, const std::string& connection,
                              const std::vector<std::string>& request, const char* where) {
  std::vector<std::string> words;
  if (!connection.empty()) words = {"--connect", connection};
  words.emplace_back("--quiet");
  words.insert(words.end(), request.begin(), request.end());
  TERRACE_ASSIGN_OR_RETURN(ProgramOutput output, run_program(virsh, words, virsh_ns));
  const bool done = WIFEXITED(output.status) && WEXITSTATUS(output.status) == 0;
  std::string& said = done ? output.out : output.err;
  while (!said.empty() && (said.back() == '\n' || said.back() == ' ')) said.pop_back();
  if (done) return std::move(said);
  return Error{.code = ErrorCode::unavailable,
               .where = where,
               .detail = "libvirt: " + (said.empty() ? "virsh says nothing" : said)};
}

class LibvirtMonitor final : public Monitor {
 public:
  LibvirtMonitor(std::string virsh, std::string connection, std::string domain, const char* where)
      : virsh_(std::move(virsh)),
        connection_(std::move(connection)),
        domain_(std::move(domain)),
        where_(where) {}

  Result<nlohmann::json> ask(const std::string& command, const nlohmann::json& arguments) override {
    const std::string line = nlohmann::json({{"execute", command}, {"arguments", arguments}}).dump();
    const Result<std::string> said =
        ask_virsh(virsh_, connection_, {"qemu-monitor-command", "--domain", domain_, line}, where_);
    failed_ = !said.ok();
    if (failed_) return said.error();
    return answer_of(nlohmann::json::parse(*said, nullptr, false), command);
  }

  // libvirt itself may be away for a while, as for an upgrade: its machines run on.
  bool has_ended() override {
    if (!failed_) return false;
    const Result<std::string> running = ask_virsh(virsh_, connection_, {"list", "--uuid"}, where_);
    return running.ok() && running->find(domain_) == std::string::npos;
  }

  int pause_ms() const override { return 500; }

 private:
  const std::string virsh_, connection_, domain_;
  const char* where_;
  bool failed_ = false;
};

}  // namespace

Result<std::unique_ptr<Monitor>> libvirt_monitor(const std::string& connection, const std::string& domain,
                                                 const char* where) {
  TERRACE_ASSIGN_OR_RETURN(std::string virsh, find_program("virsh", where));
  TERRACE_ASSIGN_OR_RETURN(std::string id, ask_virsh(virsh, connection, {"domuuid", domain}, where));
  std::unique_ptr<Monitor> monitor =
      std::make_unique<LibvirtMonitor>(std::move(virsh), connection, std::move(id), where);
  const Result<nlohmann::json> there = monitor->ask("query-status", nlohmann::json::object());
  if (!there.ok()) return there.error();
  return monitor;
}

}  // namespace terrace::cli
