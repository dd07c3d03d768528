// SPDX-License-Identifier: Apache-2.0
// `terrace vm`: machines of QEMU and libvirt whose memory is leased. The commands that only ask the one that keeps it.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/terminal/verb.h"
#include "cli/vm/vm_socket.h"
#include "cli/vm/vm_verbs.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr std::pair<const char*, LeaseMode> vm_modes[] = {{"exclusive", LeaseMode::exclusive},
                                                          {"shared_coherent", LeaseMode::shared_coherent}};
constexpr std::pair<const char*, GuestModel> vm_models[] = {
    {"auto", GuestModel::by_kind}, {"virtio-mem", GuestModel::virtio_mem}, {"dimm", GuestModel::dimm}};

struct ChangeArguments {
  std::string label;
  uint64_t bytes = 0;
  uint64_t timeout_ns = 60 * ns_per_s;
  bool force = false;
};

Status check_blocks(uint64_t bytes, const char* option, const char* where) {
  if (bytes % GuestMemory::block_bytes == 0) return {};
  return Error{ErrorCode::invalid_argument, 0, where,
               std::string(option) + " " + format_size(bytes) + ": a guest takes memory in blocks of " +
                   format_size(GuestMemory::block_bytes)};
}

void show_machine(const nlohmann::json& machine) {
  std::vector<std::vector<std::string>> rows;
  for (const nlohmann::json& part : machine.value("parts", nlohmann::json::array()))
    rows.push_back({machine.value("label", ""), std::to_string(part.value("lease", uint64_t{0})),
                    part.value("label", ""), format_size(part.value("bytes", uint64_t{0})),
                    format_size(part.value("plugged_bytes", uint64_t{0})),
                    format_size(part.value("requested_bytes", uint64_t{0})), part.value("model", ""),
                    part.value("lost", false)      ? "lost"
                    : part.value("leaving", false) ? "leaves"
                                                   : "-"});
  if (rows.empty())
    print_text(printable(machine.value("label", "")) + " has no leased memory\n");
  else
    print_table({"machine", "lease", "label", "leased", "guest has", "shall have", "model", ""}, rows);
}

Status list_machines(Context& context) {
  constexpr const char* list_verb = "terrace vm list";
  TERRACE_ASSIGN_OR_RETURN(const std::string folder, vm_folder(list_verb));
  nlohmann::json machines = nlohmann::json::array();
  for (const std::string& label : vm_labels(folder)) {
    Result<nlohmann::json> machine = ask_keeper(label, {{"act", "show"}}, 0, list_verb);
    if (machine.ok()) machines.push_back(*machine);
  }
  if (context.json) {
    print_json({{"machines", machines}});
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const nlohmann::json& machine : machines) {
    uint64_t leased = 0;
    for (const nlohmann::json& part : machine.value("parts", nlohmann::json::array()))
      leased += part.value("bytes", uint64_t{0});
    rows.push_back({machine.value("label", ""), format_size(leased),
                    format_size(machine.value("plugged_bytes", uint64_t{0})),
                    format_size(machine.value("wanted_bytes", uint64_t{0})),
                    machine.value("settled", false) ? "settled" : "changing"});
  }
  if (rows.empty())
    print_text("no machines with leased memory\n");
  else
    print_table({"machine", "leased", "guest has", "shall have", "state"}, rows);
  return {};
}

Status change(Context& context, const nlohmann::json& request, const std::string& label, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json machine,
                           ask_keeper(label, request, request.value("timeout_ns", uint64_t{0}), where));
  if (context.json)
    print_json({{"machine", machine}});
  else
    show_machine(machine);
  return {};
}

void add_label(Command verb, std::string& label) {
  verb.add_option("label", label, "The machine's label").required().type_name("LABEL");
}

void add_timeout(Command verb, uint64_t& timeout_ns) {
  add_duration_option(verb, "--timeout", timeout_ns, "For the guest to follow (default 60s)");
}

void add_force(Command verb, bool& force) {
  verb.add_flag("--force", force,
                "Then take what the guest has not given up: the machine gets SIGBUS where it still uses that");
}

}  // namespace

