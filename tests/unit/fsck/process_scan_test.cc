// SPDX-License-Identifier: Apache-2.0
// What /proc tells of processes that map or hold open objects, deleted ones and unwilling ones included.
#include "daemon/fsck/process_scan.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>

#include "core/base/units.h"
#include "tests/support/skip.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = "/dev/shm/terrace-scan-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A child that has done `prepare` and sleeps until the end of the test.
class Child {
 public:
  template <typename Prepare>
  explicit Child(const Prepare& prepare) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      prepare();
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char c = 0;
    REQUIRE(::read(ready[0], &c, 1) == 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

int make(const std::string& path, uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) ::_exit(9);  // in a child
  return fd;
}

std::optional<LiveMapping> find(const std::vector<LiveMapping>& mappings, pid_t pid,
                                const std::string& object) {
  const auto at = std::find_if(mappings.begin(), mappings.end(),
                               [&](const LiveMapping& m) { return m.pid == pid && m.object == object; });
  if (at == mappings.end()) return std::nullopt;
  return *at;
}

}  // namespace

TEST_CASE("scan: mapped, open, deleted, and none of it by others' files") {
  const Folder folder;
  const Folder other;
  const Child child([&] {
    const int mapped = make(folder.file("lease-1.obj"), 2 * mib);
    ::mmap(nullptr, mib, PROT_READ, MAP_SHARED, mapped, 0);
    ::mmap(nullptr, 2 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    ::close(mapped);
    make(folder.file("lease-2.obj"), mib);
    const int gone = make(folder.file("lease-3.obj"), mib);
    ::mmap(nullptr, mib, PROT_READ, MAP_SHARED, gone, 0);
    ::unlink(folder.file("lease-3.obj").c_str());
    if (::ftruncate(gone, 0) != 0) ::_exit(9);
    make(folder.file("stranger"), mib);
    make(other.file("lease-4.obj"), mib);
  });
  const int own = make(folder.file("lease-5.obj"), mib);
  const auto scan = scan_processes(folder.path());
  ::close(own);
  REQUIRE(scan.ok());
  CHECK(scan->complete);
  CHECK(scan->processes > 0);
  REQUIRE(scan->mappings.size() == 3);
  const auto mapped = find(scan->mappings, child.pid(), "lease-1");
  REQUIRE(mapped.has_value());
  CHECK(mapped->mapped_bytes == 3 * mib);
  CHECK(!mapped->open);
  CHECK(!mapped->deleted);
  CHECK(mapped->command.find("unit_fsck") == 0);
  const auto open = find(scan->mappings, child.pid(), "lease-2");
  REQUIRE(open.has_value());
  CHECK(open->open);
  CHECK(open->mapped_bytes == 0);
  const auto gone = find(scan->mappings, child.pid(), "lease-3");
  REQUIRE(gone.has_value());
  CHECK(gone->deleted);
  CHECK(gone->open);
  CHECK(gone->mapped_bytes == mib);
}

TEST_CASE("scan: a directory that is not there has nobody's objects") {
  const auto scan = scan_processes("/dev/shm/terrace-no-such-folder");
  REQUIRE(scan.ok());
  CHECK(scan->mappings.empty());
  CHECK(scan_mappings("/dev/shm/terrace-no-such-folder").empty());
}

TEST_CASE("scan: it ends when the time is over, and says so") {
  const Folder folder;
  const auto scan = scan_processes(folder.path(), std::chrono::milliseconds(0));
  REQUIRE(scan.ok());
  CHECK(!scan->complete);
}

TEST_CASE("scan: processes that come and go meanwhile are no error") {
  const Folder folder;
  const Child spawner([&] {
    if (::fork() != 0) return;
    for (int i = 0; i < 300; ++i) {
      const pid_t brief = ::fork();
      if (brief == 0) {
        make(folder.file("lease-1.obj"), mib);
        ::_exit(0);
      }
      ::waitpid(brief, nullptr, 0);
    }
    ::_exit(0);
  });
  for (int i = 0; i < 20; ++i) CHECK(scan_processes(folder.path()).ok());
}

TEST_CASE("scan: others' processes are counted, not guessed at") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "acting as another user needs root");
    return;
  }
  const Folder folder;
  const Child child([&] { make(folder.file("lease-1.obj"), mib); });
  int answer[2];
  REQUIRE(::pipe(answer) == 0);
  const pid_t other = ::fork();
  if (other == 0) {
    if (::chmod(folder.path().c_str(), 0755) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(1);
    const auto scan = scan_processes(folder.path());
    const char verdict =
        scan.ok() && scan->unreadable > 0 && !find(scan->mappings, child.pid(), "lease-1") ? 'y' : 'n';
    ::_exit(::write(answer[1], &verdict, 1) == 1 ? 0 : 1);
  }
  char verdict = 0;
  CHECK(::read(answer[0], &verdict, 1) == 1);
  CHECK(verdict == 'y');
  ::waitpid(other, nullptr, 0);
  ::close(answer[0]);
  ::close(answer[1]);
}
