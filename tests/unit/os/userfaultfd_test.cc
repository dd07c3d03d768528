// SPDX-License-Identifier: Apache-2.0
// A userfaultfd of this process, through the device or the system call. What a kernel lacks is skipped, and
// said.
#include "core/os/userfaultfd.h"
#include "tests/support/skip.h"

#include <doctest/doctest.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace terrace;

namespace {

UniqueFd device() {
  return UniqueFd(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
}

}  // namespace

TEST_CASE("userfaultfd: of the device it is a fresh one, ready for use, with the features asked for") {
  const UniqueFd opened = device();
  if (!opened.valid()) {
    TERRACE_SKIP(userfaultfd, "/dev/userfaultfd cannot be opened here");
    return;
  }
  const auto made = os::open_userfaultfd(opened.get(), UFFD_FEATURE_PAGEFAULT_FLAG_WP);
  REQUIRE_MESSAGE(made.ok(), made.error().to_string());
  CHECK((::fcntl(made->get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(made->get(), F_GETFL) & O_NONBLOCK) != 0);
  uffdio_api again{.api = UFFD_API, .features = 0, .ioctls = 0};
  CHECK(::ioctl(made->get(), UFFDIO_API, &again) != 0);  // the handshake was made
  uffd_msg message{};
  CHECK(::read(made->get(), &message, sizeof message) == -1);
  CHECK(errno == EAGAIN);
  const auto second = os::open_userfaultfd(opened.get(), 0);
  REQUIRE(second.ok());
  CHECK(second->get() != made->get());
}

TEST_CASE("userfaultfd: a feature that no kernel has is refused by name, and one without a name as well") {
  const auto features = os::userfaultfd_features(-1);
  if (!features.ok()) {
    TERRACE_SKIP(userfaultfd, features.error().to_string());
    return;
  }
  CHECK((*features & UFFD_FEATURE_PAGEFAULT_FLAG_WP) != 0);
  const auto refused = os::open_userfaultfd(-1, uint64_t{1} << 60);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::unsupported);
}

TEST_CASE("userfaultfd: a descriptor that is no such device is refused") {
  const UniqueFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto refused = os::open_userfaultfd(file.get(), 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("userfaultfd: features are named as the kernel's header has them") {
  CHECK(os::userfaultfd_feature_names(0).empty());
  CHECK(os::userfaultfd_feature_names(UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_MINOR_SHMEM) ==
        "EVENT_REMAP, MINOR_SHMEM");
  CHECK(os::userfaultfd_feature_names(uint64_t{1} << 60) == "bit 60");
}
