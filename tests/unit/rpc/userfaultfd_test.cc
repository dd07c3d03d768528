// SPDX-License-Identifier: Apache-2.0
// /dev/userfaultfd for tenants: who gets it, and what is said where there is none.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/rpc/connection/server.h"
#include "tests/support/skip.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// Any character device stands in for the real one.
daemon::ServiceOptions with_device(const std::string& path,
                                   daemon::UserfaultfdRule rule = daemon::UserfaultfdRule::all) {
  daemon::ServiceOptions options;
  options.userfaultfd = rule;
  options.userfaultfd_path = path;
  return options;
}

// Code and text of the answer to a session's request.
std::pair<uint16_t, std::string> refusal(Rpc& t, uint32_t uid = 1000) {
  FixtureClient client(t, uid, 1);
  auto tenant = t.session(client);
  const auto reply = t.call(tenant.userfaultfdRequest());
  CHECK_FALSE(reply.hasDevice());
  return {reply.getError().getCode(), std::string(reply.getError().getDetail().cStr())};
}

}  // namespace

TEST_CASE("userfaultfd: a tenant is given the device, writable, however often it asks") {
  Rpc t(with_device("/dev/null"));
  FixtureClient client(t, 1000, 1);
  auto tenant = t.session(client);
  for (int i = 0; i < 3; ++i) {
    auto reply = t.call(tenant.userfaultfdRequest());
    REQUIRE(reply.getError().getCode() == 0);
    auto device = reply.getDevice();
    auto fd = device.getFd().wait(t.io.waitScope);
    KJ_IF_MAYBE (number, fd) {
      struct stat about {};
      REQUIRE(::fstat(*number, &about) == 0);
      CHECK(about.st_rdev == makedev(1, 3));
      CHECK((::fcntl(*number, F_GETFL) & O_ACCMODE) == O_RDWR);
    } else {
      FAIL("the device carries no descriptor");
    }
  }
}

TEST_CASE("userfaultfd: it is refused where the configuration gives it to nobody, and the answer says so") {
  Rpc t(with_device("/dev/null", daemon::UserfaultfdRule::none));
  const auto [refused, text] = refusal(t);
  CHECK(refused == code(ErrorCode::permission_denied));
  CHECK(text.find("clients.userfaultfd = \"none\"") != std::string::npos);
}

TEST_CASE("userfaultfd: a machine without the device says so") {
  Rpc t(with_device("/nonexistent/userfaultfd"));
  const auto [missing, text] = refusal(t);
  CHECK(missing == code(ErrorCode::unsupported));
  CHECK(text.find("/nonexistent/userfaultfd") != std::string::npos);
}

TEST_CASE("userfaultfd: a plain file of the device's name is none") {
  char name[] = "/tmp/terrace-userfaultfd-XXXXXX";
  const UniqueFd file(::mkstemp(name));
  REQUIRE(file.valid());
  Rpc t(with_device(name));
  CHECK(refusal(t).first == code(ErrorCode::unsupported));
  ::unlink(name);
}

namespace {

// A character device that only root may open, and a switch of the kernel's as it is found.
class Machine {
 public:
  explicit Machine(const char* unprivileged) {
    std::string folder = "/tmp/terrace-userfaultfd-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    folder_ = folder;
    std::ofstream(folder_ + "/switch") << unprivileged << "\n";
    made_ = ::mknod((folder_ + "/device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  }
  ~Machine() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  bool made() const { return made_; }
  std::string device() const { return folder_ + "/device"; }
  daemon::ServiceOptions options(daemon::UserfaultfdRule rule = daemon::UserfaultfdRule::kernel) const {
    daemon::ServiceOptions options = with_device(device(), rule);
    options.unprivileged_userfaultfd_path = folder_ + "/switch";
    return options;
  }

 private:
  std::string folder_;
  bool made_ = false;
};

bool is_given(Rpc& t, uint32_t uid) {
  FixtureClient client(t, uid, 1);
  auto tenant = t.session(client);
  return t.call(tenant.userfaultfdRequest()).hasDevice();
}

bool can_make(const Machine& machine) {
  if (machine.made()) return true;
  TERRACE_SKIP(root, "only root makes devices");
  return false;
}

}  // namespace

TEST_CASE("userfaultfd: whom the kernel refuses one is given none, and told what to do") {
  const Machine machine("0");
  if (!can_make(machine)) return;
  Rpc t(machine.options());
  const auto [refused, text] = refusal(t);
  CHECK(refused == code(ErrorCode::permission_denied));
  for (const char* word : {"uid 1000", "clients.userfaultfd = \"all\"", "does not move"})
    CHECK_MESSAGE(text.find(word) != std::string::npos, text);
  CHECK(is_given(t, 0));      // root has it anyway
  CHECK(!is_given(t, 1000));  // also once it is open
}

TEST_CASE(
    "userfaultfd: whom the kernel gives one by its switch or the device's mode is given it, and all on the "
    "operator's word") {
  const Machine strict("0");
  const Machine open("1");
  if (!can_make(strict)) return;
  const auto gives = [](const daemon::ServiceOptions& options, uint32_t uid) {
    Rpc t(options);
    return is_given(t, uid);
  };
  CHECK(gives(open.options(), 1000));
  CHECK(gives(strict.options(daemon::UserfaultfdRule::all), 1000));
  REQUIRE(::chown(strict.device().c_str(), 1001, 0) == 0);
  CHECK(gives(strict.options(), 1001));
  CHECK(!gives(strict.options(), 1000));
  REQUIRE(::chmod(strict.device().c_str(), 0666) == 0);
  CHECK(gives(strict.options(), 1000));
}
