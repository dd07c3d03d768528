// SPDX-License-Identifier: Apache-2.0
// `terrace device list|show|adopt|drain|undrain|fail|remove`; `online` and `offline` are in system_ram.cc,
// `litmus` in litmus.cc.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/pools/adopt.h"
#include "cli/pools/litmus.h"
#include "cli/pools/system_ram.h"
#include "cli/show/describe.h"
#include "cli/show/describe_inventory.h"
#include "cli/show/list.h"
#include "cli/show/preview.h"
#include "cli/terminal/confirm.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

struct DeviceArguments {
  std::string serial;
  std::vector<std::string> serials;
  bool wait = false;
  bool yes = false;
  bool adopted = false;  // list: filters
  bool hardware = false;
  bool forget_quarantined = false;
  bool dry_run = false;
  uint64_t timeout_ns = 3600 * ns_per_s;
};

std::string say_no_devices(const DeviceArguments& arguments, rpc::Inventory::Reader hardware) {
  if (arguments.adopted) return "no adopted devices; 'terrace device list' shows those that could be\n";
  if (hardware.getMemdevs().size() != 0)
    return "no devices; 'terrace pool create NAME --memdev SERIAL' composes CXL memory devices into one\n";
  return "no devices; 'terrace doctor' says what this machine has, and 'terraced --emulate NAME=SIZE' makes "
         "one\n";
}

// Devices that are or could be in pools, then the hardware below them.
Status list_devices(const Context& context, const DeviceArguments& arguments, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  std::vector<DeviceStatus> devices;
  if (!arguments.hardware) {
    TERRACE_ASSIGN_OR_RETURN(devices, client->devices());
    if (arguments.adopted)
      std::erase_if(devices, [](const DeviceStatus& device) { return !device->getAdopted(); });
  }
  // Who asks for rows, columns or names of devices means those of the first table.
  const bool rows_only = listing.chooses() || !listing.columns.empty() ||
                         context.format == OutputFormat::wide || context.format == OutputFormat::name;
  if (arguments.adopted || (rows_only && !context.json && !arguments.hardware))
    return show_list<DeviceStatus>(context, listing, std::move(devices),
                                   {.key = "devices",
                                    .name = "serial",
                                    .table = device_table,
                                    .none = say_no_devices(arguments, *Hardware())});
  Hardware hardware;
  if (!arguments.adopted) {
    TERRACE_ASSIGN_OR_RETURN(hardware, client->inventory());
  }
  if (context.json) {
    nlohmann::json document;
    if (!arguments.hardware) {
      const auto chosen = chosen_rows(std::move(devices), listing, document["devices"]);
      if (!chosen.ok()) return chosen.error();
    }
    if (!arguments.adopted) document["inventory"] = to_json(hardware);
    print_json(document);
    return {};
  }
  std::string text;
  if (!devices.empty()) text = device_table(devices);
  if (devices.empty() && !arguments.hardware) text = say_no_devices(arguments, *hardware);
  text += inventory_text(*hardware);
  print_text(text.starts_with("\n") ? text.substr(1) : text);
  return {};
}

Status adopt(const Context& context, const DeviceArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const auto adopted,
                           adopt_devices(context, *client, arguments.serials, arguments.yes));
  if (context.json) {
    print_json({{"devices", to_json_list(adopted)}});
  } else {
    print_text(device_table(adopted));
  }
  return {};
}

Result<DeviceStatus> find_device(AdminClient& client, const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, client.devices());
  std::vector<std::string> serials;
  for (const DeviceStatus& device : devices) {
    serials.push_back(str(device->getSerial()));
    if (serials.back() == serial) return device;
  }
  std::string detail = "no device has the serial '" + serial + "'";
  const std::string near = did_you_mean(serial, serials);
  detail += near.empty() ? "; 'terrace device list' shows all" : "; did you mean '" + near + "'?";
  return Error{.code = ErrorCode::not_found, .where = "terrace device", .detail = detail};
}

Result<std::vector<LeaseStatus>> leases_on(AdminClient& client, const DeviceStatus& device) {
  std::vector<LeaseStatus> found;
  if (device->getPool().size() == 0) return found;
  TERRACE_ASSIGN_OR_RETURN(found, client.leases(str(device->getPool()), ""));
  std::erase_if(found, [&device](const LeaseStatus& lease) {
    for (const auto extent : lease->getExtents())
      if (extent.getDevice() == device->getSerial()) return false;
    return true;
  });
  return found;
}

