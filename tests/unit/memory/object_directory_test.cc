// SPDX-License-Identifier: Apache-2.0
// Where objects live: made private, refused when somebody else prepared it, used again, removed clean.
#include "daemon/memory/files/object_directory.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "daemon/memory/files/mount_table.h"
#include "daemon/memory/files/owner_file.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

constexpr uid_t nobody = 65534;

bool is_root() {
  if (::geteuid() == 0) return true;
  TERRACE_SKIP(root, "needs root");
  return false;
}

}  // namespace

TEST_CASE("MountTable: a line of mountinfo is split, escapes included") {
  const auto mount = parse_mount(
      "42 27 0:39 / /tmp/a\\040b\\134c rw,nosuid shared:7 master:1 - tmpfs terra\\040ced "
      "rw,size=4k,huge=always");
  REQUIRE(mount.has_value());
  CHECK(mount->point == "/tmp/a b\\c");
  CHECK(mount->type == "tmpfs");
  CHECK(mount->source == "terra ced");
  CHECK(mount->option("huge") == "always");
  CHECK(mount->option("size") == "4k");
  CHECK(!mount->option("siz").has_value());
  CHECK(!mount->option("rw").has_value());
  for (const char* line :
       {"", "1 2 3", "1 2 0:1 / relative rw - tmpfs x rw", "1 2 0:1 / /x rw tmpfs x rw", "1 2 0:1 / /x rw - "})
    CHECK(!parse_mount(line).has_value());
}

TEST_CASE("MountTable: a path lies in its longest mount, the last of stacked ones") {
  const std::vector<Mount> mounts{{"/", "ext4", "a", ""},
                                  {"/run", "tmpfs", "b", ""},
                                  {"/run/x", "tmpfs", "lower", ""},
                                  {"/run/x", "tmpfs", "upper", ""}};
  CHECK(mount_of("/run/x/objects", mounts)->source == "upper");
  CHECK(mount_of("/run/xy", mounts)->source == "b");
  CHECK(mount_of("/home", mounts)->source == "a");
}

