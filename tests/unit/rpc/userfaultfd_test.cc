// /dev/userfaultfd for tenants: who gets it, and what is said where there is none.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon/rpc/connection/server.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// Any character device stands in for the real one.
daemon::ServiceOptions with_device(const std::string& path, bool allowed = true) {
  daemon::ServiceOptions options;
  options.userfaultfd = allowed;
  options.userfaultfd_path = path;
  return options;
}

// Code and text of the answer to a session's request.
std::pair<uint16_t, std::string> refusal(Rpc& t) {
  FixtureClient client(t, 1000, 1);
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
  Rpc t(with_device("/dev/null", false));
  const auto [refused, text] = refusal(t);
  CHECK(refused == code(ErrorCode::permission_denied));
  CHECK(text.find("clients.userfaultfd = false") != std::string::npos);
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
