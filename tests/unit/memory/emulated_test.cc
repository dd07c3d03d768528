// SPDX-License-Identifier: Apache-2.0
// The emulated backend: memory is reserved or refused, a fence shuts out, a scrub leaves nothing, and a hostile
// holder reaches only its own file.
#include "daemon/memory/files/emulated.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/base/failpoint.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

struct stat stat_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status;
}

}  // namespace

TEST_CASE("EmulatedBackend: devices are seen with serial, size and a description") {
  Pool pool;
  const auto devices = pool.backend->discover();
  REQUIRE(devices.size() == 2);
  CHECK(devices[0].serial == "emu:cxl0");
  CHECK(devices[0].backend == "emulated");
  CHECK(devices[0].capacity_bytes == 32 * mib);
  CHECK(devices[0].granule_bytes == granule);
  CHECK(devices[0].detail.find("tmpfs at ") != std::string::npos);
}

TEST_CASE("EmulatedBackend: a device is not seen while the mark of its unplugging lies there") {
  Pool pool;
  std::ofstream(pool.file("cxl0.unplugged")) << "";
  REQUIRE(pool.backend->discover().size() == 1);
  CHECK(pool.backend->discover()[0].serial == "emu:cxl1");
  CHECK(pool.backend->list()->empty());
  std::filesystem::remove(pool.file("cxl0.unplugged"));
  CHECK(pool.backend->discover().size() == 2);
}

TEST_CASE("EmulatedBackend: only what takes microseconds is quick") {
  Pool pool;
  CHECK(pool.backend->quick("lease-1", 256 * kib));
  CHECK(pool.backend->quick("lease-1", granule) == pool.backend->huge_pages("lease-1"));
  CHECK(!pool.backend->quick("lease-1", 64 * mib));
}

TEST_CASE("EmulatedBackend: an object that others hold is found with and without a kept descriptor") {
  // More objects than descriptors are kept of; the early ones are opened again.
  constexpr int objects = 2 * int(DescriptorCache::slots);
  RuntimeFolder many;
  ObjectDirectoryOptions options = many.options();
  options.bytes = objects * 4 * kib;
  auto prepared = ObjectDirectory::prepare(options);
  REQUIRE(prepared.ok());
  EmulatedBackend backend(std::move(prepared).value(),
                          EmulatedOptions{.devices = {}, .granule_bytes = 4 * kib});
  std::vector<UniqueFd> held;
  for (int i = 0; i < objects; ++i) {
    const std::string name = "lease-" + std::to_string(i);
    REQUIRE(backend.carve(name, 4 * kib, granules(1)).ok());
    auto fd = backend.open(name, ObjectAccess::read_write);
    REQUIRE(fd.ok());
    held.push_back(std::move(fd).value());
    REQUIRE(::pwrite(held.back().get(), &i, sizeof(i), 0) == sizeof(i));
  }
  for (int i = 0; i < objects; ++i) {
    const std::string name = "lease-" + std::to_string(i);
    auto again = backend.open(name, ObjectAccess::read_write);
    REQUIRE(again.ok());
    int read = -1;
    CHECK(::pread(again->get(), &read, sizeof(read), 0) == sizeof(read));
    CHECK(read == i);
    REQUIRE(backend.fence(name).ok());
    struct stat status {};
    REQUIRE(::fstat(held[size_t(i)].get(), &status) == 0);
    CHECK(status.st_size == 0);
    REQUIRE(backend.scrub(name).ok());
  }
  CHECK(backend.list()->empty());
}