TEST_CASE("ObjectDirectory: root gets a private tmpfs of the devices' size, and it goes away again") {
  if (!is_root()) return;
  RuntimeFolder folder;
  auto directory = ObjectDirectory::prepare(folder.options());
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  CHECK(directory->path() == folder.objects());
  const auto mount = find_mount(folder.objects());
  REQUIRE(mount.has_value());
  CHECK(mount->point == folder.objects());
  CHECK(mount->type == "tmpfs");
  struct stat status {};
  REQUIRE(::fstat(directory->fd(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK(directory->huge_pages() ==
        (directory->description().find("2 MiB pages (huge=always)") != std::string::npos));
  MESSAGE(directory->description());
  CHECK(directory->remove().ok());
  CHECK(!std::filesystem::exists(folder.objects()));
}

// Without a mount: as any user.
TEST_CASE("ObjectDirectory: it belongs to the store that claimed it, and goes with its mark") {
  RuntimeFolder folder;
  ObjectDirectoryOptions options = folder.options();
  options.mount = false;
  const StoreClaim own{.store = {1, 2}, .owner = "state file /a.db", .remedy = "--state"};
  StoreClaim other{.store = {3, 4}, .owner = "state file /b.db", .remedy = "--state"};
  auto directory = ObjectDirectory::prepare(options);
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  const std::string path = directory->path();
  REQUIRE(directory->claim(own, 0).ok());
  REQUIRE(directory->claim(own, 3).ok());
  for (const size_t objects : {0, 3}) {
    const Status refused = directory->claim(other, objects);
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::invalid_argument);
    for (const std::string& word : {path, store_id_text(own.store), own.owner, store_id_text(other.store),
                                    other.owner, std::string("--state"), std::string("--destroy-orphans")})
      CHECK_MESSAGE(refused.error().detail.find(word) != std::string::npos, word);
  }
  const OwnedDirectory owned{directory->fd(), path};
  CHECK((*read_owner(owned))->store == own.store);
  // The state file has moved.
  StoreClaim moved = own;
  moved.owner = "state file /elsewhere.db";
  REQUIRE(directory->claim(moved, 3).ok());
  CHECK((*read_owner(owned))->words == moved.owner);
  other.take_over = true;
  REQUIRE(directory->claim(other, 3).ok());
  CHECK((*read_owner(owned))->store == other.store);
  CHECK(directory->remove().ok());
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("ObjectDirectory: one of before is an older store's, and no new one's") {
  RuntimeFolder folder;
  ObjectDirectoryOptions options = folder.options();
  options.mount = false;
  auto directory = ObjectDirectory::prepare(options);
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  StoreClaim claim{.store = {1, 2}, .owner = "state file /a.db", .remedy = "--state", .is_new = true};
  const OwnedDirectory owned{directory->fd(), directory->path()};
  CHECK(!directory->claim(claim, 1).ok());
  CHECK(!read_owner(owned)->has_value());
  claim.is_new = false;
  CHECK(directory->claim(claim, 1).ok());
  CHECK((*read_owner(owned))->store == claim.store);
  CHECK(directory->remove().ok());
}

TEST_CASE(
    "ObjectDirectory: a mark that cannot be understood is refused, and taken over on the operator's word") {
  RuntimeFolder folder;
  ObjectDirectoryOptions options = folder.options();
  options.mount = false;
  auto directory = ObjectDirectory::prepare(options);
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  const OwnedDirectory owned{directory->fd(), directory->path()};
  StoreClaim claim{.store = {1, 2}, .owner = "state file /a.db", .remedy = "--state"};
  REQUIRE(directory->claim(claim, 0).ok());
  const std::string file = directory->path() + "/store-id";
  const auto bytes = std::filesystem::file_size(file);
  for (const uintmax_t kept : {uintmax_t{0}, bytes / 2, bytes - 2}) {
    std::filesystem::resize_file(file, kept);
    CHECK(read_owner(owned).error().code == ErrorCode::corrupt);
    CHECK(directory->claim(claim, 0).error().code == ErrorCode::invalid_argument);
    claim.take_over = true;
    CHECK(directory->claim(claim, 0).ok());
    claim.take_over = false;
    CHECK((*read_owner(owned))->store == claim.store);
  }
  CHECK(directory->remove().ok());
}

TEST_CASE("ObjectDirectory: a mounted one is used again with its objects, and grows with the devices") {
  if (!is_root()) return;
  RuntimeFolder folder;
  { REQUIRE(ObjectDirectory::prepare(folder.options()).ok()); }
  REQUIRE(::close(::open((folder.objects() + "/lease-1.obj").c_str(), O_CREAT | O_RDWR, 0600)) == 0);
  auto again = ObjectDirectory::prepare(folder.options(512 * mib));
  REQUIRE_MESSAGE(again.ok(), again.error().to_string());
  CHECK(std::filesystem::exists(folder.objects() + "/lease-1.obj"));
  CHECK(std::filesystem::space(folder.objects()).capacity >= 512 * mib);
  const Status kept = again->remove();
  REQUIRE(!kept.ok());
  CHECK(kept.error().code == ErrorCode::busy);
  CHECK(std::filesystem::exists(folder.objects() + "/lease-1.obj"));
}

TEST_CASE("ObjectDirectory: each huge page policy is what is mounted") {
  if (!is_root()) return;
  for (const HugePages policy :
       {HugePages::always, HugePages::within_size, HugePages::advise, HugePages::never}) {
    RuntimeFolder folder;
    ObjectDirectoryOptions options = folder.options();
    options.huge_pages = policy;
    auto directory = ObjectDirectory::prepare(options);
    REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
    CHECK(find_mount(folder.objects())->option("huge").value_or("never") == huge_pages_word(policy));
    if (policy == HugePages::never || policy == HugePages::advise) CHECK(!directory->huge_pages());
    CHECK(directory->remove().ok());
  }
}

TEST_CASE("ObjectDirectory: a second daemon is refused as busy, naming the directory") {
  RuntimeFolder folder;
  auto first = ObjectDirectory::prepare(folder.options());
  REQUIRE_MESSAGE(first.ok(), first.error().to_string());
  const auto second = ObjectDirectory::prepare(folder.options());
  REQUIRE(!second.ok());
  CHECK(second.error().code == ErrorCode::busy);
  CHECK(second.error().detail.find(first->path()) != std::string::npos);
}

TEST_CASE("ObjectDirectory: daemons that start at the same moment never share one") {
  RuntimeFolder folder;
  constexpr size_t daemons = 8;
  int results[2], tried[2];
  REQUIRE(::pipe(results) == 0);
  REQUIRE(::pipe(tried) == 0);
  std::vector<pid_t> children;
  for (size_t i = 0; i < daemons; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(tried[1]);
      auto directory = ObjectDirectory::prepare(folder.options());
      const char verdict = directory.ok() ? 'y' : directory.error().code == ErrorCode::busy ? 'n' : '?';
      [[maybe_unused]] const ssize_t n = ::write(results[1], &verdict, 1);
      ::close(results[1]);
      char end = 0;
      [[maybe_unused]] const ssize_t ended = ::read(tried[0], &end, 1);  // keeps its lock until all have tried
      ::_exit(0);
    }
    children.push_back(child);
  }
  ::close(results[1]);
  std::string verdicts;
  for (char verdict = 0; ::read(results[0], &verdict, 1) == 1;) verdicts += verdict;
  ::close(results[0]);
  ::close(tried[0]);
  ::close(tried[1]);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  CHECK(std::count(verdicts.begin(), verdicts.end(), 'y') == 1);
  CHECK(verdicts.size() ==
        daemons);  // the others were refused: mostly as busy, or by a mount that just went away
}

TEST_CASE("ObjectDirectory: one that somebody else prepared is refused") {
  RuntimeFolder folder;
  std::string victim = folder.path() + "/victim";
  REQUIRE(::mkdir(victim.c_str(), 0700) == 0);
  SUBCASE("a link") {
    REQUIRE(::symlink(victim.c_str(), folder.objects().c_str()) == 0);
  }
  SUBCASE("a file") {
    REQUIRE(::close(::open(folder.objects().c_str(), O_CREAT | O_RDWR, 0600)) == 0);
  }
  SUBCASE("open to others") {
    REQUIRE(::mkdir(folder.objects().c_str(), 0700) == 0);
    REQUIRE(::chmod(folder.objects().c_str(), 0750) == 0);
  }
  SUBCASE("of another user") {
    if (!is_root()) return;
    REQUIRE(::mkdir(folder.objects().c_str(), 0700) == 0);
    REQUIRE(::chown(folder.objects().c_str(), nobody, nobody) == 0);
  }
  ObjectDirectoryOptions options = folder.options();
  options.directory = folder.objects();
  const auto refused = ObjectDirectory::prepare(options);
  REQUIRE(!refused.ok());
  CHECK_MESSAGE(refused.error().code == ErrorCode::permission_denied, refused.error().to_string());
}

TEST_CASE("ObjectDirectory: files in the way are not hidden under a mount") {
  if (!is_root()) return;
  RuntimeFolder folder;
  REQUIRE(::mkdir(folder.objects().c_str(), 0700) == 0);
  REQUIRE(::close(::open((folder.objects() + "/notes").c_str(), O_CREAT | O_RDWR, 0600)) == 0);
  const auto refused = ObjectDirectory::prepare(folder.options());
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::already_exists);
}

TEST_CASE("ObjectDirectory: a directory on a disk is refused when nothing may be mounted") {
  RuntimeFolder folder;
  ObjectDirectoryOptions options = folder.options();
  options.directory = folder.objects();
  options.mount = false;
  const auto refused = ObjectDirectory::prepare(options);
  if (refused.ok()) {
    TERRACE_SKIP(disk_tmp, "this machine's /tmp is itself a tmpfs");
    return;
  }
  CHECK(refused.error().code == ErrorCode::unsupported);
}

TEST_CASE("ObjectDirectory: other users get one below /dev/shm, and a planted one is refused") {
  RuntimeFolder folder;
  const auto act = [&] {
    if (::geteuid() == 0 && (::setgid(nobody) != 0 || ::setuid(nobody) != 0)) return 1;
    auto directory = ObjectDirectory::prepare(folder.options());
    if (!directory.ok()) return directory.error().code == ErrorCode::permission_denied ? 2 : 3;
    if (directory->path() != shared_memory_directory(folder.path())) return 4;
    if (directory->path().find("/dev/shm/terrace-" + std::to_string(::geteuid())) != 0) return 5;
    return directory->remove().ok() ? 0 : 6;
  };
  CHECK(exited_with(run_in_child(act), 0));
  if (!is_root()) return;
  // Root's planted directory stands for any other user's.
  std::string planted = shared_memory_directory(folder.path());
  planted.replace(planted.find("-0-"), 3, "-" + std::to_string(nobody) + "-");
  REQUIRE(::mkdir(planted.c_str(), 0700) == 0);
  const int status = run_in_child(act);
  ::rmdir(planted.c_str());
  CHECK(exited_with(status, 2));
}
