// SPDX-License-Identifier: Apache-2.0
#include "cli/show/reported_runs.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"

namespace terrace::cli {
namespace {

constexpr uint64_t reported_timeout_ns = ns_per_s;

ReportedRun read_run(rpc::RunInfo::Reader run) {
  const auto figures = run.getFigures();
  const auto counters = figures.getCounters();
  ReportedRun read;
  read.program = printable(str(figures.getProgram()));
  read.tenant = printable(str(run.getTenant()));
  read.here = run.getAgent().size() == 0;
  read.host = printable(str(read.here ? run.getHost() : run.getAgent()));
  read.pid = run.getPid();
  read.uid = run.getUid();
  read.processes = figures.getProcesses();
  read.live_bytes = figures.getLiveBytes();
  read.ddr_bytes = figures.getDdrBytes();
  read.cxl_bytes = figures.getCxlBytes();
  read.plain_bytes = figures.getPlainBytes();
  read.ddr_bytes_max = figures.getDdrBytesMax();
  read.leased_bytes = figures.getLeasedBytes();
  read.sampled_bytes = figures.getSampledBytes();
  read.ddr_hit_permille = figures.getDdrHitPermille();
  read.promotions = counters.getPromotions();
  read.demotions = counters.getDemotions();
  read.stalled_ns = counters.getStalledNs();
  read.refused = counters.getRefused();
  read.fallbacks = counters.getFallbacks();
  read.promotions_per_s = run.getPromotionsPerS();
  read.demotions_per_s = run.getDemotionsPerS();
  read.copy_bytes_per_s = run.getCopyBytesPerS();
  read.age_ns = run.getAgeNs();
  read.json = std::make_shared<const nlohmann::json>(schema::to_json(run));
  return read;
}

bool is_seen_here(const ReportedRun& run, const std::vector<std::string>& prefixes) {
  const std::string file = std::to_string(run.uid) + "/" + std::to_string(run.pid);
  return run.here && run.pid != 0 && std::any_of(prefixes.begin(), prefixes.end(), [&](const auto& prefix) {
           return ::access((prefix + file).c_str(), F_OK) == 0;
         });
}

std::string hits_text(const ReportedRun& run) {
  if (run.sampled_bytes == 0) return "-";
  return std::to_string(run.ddr_hit_permille / 10) + "." + std::to_string(run.ddr_hit_permille % 10) + "%";
}

}  // namespace

std::vector<ReportedRun> runs_not_seen_here(const Context& context, const std::vector<std::string>& prefixes) {
  Context asked = context;
  asked.call_timeout_ns = std::min(asked.call_timeout_ns, reported_timeout_ns);
  const auto client = AdminClient::connect_if_admitted(asked);
  if (!client.ok() || *client == nullptr) return {};
  const auto reply = (*client)->runs();
  if (!reply.ok()) return {};
  std::vector<ReportedRun> runs;
  for (const auto run : (*reply)->getRuns()) runs.push_back(read_run(run));
  std::erase_if(runs, [&](const ReportedRun& run) { return is_seen_here(run, prefixes); });
  return runs;
}

nlohmann::json to_json(const std::vector<ReportedRun>& runs) {
  nlohmann::json list = nlohmann::json::array();
  for (const ReportedRun& run : runs) list.push_back(*run.json);
  return list;
}

std::string reported_table(const std::vector<ReportedRun>& runs) {
  if (runs.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (const ReportedRun& run : runs)
    rows.push_back({run.pid == 0 ? "-" : std::to_string(run.pid), run.program, run.tenant, run.host,
                    format_size(run.ddr_bytes), format_size(run.ddr_bytes_max), format_size(run.cxl_bytes),
                    hits_text(run), std::to_string(run.promotions), std::to_string(run.demotions),
                    format_duration(run.stalled_ns), format_size(run.copy_bytes_per_s) + "/s",
                    format_duration(run.age_ns / ns_per_s * ns_per_s)});
  return "Runs elsewhere (containers, further hosts), as they report to the manager:\n" +
         format_table({"RUN", "PROGRAM", "TENANT", "HOST", "DDR", "DDR MAX", "CXL", "HITS", "PROMOTED",
                       "DEMOTED", "STALLED", "COPYING", "AGE"},
                      rows);
}

}  // namespace terrace::cli
