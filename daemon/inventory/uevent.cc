// SPDX-License-Identifier: Apache-2.0
#include "daemon/inventory/uevent.h"

#include <linux/netlink.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace terrace::inventory {
namespace {

constexpr size_t message_bytes_max = 8192;  // the kernel's are 2 KiB and a path at most
constexpr uint32_t kernel_group = 1;        // udev's own messages are group 2

}  // namespace

std::optional<Uevent> parse_uevent(std::string_view message) {
  const std::string_view header = message.substr(0, message.find('\0'));
  if (header.find("@/") == std::string_view::npos) return std::nullopt;
  Uevent event;
  event.path = header.substr(header.find('@') + 1);
  event.device = event.path.substr(event.path.find_last_of('/') + 1);
  for (size_t at = header.size() + 1; at < message.size();) {
    const std::string_view field = message.substr(at, message.find('\0', at) - at);
    if (field.starts_with("ACTION=")) event.action = field.substr(7);
    if (field.starts_with("SUBSYSTEM=")) event.subsystem = field.substr(10);
    at += field.size() + 1;
  }
  if (event.action.empty() || event.subsystem.empty()) return std::nullopt;
  return event;
}

bool concerns_devices(const Uevent& event) {
  if (event.subsystem == "dax")
    return event.device.ends_with(".0") && event.path.find("/ndbus") == std::string::npos;
  if (event.subsystem == "nd") return event.device.starts_with("region") || event.device.starts_with("nmem");
  return event.subsystem == "cxl" || event.subsystem == "memory" || event.subsystem == "node";
}

bool worth_telling(const Uevent& event) {
  if (event.action != "add" && event.action != "remove") return false;
  if (event.subsystem == "node") return true;
  const bool named = event.device.starts_with("mem") || event.device.starts_with("region");
  return (event.subsystem == "cxl" && named) || (event.subsystem == "nd" && event.device.starts_with("region"));
}

Result<UniqueFd> open_uevent_socket() {
  UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT));
  if (!socket.valid()) return os_error(errno, "open_uevent_socket", "no netlink socket for uevents");
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = kernel_group;
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return os_error(errno, "open_uevent_socket", "the netlink socket does not get uevents");
  return socket;
}

ReadUevent read_uevent(int socket) {
  std::array<char, message_bytes_max> buffer;
  sockaddr_nl sender{};
  socklen_t length = sizeof sender;
  ssize_t got = -1;
  do {
    got = ::recvfrom(socket, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&sender), &length);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return {.kind = errno == ENOBUFS ? ReadUevent::Kind::lost : ReadUevent::Kind::none};
  if (length < sizeof sender || sender.nl_pid != 0) return {.kind = ReadUevent::Kind::other};
  auto event = parse_uevent({buffer.data(), static_cast<size_t>(got)});
  if (!event) return {.kind = ReadUevent::Kind::other};
  return {.kind = ReadUevent::Kind::event, .event = std::move(*event)};
}

}  // namespace terrace::inventory
