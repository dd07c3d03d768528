// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/server_info.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/base/clock.h"
#include "core/base/failpoint.h"
#include "core/schema/words.h"
#include "core/version/version.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

// Enums are cast, as in wire.cc.
static_assert(static_cast<unsigned>(rpc::HealthCode::CALLS_DENIED) ==
              static_cast<unsigned>(HealthCode::calls_denied));
static_assert(static_cast<unsigned>(rpc::HealthCode::QUEUE_STUCK) ==
              static_cast<unsigned>(HealthCode::queue_stuck));
static_assert(static_cast<unsigned>(rpc::HealthCode::GUARD_MISSING) ==
              static_cast<unsigned>(HealthCode::guard_missing));
static_assert(static_cast<unsigned>(rpc::HealthCode::KERNEL_LACKS) ==
              static_cast<unsigned>(HealthCode::kernel_lacks));
static_assert(static_cast<unsigned>(rpc::HealthSeverity::CRITICAL) ==
              static_cast<unsigned>(HealthSeverity::critical));

uint32_t open_descriptors() {
  std::error_code error;
  uint32_t open = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error))
    ++open;
  return open == 0 ? 0 : open - 1;  // the look itself
}

void write_health_finding(rpc::HealthFinding::Builder out, const HealthFinding& finding, uint64_t now_ns) {
  const uint64_t lasted_ns = now_ns - finding.since_ns;
  out.setCode(static_cast<rpc::HealthCode>(finding.code));
  out.setSeverity(static_cast<rpc::HealthSeverity>(finding.severity));
  out.setKind(finding.kind);
  out.setName(finding.name);
  out.setLastedNs(lasted_ns);
  out.setSinceWallNs(wall_clock_ns() - lasted_ns);
  out.setText(finding.text);
  out.setAdvice(finding.advice);
  out.setPage("docs/operations/health.md#" + std::string(health_code_word(finding.code)));
}

}  // namespace

void write_process(rpc::ServerInfo::Builder out, const Peers& peers, uint64_t started_ns) {
  const PeerOptions& options = peers.peer_options();
  out.setVersion(version_number());
  out.setPid(static_cast<uint32_t>(::getpid()));
  out.setUptimeNs(peers.now_ns() - started_ns);
  out.setBootId(read_boot_id());
  out.setConnections(peers.connections());
  out.setConnectionsMax(peers.connections_allowed());
  out.setDescriptorsMax(static_cast<uint32_t>(std::min<uint64_t>(options.descriptors_max, UINT32_MAX)));
  out.setDescriptors(open_descriptors());
  out.setFailpoints(failpoints_enabled());
  auto sockets = out.initSockets(static_cast<uint32_t>(options.sockets.size()));
  for (uint32_t i = 0; i < sockets.size(); ++i) {
    sockets[i].setPath(options.sockets[i]->path);
    sockets[i].setRole(socket_role_name(options.sockets[i]->role));
    sockets[i].setTenant(options.sockets[i]->tenant);
  }
}

void write_certificates(rpc::ServerInfo::Builder out, const std::vector<CertificateEnd>& ends) {
  auto certificates = out.initCertificates(static_cast<uint32_t>(ends.size()));
  for (uint32_t i = 0; i < ends.size(); ++i) {
    certificates[i].setWhat(ends[i].what);
    certificates[i].setName(ends[i].name);
    certificates[i].setDaysLeft(static_cast<int32_t>(ends[i].days_left));
    certificates[i].setSoon(ends[i].soon);
  }
}

void write_health_summary(rpc::HealthSummary::Builder out, const HealthEngine& health) {
  uint32_t critical = 0;
  for (const HealthFinding& finding : health.findings())
    critical += finding.severity == HealthSeverity::critical;
  out.setSeverity(static_cast<rpc::HealthSeverity>(health.worst()));
  out.setCritical(critical);
  out.setWarnings(static_cast<uint32_t>(health.findings().size()) - critical);
}

void write_health_findings(rpc::Admin::HealthResults::Builder out, const HealthEngine& health,
                           uint64_t now_ns) {
  write_health_summary(out.initSummary(), health);
  const std::vector<HealthFinding>& findings = health.findings();
  auto list = out.initFindings(static_cast<uint32_t>(findings.size()));
  for (uint32_t i = 0; i < list.size(); ++i) write_health_finding(list[i], findings[i], now_ns);
}

std::string_view health_code_word(HealthCode code) {
  return schema::enum_word(static_cast<rpc::HealthCode>(code));
}

std::string health_line(const HealthFinding& finding, std::string_view how, std::string_view what) {
  std::string line = "health: " + std::string(health_code_word(finding.code)) + ", ";
  line.append(how).append(", ").append(finding.kind);
  if (!finding.name.empty()) line.append(" ").append(finding.name);
  return line.append(": ").append(what);
}

void log_health_changes(const HealthChanges& changes, uint64_t now_ns) {
  for (const HealthFinding& one : changes.raised) {
    const bool critical = one.severity == HealthSeverity::critical;
    log::write(critical ? log::Level::error : log::Level::warn, "{}",
               health_line(one, critical ? "critical" : "warning", one.text));
  }
  for (const HealthFinding& one : changes.cleared)
    log::info("{}",
              health_line(one, "over",
                          "it lasted " + format_duration((now_ns - one.since_ns) / ns_per_ms * ns_per_ms)));
}

}  // namespace terrace::daemon
