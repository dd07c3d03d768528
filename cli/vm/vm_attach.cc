// SPDX-License-Identifier: Apache-2.0
// `terrace vm attach`: gives a machine that runs already leased memory, and keeps it.
#include <cerrno>
#include <memory>

#include "cli/hold/held_lease.h"
#include "cli/hold/leased_path.h"
#include "cli/terminal/verb.h"
#include "cli/vm/vm_verbs.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr const char* attach_verb = "terrace vm attach";
constexpr uint64_t monitor_ns = 5 * ns_per_s;

struct AttachArguments {
  VmArguments vm;
  std::string monitor, domain, connection, user;
};

Status attach(Context& context, AttachArguments& arguments) {
  TERRACE_RETURN_IF_ERROR(check_vm_arguments(arguments.vm));
  if (arguments.monitor.empty() == arguments.domain.empty())
    return Error{ErrorCode::invalid_argument, 0, attach_verb,
                 "which machine? Either --qmp, the socket of its monitor, or --libvirt, its name there"};
  if (!arguments.user.empty()) {
    TERRACE_ASSIGN_OR_RETURN(arguments.vm.keeper.guest.user, user_id_of(arguments.user, attach_verb));
  }
  const UniqueFd signals = ending_signals();
  if (!signals.valid()) return os_error(errno, attach_verb, "cannot wait for signals");
  // The label first: QEMU's monitor serves one at a time.
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<VmKeeper> keeper,
                           VmKeeper::make(context, arguments.vm.keeper));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Monitor> monitor,
                           arguments.domain.empty()
                               ? connect_monitor(arguments.monitor, monitor_ns, attach_verb)
                               : libvirt_monitor(arguments.connection, arguments.domain, attach_verb));
  TERRACE_RETURN_IF_ERROR(keeper->start(std::move(monitor)));
  return keeper->run(signals.get());
}

}  // namespace

void add_vm_attach_verb(Command vm, Context& context) {
  const auto arguments = std::make_shared<AttachArguments>();
  arguments->vm.keeper.where = attach_verb;
  Command verb =
      vm.add_subcommand("attach", "Give a machine that runs leased memory, and keep it as long as it runs");
  verb.footer(
      "Ends when the machine does. SIGTERM, SIGINT and SIGHUP, as 'terrace vm detach', have the guest give the "
      "memory up\n"
      "first; where it does not within --detach, the command stays, since the machine would die with the "
      "leases. Of a\n"
      "command that was killed, another one without --size takes over.");
  add_vm_memory_options(verb, arguments->vm);
  verb.add_option("--qmp", arguments->monitor,
                  "The machine's monitor: QEMU's -qmp unix:SOCKET,server=on,wait=off")
      .type_name("SOCKET");
  verb.add_option("--libvirt", arguments->domain, "The machine is a domain of libvirt, reached by virsh")
      .type_name("DOMAIN");
  verb.add_option("--libvirt-uri", arguments->connection, "Of which libvirt (default: virsh's own)")
      .type_name("URI");
  verb.add_option("--user", arguments->user,
                  "Who QEMU runs as, as libvirt-qemu, where that is another user than this one")
      .type_name("NAME|UID");
  on_verb(verb, context, [&context, arguments] { return attach(context, *arguments); });
}

}  // namespace terrace::cli
