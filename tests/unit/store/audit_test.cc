// SPDX-License-Identifier: Apache-2.0
// The audit log: numbered in the order of commits, queried by filter and page, bounded.
#include <doctest/doctest.h>

#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

AuditRow line(uint64_t n) {
  return {.sequence = 0,
          .wall_ns = 1000 * n,
          .actor = "uid 0 (terrace[12])",
          .tenant = n % 2 == 0 ? "alice" : "bob",
          .verb = n % 3 == 0 ? "device drain" : "device add",
          .subject = "lease " + std::to_string(n),
          .detail = "detail " + std::to_string(n)};
}

// One commit with lines first..last.
Delta lines(uint64_t first, uint64_t last) {
  Delta delta;
  for (uint64_t n = first; n <= last; ++n) delta.audit.push_back(line(n));
  return delta;
}

Delta rows_of(const std::string& tenant, uint64_t count, const std::string& verb = "grant",
              const std::string& actor = "uid 7 (a[1])") {
  Delta delta;
  for (uint64_t n = 0; n < count; ++n) delta.audit.push_back({0, n, actor, tenant, verb, "", ""});
  return delta;
}

std::vector<uint64_t> sequences(Store& store, const AuditQuery& query) {
  const Result<AuditPage> page = store.audit(query);
  REQUIRE_MESSAGE(page.ok(), page.error().to_string());
  std::vector<uint64_t> found;
  for (const AuditRow& row : page->rows) {
    AuditRow expected = line(row.sequence);
    expected.sequence = row.sequence;
    REQUIRE(row == expected);
    found.push_back(row.sequence);
  }
  return found;
}

using Sequences = std::vector<uint64_t>;

}  // namespace

TEST_CASE("Store audit: lines come back numbered, filtered, paged, and newest first") {
  TemporaryFolder folder;
  auto store = open_small_store(folder.file("state.db"));
  REQUIRE(store.ok());
  CHECK((*store)->audit({})->newest == 0);
  REQUIRE((*store)->commit(lines(1, 4)).ok());
  REQUIRE((*store)->commit(lines(5, 10)).ok());
  for (int round = 0; round < 2; ++round) {
    CHECK(sequences(**store, {}) == Sequences{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(sequences(**store, {.limit = 3, .newest_first = true}) == Sequences{10, 9, 8});
    CHECK(sequences(**store, {.after = 4, .limit = 2}) == Sequences{5, 6});
    CHECK(sequences(**store, {.since_ns = 9000}) == Sequences{9, 10});
    CHECK(sequences(**store, {.tenant = "alice"}) == Sequences{2, 4, 6, 8, 10});
    CHECK(sequences(**store, {.tenant = "alice", .verb = "device d"}) == Sequences{6});
    CHECK(sequences(**store, {.verb = "device"}).size() == 10);
    CHECK(sequences(**store, {.verb = "drain"}).empty());
    CHECK(sequences(**store, {.subject = "lease 7"}) == Sequences{7});
    CHECK(sequences(**store, {.subject = "lease"}).empty());
    CHECK(sequences(**store, {.after = ~uint64_t{0}}).empty());
    CHECK((*store)->audit({.limit = 1})->oldest == 1);
    CHECK((*store)->audit({.limit = 1})->newest == 10);
    store->reset();  // and again from the file
    store = open_small_store(folder.file("state.db"));
    REQUIRE(store.ok());
  }
}

TEST_CASE("Store audit: a filter is data, not SQL") {
  TemporaryFolder folder;
  auto store = open_small_store(folder.file("state.db"));
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(lines(1, 3)).ok());
  CHECK(sequences(**store, {.tenant = "' OR 1=1 --"}).empty());
  CHECK(sequences(**store, {.verb = "%"}).empty());
  CHECK(sequences(**store, {.subject = "lease _"}).empty());
}

TEST_CASE("Store audit: only the newest lines are kept, and numbers are never used again") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  const uint64_t most = limits::audit_rows_max;
  REQUIRE((*store)->commit(rows_of("alice", most)).ok());
  CHECK((*store)->audit({.limit = 1})->oldest == 1);
  REQUIRE((*store)->commit(rows_of("alice", 70)).ok());
  CHECK((*store)->audit({.limit = 1})->oldest == 257);  // some are taken out at once
  CHECK((*store)->audit({.limit = 1})->newest == most + 70);
  store->reset();
  store = open_small_store(path);
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(rows_of("alice", most + 10)).ok());  // more than the log keeps, in one commit
  CHECK((*store)->audit({.limit = 1})->oldest == most + 81);
  CHECK((*store)->audit({.limit = 1})->newest == 2 * most + 80);
  CHECK((*store)->audit({})->rows.size() == limits::audit_rows_per_page_max);
}

