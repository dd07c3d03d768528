// SPDX-License-Identifier: Apache-2.0
// Spaces whose memory goes away under them, as that of a lease which ends: each call, in both modes, by its
// owner and by one who only reads; with what was begun before; in destructors.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "core/os/lossy_access.h"
#include "terrace/host_ownership.h"
#include "tests/support/ending_lease.h"
#include "tests/unit/coherence/space_fixture.h"

#if !defined(TERRACE_LOSSY_PLAIN)

namespace terrace {
namespace {

template <typename Answer>
bool is_lost(const Answer& answer) {
  if (!answer.ok() && answer.error().code == ErrorCode::lease_expired) return true;
  MESSAGE("answered ", answer.ok() ? std::string("ok") : answer.error().to_string());
  return false;
}

struct Scene {
  explicit Scene(SpaceCoherence coherence) {
    const Status formatted = TensorSpace::format(
        lease.memory, {.parts = 2, .records_per_part = 16, .pins_per_part = 8, .coherence = coherence});
    REQUIRE(formatted.ok());
    owner = attach(true);
    reader = attach(false);
    const auto created = owner->create(u8_tensor("t", 8192));
    REQUIRE(created.ok());
    made = *created;
    REQUIRE(owner->publish(made, bytes_of(1, 8192)).ok());
    found = *reader->open("t");
  }
  std::unique_ptr<TensorSpace> attach(bool own) {
    AttachOptions options;
    if (own) options.ownership = *ownership_by_locks(lease.fd);
    auto space = TensorSpace::attach(lease.memory, std::move(options));
    REQUIRE(space.ok());
    return std::move(*space);
  }

