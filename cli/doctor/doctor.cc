// `terrace doctor`: all checks, and the daemon's own view when one answers.
#include "cli/doctor/doctor.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/doctor/doctor_fix.h"
#include "cli/show/describe.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {
namespace {

nlohmann::json checks_json(const std::vector<Check>& checks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"state", state_name(check.state)},
                    {"found", check.found},
                    {"meaning", check.meaning},
                    {"fix", check.fix},
                    {"essential", check.essential}});
  }
  return list;
}

// Connects once and hangs up: 0, or why not.
int try_connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

// Until when a manager and its agents know each other.
Check check_certificates(rpc::ServerInfo::Reader server, const std::vector<HostRecord>& hosts) {
  Check check{.name = "certificates"};
  bool soon = false;
  const auto add = [&](const std::string& what, int32_t days, bool ends_soon) {
    check.found += (check.found.empty() ? "" : ", ") + what + " for " +
                   count_text(static_cast<uint64_t>(std::max(days, 0)), "day");
    soon = soon || ends_soon;
  };
  for (const auto end : server.getCertificates())
    add(str(end.getWhat()) + " " + str(end.getName()), end.getDaysLeft(), end.getSoon());
  for (const HostRecord& host : hosts)
    if (host->getCertificateEndsSoon())
      add("host " + str(host->getName()), host->getCertificateDaysLeft(), true);
  if (!soon) return check;
  check.state = CheckState::limited;
  check.meaning = "after its end agents and manager refuse each other, and the hosts lose their leases";
  check.fix = "terrace cert issue, or terrace cert revoke --none for the list (docs/operations/agents.md)";
  return check;
}

void run_doctor(Context& context) {
  const std::string path = socket_path_of(context);
  std::vector<Check> checks = run_checks(path);
  const bool possible = basic_service_possible(checks);

  Result<StatusReply> daemon = Error{.code = ErrorCode::unavailable, .detail = "not asked"};
  if (try_connect(path) == 0) {
    // The doctor must end even when the daemon hangs.
    Context quick = context;
    quick.call_timeout_ns = std::min<uint64_t>(context.call_timeout_ns, 5 * ns_per_s);
    Result<std::unique_ptr<AdminClient>> client = AdminClient::connect(quick);
    if (client.ok())
      daemon = (*client)->status();
    else
      daemon = client.error();
    if (daemon.ok() && (*daemon)->getServer().getCertificates().size() != 0) {
      const auto hosts = (*client)->hosts();
      checks.push_back(
          check_certificates((*daemon)->getServer(), hosts.ok() ? *hosts : std::vector<HostRecord>()));
    }
  }

  context.exit_code = possible ? exit_ok : exit_failed;
  if (context.json) {
    nlohmann::json view = nullptr;
    if (daemon.ok()) view = to_json((*daemon)->getServer());
    print_json(
        {{"basic_service", possible}, {"checks", checks_json(checks)}, {"socket", path}, {"daemon", view}});
    return;
  }
  std::string text = format_checks(checks) + "\n";
  if (daemon.ok()) text += server_block((*daemon)->getServer(), path) + "\n";
  text += possible ? "This machine can run Terrace with an emulated pool.\n"
                   : "This machine cannot run even an emulated pool: fix what is essential above.\n";
  print_text(text);
}

}  // namespace

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string selected_word(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return line;
  return line.substr(begin + 1, end - begin - 1);
}

const char* state_name(CheckState state) {
  switch (state) {
    case CheckState::ok: return "ok";
    case CheckState::limited: return "limited";
    case CheckState::missing: return "missing";
  }
  return "missing";
}

// What this user may do there: by the socket's role, and where that is by-uid by its uid. Empty: it did not say.
std::string describe_rights(const std::string& path) {
  Context quick;
  quick.socket_path = path;
  quick.call_timeout_ns = 5 * ns_per_s;  // the doctor must end even when the daemon hangs
  const Result<SocketRights> rights = ask_rights(quick);
  if (!rights.ok() || rights->role.empty()) return "";
  const char* whole = rights->role == "operator" ? "an operator" : "an administrator";
  return (rights->role == "by-uid" ? ": by its uid "
                                   : ": by the socket's role (" + printable(rights->role) + ") ") +
         (rights->admin ? whole : "no administrator") +
         (rights->tenant.empty() ? ", without a tenant" : ", tenant " + printable(rights->tenant));
}

