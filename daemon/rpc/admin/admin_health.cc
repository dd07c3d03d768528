// The operator's interface: what is wrong with the manager, in the words of the schema.
#include "core/schema/words.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

// Enums are cast, as in wire.cc.
static_assert(static_cast<unsigned>(rpc::HealthCode::CALLS_DENIED) ==
              static_cast<unsigned>(HealthCode::calls_denied));
static_assert(static_cast<unsigned>(rpc::HealthCode::QUEUE_STUCK) ==
              static_cast<unsigned>(HealthCode::queue_stuck));
static_assert(static_cast<unsigned>(rpc::HealthSeverity::CRITICAL) ==
              static_cast<unsigned>(HealthSeverity::critical));

void write_summary(rpc::HealthSummary::Builder out, const HealthEngine& health) {
  uint32_t critical = 0;
  for (const HealthFinding& finding : health.findings())
    critical += finding.severity == HealthSeverity::critical;
  out.setSeverity(static_cast<rpc::HealthSeverity>(health.worst()));
  out.setCritical(critical);
  out.setWarnings(static_cast<uint32_t>(health.findings().size()) - critical);
}

void write_health_finding(rpc::HealthFinding::Builder out, const HealthFinding& finding, uint64_t now_ns) {
  const auto code = static_cast<rpc::HealthCode>(finding.code);
  const uint64_t lasted_ns = now_ns - finding.since_ns;
  out.setCode(code);
  out.setSeverity(static_cast<rpc::HealthSeverity>(finding.severity));
  out.setKind(finding.kind);
  out.setName(finding.name);
  out.setLastedNs(lasted_ns);
  out.setSinceWallNs(wall_clock_ns() - lasted_ns);
  out.setText(finding.text);
  out.setAdvice(finding.advice);
  out.setPage("docs/operations/health.md#" + std::string(schema::enum_word(code)));
}

}  // namespace

// At once, unlike all other answers: what of it a crash could undo is of no weight, and while the store fails
// nothing would ever be durable.
kj::Promise<void> AdminServer::health(HealthContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    const HealthEngine& health = service().health().look();
    write_summary(context.getResults().initSummary(), health);
    const std::vector<HealthFinding>& findings = health.findings();
    auto out = context.getResults().initFindings(static_cast<uint32_t>(findings.size()));
    for (uint32_t i = 0; i < out.size(); ++i) write_health_finding(out[i], findings[i], now_ns());
  }
  return kj::READY_NOW;
}

void AdminServer::write_health(rpc::HealthSummary::Builder out) {
  write_summary(out, service().health().look());
}

}  // namespace terrace::daemon
