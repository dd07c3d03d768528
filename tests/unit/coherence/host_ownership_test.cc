// SPDX-License-Identifier: Apache-2.0
// Parts given to hosts beforehand: two sources on one file are two hosts, as far as anybody can tell.
#include "terrace/host_ownership.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

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
  TwoHosts() {
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

  // On `machine`, which calls itself `host`.
  std::shared_ptr<OwnershipSource> source(uint32_t machine, uint32_t host, bool restarted = false) {
    const auto is_gone = [this](uint32_t other) {
      ++asked;
      return gone[other];
    };
    const auto made = ownership_by_host_ranges(
        locks[machine].get(), {.ranges = ranges, .host = host, .is_gone = is_gone, .restarted = restarted});
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? std::string() : made.error().to_string()));
    return *made;
  }
  std::shared_ptr<OwnershipSource> source(uint32_t host) { return source(host, host); }
  Result<std::unique_ptr<TensorSpace>> attach(uint32_t host, std::optional<uint32_t> part = {}) {
    return TensorSpace::attach(memory, {.ownership = source(host), .part = part, .host = host});
  }
  // A process of that host that owned the part, created "t" in it and was killed.
  void leave_dead(uint32_t host, uint32_t part);

  static constexpr uint32_t parts = 4;
  UniqueFd locks[2];
  std::span<std::byte> memory;
  std::vector<HostRange> ranges;
  bool gone[2] = {false, false};
  int asked = 0;  // is_gone, so many times
};

// A process that runs until it is ended: by the test, or by the kernel when the test is gone.
class Child {
 public:
  template <typename Work>
  explicit Child(Work work) {
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {  // a check that fails must not go on as the test
      if (::getppid() == parent) work();
    } catch (...) {
    }
    ::_exit(1);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

void own_and_wait(TwoHosts& hosts, uint32_t host, uint32_t part, int ready) {
  const auto space = hosts.attach(host, part);
  const char answer = space.ok() && (*space)->create({.name = "t", .shape = {64}}).ok() ? 'y' : 'n';
  (void)!::write(ready, &answer, 1);
  for (;;) ::pause();
}

// Returns when it owns the part.
std::unique_ptr<Child> start_owner(TwoHosts& hosts, uint32_t host, uint32_t part) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd answers(ends[0]);
  UniqueFd ready(ends[1]);
  auto child = std::make_unique<Child>([&] { own_and_wait(hosts, host, part, ready.get()); });
  ready.reset();  // a child that dies is an end of file, not a wait for ever
  char answer = 0;
  REQUIRE(::read(answers.get(), &answer, 1) == 1);
  REQUIRE(answer == 'y');
  return child;
}

void TwoHosts::leave_dead(uint32_t host, uint32_t part) {
  start_owner(*this, host, part)->end();
}

// A "no" of is_gone is good for a moment.
bool dead_in_time(OwnershipSource& source, uint32_t part, uint64_t epoch) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!source.is_dead(part, epoch)) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

constexpr unsigned number_begins = 26;  // above host and domain
constexpr uint64_t number_max = (uint64_t{1} << 37) - 1;
uint64_t number_of(uint64_t epoch) {
  return epoch >> number_begins & number_max;
}

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
  CHECK(last >= host_epochs_from);
  CHECK(number_of(last) == 3);
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
  CHECK(dead_in_time(*mine, 2, epoch));
  CHECK_FALSE(mine->is_dead(2, 0));  // nobody's
}

TEST_CASE("Host ranges: who asks in a loop whether a host is gone does not ask the program each time") {
  TwoHosts hosts;
  const auto mine = hosts.source(0), theirs = hosts.source(1);
  const uint64_t epoch = *theirs->claim(2, [] { return uint64_t{0}; });
  const auto begun = std::chrono::steady_clock::now();
  constexpr int looks = 20'000;
  for (int look = 0; look < looks; ++look) REQUIRE_FALSE(mine->is_dead(2, epoch));
  const auto took = std::chrono::steady_clock::now() - begun;
  CHECK(hosts.asked >= 1);
  CHECK(hosts.asked <= 1 + took / std::chrono::milliseconds(1));
  CHECK(hosts.asked < looks);
}

TEST_CASE("Host ranges: a process that was killed leaves its part to the next one of its host") {
  TwoHosts hosts;
  const auto owner = start_owner(hosts, 1, 2);
  CHECK_FALSE(hosts.attach(1, 2).ok());
  owner->end();
  const auto next = hosts.attach(1, 2);
  REQUIRE(next.ok());
  CHECK((*next)->open("t").ok());
}

TEST_CASE("Host ranges: what a killed process left is taken over before parts that nobody needs") {
  TwoHosts hosts;
  hosts.leave_dead(1, 3);  // part 2 was never owned
  const auto first = hosts.attach(1);
  REQUIRE(first.ok());
  CHECK((*first)->part() == 3);
  CHECK((*first)->open("t").ok());
  const auto second = hosts.attach(1);
  REQUIRE(second.ok());
  CHECK((*second)->part() == 2);
}

