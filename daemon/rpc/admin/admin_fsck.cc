// The operator's interface: the check of a serving manager against the devices, the objects and /proc.
#include <algorithm>

#include "daemon/fsck/fsck.h"
#include "daemon/fsck/node_check.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

// One message's worth; errors come first.
constexpr size_t findings_max = 10'000;

struct Checked {
  Image image;
  CheckContext context;
  std::string object_directory, runtime_directory;
};

// On a worker: lists files and walks /proc.
Result<std::vector<Finding>> compare(Backend& backend, const Checked& checked) {
  TERRACE_ASSIGN_OR_RETURN(const auto objects, backend.list());
  auto mappings = scan_mappings(checked.object_directory, has_dax_devices(checked.image));
  for (LiveMapping& mapping : scan_node_mappings(checked.runtime_directory))
    mappings.push_back(std::move(mapping));
  return check_consistency(checked.image, objects, backend.discover(), mappings, checked.context);
}

void write_findings(rpc::Admin::FsckResults::Builder results, const std::vector<Finding>& findings) {
  const size_t count = std::min(findings.size(), findings_max);
  auto out = results.initFindings(static_cast<uint32_t>(count));
  for (uint32_t i = 0; i < count; ++i) {
    out[i].setSeverity(std::string(severity_name(findings[i].severity)));
    out[i].setSubject(findings[i].subject);
    out[i].setWhat(findings[i].what);
    out[i].setRepair(findings[i].repair);
  }
}

}  // namespace

kj::Promise<void> AdminServer::fsck(FsckContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    auto checked = std::make_shared<Checked>();
    checked->image = state().image();
    checked->context.serving = true;
    checked->context.boot_id = read_boot_id();
    checked->object_directory = service().options().object_directory;
    checked->runtime_directory = service().options().runtime_directory;
    for (const auto& [id, lease] : state().leases())
      if (lease.phase == LeasePhase::pending) checked->context.in_flight.insert(lease.object);
    return engine()
        .run_blocking([&backend = engine().backend(), checked] { return compare(backend, *checked); })
        .then([context](Result<std::vector<Finding>> findings) mutable {
          if (findings.ok()) {
            write_findings(context.getResults(), *findings);
          } else {
            refuse(context, findings.error());
          }
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