TEST_CASE("EmulatedBackend: what a holder does to its descriptor changes nothing for the manager") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  auto held = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(held.ok());
  REQUIRE(::fcntl(held->get(), F_SETFL, O_APPEND | O_NONBLOCK) == 0);
  REQUIRE(::lseek(held->get(), 12345, SEEK_SET) == 12345);
  auto next = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(next.ok());
  CHECK((::fcntl(next->get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(pool.backend->resize("lease-1", granule, 2 * granule, granules(2)).ok());
  CHECK(pool.backend->fence("lease-1").ok());
  CHECK(pool.backend->usage("lease-1")->bytes == 0);
  CHECK(pool.backend->scrub("lease-1").ok());
}

TEST_CASE("EmulatedBackend: a carved object is private, whole, reserved and zero") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", 2 * granule, granules(2)).ok());
  const struct stat status = stat_of(pool.file("lease-1.obj"));
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(uint64_t(status.st_size) == 2 * granule);
  CHECK(uint64_t(status.st_blocks) * 512 == 2 * granule);
  auto fd = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(fd.ok());
  CHECK((::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::byte* at = map(fd->get(), 2 * granule);
  REQUIRE(at != nullptr);
  CHECK(all_zero(at, 2 * granule));
  ::munmap(at, 2 * granule);

  const Status again = pool.backend->carve("lease-1", granule, granules(1));
  REQUIRE(!again.ok());
  CHECK(again.error().code == ErrorCode::already_exists);
  CHECK(uint64_t(stat_of(pool.file("lease-1.obj")).st_size) == 2 * granule);
}

TEST_CASE("EmulatedBackend: more than there is gives capacity_exhausted and leaves nothing") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(mount, "only a mount of our own has a size that a test may exhaust");
    return;
  }
  Pool pool;
  const Status refused = pool.backend->carve("lease-1", 512 * granule, granules(512));
  REQUIRE(!refused.ok());
  CHECK_MESSAGE(refused.error().code == ErrorCode::capacity_exhausted, refused.error().to_string());
  CHECK(pool.backend->list()->empty());
  CHECK(pool.backend->carve("lease-1", 32 * granule, granules(32)).ok());
}

TEST_CASE("EmulatedBackend: sizes that are not the extents' granules are refused") {
  Pool pool;
  for (const uint64_t bytes :
       {uint64_t{0}, granule - 1, granule + 4096, 2 * granule, ~uint64_t{0} - granule + 1}) {
    const Status refused = pool.backend->carve("lease-1", bytes, granules(1));
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::invalid_argument);
  }
  CHECK(pool.backend->list()->empty());
}

TEST_CASE("EmulatedBackend: names that lead elsewhere are refused by every operation") {
  Pool pool;
  const std::string long_name(limits::name_bytes_max + 1, 'x');
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".hidden"), std::string("../x"),
        std::string("a/b"), std::string("/etc/x"), std::string("a b"), std::string("a\0b", 3),
        std::string("-x"), std::string("\xc3\xa4"), long_name}) {
    CAPTURE(name);
    CHECK(!valid_object_name(name));
    CHECK(pool.backend->carve(name, granule, granules(1)).error().code == ErrorCode::invalid_argument);
    CHECK(pool.backend->open(name, ObjectAccess::read_only).error().code == ErrorCode::invalid_argument);
    CHECK(pool.backend->fence(name).error().code == ErrorCode::invalid_argument);
    CHECK(pool.backend->scrub(name).error().code == ErrorCode::invalid_argument);
    CHECK(pool.backend->usage(name).error().code == ErrorCode::invalid_argument);
  }
  CHECK(valid_object_name("lease-18446744073709551615"));
}

TEST_CASE("EmulatedBackend: a planted link is neither listed, opened, fenced nor scrubbed through") {
  Pool pool;
  const std::string victim = pool.folder.path() + "/victim";
  std::ofstream(victim) << "precious";
  REQUIRE(::symlink(victim.c_str(), pool.file("lease-1.obj").c_str()) == 0);
  CHECK(pool.backend->list()->empty());
  CHECK(!pool.backend->open("lease-1", ObjectAccess::read_write).ok());
  CHECK(!pool.backend->fence("lease-1").ok());
  CHECK(pool.backend->scrub("lease-1").error().code == ErrorCode::io_error);
  CHECK(!pool.backend->carve("lease-1", granule, granules(1)).ok());
  CHECK(std::filesystem::file_size(victim) == 8);
}