Status show_device(const Context& context, const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const DeviceStatus device, find_device(*client, serial));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<LeaseStatus> leases, leases_on(*client, device));
  DrainProgress progress;
  const bool draining = device->getState() == rpc::DeviceState::DRAINING;
  if (draining) {
    TERRACE_ASSIGN_OR_RETURN(progress, client->progress(serial));
  }
  if (context.json) {
    print_json({{"device", to_json(device)},
                {"leases", to_json_list(leases)},
                {"drain", draining ? to_json(progress) : nlohmann::json(nullptr)}});
    return {};
  }
  std::string text = device_block(device) + "\n";
  text += leases.empty() ? "no leases\n" : lease_table(leases);
  if (draining && progress->getMoves().size() != 0) text += "\nto move:\n" + move_table(progress->getMoves());
  print_text(text);
  return {};
}

bool drained(const DrainProgress& progress) {
  return progress->getMoves().size() == 0 && progress->getLeftBytes() == 0 &&
         progress->getDevice().getLeases() == 0;
}

// What is left, in one line.
std::string describe_drain(const DrainProgress& progress) {
  if (progress->getMoves().size() != 0) return describe_moves(progress->getLeftBytes(), progress->getMoves());
  if (progress->getDevice().getLeases() != 0) {
    return count_text(progress->getDevice().getLeases(), "lease") +
           " there still, being scrubbed or quarantined, " + exact_size(progress->getDevice().getUsedBytes());
  }
  return "empty";
}

std::string drain_text(const std::string& serial, const DrainProgress& progress) {
  std::string text = printable(serial) + " is draining: " + printable(describe_drain(progress)) + "\n";
  if (drained(progress)) {
    return text + "'terrace device remove " + printable(serial) + "' takes it out, 'device undrain' back in\n";
  }
  const Moves moves = progress->getMoves();
  if (moves.size() != 0) text += move_table(moves);
  bool blocked = false;
  for (const auto move : moves) blocked = blocked || move.getBlocked();
  if (blocked) {
    text +=
        "What is blocked goes when its holder releases it, or by 'terrace lease revoke ID'; what is not moves "
        "by "
        "itself.\n";
  }
  return text;
}

Status drain_device(Context& context, const DeviceArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  const std::string& serial = arguments.serial;
  if (arguments.dry_run) {
    TERRACE_ASSIGN_OR_RETURN(const PreviewStatus preview, client->preview_drain(serial));
    show_preview(context, preview);
    return {};
  }
  TERRACE_ASSIGN_OR_RETURN(DrainProgress progress, client->drain(serial));
  StatusLines lines(context);
  bool in_time = true;
  for (Pace pace(arguments.timeout_ns); arguments.wait && !drained(progress);) {
    lines.say(serial + ": " + describe_drain(progress));
    in_time = pace.again();
    if (!in_time) break;
    TERRACE_ASSIGN_OR_RETURN(progress, client->progress(serial));
    if (progress->getDevice().getState() == rpc::DeviceState::IN_SERVICE) {
      return Error{.code = ErrorCode::cancelled,
                   .where = "device drain",
                   .detail = "the drain of " + serial + " was ended by somebody else ('device undrain')"};
    }
  }
  if (!in_time) {
    const Error error{.code = ErrorCode::busy,
                      .where = "device drain",
                      .detail = serial + " is not empty after " + format_duration(arguments.timeout_ns) + ": " +
                                describe_drain(progress) + "; it goes on draining"};
    fail_with(context, error, "progress", to_json(progress), drain_text(serial, progress));
    return {};
  }
  if (context.json) {
    print_json({{"progress", to_json(progress)}});
  } else {
    print_text(drain_text(serial, progress));
  }
  return {};
}

Status undrain_device(const Context& context, const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const DeviceStatus device, client->undrain(serial));
  if (context.json) {
    print_json({{"device", to_json(device)}});
  } else {
    print_text(printable(serial) + " is " + device_state(device) + "\n");
  }
  return {};
}

