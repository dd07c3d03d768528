// SPDX-License-Identifier: Apache-2.0
// `terrace lease cdi`: writes the file by which container engines put a lease into a container, and removes it.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/socket_role.h"
#include "cli/containers/cdi_document.h"
#include "cli/hold/held_lease.h"
#include "cli/hold/hold_verbs.h"
#include "cli/hold/leased_path.h"
#include "cli/terminal/output_file.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

constexpr const char* cdi_verb = "terrace lease cdi";

struct CdiArguments {
  PathArguments path;
  std::string directory = "/var/run/cdi";  // where the engines look first
  std::string name;
  std::string container_path;
  std::string socket;  // of a tenant, on this machine
  bool remove = false;
};

Error wrong_cdi(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = cdi_verb, .detail = std::move(detail)};
}

// A container gets a socket that gives a tenant's rights whoever connects: root in there is root for SO_PEERCRED.
Status check_socket(const Context& context, const std::string& socket, const std::string& tenant) {
  Context there = context;
  there.socket_path = socket;
  there.remote = {};
  TERRACE_ASSIGN_OR_RETURN(const SocketRole found, socket_role(there));
  if (found.role != "tenant")
    return wrong_cdi(
        ErrorCode::permission_denied,
        "--tenant-socket " + socket + " has the role " + (found.role.empty() ? "by-uid" : found.role) +
            ": root in a container would be an administrator there. Name a [[sockets]] path with a tenant "
            "(docs/operations/configuration.md)");
  if (found.tenant == tenant) return {};
  return wrong_cdi(ErrorCode::permission_denied, "--tenant-socket " + socket + " is the socket of tenant " +
                                                     (found.tenant.empty() ? "nobody" : found.tenant) +
                                                     ", and the lease is " + tenant +
                                                     "'s: a container there could not attach it");
}

// A restarted daemon makes a new socket, which a mount of the old one does not show; a mount of its folder does.
Status place_socket(const std::string& socket, CdiLease& lease) {
  std::error_code failed;
  const std::filesystem::path path = std::filesystem::canonical(socket, failed);
  if (failed) return os_error(failed.value(), cdi_verb, "cannot find --tenant-socket " + socket);
  lease.socket = "/run/terrace/" + path.filename().string();
  size_t beside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), failed))
    beside += entry.path() != path;
  const bool alone = !failed && beside == 0;
  lease.host_socket = alone ? path.parent_path().string() : path.string();
  lease.socket_mount = alone ? "/run/terrace" : lease.socket;
  if (!alone)
    say_of_lease(
        path.string() +
        " shares its folder with other files, so the socket itself is mounted: a container that was started "
        "before a restart of the daemon does not reach it afterwards. Give it a folder of its own");
  return {};
}

Status describe(const Context& context, const CdiArguments& arguments, const LeasedPath& leased,
                CdiLease& lease) {
  lease.id = leased.lease.id.value;
  lease.label = leased.lease.label;
  lease.bytes = leased.lease.bytes;
  lease.read_only = leased.read_only;
  lease.name = arguments.name.empty() ? cdi_name_of(lease.id, lease.label) : arguments.name;
  if (leased.is_device && arguments.socket.empty())
    return wrong_cdi(ErrorCode::unsupported, shown_lease(leased.lease.id, lease.label) + " is the device " +
                                                 leased.path +
                                                 ": a container keeps its right to a device's number, which "
                                                 "the next tenant's device may get. Name a tenant's "
                                                 "socket with --tenant-socket, and run 'terrace lease exec' in "
                                                 "the container: it passes a descriptor");
  if (!leased.is_device) {
    lease.host_path = leased.path;
    lease.path =
        arguments.container_path.empty() ? "/run/terrace-lease/" + lease.name : arguments.container_path;
  }
  if (arguments.socket.empty()) return {};
  TERRACE_RETURN_IF_ERROR(check_socket(context, arguments.socket, leased.lease.tenant));
  return place_socket(arguments.socket, lease);
}

