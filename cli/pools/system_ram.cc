// SPDX-License-Identifier: Apache-2.0
#include "cli/pools/system_ram.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/pools/pool_verbs.h"
#include "cli/show/describe.h"
#include "cli/terminal/confirm.h"

namespace terrace::cli {
namespace {

constexpr const char* create_where = "pool create --system-ram";

Error failed(ErrorCode code, const char* where, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

bool is_node(const DeviceStatus& device) {
  return str(device->getBackend()) == "numa";
}

bool comes_into_question(const DeviceStatus& device) {
  return str(device->getBackend()) == "devdax" && device->getPresent() && !device->getAdopted();
}

std::string serials_of(const std::vector<DeviceStatus>& devices) {
  std::string text;
  for (const DeviceStatus& device : devices) text += (text.empty() ? "" : ", ") + str(device->getSerial());
  return text;
}

std::string losses_of(const std::vector<DeviceStatus>& devices) {
  std::string text;
  for (const DeviceStatus& device : devices) {
    if (is_node(device)) continue;
    const std::string contents = str(device->getContents());
    text += printable(str(device->getSerial())) + " becomes memory of the kernel; what is on it is lost" +
            (contents.empty() ? std::string() : ": " + printable(contents)) + "\n";
  }
  return text;
}

// What was done so far, to be undone from its end.
class Steps {
 public:
  void done(std::function<Status()> undo) { undo_.push_back(std::move(undo)); }
  Error undone(Error error) {
    for (; !undo_.empty(); undo_.pop_back()) {
      if (Status status = undo_.back()(); !status.ok())
        error.detail += "; undoing what came before failed, too: " + status.error().detail;
    }
    return error;
  }

 private:
  std::vector<std::function<Status()>> undo_;
};

bool is_among(const std::vector<DeviceStatus>& devices, const std::string& serial) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const DeviceStatus& device) { return str(device->getSerial()) == serial; });
}

// The devices that leases will come from. A node that was online before stays so in any case.
Result<std::vector<std::string>> bring_online(AdminClient& client, const std::vector<DeviceStatus>& devices,
                                              const std::vector<DeviceStatus>& before, Steps& steps) {
  std::vector<std::string> nodes;
  for (const DeviceStatus& device : devices) {
    std::string node = str(device->getSerial());
    if (!is_node(device)) {
      TERRACE_ASSIGN_OR_RETURN(node, client.online(str(device->getSerial())));
      if (!is_among(before, node)) steps.done([&client, node] { return client.offline(node); });
    }
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
  return nodes;
}

Status online_device(const Context& context, const std::string& serial, bool yes) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> all, client->devices());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, system_ram_devices(all, {serial}));
  TERRACE_RETURN_IF_ERROR(confirm(context, yes, losses_of(devices), "Bring " + serial + " online?"));
  TERRACE_ASSIGN_OR_RETURN(const std::string node, client->online(serial));
  if (context.json) {
    print_json({{"device", serial}, {"node", node}});
  } else {
    print_text(printable(serial) + " is memory now, and leases can come from " + printable(node) + "\n");
  }
  return {};
}

Status offline_device(const Context& context, const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_RETURN_IF_ERROR(client->offline(serial));
  if (context.json) {
    print_json({{"offline", serial}});
  } else {
    print_text("the memory of " + printable(serial) + " is a dax device again\n");
  }
  return {};
}

}  // namespace

