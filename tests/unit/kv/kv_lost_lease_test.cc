// SPDX-License-Identifier: Apache-2.0
// Calls of many blocks when the lease has ended: an answer for each block, and none of them is a block.
#include "terrace/host_ownership.h"
#include "tests/support/ending_lease.h"
#include "tests/unit/kv/kv_fixture.h"

using namespace terrace;

namespace {

struct KvOfEndingLease {
  test::EndingLease lease;
  std::unique_ptr<KvSpace> space;
  KvNamespace name_space;
  std::vector<std::string> keys;
  std::vector<std::byte> bytes = std::vector<std::byte>(4096);

  KvOfEndingLease() {
    REQUIRE(KvSpace::format(lease.memory, KvFixture::small()).ok());
    auto ownership = ownership_by_locks(lease.fd);
    REQUIRE(ownership.ok());
    auto attached = KvSpace::attach(lease.memory, {.ownership = *ownership, .tends_itself = false});
    REQUIRE(attached.ok());
    space = std::move(*attached);
    for (int number = 0; number < 7; ++number) {
      keys.push_back("key-" + std::to_string(number));
      REQUIRE(kv_put(*space, name_space, keys.back()).ok());
    }
  }

  void check_that_all_are_lost() {
    std::vector<KvGet> gets;
    std::vector<KvPut> puts;
    for (const std::string& key : keys) {
      gets.push_back({.key = key, .into = bytes});
      puts.push_back({.key = key, .bytes = bytes});
    }
    const auto got = space->get_many(name_space, gets);
    REQUIRE(got.size() == gets.size());
    for (const auto& one : got) {
      REQUIRE(!one.ok());
      CHECK(one.error().code == ErrorCode::lease_expired);
    }
    const auto put = space->put_many(name_space, puts);
    REQUIRE(put.size() == puts.size());
    for (const Status& one : put) {
      REQUIRE(!one.ok());
      CHECK(one.error().code == ErrorCode::lease_expired);
    }
  }
};

}  // namespace

// Found by kv_soak in a lease that was revoked: the first of two answers was the number of blocks that were asked for.
TEST_CASE("KvSpace: each block of a call has its answer when the lease ends") {
  KvOfEndingLease kv;
  kv.lease.fence();
  kv.check_that_all_are_lost();  // the call that notices
  kv.check_that_all_are_lost();  // and each one later
}
