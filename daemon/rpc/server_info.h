// SPDX-License-Identifier: Apache-2.0
// What a terraced says of itself to an operator, whichever its role: its process, and what it finds wrong.
//
// Place     The manager's operator's interface (daemon/rpc/admin) and an agent's (daemon/agent/agent_admin.h).
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/schema/terrace.capnp.h"
#include "daemon/health/health_engine.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {

// The version, the process, the boot, what of files and connections is open, and where it is reached.
void write_process(rpc::ServerInfo::Builder out, const Peers& peers, uint64_t started_ns);
void write_certificates(rpc::ServerInfo::Builder out, const std::vector<CertificateEnd>& ends);

void write_health_summary(rpc::HealthSummary::Builder out, const HealthEngine& health);
void write_health_findings(rpc::Admin::HealthResults::Builder out, const HealthEngine& health, uint64_t now_ns);

std::string_view health_code_word(HealthCode code);
// "health: device_absent, critical, device emu:a: ...". `how`: how severe, or "over".
std::string health_line(const HealthFinding& finding, std::string_view how, std::string_view what);
// What a look changed, a line each: of who has no events to tell.
void log_health_changes(const HealthChanges& changes, uint64_t now_ns);

}  // namespace terrace::daemon