TEST_CASE("Host ranges: one part that is refused does not keep the others of its host") {
  TwoHosts hosts;
  (void)hosts.attach(1, 2);
  hosts.ranges = {{.host = 0, .first_part = 0, .parts = 1}, {.host = 1, .first_part = 1, .parts = 3}};
  (void)hosts.attach(1, 1);
  hosts.ranges = {{.host = 0, .first_part = 0, .parts = 3}, {.host = 1, .first_part = 3, .parts = 1}};
  const auto a = hosts.attach(0);
  REQUIRE(a.ok());
  CHECK((*a)->part() == 0);
  const auto refused = hosts.attach(0);  // parts 1 and 2 were host 1's; part 3 is
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::permission_denied);
  CHECK(says(refused.error(), "part 1 is host 0's here"));
  hosts.ranges = {{.host = 0, .first_part = 1, .parts = 3}, {.host = 1, .first_part = 0, .parts = 1}};
  const auto b = hosts.attach(0);  // 1 and 2 are refused
  REQUIRE(b.ok());
  CHECK((*b)->part() == 3);
}

TEST_CASE("Host ranges: two machines with one number find out, whoever comes second") {
  TwoHosts hosts;
  const auto options = [&](std::shared_ptr<OwnershipSource> source, std::optional<uint32_t> part = {}) {
    return AttachOptions{.ownership = std::move(source), .part = part};
  };
  const auto first = TensorSpace::attach(hosts.memory, options(hosts.source(0, 0)));
  REQUIRE(first.ok());
  for (const std::optional<uint32_t> part : {std::optional<uint32_t>(), std::optional<uint32_t>(0)}) {
    const auto twin = TensorSpace::attach(hosts.memory, options(hosts.source(1, 0), part));
    REQUIRE_FALSE(twin.ok());
    CHECK(twin.error().code == ErrorCode::already_exists);
    CHECK(says(twin.error(), "part 0 is owned by a process that has the number of this host, 0"));
    CHECK(says(twin.error(), "a number of its own"));
  }
}

TEST_CASE("Host ranges: who has this host's number elsewhere is not said to be dead") {
  TwoHosts hosts;
  const auto mine = hosts.source(0), twin = hosts.source(1, 0), later = hosts.source(1, 0, true);
  const uint64_t epoch = *mine->claim(0, [] { return uint64_t{0}; });
  CHECK_FALSE(twin->is_dead(0, epoch));
  CHECK(later->is_dead(0, epoch));  // it knows that this was before a restart
  CHECK(*twin->claim(1, [] { return uint64_t{0}; }) != *mine->claim(1, [] { return uint64_t{0}; }));
}

TEST_CASE("Host ranges: what a host owned before it was restarted is had again once it says so") {
  TwoHosts hosts;
  hosts.leave_dead(0, 1);
  const auto unsaid = TensorSpace::attach(hosts.memory, {.ownership = hosts.source(1, 0)});
  REQUIRE_FALSE(unsaid.ok());
  CHECK(says(unsaid.error(), "HostOwnershipOptions::restarted"));
  {
    const auto said = TensorSpace::attach(hosts.memory, {.ownership = hosts.source(1, 0, true)});
    REQUIRE(said.ok());
    CHECK((*said)->part() == 1);
    CHECK((*said)->open("t").ok());
  }
  // What was given back is anybody's who has the number.
  const auto back = TensorSpace::attach(hosts.memory, {.ownership = hosts.source(0, 0), .part = 1});
  CHECK(back.ok());
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
  hosts.gone[1] = true;  // a claim asks anew
  const auto inherited = hosts.attach(0, 2);
  CHECK(inherited.ok());
}

TEST_CASE("Host ranges: a part of another kind of source is refused and let go") {
  TwoHosts hosts;
  const auto source = hosts.source(0);
  for (const uint64_t epoch : {uint64_t{1}, uint64_t{5}, uint64_t{64}, uint64_t{128}, uint64_t{130},
                               uint64_t{1} << 48, host_epochs_from - 1}) {
    const auto taken = source->claim(0, [&] { return epoch; });
    REQUIRE_FALSE(taken.ok());
    CHECK(taken.error().code == ErrorCode::permission_denied);
    CHECK(says(taken.error(), "another kind of source (epoch " + std::to_string(epoch) + ")"));
    CHECK_FALSE(source->is_dead(0, epoch));
  }
  CHECK(source->claim(0, [] { return uint64_t{0}; }).ok());
}

TEST_CASE("Host ranges: locks do not follow on hosts, in their own words") {
  TwoHosts hosts;
  (void)hosts.attach(0, 0);
  const auto by_locks = *ownership_by_locks(hosts.locks[0].get());
  for (int attempt = 0; attempt < 2; ++attempt) {  // the first one let the lock go
    const auto taken = TensorSpace::attach(hosts.memory, {.ownership = by_locks, .part = 0});
    REQUIRE_FALSE(taken.ok());
    CHECK(taken.error().code == ErrorCode::permission_denied);
    CHECK(says(taken.error(), "had an owner by host"));
  }
  CHECK(hosts.attach(0, 0).ok());
}

TEST_CASE("Host ranges: a part without epochs left is refused and let go") {
  TwoHosts hosts;
  const auto source = hosts.source(0);
  const uint64_t none_left = *source->claim(0, [] { return uint64_t{0}; }) | number_max << number_begins;
  source->release(0);
  const auto exhausted = source->claim(0, [&] { return none_left; });
  REQUIRE_FALSE(exhausted.ok());
  CHECK(exhausted.error().code == ErrorCode::limit_exceeded);
  const auto last = source->claim(0, [&] { return none_left - (uint64_t{1} << number_begins); });
  REQUIRE(last.ok());  // the refusal did not keep the part
  CHECK(*last == none_left);
}
