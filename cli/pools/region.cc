// SPDX-License-Identifier: Apache-2.0
// `terrace region create|destroy|list`: CXL memory devices composed into regions, which are devices of pools.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/pools/pool_verbs.h"
#include "cli/show/describe.h"
#include "cli/show/list.h"
#include "cli/terminal/confirm.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

struct RegionArguments {
  RegionOptions region;
  std::string serial;
  bool yes = false;
};

Result<DeviceStatus> find_region(AdminClient& client, const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, client.devices());
  std::vector<std::string> serials;
  for (const DeviceStatus& device : devices) {
    serials.push_back(str(device->getSerial()));
    if (serials.back() == serial) return device;
  }
  const std::string near = did_you_mean(serial, serials);
  return Error{.code = ErrorCode::not_found,
               .where = "terrace region",
               .detail = "there is no region " + serial +
                         (near.empty() ? "; 'terrace region list' shows those there are"
                                       : "; did you mean '" + near + "'?")};
}

// Composed of memdevs: soft-reserved memory is a dax device, too, and no region of anybody's making.
bool is_region(const DeviceStatus& device) {
  const std::string serial = str(device->getSerial());
  return serial.starts_with("pmem:") || serial.starts_with("dax:0x");
}

Status create_region(const Context& context, const RegionArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::string serial, client->create_region(arguments.region));
  TERRACE_ASSIGN_OR_RETURN(const DeviceStatus device, find_region(*client, serial));
  if (context.json) {
    print_json({{"region", to_json(device)}});
  } else {
    print_text("made region " + printable(serial) + ": " + printable(str(device->getDetail())) +
               "\nwhat was written to it was read back; 'terrace pool create NAME --device " +
               printable(serial) + " --adopt' makes a pool of it\n");
  }
  return {};
}

Status destroy_region(const Context& context, const RegionArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const DeviceStatus device, find_region(*client, arguments.serial));
  TERRACE_RETURN_IF_ERROR(confirm(
      context, arguments.yes,
      printable(str(device->getSerial())) + " is " + device_state(device) + ": " +
          printable(str(device->getDetail())) +
          "\nIts memdevs are free for other regions afterwards. What is on them stays, and is seen again when "
          "the same are made a region in the same order.\n",
      "Take region " + arguments.serial + " apart?"));
  TERRACE_RETURN_IF_ERROR(client->destroy_region(arguments.serial));
  if (context.json) {
    print_json({{"destroyed", arguments.serial}});
  } else {
    print_text("took region " + printable(arguments.serial) + " apart\n");
  }
  return {};
}

std::string region_table(const std::vector<DeviceStatus>& regions) {
  std::string text = device_table(regions);
  for (const DeviceStatus& region : regions)
    text += printable(str(region->getSerial())) + ": " + printable(str(region->getDetail())) + "\n";
  return text;
}

Status list_regions(const Context& context, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<DeviceStatus> devices, client->devices());
  std::erase_if(devices, [](const DeviceStatus& device) { return !is_region(device); });
  return show_list<DeviceStatus>(context, listing, std::move(devices),
                                 {.key = "regions",
                                  .name = "serial",
                                  .table = region_table,
                                  .none = "no regions; 'terrace region create MEMDEV...' makes one, 'terrace "
                                          "device list' shows the memdevs\n"});
}

}  // namespace

void add_region_options(Command verb, RegionOptions& region) {
  add_size_option(
      verb, "--granularity", region.granularity_bytes,
      "Bytes on one memdev before the next, 256 to 16K (default: the most that all decoders can do)");
}

void add_region_verbs(Command app, Context& context) {
  Command region =
      app.add_subcommand("region", "CXL memory devices composed into regions, which pools are made of");
  region.require_subcommand();
  const auto arguments = std::make_shared<RegionArguments>();

  Command create = region.add_subcommand(
      "create",
      "Make memdevs one region, try it by writing and reading back, and make it again after each reboot");
  create
      .add_option("memdev", arguments->region.memdevs, "Serials of memdevs, in the order of their interleaving")
      .required();
  add_region_options(create, arguments->region);
  add_size_option(create, "--size", arguments->region.bytes,
                  "Of all of it, a multiple of 256M for each memdev (default: all that is free on them)");
  on_verb(create, context, [&context, arguments] { return create_region(context, *arguments); });

  Command destroy = region.add_subcommand("destroy", "Take a region that is not adopted apart, and forget it");
  destroy.add_option("serial", arguments->serial, "Its serial, as 'terrace region list' shows it").required();
  destroy.add_flag("--yes", arguments->yes, "Do not ask");
  on_verb(destroy, context, [&context, arguments] { return destroy_region(context, *arguments); });

  const auto listing = std::make_shared<Listing>();
  on_list(region.add_subcommand("list", "All regions, and those on record that cannot be made now"), context,
          listing, [&context, listing] { return list_regions(context, *listing); });
}

}  // namespace terrace::cli
