// SPDX-License-Identifier: Apache-2.0
// Whose regions of persistent memory they are.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/unit/memory/pmem/manager.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("pmem: a region that another store's manager adopted in this boot is nobody else's") {
  const std::string records = "/tmp/terrace-pmem-claim-" + std::to_string(::getpid());
  const StoreClaim own{.store = {1, 2}, .owner = "state file /a.db", .remedy = "--state"};
  StoreClaim other{.store = {3, 4}, .owner = "state file /b.db", .remedy = "--state", .is_new = true};
  PmemManager manager;
  manager.records = records;
  manager.restart();
  manager.compose();
  REQUIRE(manager.backend->claim(own).ok());
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  manager.restart();  // of the same store
  CHECK(manager.backend->claim(own).ok());
  const std::vector<KnownDevice> devices = manager.known();

  manager.start_other_store({});  // has adopted nothing: there is nothing that it could destroy
  REQUIRE(manager.backend->claim(other).ok());
  const Status refused = manager.backend->may_take_over(serial);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  for (const std::string& word : {serial, store_id_text(own.store), own.owner, store_id_text(other.store)})
    CHECK_MESSAGE(says(refused.error().detail, word), word);
  CHECK_FALSE(manager.backend->take_over(serial).ok());

  manager.start_other_store(
      devices);  // has adopted it once, too: its recovery would destroy what it does not know
  CHECK_FALSE(manager.backend->claim(other).ok());
  CHECK(manager.machine.namespaces().size() == 1);
  other.check_only = other.take_over = true;
  CHECK(manager.backend->claim(other).ok());
  other.check_only = false;
  manager.restart();
  CHECK(manager.backend->claim(own).ok());  // nothing was written
  CHECK(manager.backend->claim(other).ok());
  manager.restart();
  CHECK_FALSE(manager.backend->claim(own).ok());

  manager.boot = "boot-2";
  manager.restart();
  CHECK(manager.backend->claim(own).ok());
  std::filesystem::remove_all(records);
}
