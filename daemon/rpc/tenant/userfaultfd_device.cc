#include "daemon/rpc/tenant/userfaultfd_device.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

Result<std::shared_ptr<const UniqueFd>> Peers::userfaultfd_device() {
  if (!peer_options_.userfaultfd) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = "userfaultfd",
                 .detail =
                     "this terraced gives no userfaultfd to programs (clients.userfaultfd = false in its "
                     "configuration)"};
  }
  if (auto known = userfaultfd_device_.lock()) return known;
  const std::string& path = peer_options_.userfaultfd_path;
  UniqueFd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened.valid()) return no_device(errno, path);
  struct stat about {};
  // A file of that name, as container images sometimes have: nobody could make anything of it.
  if (::fstat(opened.get(), &about) != 0 || !S_ISCHR(about.st_mode)) return no_device(ENOTTY, path);
  auto device = std::make_shared<const UniqueFd>(std::move(opened));
  userfaultfd_device_ = device;
  return device;
}

}  // namespace terrace::daemon
