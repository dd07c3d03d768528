// Parts given to hosts beforehand: two sources on one file are two hosts, as far as anybody can tell.
#include "terrace/host_ownership.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/base/unique_fd.h"
#include "terrace/tensor_space.h"

using namespace terrace;

namespace {

constexpr size_t space_bytes = 1 << 20;

bool says(const Error& error, std::string_view text) {
  return error.detail.find(text) != std::string::npos;
}

// A file with a space of `parts` parts. Two hosts: their kernels' locks are different files.
struct TwoHosts {
  explicit TwoHosts(uint32_t parts = 4) {
    for (UniqueFd& fd : locks) {
      fd.reset(::memfd_create("locks", MFD_CLOEXEC));
      REQUIRE(fd.valid());
    }
    REQUIRE(::ftruncate(locks[0].get(), space_bytes) == 0);
    void* const at = ::mmap(nullptr, space_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, locks[0].get(), 0);
    REQUIRE(at != MAP_FAILED);
    memory = {static_cast<std::byte*>(at), space_bytes};
    REQUIRE(TensorSpace::format(memory, {.parts = parts, .records_per_part = 16, .pins_per_part = 8}).ok());
    ranges = *equal_host_ranges(parts, 2);
  }
  ~TwoHosts() { ::munmap(memory.data(), memory.size()); }
  TwoHosts(const TwoHosts&) = delete;

  std::shared_ptr<OwnershipSource> source(uint32_t host) {
    const auto made = ownership_by_host_ranges(
        locks[host].get(),
        {.ranges = ranges, .host = host, .is_gone = [this](uint32_t other) { return gone[other]; }});
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? std::string() : made.error().to_string()));
    return *made;
  }
  Result<std::unique_ptr<TensorSpace>> attach(uint32_t host, std::optional<uint32_t> part = {}) {
    return TensorSpace::attach(memory, {.ownership = source(host), .part = part, .host = host});
  }

  UniqueFd locks[2];
  std::span<std::byte> memory;
  std::vector<HostRange> ranges;
  bool gone[2] = {false, false};
};

Error refused(std::vector<HostRange> ranges, uint32_t host) {
  const UniqueFd file(::memfd_create("space", MFD_CLOEXEC));
  const auto made = ownership_by_host_ranges(file.get(), {.ranges = std::move(ranges), .host = host});
  REQUIRE_FALSE(made.ok());
  return made.error();
}

}  // namespace

TEST_CASE("Host ranges: parts are dealt out to hosts, and what does not fit is refused in words") {
  const auto ranges = *equal_host_ranges(7, 3);
  REQUIRE(ranges.size() == 3);
  CHECK(ranges[0].parts == 3);
  CHECK(ranges[1].first_part == 3);
  CHECK(ranges[2].first_part + ranges[2].parts == 7);
  CHECK_FALSE(equal_host_ranges(2, 3).ok());
  CHECK_FALSE(equal_host_ranges(0, 0).ok());
  CHECK_FALSE(equal_host_ranges(65, 2).ok());

  const Error overlap =
      refused({{.host = 0, .first_part = 0, .parts = 4}, {.host = 1, .first_part = 3, .parts = 2}}, 0);
  CHECK(overlap.code == ErrorCode::invalid_argument);
  CHECK(says(overlap, "part 3 is given to host 0 and to host 1"));
  CHECK(says(refused({{.host = 0, .first_part = 0, .parts = 0}}, 0), "is no range"));
  CHECK(says(refused({{.host = 0, .first_part = 60, .parts = 5}}, 0), "is no range"));
  CHECK(says(refused({{.host = 0, .first_part = UINT32_MAX, .parts = UINT32_MAX}}, 0), "is no range"));
  CHECK(says(refused({{.host = 64, .first_part = 0, .parts = 1}}, 64), "0 to 63"));
  CHECK(says(refused({{.host = 0, .first_part = 0, .parts = 1}}, 1), "none of the hosts"));
  CHECK(says(refused({}, 0), "none of the hosts"));
}