void add_vm_memory_options(Command verb, VmArguments& arguments) {
  KeeperOptions& keeper = arguments.keeper;
  add_label(verb, keeper.guest.label);
  add_size_option(verb, "--size", keeper.bytes, "Leased memory of the guest, in blocks of 128M");
  add_size_option(
      verb, "--max", keeper.guest.room_bytes,
      "Up to which its first lease can grow, free now; beyond, further leases are taken (default: --size)");
  verb.add_option("--pool", keeper.guest.pool, "Where from; may be left out where there is only one pool")
      .type_name("POOL");
  verb.add_option("--mode", arguments.mode, "Who may have the leases besides this command (default exclusive)")
      .one_of({vm_modes[0].first, vm_modes[1].first});
  verb.add_option(
          "--model", arguments.model,
          "What the guest sees: virtio-mem grows and shrinks, a dimm comes and goes whole (default: dimm for "
          "dax devices)")
      .one_of({vm_models[0].first, vm_models[1].first, vm_models[2].first});
  keeper.guest.node = 1;
  verb.add_option("--node", keeper.guest.node, "The guest's memory node (default 1)")
      .in_range(uint32_t{0}, uint32_t{127})
      .type_name("N");
  add_duration_option(verb, "--detach", keeper.detach_ns,
                      "How long the guest has to let go at the end (default 60s)");
}

Status check_vm_arguments(VmArguments& arguments) {
  KeeperOptions& keeper = arguments.keeper;
  TERRACE_RETURN_IF_ERROR(check_label(keeper.guest.label));
  TERRACE_RETURN_IF_ERROR(check_blocks(keeper.bytes, "--size", keeper.where));
  TERRACE_RETURN_IF_ERROR(check_blocks(keeper.guest.room_bytes, "--max", keeper.where));
  if (keeper.guest.room_bytes != 0 && keeper.guest.room_bytes < keeper.bytes)
    return Error{ErrorCode::invalid_argument, 0, keeper.where, "--max is less than --size"};
  for (const auto& [word, mode] : vm_modes)
    if (arguments.mode == word) keeper.guest.mode = mode;
  for (const auto& [word, model] : vm_models)
    if (arguments.model == word) keeper.guest.model = model;
  return {};
}

void add_vm_verbs(Command app, Context& context) {
  Command vm = app.add_subcommand("vm", "Virtual machines whose memory is leased");
  vm.require_subcommand();
  add_vm_run_verb(vm, context);
  add_vm_attach_verb(vm, context);
  const auto arguments = std::make_shared<ChangeArguments>();

  Command resize = vm.add_subcommand("resize", "Change how much leased memory a running machine has");
  add_label(resize, arguments->label);
  add_size_option(resize, "size", arguments->bytes, "The new size, in blocks of 128M").required();
  add_timeout(resize, arguments->timeout_ns);
  add_force(resize, arguments->force);
  on_verb(resize, context, [&context, arguments]() -> Status {
    constexpr const char* where = "terrace vm resize";
    TERRACE_RETURN_IF_ERROR(check_blocks(arguments->bytes, "size", where));
    if (arguments->bytes == 0)
      return Error{ErrorCode::invalid_argument, 0, where, "size 0: 'terrace vm detach' takes all of it away"};
    return change(context,
                  {{"act", "resize"},
                   {"bytes", arguments->bytes},
                   {"timeout_ns", arguments->timeout_ns},
                   {"force", arguments->force}},
                  arguments->label, where);
  });

  Command move = vm.add_subcommand("move", "Put other leases in the place of a machine's, while it runs on");
  add_label(move, arguments->label);
  add_timeout(move, arguments->timeout_ns);
  on_verb(move, context, [&context, arguments] {
    return change(context, {{"act", "move"}, {"timeout_ns", arguments->timeout_ns}}, arguments->label,
                  "terrace vm move");
  });

  Command detach =
      vm.add_subcommand("detach", "Take a running machine's leased memory away, once the guest gives it up");
  add_label(detach, arguments->label);
  add_timeout(detach, arguments->timeout_ns);
  add_force(detach, arguments->force);
  on_verb(detach, context, [&context, arguments] {
    return change(context,
                  {{"act", "detach"}, {"timeout_ns", arguments->timeout_ns}, {"force", arguments->force}},
                  arguments->label, "terrace vm detach");
  });

  Command show = vm.add_subcommand("show", "The leases of a machine, and what the guest has of each");
  add_label(show, arguments->label);
  on_verb(show, context, [&context, arguments] {
    return change(context, {{"act", "show"}}, arguments->label, "terrace vm show");
  });

  Command list = vm.add_subcommand("list", "This user's machines with leased memory");
  on_verb(list, context, [&context] { return list_machines(context); });
}

}  // namespace terrace::cli