  test::EndingLease lease;
  std::unique_ptr<TensorSpace> owner, reader;
  SharedTensor made, found;
};

// Each call for itself, on a space that has not noticed anything yet.
const std::vector<std::function<bool(Scene&)>> calls = {
    [](Scene& scene) { return is_lost(scene.owner->create(u8_tensor("u", 64))); },
    [](Scene& scene) { return is_lost(scene.owner->open("t")); },
    [](Scene& scene) { return is_lost(scene.reader->open("t")); },
    [](Scene& scene) { return is_lost(scene.reader->open("another")); },
    [](Scene& scene) { return scene.reader->list().empty() && is_lost(scene.reader->health()); },
    [](Scene& scene) { return is_lost(scene.owner->remove(scene.made)); },
    [](Scene& scene) { return is_lost(scene.reader->version(scene.found)); },
    [](Scene& scene) { return !scene.reader->is_current(scene.found, 2) && is_lost(scene.reader->health()); },
    [](Scene& scene) { return !scene.owner->is_current(scene.made, 2) && is_lost(scene.owner->health()); },
    [](Scene& scene) {
      auto into = bytes_of(9, 8192);
      return is_lost(scene.reader->read(scene.found, into));
    },
    [](Scene& scene) {
      auto into = bytes_of(9, 8192);
      return is_lost(scene.owner->read(scene.made, into, 0, 60'000'000'000));
    },
    [](Scene& scene) { return is_lost(scene.owner->pin(scene.made)); },
    [](Scene& scene) { return is_lost(scene.reader->wait_for_version(scene.found, 9, 60'000'000'000)); },
    [](Scene& scene) { return is_lost(scene.owner->write(scene.made)); },
    [](Scene& scene) { return is_lost(scene.owner->publish(scene.made, bytes_of(2, 8192))); },
    [](Scene& scene) { return is_lost(scene.owner->health()); },
    [](Scene& scene) { return is_lost(TensorSpace::attach(scene.lease.memory)); },
    [](Scene& scene) { return is_lost(TensorSpace::format(scene.lease.memory)); },
    [](Scene& scene) {
      return is_lost(
          TensorSpace::attach(scene.lease.memory, {.ownership = *ownership_by_locks(scene.lease.fd)}));
    },
    [](Scene& scene) { return scene.owner.reset(), scene.reader.reset(), true; },
};

constexpr SpaceCoherence both[] = {SpaceCoherence::coherent, SpaceCoherence::noncoherent};

}  // namespace

TEST_CASE("TensorSpace: whatever is called first after the lease ended says lease_expired") {
  for (const SpaceCoherence coherence : both)
    for (size_t index = 0; index < calls.size(); ++index) {
      CAPTURE(index);
      Scene scene(coherence);
      scene.lease.fence();
      CHECK(calls[index](scene));
    }
}

TEST_CASE("TensorSpace: once the lease has ended every call says so, in any order, also from several threads") {
  for (const SpaceCoherence coherence : both) {
    Scene scene(coherence);
    scene.lease.fence();
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread)
      threads.emplace_back([&] {
        for (size_t index = 0; index + 1 < calls.size(); ++index) wrong += calls[index](scene) ? 0 : 1;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("TensorSpace: pins and writes that were begun before the lease ended go away in order") {
  for (const SpaceCoherence coherence : both) {
    Scene scene(coherence);
    auto pin = scene.owner->pin(scene.made);
    auto given_up = scene.owner->write(scene.made);
    const auto other = scene.owner->create(u8_tensor("u", 64));
    auto published = scene.owner->write(*other);
    REQUIRE((pin.ok() && given_up.ok() && published.ok()));
    scene.lease.fence();
    CHECK(is_lost(published->fill(bytes_of(3, 64))));
    CHECK(published->publish() == 0);
    pin->reset();
    { const TensorWrite gone = std::move(*given_up); }
    CHECK(is_lost(scene.owner->health()));
    scene.owner.reset();
    scene.reader.reset();
  }
}

TEST_CASE("TensorSpace: a lease that ends in the middle of reads and writes ends them with lease_expired") {
  for (const SpaceCoherence coherence : both) {
    Scene scene(coherence);
    std::atomic<uint64_t> done = 0;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    const auto until_lost = [&](const auto& call) {
      for (;;) {
        const Result<uint64_t> answer = call();
        done += answer.ok() ? 1 : 0;
        if (answer.ok() || answer.error().code == ErrorCode::busy) continue;
        wrong += answer.error().code == ErrorCode::lease_expired ? 0 : 1;
        return;
      }
    };
    threads.emplace_back(
        [&] { until_lost([&] { return scene.owner->publish(scene.made, bytes_of(5, 8192)); }); });
    threads.emplace_back([&] {
      auto into = bytes_of(0, 8192);
      until_lost([&] { return scene.reader->read(scene.found, into, 0, 1'000'000); });
    });
    while (done < 200) std::this_thread::yield();
    scene.lease.fence();
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("TensorSpace: memory of the caller that goes away during a copy is not the lease's end") {
  for (const SpaceCoherence coherence : both) {
    Scene scene(coherence);
    const test::EndingLease own;
    own.fence();
    const auto read = scene.reader->read(scene.found, own.memory.first(8192));
    const auto published = scene.owner->publish(scene.made, own.memory.first(8192));
    REQUIRE_FALSE((read.ok() || published.ok()));
    CHECK((read.error().code == ErrorCode::io_error && published.error().code == ErrorCode::io_error));
    CHECK(scene.owner->health().ok());
    auto into = bytes_of(9, 8192);
    CHECK(scene.reader->read(scene.found, into).ok());
  }
}

// The manager's answer to a claim can be the last that is heard of a lease.
TEST_CASE("TensorSpace: a lease that ends while a part or a seat is claimed is lease_expired") {
  struct Source final : OwnershipSource {
    Source(const test::EndingLease& of, bool fences) : lease_(of), fences_(fences) {}
    Result<uint64_t> claim(uint32_t, const std::function<uint64_t()>& last_epoch) override {
      const uint64_t epoch = last_epoch() + 1;
      if (fences_) lease_.fence();
      return epoch;
    }
    void release(uint32_t) override {}
    bool is_dead(uint32_t, uint64_t) override { return false; }
    const test::EndingLease& lease_;
    const bool fences_;
  };
  const auto attach = [](const test::EndingLease& lease, bool own, bool ends) {
    AttachOptions options;
    options.ownership = std::make_shared<Source>(lease, ends);
    options.own_a_part = own;
    return TensorSpace::attach(lease.memory, std::move(options));
  };
  for (const SpaceCoherence coherence : both) {
    SpaceOptions options{.parts = 2, .records_per_part = 16, .pins_per_part = 8, .coherence = coherence};
    for (const auto kind : {std::optional<SpaceOwnership>(), std::optional(SpaceOwnership::program)}) {
      const test::EndingLease lease;
      options.ownership = kind;
      REQUIRE(TensorSpace::format(lease.memory, options).ok());
      CHECK(is_lost(attach(lease, true, true)));
    }
    const test::EndingLease lease;
    REQUIRE(TensorSpace::format(lease.memory, options).ok());
    const auto owner = attach(lease, true, false);
    REQUIRE(owner.ok());
    const auto made = (*owner)->create(u8_tensor("t", 8192));
    REQUIRE(made.ok());
    REQUIRE((*owner)->publish(*made, bytes_of(1, 8192)).ok());
    const auto reader = attach(lease, false, true);
    REQUIRE(reader.ok());
    const auto found = (*reader)->open("t");
    REQUIRE(found.ok());
    CHECK(is_lost((*reader)->pin(*found)));
  }
}

TEST_CASE(
    "TensorSpace: a handler of the program, installed after the space was attached, does not get the end") {
  Scene scene(SpaceCoherence::coherent);
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = true;
    for (size_t index = 0; index + 1 < calls.size() && good; ++index) {
      struct sigaction action {};
      action.sa_handler = [](int) { ::_exit(7); };
      if (index == 0) (void)::ftruncate(scene.lease.fd, 0);
      ::sigaction(SIGBUS, &action, nullptr);
      auto into = bytes_of(9, 8192);
      good = is_lost(scene.reader->read(scene.found, into));
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

}  // namespace terrace

#endif
