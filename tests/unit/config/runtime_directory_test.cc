// SPDX-License-Identifier: Apache-2.0
// The runtime directory: made when missing, refused when somebody else could swap what lies in it.
#include "daemon/config/runtime_directory.h"
#include "tests/support/skip.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr uid_t nobody = 65534;

struct Folder {
  Folder() {
    path = "/tmp/terrace-runtime-test-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

mode_t mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

void expect_refused(const std::string& path, ErrorCode code = ErrorCode::permission_denied) {
  const Status refused = prepare_runtime_directory(path);
  REQUIRE(!refused.ok());
  CHECK_MESSAGE(refused.error().code == code, refused.error().to_string());
}

}  // namespace

TEST_CASE("runtime directory: a missing one is made with its parents, whatever the umask") {
  Folder folder;
  const mode_t before = ::umask(0);
  const Status made = prepare_runtime_directory(folder.path + "/a/b/");
  ::umask(before);
  REQUIRE_MESSAGE(made.ok(), made.error().to_string());
  CHECK(mode_of(folder.path + "/a/b") == (::geteuid() == 0 ? 0755 : 0700));
  CHECK(mode_of(folder.path + "/a") == (::geteuid() == 0 ? 0755 : 0700));
  CHECK(prepare_runtime_directory(folder.path + "/a/b").ok());
}

TEST_CASE("runtime directory: what others can write to is refused") {
  Folder folder;
  const std::string path = folder.path + "/run";
  REQUIRE(prepare_runtime_directory(path).ok());
  SUBCASE("itself") {
    REQUIRE(::chmod(path.c_str(), 0777) == 0);
  }
  SUBCASE("itself, even when sticky") {
    REQUIRE(::chmod(path.c_str(), 01777) == 0);
  }
  SUBCASE("its parent") {
    REQUIRE(::chmod(folder.path.c_str(), 0777) == 0);
  }
  expect_refused(path);
  ::chmod(folder.path.c_str(), 0700);
}

TEST_CASE("runtime directory: links and files in its place are refused") {
  Folder folder;
  REQUIRE(prepare_runtime_directory(folder.path + "/real").ok());
  std::filesystem::create_symlink(folder.path + "/real", folder.path + "/link");
  expect_refused(folder.path + "/link");
  CHECK(prepare_runtime_directory(folder.path + "/link/below").ok());  // our own link on the way
  std::ofstream(folder.path + "/file") << "x";
  expect_refused(folder.path + "/file", ErrorCode::invalid_argument);
  expect_refused("relative", ErrorCode::invalid_argument);
  expect_refused("", ErrorCode::invalid_argument);
}

TEST_CASE("runtime directory: one that another user prepared in a sticky folder is refused") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "acting as two users needs root");
    return;
  }
  Folder folder;
  REQUIRE(::chmod(folder.path.c_str(), 01777) == 0);
  const std::string path = folder.path + "/terrace-0";
  std::filesystem::create_directory(folder.path + "/target");
  SUBCASE("a folder") {
    std::filesystem::create_directory(path);
    REQUIRE(::chown(path.c_str(), nobody, nobody) == 0);
    expect_refused(path);
  }
  SUBCASE("a folder above it") {
    std::filesystem::create_directory(path);
    REQUIRE(::chown(path.c_str(), nobody, nobody) == 0);
  }
  SUBCASE("a link above it") {
    std::filesystem::create_symlink(folder.path + "/target", path);
    REQUIRE(::lchown(path.c_str(), nobody, nobody) == 0);
  }
  expect_refused(path + "/terrace");
}