Status fail_device(const Context& context, const DeviceArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const DeviceStatus known, find_device(*client, arguments.serial));
  TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> leases, leases_on(*client, known));
  std::erase_if(leases, [](const LeaseStatus& lease) {
    return lease->getPhase() != rpc::LeasePhase::ACTIVE && lease->getPhase() != rpc::LeasePhase::REVOKING;
  });
  const std::string consequences =
      leases.empty() ? std::string("No lease is on it.\n")
                     : "These leases end at once, with all that is in them:\n" + lease_table(leases);
  TERRACE_RETURN_IF_ERROR(
      confirm(context, arguments.yes, consequences,
              "Give up device " + arguments.serial + " and end " + count_text(leases.size(), "lease") + "?"));
  TERRACE_ASSIGN_OR_RETURN(const DeviceStatus device, client->fail_device(arguments.serial));
  if (context.json) {
    print_json({{"device", to_json(device)}, {"ended", to_json_list(leases)}});
  } else {
    print_text(printable(arguments.serial) + " is " + device_state(device) + "; " +
               count_text(leases.size(), "lease") + " ended; 'terrace device undrain " +
               printable(arguments.serial) + "' puts it back into service once it works again\n");
  }
  return {};
}

Status remove_device(const Context& context, const DeviceArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (arguments.forget_quarantined) {
    TERRACE_RETURN_IF_ERROR(
        confirm(context, arguments.yes,
                "What is quarantined on it was never erased; whoever gets the device next may read it.\n",
                "Remove device " + arguments.serial + " and forget what is quarantined on it?"));
  }
  TERRACE_RETURN_IF_ERROR(client->remove_device(arguments.serial, arguments.forget_quarantined));
  if (context.json) {
    print_json({{"removed", arguments.serial}});
  } else {
    print_text("removed " + printable(arguments.serial) + "; it is in no pool and no longer adopted\n");
  }
  return {};
}

Command add_device_verb(Command device, const char* name, const char* help, DeviceArguments& arguments) {
  Command verb = device.add_subcommand(name, help);
  verb.add_option("serial", arguments.serial, "Its serial, as 'terrace device list' shows it")
      .required()
      .type_name("SERIAL");
  return verb;
}

}  // namespace

void add_device_verbs(Command app, Context& context) {
  Command device = app.add_subcommand("device", "Devices the daemon sees, and which it may write to");
  device.require_subcommand();
  const auto arguments = std::make_shared<DeviceArguments>();
  Command list =
      device.add_subcommand("list", "All devices, adopted or only seen, and the hardware below them");
  Option adopted = list.add_flag("--adopted", arguments->adopted, "Adopted devices only");
  list.add_flag("--hardware", arguments->hardware, "CXL and DAX hardware only").excludes(adopted);
  const auto listing = std::make_shared<Listing>();
  on_list(list, context, listing,
          [&context, arguments, listing] { return list_devices(context, *arguments, *listing); });
  on_verb(add_device_verb(device, "show", "Everything about one device, with the leases on it", *arguments),
          context, [&context, arguments] { return show_device(context, arguments->serial); });

  Command adopting = device.add_subcommand(
      "adopt",
      "Allow Terrace to use devices: only adopted ones are ever written to, and their contents are lost");
  adopting.add_option("serial", arguments->serials, "Serials, as 'terrace device list' shows them")
      .required()
      .type_name("SERIAL");
  adopting.add_flag("--yes", arguments->yes, "Do not ask, whatever is on them");
  on_verb(adopting, context, [&context, arguments] { return adopt(context, *arguments); });

  Command drain = add_device_verb(device, "drain",
                                  "Place nothing more on a device and move what is there; again: how it stands",
                                  *arguments);
  drain.add_flag("--dry-run", arguments->dry_run, dry_run_help);
  drain.add_flag("--wait", arguments->wait, "Until it is empty, with lines that say how it stands");
  add_duration_option(drain, "--timeout", arguments->timeout_ns,
                      "With --wait: how long (default 1h); the drain goes on after it");
  on_verb(drain, context, [&context, arguments] { return drain_device(context, *arguments); });

  on_verb(
      add_device_verb(device, "undrain", "End a drain, or put a failed device back into service", *arguments),
      context, [&context, arguments] { return undrain_device(context, arguments->serial); });

  Command give_up = add_device_verb(
      device, "fail", "Give a device up: its leases end at once, nothing is placed there", *arguments);
  give_up.add_flag("--yes", arguments->yes, "Do not ask");
  on_verb(give_up, context, [&context, arguments] { return fail_device(context, *arguments); });

  Command remove = add_device_verb(device, "remove",
                                   "Take a device without leases out of its pool and forget it", *arguments);
  remove.add_flag("--forget-quarantined", arguments->forget_quarantined,
                  "Also an absent or failed one with quarantined memory, which is given up with it");
  remove.add_flag("--yes", arguments->yes, "Do not ask");
  on_verb(remove, context, [&context, arguments] { return remove_device(context, *arguments); });

  add_litmus_verb(device, context);
  add_system_ram_verbs(device, context);
}

}  // namespace terrace::cli
