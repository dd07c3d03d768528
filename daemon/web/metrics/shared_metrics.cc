// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/shared_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"
#include "core/version/version.h"

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;

uint64_t open_descriptors() {
  uint64_t open = 0;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (::readdir(folder) != nullptr) ++open;
    ::closedir(folder);
  }
  return open > 3 ? open - 3 : 0;  // "." and "..", and the look itself
}

uint64_t resident_bytes() {
  unsigned long long total = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void add_build_info(MetricsText& out) {
  out.family("terrace_build_info", Kind::gauge, "The version that serves; always 1.");
  out.sample(uint64_t{1}, {{"version", version_number()}});
}

void add_calls(MetricsText& out, const Peers& peers) {
  out.family(
      "terrace_rpc_seconds", Kind::histogram,
      "Calls by method, from when they are taken until their answer is made; without what they wait for room.");
  for (const auto& [method, times] : peers.call_times()) out.sample(times, {{"method", method}});
}

void add_health(MetricsText& out, const HealthEngine& health) {
  std::map<std::pair<HealthCode, HealthSeverity>, uint64_t> count;
  for (const HealthFinding& finding : health.findings()) ++count[{finding.code, finding.severity}];
  out.family("terrace_health_findings", Kind::gauge, "What `terrace health` shows now, by code and severity.");
  for (const auto& [key, findings] : count)
    out.sample(findings, {{"code", schema::enum_word(static_cast<rpc::HealthCode>(key.first))},
                          {"severity", schema::enum_word(static_cast<rpc::HealthSeverity>(key.second))}});
}

void add_process(MetricsText& out, const std::string& whose) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const auto in_seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  out.counter("process_cpu_seconds_total", "Processor time of " + whose + ".",
              in_seconds(used.ru_utime) + in_seconds(used.ru_stime));
  out.gauge("process_resident_memory_bytes", "Memory of " + whose + " itself.", resident_bytes());
  out.gauge("process_open_fds", "Open files of " + whose + ".", open_descriptors());
  out.gauge("process_max_fds", "As many may be open.", uint64_t{files.rlim_cur});
}

}  // namespace terrace::daemon