TEST_CASE("EmulatedBackend: list and usage show each object's size and memory") {
  Pool pool;
  REQUIRE(pool.backend->carve("b", granule, granules(1)).ok());
  REQUIRE(pool.backend->carve("a", 3 * granule, granules(3)).ok());
  std::ofstream(pool.file("stranger")) << "x";
  std::ofstream(pool.file(".x.obj")) << "x";
  const auto objects = pool.backend->list();
  REQUIRE(objects.ok());
  REQUIRE(objects->size() == 2);
  CHECK((*objects)[0].name == "a");
  CHECK((*objects)[0].bytes == 3 * granule);
  CHECK((*objects)[0].allocated == 3 * granule);
  REQUIRE(pool.backend->fence("a").ok());
  CHECK(pool.backend->usage("a")->bytes == 0);
  CHECK(pool.backend->usage("a")->allocated == 0);
  CHECK(pool.backend->usage("c").error().code == ErrorCode::not_found);
  CHECK(pool.backend->open("c", ObjectAccess::read_write).error().code == ErrorCode::not_found);
}

TEST_CASE("EmulatedBackend: a fence gives the holder SIGBUS, in reading and in writing") {
  for (const bool writing : {false, true}) {
    Pool pool;
    REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
    auto fd = pool.backend->open("lease-1", ObjectAccess::read_write);
    REQUIRE(fd.ok());
    int ready[2];
    int fenced[2];
    REQUIRE(::pipe(ready) == 0);
    REQUIRE(::pipe(fenced) == 0);
    const pid_t holder = ::fork();
    if (holder == 0) {
      ::signal(SIGBUS, SIG_DFL);
      volatile std::byte* at = map(fd->get(), granule);
      at[0] = std::byte{42};
      at[granule - 1] = std::byte{42};
      char c = 'x';
      if (::write(ready[1], &c, 1) != 1 || ::read(fenced[0], &c, 1) != 1) ::_exit(1);
      if (writing) at[0] = std::byte{1};
      ::_exit(at[0] == std::byte{42} ? 2 : 3);
    }
    char c = 0;
    REQUIRE(::read(ready[0], &c, 1) == 1);
    REQUIRE(pool.backend->fence("lease-1").ok());
    REQUIRE(pool.backend->fence("lease-1").ok());  // done again is no error
    REQUIRE(::write(fenced[1], &c, 1) == 1);
    int status = 0;
    ::waitpid(holder, &status, 0);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGBUS);
    for (const int end : {ready[0], ready[1], fenced[0], fenced[1]}) ::close(end);
  }
}

TEST_CASE("EmulatedBackend: a read-only descriptor gives no way to write") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  auto fd = pool.backend->open("lease-1", ObjectAccess::read_only);
  REQUIRE(fd.ok());
  CHECK(map(fd->get(), granule) == nullptr);
  CHECK(::ftruncate(fd->get(), 0) != 0);
  CHECK(::write(fd->get(), "x", 1) != 1);
  CHECK(::fallocate(fd->get(), 0, 0, 2 * granule) != 0);
  std::byte* at = map(fd->get(), granule, PROT_READ);
  REQUIRE(at != nullptr);
  CHECK(::mprotect(at, granule, PROT_READ | PROT_WRITE) != 0);
  ::munmap(at, granule);
  if (::geteuid() != 0) {
    TERRACE_SKIP_IN_PART(root, "acting as another user needs root");
    return;
  }
  const std::string again = "/proc/self/fd/" + std::to_string(fd->get());
  CHECK(exited_with(run_in_child([&] {
                      if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
                      return ::open(again.c_str(), O_RDWR) >= 0 ? 2 : errno == EACCES ? 0 : 3;
                    }),
                    0));
}