// One tenant's grants and releases washed everybody's lines away, an administrator's too, in 12 s.
TEST_CASE("Store audit: who churns loses its own lines only") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(rows_of("carol", 50, "revoke", "admin uid 0 (terrace[1])")).ok());
  REQUIRE((*store)->commit(rows_of("", 50, "device lost", "manager")).ok());
  REQUIRE((*store)->commit(rows_of("bob", 50)).ok());
  REQUIRE((*store)->commit(rows_of("mallory", 50, "denied grant")).ok());
  const auto kept = [&](const AuditQuery& query) { return (*store)->audit(query)->rows.size(); };
  const auto check = [&] {
    CHECK(kept({.tenant = "carol"}) == 50);
    CHECK(kept({.verb = "device lost"}) == 50);
    CHECK(kept({.tenant = "bob"}) == 50);
    CHECK(kept({.verb = "denied"}) == 50);
  };
  for (int round = 0; round < 3; ++round)
    REQUIRE((*store)->commit(rows_of("mallory", limits::audit_rows_max / 2)).ok());
  check();
  // Whoever calls itself an administrator is none, and an administrator's own churn leaves half of the log.
  REQUIRE((*store)->commit(rows_of("eve", 1000, "grant", "uid 9 (admin uid 0 [1])")).ok());
  store->reset();
  store = open_small_store(path);
  REQUIRE(store.ok());
  REQUIRE(
      (*store)->commit(rows_of("", limits::audit_rows_max - 1000, "pool create", "admin uid 0 (a[1])")).ok());
  CHECK(kept({.tenant = "bob"}) == 50);
  CHECK(kept({.verb = "denied"}) == 50);
  CHECK(kept({.tenant = "eve"}) == 1000);
}

TEST_CASE("Store audit: a text that is too long is cut between characters") {
  TemporaryFolder folder;
  auto store = open_small_store(folder.file("state.db"));
  REQUIRE(store.ok());
  Delta delta;
  AuditRow& row = delta.audit.emplace_back();
  row.verb = "note";
  row.detail = std::string(limits::audit_text_bytes_max - 1, 'a') + "\u00e9 and more";
  REQUIRE((*store)->commit(delta).ok());
  CHECK((*store)->audit({})->rows.at(0).detail == std::string(limits::audit_text_bytes_max - 1, 'a'));
}

TEST_CASE("Store audit: a line that was changed is reported, and costs nothing else") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 2);
  {
    auto store = open_small_store(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->commit(lines(1, 5)).ok());
  }
  {
    auto connection = Connection::open(path, false);
    REQUIRE(connection.ok());
    REQUIRE(connection->exec("UPDATE audit SET actor='nobody' WHERE sequence=3", "test").ok());
    connection->keep_log(false);
  }
  auto store = open_small_store(path);
  REQUIRE_MESSAGE(store.ok(), store.error().to_string());
  CHECK((*store)->load()->leases.size() == 2);
  const Result<AuditPage> page = (*store)->audit({});
  REQUIRE(!page.ok());
  CHECK(page.error().code == ErrorCode::corrupt);
  CHECK(page.error().detail.find("line 3") != std::string::npos);
}
