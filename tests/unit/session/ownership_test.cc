// SPDX-License-Identifier: Apache-2.0
// ownership_by_manager over a lease that answers as a manager would.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "terrace/session.h"
#include "terrace/tensor_space.h"
#include "tests/support/eventually.h"

using namespace terrace;

namespace {

constexpr auto nothing_seen = [] { return uint64_t{0}; };

class OwnedLease final : public Lease {
 public:
  explicit OwnedLease(LeaseAccess access = LeaseAccess::read_write) : access_(access) {}
  LeaseId id() const override { return LeaseId{7}; }
  LeaseEpoch epoch() const override { return LeaseEpoch{1}; }
  uint64_t bytes() const override { return 0; }
  LeaseAccess access() const override { return access_; }
  LeaseState state() const override { return LeaseState::live; }
  int fd() const override { return -1; }
  Result<LeaseInfo> info() override { return LeaseInfo{}; }
  Status renew(uint64_t) override { return {}; }
  Status release() override { return {}; }
  Status report_usage(const UsageReport&) override { return {}; }
  Result<LeaseInfo> resize(uint64_t) override { return away_error(); }
  Status transfer(const std::string&, const std::string&) override { return away_error(); }
  Result<std::unique_ptr<LeaseMove>> begin_move() override { return away_error(); }

  Result<uint64_t> claim_part(uint32_t part, uint64_t last_epoch, uint64_t key) override {
    ++claims;
    CHECK(key != 0);
    CHECK(keys_.emplace(key, part).second);
    if (owned[part]) return Error{ErrorCode::busy, 0, "fake", "owned"};
    owned[part] = true;
    return epochs[part] = std::max(epochs[part], last_epoch) + 1;
  }
  Status release_part(uint32_t part, uint64_t epoch) override {
    ++releases;
    CHECK(epoch == epochs[part]);
    owned[part] = false;
    return {};
  }
  Result<bool> part_is_dead(uint32_t part, uint64_t epoch) override {
    ++questions;
    if (away) return away_error();
    return epoch < epochs[part] || (epoch == epochs[part] && !owned[part]);
  }

  std::map<uint32_t, uint64_t> epochs;
  std::map<uint32_t, bool> owned;
  int claims = 0, releases = 0, questions = 0;
  bool away = false;

 private:
  static Error away_error() { return {ErrorCode::unavailable, 0, "fake", "away"}; }

  const LeaseAccess access_;
  std::map<uint64_t, uint32_t> keys_;
};

std::shared_ptr<OwnershipSource> source_of(const std::shared_ptr<OwnedLease>& lease) {
  auto source = ownership_by_manager(lease);
  REQUIRE_MESSAGE(source.ok(), source.error().to_string());
  return *source;
}

}  // namespace

TEST_CASE("ownership_by_manager: a part is claimed once, and given back once") {
  const auto lease = std::make_shared<OwnedLease>();
  const auto a = source_of(lease), b = source_of(lease);
  CHECK(*a->claim(3, nothing_seen) == 1);
  CHECK(b->claim(3, nothing_seen).error().code == ErrorCode::busy);
  b->release(3);  // not its own
  CHECK(lease->releases == 0);
  a->release(3);
  a->release(3);
  a->release(99);
  CHECK(lease->releases == 1);
  CHECK(*b->claim(3, nothing_seen) == 2);
}

TEST_CASE("ownership_by_manager: a part that had owners before the manager's is claimed beyond them") {
  const auto lease = std::make_shared<OwnedLease>();
  const auto source = source_of(lease);
  CHECK(*source->claim(0, [] { return uint64_t{41}; }) == 42);
  CHECK(lease->claims == 2);
  CHECK(lease->owned[0]);
  source->release(0);
  CHECK(*source->claim(0, [] { return uint64_t{42}; }) == 43);
}

TEST_CASE("ownership_by_manager: an owner whom the manager did not make is not overrun") {
  const auto lease = std::make_shared<OwnedLease>();
  const auto source = source_of(lease);
  uint64_t last = 10;
  const auto claimed = source->claim(0, [&] { return ++last; });  // it raises the epoch meanwhile
  CHECK(claimed.error().code == ErrorCode::busy);
  CHECK(claimed.error().detail.find("part 0 of lease 7") != std::string::npos);
  CHECK_FALSE(lease->owned[0]);
}

TEST_CASE("ownership_by_manager: who is dead stays dead, and nobody is while the manager is away") {
  const auto lease = std::make_shared<OwnedLease>();
  const auto source = source_of(lease);
  lease->epochs[5] = 4;
  lease->owned[5] = true;
  CHECK_FALSE(source->is_dead(5, 4));
  for (int i = 0; i < 100'000; ++i) (void)source->is_dead(5, 4);
  CHECK(lease->questions < 10'000);  // most of them are answered from memory
  lease->away = true;
  lease->owned[5] = false;
  CHECK_FALSE(source->is_dead(5, 4));
  lease->away = false;
  CHECK(test::eventually([&] { return source->is_dead(5, 4); }));
  const int asked = lease->questions;
  lease->away = true;
  CHECK(source->is_dead(5, 4));
  CHECK(source->is_dead(5, 3));
  CHECK(lease->questions == asked);
  CHECK_FALSE(source->is_dead(5, 5));
  CHECK_FALSE(source->is_dead(5, 0));
  CHECK_FALSE(source->is_dead(64, 1));
}

TEST_CASE("ownership_by_manager: a lease that is read only, or none, is refused") {
  CHECK(ownership_by_manager(nullptr).error().code == ErrorCode::invalid_argument);
  CHECK(ownership_by_manager(std::make_shared<OwnedLease>(LeaseAccess::read_only)).error().code ==
        ErrorCode::permission_denied);
}

TEST_CASE("space_coherence: coherent only where that was said") {
  LeaseInfo lease;
  CHECK(space_coherence(lease) == SpaceCoherence::noncoherent);
  lease.coherence = MemoryCoherence::noncoherent;
  CHECK(space_coherence(lease) == SpaceCoherence::noncoherent);
  lease.coherence = MemoryCoherence::coherent;
  CHECK(space_coherence(lease) == SpaceCoherence::coherent);
}