Result<std::vector<DeviceStatus>> system_ram_devices(const std::vector<DeviceStatus>& all,
                                                     const std::vector<std::string>& wanted) {
  std::vector<DeviceStatus> found;
  if (wanted.empty()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(found), comes_into_question);
    if (found.size() == 1) return found;
    if (found.empty())
      return failed(ErrorCode::not_found, create_where,
                    "no dax device could be brought online; 'terrace device list' shows what there is");
    return failed(
        ErrorCode::invalid_argument, create_where,
        "there are several dax devices: " + serials_of(found) + "; name those you mean with --device");
  }
  for (const std::string& serial : wanted) {
    const auto device = std::find_if(all.begin(), all.end(),
                                     [&](const DeviceStatus& one) { return str(one->getSerial()) == serial; });
    if (device == all.end())
      return failed(ErrorCode::not_found, create_where,
                    "no device has the serial '" + serial + "'; 'terrace device list' shows all");
    const std::string backend = str((*device)->getBackend());
    if (!is_node(*device) && backend != "devdax")
      return failed(ErrorCode::invalid_argument, create_where,
                    serial + " is of the kind '" + backend + "'; only dax devices can be brought online");
    if (!is_node(*device) && (*device)->getAdopted())
      return failed(ErrorCode::busy, create_where,
                    serial + " is adopted as a dax device; 'terrace device remove " + serial + "' first");
    found.push_back(*device);
  }
  return found;
}

Status create_system_ram_pool(const Context& context, AdminClient& client, PoolOptions pool, bool yes) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> all, client.devices());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, system_ram_devices(all, pool.devices));
  if (const std::string losses = losses_of(devices); !losses.empty())
    TERRACE_RETURN_IF_ERROR(confirm(context, yes, losses, "Bring " + serials_of(devices) + " online?"));
  Steps steps;
  auto nodes = bring_online(client, devices, all, steps);
  if (!nodes.ok()) return steps.undone(std::move(nodes).error());
  for (const std::string& node : *nodes) {
    const bool adopted = std::any_of(all.begin(), all.end(), [&](const DeviceStatus& device) {
      return str(device->getSerial()) == node && device->getAdopted();
    });
    if (adopted) continue;
    if (auto now = client.adopt(node); !now.ok()) return steps.undone(std::move(now).error());
    steps.done([&client, node] { return client.remove_device(node, false); });
  }
  pool.devices = *nodes;
  auto made = client.create_pool(pool);
  if (!made.ok()) return steps.undone(std::move(made).error());
  if (context.json) {
    print_json({{"pool", to_json(*made)}});
  } else {
    print_text(pool_table({*made}));
  }
  return {};
}

Status delete_system_ram_pool(const Context& context, AdminClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const PoolStatus pool, find_pool(client, name));
  std::vector<std::string> nodes = strings(pool->getDevices());
  std::erase_if(nodes, [](const std::string& serial) { return !serial.starts_with("numa:"); });
  if (nodes.empty()) {
    return failed(
        ErrorCode::invalid_argument, "pool delete --offline",
        "no device of pool '" + name + "' is a memory node; without --offline the pool can be deleted");
  }
  TERRACE_RETURN_IF_ERROR(client.delete_pool(name));
  std::string left = "the pool is deleted";
  for (const std::string& node : nodes) {
    Status status = client.remove_device(node, false);
    if (status.ok()) status = client.offline(node);
    if (!status.ok()) {
      Error error = std::move(status).error();
      error.detail += "; " + left + ", and the memory of " + node +
                      " is still online: 'terrace device offline " + node + "' tries again";
      return error;
    }
    left += ", " + node + " is a dax device again";
  }
  if (context.json) {
    print_json({{"deleted", name}, {"offline", nodes}});
  } else {
    print_text("deleted pool " + printable(name) + "; its memory is that of dax devices again\n");
  }
  return {};
}

void add_system_ram_verbs(Command device, Context& context) {
  struct Arguments {
    std::string serial;
    bool yes = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  Command online = device.add_subcommand(
      "online", "Give a dax device to the kernel as memory of a node without CPUs, to lease from there");
  online.add_option("serial", arguments->serial, "The dax device's serial").required();
  online.add_flag("--yes", arguments->yes, "Do not ask");
  on_verb(online, context,
          [&context, arguments] { return online_device(context, arguments->serial, arguments->yes); });
  Command offline = device.add_subcommand(
      "offline", "Take the memory of a node that is not adopted back: a dax device again");
  offline.add_option("serial", arguments->serial, "The node, as 'numa:node1'").required();
  on_verb(offline, context, [&context, arguments] { return offline_device(context, arguments->serial); });
}

}  // namespace terrace::cli
