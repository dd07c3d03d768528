// SPDX-License-Identifier: Apache-2.0
#include "cli/vm/vm_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr const char* socket_ending = ".sock";
constexpr uint64_t keeper_ns = 30 * ns_per_s;  // for the keeper itself, which may wait for QEMU's monitor
constexpr size_t answer_bytes_max = size_t{1} << 20;

std::string chosen_folder() {
  if (const char* named = std::getenv("TERRACE_VM_DIR"); named != nullptr && *named != '\0') return named;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/')
    return std::string(runtime) + "/terrace-vm";
  return ::geteuid() == 0 ? "/run/terrace-vm" : "/tmp/terrace-vm-" + std::to_string(::geteuid());
}

// A label as a file's name, and back.
std::string file_name_of(const std::string& label) {
  std::string name;
  for (const char letter : label) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') || letter == '-' || letter == '_';
    char coded[4];
    std::snprintf(coded, sizeof(coded), "%%%02X", static_cast<unsigned char>(letter));
    name += plain ? std::string(1, letter) : coded;
  }
  return name;
}

std::string label_of(const std::string& name) {
  std::string label;
  for (size_t at = 0; at < name.size(); ++at) {
    if (name[at] == '%' && at + 2 < name.size()) {
      label += static_cast<char>(std::strtoul(name.substr(at + 1, 2).c_str(), nullptr, 16));
      at += 2;
    } else {
      label += name[at];
    }
  }
  return label;
}

Result<sockaddr_un> address_of(const std::string& path, const char* where) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = path +
                           ": a socket's path has at most 107 bytes; choose a shorter label, or "
                           "TERRACE_VM_DIR"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> connect_to(const std::string& path, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path, where));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return os_error(errno, where, "cannot make a socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return os_error(errno, where, "cannot connect to " + path);
  return socket;
}

// At most a minute at a time.
int poll_ms(uint64_t left_ns) {
  return static_cast<int>(std::min(left_ns / ns_per_ms + 1, uint64_t{60'000}));
}

Error error_in(const nlohmann::json& error, const char* where) {
  Error told{
      .code = ErrorCode::io_error, .where = where, .detail = error.value("detail", std::string("no reason"))};
  told.code = error_code_from_wire(error.value("code", uint16_t{0}));
  return told;
}

}  // namespace

Result<std::string> vm_folder(const char* where) {
  std::string folder = chosen_folder();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return os_error(errno, where, "cannot make " + folder + " (TERRACE_VM_DIR names another folder)");
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return os_error(errno, where, "cannot look at " + folder);
  if (S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0) return folder;
  return Error{.code = ErrorCode::permission_denied,
               .where = where,
               .detail = folder +
                         " must be a folder of this user's alone (mode 0700): who can reach its sockets can "
                         "change machines' memory"};
}

std::string vm_socket_path(const std::string& folder, const std::string& label) {
  return folder + "/" + file_name_of(label) + socket_ending;
}

std::string vm_monitor_path(const std::string& folder, const std::string& label) {
  return folder + "/" + file_name_of(label) + ".qmp";
}

std::vector<std::string> vm_labels(const std::string& folder) {
  std::vector<std::string> labels;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed))
    if (entry.path().extension() == socket_ending) labels.push_back(label_of(entry.path().stem().string()));
  std::sort(labels.begin(), labels.end());
  return labels;
}

Result<UniqueFd> lock_vm(const std::string& folder, const std::string& label, const char* where) {
  const std::string path =
      folder + "/" + file_name_of(label) + ".lock";  // stays: a removed one could be locked twice
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return os_error(errno, where, "cannot open " + path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return os_error(errno, where, "cannot lock " + path);
  return Error{.code = ErrorCode::already_exists,
               .where = where,
               .detail = "another command keeps a machine's memory under the label '" + label +
                         "'; 'terrace vm show' asks it, 'terrace vm detach' ends it"};
}

Result<UniqueFd> listen_at(const std::string& path, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path, where));
  ::unlink(path.c_str());  // of one that was killed
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket.get(), 16) != 0)
    return os_error(errno, where, "cannot listen at " + path);
  return socket;
}

Result<nlohmann::json> ask_keeper(const std::string& label, const nlohmann::json& request, uint64_t timeout_ns,
                                  const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const std::string folder, vm_folder(where));
  const Result<UniqueFd> socket = connect_to(vm_socket_path(folder, label), where);
  if (!socket.ok())
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = "no command keeps a machine's memory under the label '" + label +
                           "' for this user; 'terrace vm list' shows those that do"};
  const std::string line = request.dump() + "\n";
  if (::send(socket->get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    return os_error(errno, where, "cannot ask the machine's keeper");
  const uint64_t until_ns = SystemClock().now_ns() + timeout_ns + keeper_ns;
  std::string answer;
  while (answer.size() < answer_bytes_max && answer.find('\n') == std::string::npos) {
    const uint64_t now_ns = SystemClock().now_ns();
    pollfd readable{.fd = socket->get(), .events = POLLIN, .revents = 0};
    if (now_ns < until_ns && ::poll(&readable, 1, poll_ms(until_ns - now_ns)) == 0) continue;
    if (now_ns >= until_ns)
      return Error{.code = ErrorCode::unavailable,
                   .where = where,
                   .detail = "the command that keeps the memory of '" + label +
                             "' does not answer: it is stopped, or waits for a machine whose monitor hangs"};
    char bytes[4096];
    const ssize_t count = ::recv(socket->get(), bytes, sizeof(bytes), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    answer.append(bytes, static_cast<size_t>(count));
  }
  nlohmann::json document = nlohmann::json::parse(answer, nullptr, false);
  if (!document.is_object())
    return Error{.code = ErrorCode::unavailable,
                 .where = where,
                 .detail = "the command that keeps the memory of '" + label + "' has ended meanwhile"};
  if (document.contains("error")) return error_in(document["error"], where);
  return document;
}

}  // namespace terrace::cli