Check check_socket(const std::string& path) {
  Check check{.name = "socket"};
  const int failed = try_connect(path);
  struct stat status {};
  const bool there = stat(path.c_str(), &status) == 0;
  check.found = path;
  if (there) {
    char mode[16];
    std::snprintf(mode, sizeof(mode), "%04o", status.st_mode & 07777u);
    check.found += ", mode " + std::string(mode) + ", owner uid " + std::to_string(status.st_uid);
  }
  if (failed == 0 || failed == EAGAIN) {  // EAGAIN: somebody listens, and is busy
    check.found += ", a daemon listens";
    check.meaning = "this user can reach the daemon" + describe_rights(path);
  } else if (failed == EACCES || failed == EPERM) {
    check.state = CheckState::missing;
    check.found += ", refused for this user";
    check.meaning = "this user cannot reach the daemon";
    check.fix =
        "ask the operator for access to the socket and its directory, or name another one with --socket";
  } else {
    check.state = CheckState::limited;
    check.found += failed == ECONNREFUSED ? ", left over: nobody listens" : ", nobody listens";
    check.meaning = "no daemon runs there now";
    check.fix = "terrace daemon start";
  }
  return check;
}

std::vector<Check> run_checks(const std::string& socket_path) {
  const inventory::Inventory inventory = inventory::take_inventory();
  std::vector<Check> checks = {
      check_kernel(),           check_memory(),       check_dev_shm(),      check_shmem_huge_pages(),
      check_tmpfs_huge_pages(), check_hugetlb(),      check_userfaultfd(),  check_userfaultfd_shmem(),
      check_pagemap_scan(),     check_io_uring(),     check_time_slice(),   check_map_count(),
      check_overcommit(),       check_open_files(),   check_cxl(inventory), check_cxl_modules(inventory),
      check_dax(inventory),     check_numa(inventory)};
  for (Check& check : check_hardware(inventory)) checks.push_back(std::move(check));
  checks.push_back(check_userfaultfd_device(socket_path));
  checks.push_back(check_migration(checks));
  checks.push_back(check_processor());
  checks.push_back(check_cuda());
  checks.push_back(check_socket(socket_path));
  return checks;
}

bool basic_service_possible(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    if (check.essential && check.state == CheckState::missing) return false;
  }
  return true;
}

std::string format_checks(const std::vector<Check>& checks) {
  size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  const std::string indent(9 + width + 2, ' ');
  std::string text;
  for (const Check& check : checks) {
    std::string state = state_name(check.state);
    state.resize(9, ' ');
    std::string name = check.name;
    name.resize(width + 2, ' ');
    text += state + name + printable(check.found) + "\n";
    if (!check.meaning.empty()) text += indent + printable(check.meaning) + "\n";
    if (!check.fix.empty()) text += indent + "fix: " + printable(check.fix) + "\n";
  }
  return text;
}

void add_doctor_verb(Command app, Context& context) {
  Command doctor = app.add_subcommand(
      "doctor", "What this machine can and cannot do for Terrace, and how to fix it; needs no daemon");
  struct Arguments {
    bool fix = false, yes = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  Option fix =
      doctor.add_flag("--fix", arguments->fix,
                      "Fix what can be fixed safely: dax devices that came up as system-ram; asks first");
  doctor.add_flag("--yes", arguments->yes, "With --fix: do not ask").needs(fix);
  on_verb(doctor, context, [&context, arguments]() -> Status {
    TERRACE_RETURN_IF_ERROR(on_this_machine(context, "terrace doctor"));
    if (arguments->fix) return run_fix(context, arguments->yes);
    run_doctor(context);
    return {};
  });
}

}  // namespace terrace::cli
