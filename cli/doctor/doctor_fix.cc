// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/doctor_fix.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/terminal/confirm.h"

namespace terrace::cli {
namespace {

using inventory::DaxDevice;
using inventory::DaxMode;
using inventory::Inventory;

// The manager's device that leases of that node's memory come from.
const DeviceStatus* node_device(const std::vector<DeviceStatus>& devices, int node) {
  for (const DeviceStatus& device : devices)
    if (str(device->getBackend()) == "numa" && device->getAttributes().getNumaNode() == node) return &device;
  return nullptr;
}

class ManagedNodes final : public NodeOwner {
 public:
  explicit ManagedNodes(AdminClient& client) : client_(client) {}
  Status offline(const std::string& serial) override { return client_.offline(serial); }

 private:
  AdminClient& client_;
};

std::string still_wrong(const Inventory& after, const std::string& name) {
  for (const DaxDevice& dax : after.dax_devices)
    if (dax.name == name)
      return dax.mode == DaxMode::devdax ? std::string()
                                         : name + " is " + inventory::dax_mode_name(dax.mode) + " again";
  return name + " is gone";
}

// Something may take the device again behind our back (a udev rule, an auto-online setting): looked at once
// more.
void look_again(std::vector<FixOutcome>& outcomes) {
  const Inventory after = inventory::take_inventory({.health = false, .holders = false});
  for (FixOutcome& outcome : outcomes) {
    if (!outcome.status.ok()) continue;
    if (const std::string wrong = still_wrong(after, outcome.device); !wrong.empty())
      outcome.status = Error{
          .code = ErrorCode::io_error,
          .where = "doctor --fix",
          .detail = wrong + ", although it was fixed: something takes it as memory by itself (a udev rule?)"};
  }
}

nlohmann::json fixes_json(const std::vector<DaxFix>& fixes, const std::vector<FixOutcome>& outcomes) {
  nlohmann::json list = nlohmann::json::array();
  const auto add = [&list](const std::string& device, const std::string& why_not) {
    list.push_back({{"device", device},
                    {"fixed", why_not.empty()},
                    {"why_not", why_not.empty() ? nlohmann::json(nullptr) : nlohmann::json(why_not)}});
  };
  for (const FixOutcome& outcome : outcomes)
    add(outcome.device, outcome.status.ok() ? "" : outcome.status.error().to_string());
  for (const DaxFix& fix : fixes)
    if (!fix.refusal.empty()) add(fix.device, fix.refusal);
  return list;
}

std::string fixes_text(const std::vector<DaxFix>& fixes, const std::vector<FixOutcome>& outcomes) {
  std::string text;
  for (const FixOutcome& outcome : outcomes)
    if (outcome.status.ok()) text += outcome.device + " is devdax again\n";
  for (const DaxFix& fix : fixes)
    if (!fix.refusal.empty()) text += fix.device + " is left alone: " + printable(fix.refusal) + "\n";
  return text.empty() && outcomes.empty() ? "nothing that could be fixed from here\n" : text;
}

void report(Context& context, const std::vector<DaxFix>& fixes, const std::vector<FixOutcome>& outcomes) {
  for (const FixOutcome& outcome : outcomes) {
    if (outcome.status.ok()) continue;
    fail_with(context, outcome.status.error(), "fixes", fixes_json(fixes, outcomes),
              fixes_text(fixes, outcomes));
    return;
  }
  if (context.json)
    print_json({{"fixes", fixes_json(fixes, outcomes)}});
  else
    print_text(fixes_text(fixes, outcomes));
}

}  // namespace

std::vector<DaxFix> plan_fixes(const Inventory& inventory, const std::vector<DeviceStatus>& devices) {
  std::vector<DaxFix> fixes;
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (dax.mode != DaxMode::system_ram) continue;
    DaxFix fix{.device = dax.name, .bytes = dax.bytes, .node = dax.target_node};
    if (const DeviceStatus* owner = node_device(devices, dax.target_node)) {
      fix.via = str((*owner)->getSerial());
      const uint32_t leases = (*owner)->getLeases();
      if ((*owner)->getAdopted())
        fix.refusal = "its node is adopted as " + fix.via +
                      (leases == 0 ? "" : " and has " + count_text(leases, "lease")) +
                      "; 'terrace device remove " + fix.via + "' first";
    }
    if (fix.refusal.empty() && dax.unmovable)
      fix.refusal = "its memory was onlined as unmovable, which only a reboot undoes";
    if (fix.refusal.empty() && !inventory.privileged) fix.refusal = "only root can change it";
    fixes.push_back(fix);
  }
  return fixes;
}

std::string describe_fixes(const std::vector<DaxFix>& fixes, bool manager_asked) {
  std::string text;
  for (const DaxFix& fix : fixes) {
    if (!fix.refusal.empty()) continue;
    text += fix.device + " (" + format_size(fix.bytes) +
            (fix.node < 0 ? "" : ", node " + std::to_string(fix.node)) +
            ") is memory of the kernel. Pages of programs on it are moved elsewhere, its memory is taken "
            "offline, and "
            "it becomes /dev/" +
            fix.device + ".\n";
  }
  if (!text.empty() && !manager_asked)
    text += "No manager was asked: leases of a pool on that node would lose their place.\n";
  return text;
}

std::vector<FixOutcome> apply_fixes(const std::vector<DaxFix>& fixes, inventory::DaxModes& modes,
                                    NodeOwner* owner) {
  std::vector<FixOutcome> outcomes;
  for (const DaxFix& fix : fixes) {
    if (!fix.refusal.empty()) continue;
    FixOutcome outcome{.device = fix.device, .status = {}};
    // A manager that made the node what it is would make it so again at its next start unless it is told.
    if (!fix.via.empty() && owner != nullptr) outcome.status = owner->offline(fix.via);
    const bool refused = !outcome.status.ok() && outcome.status.error().code != ErrorCode::unsupported &&
                         outcome.status.error().code != ErrorCode::not_found;
    if (!refused) outcome.status = modes.to_devdax(fix.device);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

Status run_fix(Context& context, bool yes) {
  Context quick = context;
  quick.call_timeout_ns = std::min<uint64_t>(context.call_timeout_ns, 5 * ns_per_s);
  auto client = AdminClient::connect(quick);
  std::vector<DeviceStatus> devices;
  if (client.ok()) {
    TERRACE_ASSIGN_OR_RETURN(devices, (*client)->devices());
  } else if (client.error().code != ErrorCode::unavailable) {
    return client.error();  // a manager is there and does not tell: its leases are not to be touched
  }
  const std::vector<DaxFix> fixes = plan_fixes(inventory::take_inventory({.health = false}), devices);
  const std::string consequences = describe_fixes(fixes, client.ok());
  if (consequences.empty()) {
    report(context, fixes, {});
    return {};
  }
  TERRACE_RETURN_IF_ERROR(confirm(context, yes, consequences, "Go on?"));
  inventory::KernelDaxModes modes;
  std::unique_ptr<ManagedNodes> owner;
  if (client.ok()) owner = std::make_unique<ManagedNodes>(**client);
  std::vector<FixOutcome> outcomes = apply_fixes(fixes, modes, owner.get());
  look_again(outcomes);
  report(context, fixes, outcomes);
  return {};
}

}  // namespace terrace::cli
