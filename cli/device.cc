// `terrace device list|adopt`.
#include <memory>

#include "cli/admin_client.h"
#include "cli/cli.h"
#include "cli/describe.h"

namespace terrace::cli {
namespace {

Status list_devices(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, client->devices());
  if (context.json) {
    print_json({{"devices", to_json_list(devices)}});
  } else if (devices.empty()) {
    print_text(
        "no devices; 'terrace doctor' says what this machine has, and 'terraced --emulate NAME=SIZE' makes "
        "one\n");
  } else {
    print_text(device_table(devices));
  }
  return {};
}

Status adopt_devices(const Context& context, const std::vector<std::string>& serials) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  std::vector<DeviceStatus> adopted;
  for (const std::string& serial : serials) {
    Result<DeviceStatus> device = client->adopt(serial);
    if (!device.ok()) {
      Error error = device.error();
      if (!adopted.empty())
        error.detail += " (" + std::to_string(adopted.size()) + " named before it were adopted)";
      return error;
    }
    adopted.push_back(*device);
  }
  if (context.json) {
    print_json({{"devices", to_json_list(adopted)}});
  } else {
    print_text(device_table(adopted));
  }
  return {};
}

}  // namespace

void add_device_verbs(CLI::App& app, Context& context) {
  CLI::App* device = app.add_subcommand("device", "Devices the daemon sees, and which it may write to");
  device->require_subcommand(1);
  device->add_subcommand("list", "All devices, adopted or only seen")->callback([&context] {
    if (const Status done = list_devices(context); !done.ok()) fail(context, done.error());
  });

  CLI::App* adopt = device->add_subcommand(
      "adopt",
      "Allow Terrace to use devices: only adopted ones are ever written to, and their contents are lost");
  const auto serials = std::make_shared<std::vector<std::string>>();
  adopt->add_option("serial", *serials, "Serials, as 'terrace device list' shows them")->required();
  adopt->callback([&context, serials] {
    if (const Status done = adopt_devices(context, *serials); !done.ok()) fail(context, done.error());
  });
}

}  // namespace terrace::cli