TEST_CASE("EmulatedBackend: a scrub removes a fenced object and says how much was erased") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", 2 * granule, granules(2)).ok());
  REQUIRE(pool.backend->fence("lease-1").ok());
  const auto erased = pool.backend->scrub("lease-1");
  REQUIRE_MESSAGE(erased.ok(), erased.error().to_string());
  CHECK(*erased == 2 * granule);
  CHECK(pool.backend->list()->empty());
  CHECK(pool.backend->scrub("lease-1").ok());  // an object that does not exist is scrubbed
  CHECK(pool.backend->fence("lease-1").ok());  // and fenced
}

TEST_CASE(
    "EmulatedBackend: an object says whether anybody was given it, and counts as given where that is not "
    "known") {
  Pool pool;
  const auto handed_out = [&](size_t at) { return pool.backend->list()->at(at).handed_out; };
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  CHECK(!handed_out(0));
  { REQUIRE(pool.backend->open("lease-1", ObjectAccess::read_write).ok()); }  // the manager's own, or a move's
  CHECK(!handed_out(0));
  REQUIRE(pool.backend->resize("lease-1", granule, 2 * granule, granules(2)).ok());
  CHECK(!handed_out(0));
  for (int again = 0; again < 2; ++again) {
    REQUIRE(pool.backend->hand_out("lease-1").ok());
    CHECK(handed_out(0));
  }
  CHECK(pool.backend->usage("lease-1")->handed_out);
  // What a hand-over makes has a tenant's bytes.
  REQUIRE(pool.backend->rebind("lease-1", "lease-1.1", 2 * granule, granules(2)).ok());
  CHECK(handed_out(0));
  CHECK(pool.backend->hand_out("lease-9").error().code == ErrorCode::not_found);
}

TEST_CASE("EmulatedBackend: an orphan is scrubbed without a fence") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  CHECK(*pool.backend->scrub("lease-1") == granule);
  CHECK(pool.backend->list()->empty());
}

TEST_CASE("EmulatedBackend: a holder that grows its file after the fence keeps no byte and hinders no scrub") {
  Pool pool(Tmpfs::others);  // growth_test.cc has what a mount of our own refuses
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  auto held = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(held.ok());
  std::byte* at = map(held->get(), granule);
  REQUIRE(at != nullptr);
  std::memset(at, 0x5a, granule);
  REQUIRE(pool.backend->fence("lease-1").ok());
  REQUIRE(::ftruncate(held->get(), granule) == 0);
  CHECK(all_zero(at, granule));  // fresh pages, nobody's
  at[0] = std::byte{7};
  CHECK(pool.backend->usage("lease-1")->allocated > 0);
  REQUIRE(pool.backend->scrub("lease-1").ok());
  CHECK(pool.backend->list()->empty());

  // The next lease, even of the same name, shares nothing with what the old holder goes on writing.
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  auto next = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(next.ok());
  REQUIRE(::ftruncate(held->get(), granule) == 0);
  std::memset(at, 0x66, granule);
  std::byte* fresh = map(next->get(), granule);
  REQUIRE(fresh != nullptr);
  CHECK(all_zero(fresh, granule));
  std::memset(fresh, 0x77, granule);
  CHECK(at[0] == std::byte{0x66});
  ::munmap(at, granule);
  ::munmap(fresh, granule);
}

