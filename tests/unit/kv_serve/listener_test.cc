// SPDX-License-Identifier: Apache-2.0
// Where a server may listen, and what becomes of its path.
#include "cli/kv/serve/listener.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

using namespace terrace;
using namespace terrace::kv_serve;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/terrace-listener-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

ErrorCode refused(const std::string& address, bool anywhere = false) {
  const Result<Listener> listener = Listener::open(address, anywhere);
  REQUIRE(!listener.ok());
  CHECK(!listener.error().detail.empty());
  return listener.error().code;
}

}  // namespace

TEST_CASE("Listener: loopback alone, unless it is said") {
  CHECK(Listener::open("127.0.0.1:0", false)->shown().starts_with("127.0.0.1:"));
  CHECK(Listener::open("localhost:0", false).ok());
  CHECK(refused("0.0.0.0:0") == ErrorCode::permission_denied);
  CHECK(refused("[::]:0") == ErrorCode::permission_denied);
  CHECK(refused("10.1.2.3:6399") == ErrorCode::permission_denied);
  CHECK(Listener::open("0.0.0.0:0", true).ok());
  for (const char* wrong : {"", "6399", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "host:1",
                            ":1", "127.0.0.1:-1", "unix:"})
    CHECK(refused(wrong) == ErrorCode::invalid_argument);
}

TEST_CASE("Listener: a port that is served is refused") {
  const Result<Listener> first = Listener::open("127.0.0.1:0", false);
  REQUIRE(first.ok());
  CHECK(refused(first->shown()) == ErrorCode::busy);
}

TEST_CASE("Listener: a path is private, goes with its server, and a stale one is replaced") {
  const Folder folder;
  const std::string path = folder.path + "/socket", address = "unix:" + path;
  {
    const Result<Listener> first = Listener::open(address, false);
    REQUIRE(first.ok());
    struct stat made {};
    REQUIRE(::stat(path.c_str(), &made) == 0);
    CHECK((made.st_mode & 0777) == 0600);
    CHECK(refused(address) == ErrorCode::busy);
  }
  CHECK(!std::filesystem::exists(path));
  std::optional<Listener> killed;
  killed.emplace(std::move(Listener::open(address, false)).value());
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  REQUIRE(::dup2(nothing.get(), killed->fd()) == killed->fd());  // as if its process had died
  {
    const Result<Listener> next = Listener::open(address, false);
    REQUIRE(next.ok());
    killed.reset();
    CHECK(std::filesystem::exists(path));  // the next one's
  }
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("Listener: what is no socket is left alone") {
  const Folder folder;
  const std::string path = folder.path + "/file";
  std::ofstream(path) << "text";
  CHECK(refused("unix:" + path) == ErrorCode::already_exists);
  CHECK(std::filesystem::file_size(path) == 4);
  CHECK(refused("unix:" + folder.path + "/none/socket") == ErrorCode::not_found);
}