TEST_CASE("Host ranges: each host gets its own parts, and is told when they are used up") {
  TwoHosts hosts;
  const auto a = hosts.attach(0), b = hosts.attach(0), c = hosts.attach(1), d = hosts.attach(1);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  REQUIRE(c.ok());
  REQUIRE(d.ok());
  CHECK((*a)->part() == 0);
  CHECK((*b)->part() == 1);
  CHECK((*c)->part() == 2);
  CHECK((*d)->part() == 3);
  const auto full = hosts.attach(0);
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code == ErrorCode::busy);
  CHECK(says(full.error(), "this is host 0, with parts 0 to 1, which all have owners that live"));
  const auto foreign = hosts.attach(0, 3);
  CHECK(foreign.error().code == ErrorCode::busy);
  CHECK(says(foreign.error(), "part 3 is host 1's"));
  CHECK(says(hosts.attach(1, 2).error(), "has an owner that lives; host 1 has parts 2 to 3"));
}

TEST_CASE("Host ranges: epochs grow over processes, and say which host it was") {
  TwoHosts hosts;
  uint64_t last = 0;
  for (int process = 0; process < 3; ++process) {
    const auto source = hosts.source(1);
    const auto epoch = source->claim(3, [&] { return last; });
    REQUIRE(epoch.ok());
    CHECK(*epoch > last);
    CHECK(*epoch % space_hosts_max == 1);
    CHECK_FALSE(source->is_dead(3, *epoch));
    source->release(3);
    CHECK(source->is_dead(3, *epoch));
    last = *epoch;
  }
  CHECK(last == 3 * space_hosts_max + 1);
}

TEST_CASE("Host ranges: who died on another host is not known before that host is gone") {
  TwoHosts hosts;
  const auto mine = hosts.source(0), theirs = hosts.source(1);
  const uint64_t epoch = *theirs->claim(2, [] { return uint64_t{0}; });
  theirs->release(2);
  CHECK(theirs->is_dead(2, epoch));
  CHECK_FALSE(mine->is_dead(2, epoch));
  CHECK_FALSE(mine->is_dead(2, 0));
  hosts.gone[1] = true;
  CHECK(mine->is_dead(2, epoch));
  CHECK_FALSE(mine->is_dead(2, 0));  // nobody's
}

TEST_CASE("Host ranges: a process that was killed leaves its part to the next one of its host") {
  TwoHosts hosts;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto space = hosts.attach(1);
    const char answer = space.ok() && (*space)->create({.name = "t", .shape = {64}}).ok() ? 'y' : 'n';
    (void)!::write(ready[1], &answer, 1);
    for (;;) ::pause();
  }
  char answer = 0;
  REQUIRE(::read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK_FALSE(hosts.attach(1, 2).ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto next = hosts.attach(1, 2);
  REQUIRE(next.ok());
  CHECK((*next)->open("t").ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("Host ranges: a part that another host had is refused until that host is gone") {
  TwoHosts hosts;
  (void)hosts.attach(1, 2);
  hosts.ranges = {{.host = 0, .first_part = 0, .parts = 3}, {.host = 1, .first_part = 3, .parts = 1}};
  const auto taken = hosts.attach(0, 2);
  REQUIRE_FALSE(taken.ok());
  CHECK(taken.error().code == ErrorCode::permission_denied);
  CHECK(says(taken.error(), "part 2 is host 0's here, but its last owner was a process of host 1"));
  CHECK(says(taken.error(), "ranges overlap"));
  hosts.gone[1] = true;
  const auto inherited = hosts.attach(0, 2);
  CHECK(inherited.ok());
}

TEST_CASE(
    "Host ranges: a part of another kind of source, and one without epochs left, are refused and let go") {
  TwoHosts hosts;
  const auto source = hosts.source(0);
  const auto other_kind = source->claim(0, [] { return uint64_t{5}; });
  REQUIRE_FALSE(other_kind.ok());
  CHECK(other_kind.error().code == ErrorCode::permission_denied);
  CHECK(says(other_kind.error(), "another kind of source (epoch 5)"));
  const auto exhausted = source->claim(0, [] { return UINT64_MAX - space_hosts_max + 1; });
  REQUIRE_FALSE(exhausted.ok());
  CHECK(exhausted.error().code == ErrorCode::limit_exceeded);
  const auto last = source->claim(0, [] { return UINT64_MAX - 2 * space_hosts_max + 1; });
  REQUIRE(last.ok());  // neither refusal kept the part
  CHECK(*last == UINT64_MAX - space_hosts_max + 1);
}