TEST_CASE(
    "EmulatedBackend: against a holder that grows its file without pause, a scrub ends and tells the truth") {
  Pool pool;
  int removed = 0;
  int refused = 0;
  for (int round = 0; round < 30; ++round) {
    const std::string name = "lease-" + std::to_string(round);
    REQUIRE(pool.backend->carve(name, granule, granules(1)).ok());
    auto held = pool.backend->open(name, ObjectAccess::read_write);
    REQUIRE(held.ok());
    std::atomic<bool> stop = false;
    std::atomic<int> grown = 0;
    const int fd = held->get();
    std::thread attacker([&stop, &grown, fd] {
      while (!stop)
        if (::ftruncate(fd, granule) == 0 && ::pwrite(fd, "x", 1, 4096) == 1) ++grown;
    });
    while (grown < 10) std::this_thread::yield();
    REQUIRE(pool.backend->fence(name).ok());
    const auto scrubbed = pool.backend->scrub(name);
    const auto usage = pool.backend->usage(name);
    stop = true;
    attacker.join();
    if (scrubbed.ok()) {
      ++removed;
      CHECK(usage.error().code == ErrorCode::not_found);
    } else {
      ++refused;
      CHECK(scrubbed.error().code == ErrorCode::io_error);
      CHECK(usage.ok());
      CHECK(pool.backend->scrub(name).ok());  // the attacker is gone
    }
  }
  MESSAGE("scrubs under attack: " << removed << " done, " << refused << " refused");
  CHECK(pool.backend->list()->empty());
}

TEST_CASE("EmulatedBackend: a clean end waits for holders, then leaves no trace") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(mount, "needs a mount of our own");
    return;
  }
  RuntimeFolder folder;
  {
    auto directory = ObjectDirectory::prepare(folder.options());
    REQUIRE(directory.ok());
    EmulatedBackend backend(std::move(directory).value(), EmulatedOptions{});
    REQUIRE(backend.carve("lease-1", granule, granules(1)).ok());
    const auto held = backend.open("lease-1", ObjectAccess::read_only);
    REQUIRE(held.ok());
    REQUIRE(backend.scrub("lease-1").ok());
    const Status busy = backend.remove_directory();
    REQUIRE(!busy.ok());
    CHECK_MESSAGE(busy.error().code == ErrorCode::busy, busy.error().to_string());
  }
  auto directory = ObjectDirectory::prepare(folder.options());
  REQUIRE(directory.ok());
  EmulatedBackend backend(std::move(directory).value(), EmulatedOptions{});
  CHECK(backend.remove_directory().ok());
  CHECK(!std::filesystem::exists(folder.objects()));
}

TEST_CASE("EmulatedBackend: a crash at each failpoint leaves what recovery can finish") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  struct Expectation {
    const char* failpoint;
    size_t objects_left;
  };
  for (const Expectation& expected :
       {Expectation{"carve_before_create", 0}, Expectation{"carve_after_create", 1},
        Expectation{"carve_after_reserve", 1}, Expectation{"fence_before_truncate", 1},
        Expectation{"fence_after_truncate", 1}, Expectation{"scrub_before_verify", 1},
        Expectation{"scrub_before_unlink", 1}, Expectation{"scrub_after_unlink", 0}}) {
    CAPTURE(expected.failpoint);
    Pool pool;
    const auto life_of_a_lease = [&](const char* action) {
      return run_in_child([&] {
        if (!arm_failpoints(std::string(expected.failpoint) + "=" + action).ok()) return 1;
        const Status carved = pool.backend->carve("lease-1", granule, granules(1));
        if (!carved.ok()) return carved.error().code == ErrorCode::capacity_exhausted ? 10 : 2;
        if (const Status fenced = pool.backend->fence("lease-1"); !fenced.ok()) return 11;
        const auto scrubbed = pool.backend->scrub("lease-1");
        if (!scrubbed.ok()) return scrubbed.error().code == ErrorCode::io_error ? 12 : 3;
        return 0;
      });
    };
    const int crashed = life_of_a_lease("crash");
    CHECK(WIFSIGNALED(crashed));
    CHECK(pool.backend->list()->size() == expected.objects_left);
    CHECK(pool.backend->fence("lease-1").ok());
    CHECK(pool.backend->scrub("lease-1").ok());
    CHECK(pool.backend->list()->empty());

    const int failed = life_of_a_lease("error:ENOSPC");
    const int step = expected.failpoint[0] == 'c' ? 10 : expected.failpoint[0] == 'f' ? 11 : 12;
    CHECK(exited_with(failed, step));
    if (step == 10) CHECK(pool.backend->list()->empty());
  }
}