Status write_cdi(Context& context, const CdiArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const LeasedPath leased, open_leased_path(context, arguments.path, cdi_verb));
  CdiLease lease;
  TERRACE_RETURN_IF_ERROR(describe(context, arguments, leased, lease));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t namesake, find_cdi_file(arguments.directory, lease.name));
  if (namesake != 0 && namesake != lease.id)
    return wrong_cdi(ErrorCode::already_exists, cdi_file(arguments.directory, namesake) + " has a device " +
                                                    lease.name + " already, of lease " +
                                                    std::to_string(namesake) +
                                                    ": remove it with --remove, or choose another --name");
  std::error_code failed;
  std::filesystem::create_directories(arguments.directory, failed);
  if (failed) return os_error(failed.value(), cdi_verb, "cannot make " + arguments.directory);
  const std::string file = cdi_file(arguments.directory, lease.id);
  TERRACE_RETURN_IF_ERROR(write_atomically(file, cdi_document(lease).dump(2) + "\n"));
  // Engines run as other users, too; what is in it is no secret.
  if (::chmod(file.c_str(), 0644) != 0) return os_error(errno, cdi_verb, "cannot open " + file + " to all");
  const std::string device = std::string(cdi_kind) + "=" + lease.name;
  if (const std::string advice = path_advice(leased); !advice.empty()) say_of_lease(advice);
  if (context.json)
    print_json({{"id", lease.id},
                {"label", lease.label},
                {"device", device},
                {"file", file},
                {"path", lease.path},
                {"socket", lease.socket}});
  else
    print_text(device + "\n");
  return {};
}

// Also of a lease that has ended: the manager is not asked.
Status remove_cdi(Context& context, const CdiArguments& arguments) {
  const std::string& name = arguments.path.lease;
  uint64_t id = 0;
  if (only_digits(name))
    std::from_chars(name.data(), name.data() + name.size(), id);
  else {
    TERRACE_ASSIGN_OR_RETURN(
        id, find_cdi_file(arguments.directory, arguments.name.empty() ? name : arguments.name));
  }
  const std::string file = cdi_file(arguments.directory, id);
  if (id == 0 || ::unlink(file.c_str()) != 0) {
    if (id != 0 && errno != ENOENT) return os_error(errno, cdi_verb, "cannot remove " + file);
    return wrong_cdi(ErrorCode::not_found, "there is no file of lease " + name + " in " + arguments.directory +
                                               "; nothing was removed");
  }
  if (context.json)
    print_json({{"id", id}, {"removed", file}});
  else
    print_text("removed " + file + "\n");
  return {};
}

Status run_cdi(Context& context, const CdiArguments& arguments) {
  if (arguments.directory.empty() || arguments.directory.front() != '/')
    return wrong_cdi(ErrorCode::invalid_argument,
                     "--directory " + arguments.directory + ": say an absolute path");
  return arguments.remove ? remove_cdi(context, arguments) : write_cdi(context, arguments);
}

std::string problem_of_name(const std::string& name) {
  if (valid_cdi_name(name)) return {};
  return "'" + name + "' cannot name a device: letters, digits and between them also _-.:";
}

std::string problem_of_path(const std::string& path) {
  if (path.size() > 1 && path.front() == '/') return {};
  return "'" + path + "' is no absolute path";
}

}  // namespace

void add_lease_cdi_verb(Command lease, Context& context) {
  const auto arguments = std::make_shared<CdiArguments>();
  Command verb = lease.add_subcommand(
      "cdi", "Offer a lease to container engines: podman run --device terrace.dev/lease=LABEL");
  verb.footer(
      "The container finds the memory as the file of TERRACE_LEASE_PATH, and a tenant's socket as "
      "TERRACE_SOCKET.\n"
      "The file of the description goes with --remove; a description of a lease that has ended starts no "
      "container.");
  add_path_options(verb, arguments->path);
  verb.add_option("--directory", arguments->directory,
                  "Where the engines look for descriptions (default: /var/run/cdi)")
      .type_name("DIR");
  verb.add_option("--name", arguments->name, "The device's name (default: the label, or lease-ID)")
      .type_name("NAME")
      .check(problem_of_name);
  verb.add_option("--container-path", arguments->container_path,
                  "Where the memory is in the container (default: /run/terrace-lease/NAME)")
      .type_name("PATH")
      .check(problem_of_path);
  verb.add_option("--tenant-socket", arguments->socket,
                  "A socket of the lease's tenant, for programs that attach it or run under 'terrace run'")
      .type_name("PATH");
  verb.add_flag("--remove", arguments->remove, "Remove the description instead; the lease stays");
  on_verb(verb, context, [&context, arguments] { return run_cdi(context, *arguments); });
}

}  // namespace terrace::cli
