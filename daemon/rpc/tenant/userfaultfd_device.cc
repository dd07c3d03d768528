// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/userfaultfd_device.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace terrace::daemon {
namespace {

class UserfaultfdDeviceServer final : public rpc::UserfaultfdDevice::Server {
 public:
  explicit UserfaultfdDeviceServer(std::shared_ptr<const UniqueFd> device) : device_(std::move(device)) {}
  kj::Maybe<int> getFd() override { return device_->get(); }

 private:
  const std::shared_ptr<const UniqueFd> device_;
};

Error no_device(int os_errno, const std::string& path) {
  constexpr const char* where = "userfaultfd";
  switch (os_errno) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
    case ENOTTY:
      return {.code = ErrorCode::unsupported,
              .os_errno = os_errno,
              .where = where,
              .detail = "this machine has no " + path +
                        " (Linux 6.1 or newer with CONFIG_USERFAULTFD, and the device node where terraced "
                        "runs): programs that are not root do not migrate here"};
    case EACCES:
    case EPERM:
      return {.code = ErrorCode::permission_denied,
              .os_errno = os_errno,
              .where = where,
              .detail = "terraced, as uid " + std::to_string(::geteuid()) + ", may not open " + path +
                        "; run it as root, or give its user access to the device"};
    default: return os_error(os_errno, where, "cannot open " + path);
  }
}

}  // namespace

rpc::UserfaultfdDevice::Client make_userfaultfd_device(std::shared_ptr<const UniqueFd> device) {
  return kj::heap<UserfaultfdDeviceServer>(std::move(device));
}

// Whether this peer could have a userfaultfd with the kernel's faults without us: root, everybody where the system's
// switch says so, whom the device's own mode lets in, and whoever could make this process do it. A uid that came
// through a tenant's socket says nothing (socket_role.h). Further groups are not seen: who is let in by one of them
// opens the device itself.
bool Peers::kernel_gives_userfaultfd(const PeerCredentials& peer, const UniqueFd& device) const {
  std::ifstream file(peer_options_.unprivileged_userfaultfd_path);
  std::string word;
  if (file >> word && word == "1") return true;
  struct stat about {};
  if (::fstat(device.get(), &about) != 0) return false;
  constexpr mode_t everybody = S_IROTH | S_IWOTH;
  constexpr mode_t owner = S_IRUSR | S_IWUSR;
  if ((about.st_mode & everybody) == everybody) return true;
  if (peer.role() == SocketRole::tenant) return false;
  return peer.uid == 0 || peer.uid == ::geteuid() ||
         (peer.uid == about.st_uid && (about.st_mode & owner) == owner);
}

Result<std::shared_ptr<const UniqueFd>> Peers::userfaultfd_device(const PeerCredentials& peer) {
  const auto denied = [](std::string detail) {
    return Error{.code = ErrorCode::permission_denied, .where = "userfaultfd", .detail = std::move(detail)};
  };
  if (peer_options_.userfaultfd == UserfaultfdRule::none)
    return denied(
        "this terraced gives no userfaultfd to programs (clients.userfaultfd = \"none\" in its configuration)");
  auto device = userfaultfd_device_.lock();
  if (device == nullptr) {
    const std::string& path = peer_options_.userfaultfd_path;
    UniqueFd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!opened.valid()) return no_device(errno, path);
    struct stat about {};
    // A file of that name, as container images sometimes have: nobody could make anything of it.
    if (::fstat(opened.get(), &about) != 0 || !S_ISCHR(about.st_mode)) return no_device(ENOTTY, path);
    device = std::make_shared<const UniqueFd>(std::move(opened));
  }
  if (peer_options_.userfaultfd == UserfaultfdRule::kernel && !kernel_gives_userfaultfd(peer, *device)) {
    return denied(
        "the kernel gives uid " + std::to_string(peer.uid) +
        " no userfaultfd, and this terraced hands on none that the kernel refuses: its memory does not "
        "move. Where all tenants are trusted, set clients.userfaultfd = \"all\" in terraced's "
        "configuration and reload it");
  }
  userfaultfd_device_ = device;
  return device;
}

}  // namespace terrace::daemon
