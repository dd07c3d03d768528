// SPDX-License-Identifier: Apache-2.0
// A backup over the wire: the operator's alone, handed over as a descriptor that was read from a real store.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("Backup: a store without a file says so, and the manager goes on") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  auto reply = t.call(operator_.backupRequest());
  CHECK(reply.getError().getCode() == code(ErrorCode::unsupported));
  CHECK_FALSE(reply.hasFile());
  t.make_pool(operator_);
}

TEST_CASE("Backup: the answer has what the file holds, and the file") {
  Rpc t;
  std::string folder = "/dev/shm/terrace-rpc-backup-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  {
    auto store = daemon::open_store(folder + "/state.db");
    REQUIRE(store.ok());
    t.store.backup_of = store->get();
    FixtureClient root(t, 0, 1);
    auto operator_ = t.admin(root);
    auto reply = t.call(operator_.backupRequest());
    REQUIRE(reply.getError().getCode() == 0);
    const auto made = reply.getBackup();
    CHECK(std::string(made.getStoreId().cStr()) == daemon::store_id_text((*store)->id()));
    CHECK(made.getBytes() > 0);
    auto file = reply.getFile();
    auto fd = file.getFd().wait(t.io.waitScope);
    KJ_IF_MAYBE (number, fd) {
      char magic[16] = "";
      CHECK(::pread(*number, magic, 15, 0) == 15);
      CHECK(std::string(magic) == "SQLite format 3");
      CHECK(::lseek(*number, 0, SEEK_END) == static_cast<off_t>(made.getBytes()));
      CHECK(::pwrite(*number, "x", 1, 0) == -1);
    } else {
      FAIL("the backup carries no descriptor");
    }
  }
  std::filesystem::remove_all(folder);
}
