// Schema versions: older stores move forward whole or not at all, newer ones are refused.
#include <doctest/doctest.h>

#include "tests/unit/store/store_fixture.h"
#include "tests/unit/store/version_1_store.h"
#include "tests/unit/store/version_2_store.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

Status add_table(Connection& connection) {
  return connection.exec("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT", "test");
}
Status fill_table(Connection& connection) {
  return connection.exec("INSERT INTO note SELECT id, label FROM lease", "test");
}
Status fail_half_way(Connection& connection) {
  TERRACE_RETURN_IF_ERROR(connection.exec("DELETE FROM lease; DROP TABLE note", "test"));
  return connection.exec("INSERT INTO no_such_table VALUES (1)", "test");
}
Status lose_a_row(Connection& connection) {
  return connection.exec("DELETE FROM lease WHERE id=1", "test");
}

std::vector<Migration> with(std::initializer_list<Migration> more) {
  std::vector<Migration> list(store_migrations().begin(), store_migrations().end());
  list.insert(list.end(), more);
  return list;
}

Result<Image> load_with(const std::string& path, const std::vector<Migration>& migrations) {
  StoreOptions options;
  options.migrations = migrations;
  auto store = open_small_store(path, options);
  if (!store.ok()) return store.error();
  return (*store)->load();
}

std::string query(const std::string& path, const char* sql) {
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  const Result<std::string> text = connection->query_text(sql, "test");
  REQUIRE_MESSAGE(text.ok(), text.error().to_string());
  return *text;
}

// Plants a closed store of an older version.
void make_old_store(const std::string& path, size_t version, const char* rows) {
  auto connection = Connection::open(path, true);
  REQUIRE(connection.ok());
  REQUIRE(connection->exec("PRAGMA application_id=0x54524353; BEGIN", "test").ok());
  REQUIRE(migrate(*connection, store_migrations().first(version), 0).ok());
  const Status filled = connection->exec(rows, "test");
  REQUIRE_MESSAGE(filled.ok(), filled.error().to_string());
  REQUIRE(connection->exec("COMMIT; PRAGMA journal_mode=WAL", "test").ok());
  connection->keep_log(false);
}
void make_version_1_store(const std::string& path) {
  make_old_store(path, 1, version_1_rows);
}
void make_version_2_store(const std::string& path) {
  make_old_store(path, 2, version_2_rows);
}

Image version_1_image() {
  LeaseRow odd = make_lease(9, 1);
  odd.label.clear();
  odd.reason = "taken back";
  odd.ttl_ns = odd.expiry_ns = 0;
  odd.deadline_ns = ~uint64_t{0};
  odd.phase = LeasePhase::quarantined;
  odd.mode = LeaseMode::exclusive;
  Image image;
  image.meta = {.next_device = 3, .next_pool = 2, .next_lease = 6, .next_epoch = 6, .boot_id = "boot"};
  image.devices = {make_device(1), make_device(2)};
  image.pools = {PoolRow{.id = PoolId{1}, .name = "pool-1"}};
  image.leases = {make_lease(1), make_lease(2), make_lease(5, 3), odd};
  return image;
}

Image version_2_image() {
  constexpr uint64_t granule = limits::granule_bytes;
  LeaseRow cut = make_lease(3, 2);
  cut.extents = {{DeviceId{1}, 64, 1}, {DeviceId{2}, 65, 1}};
  cut.label = "weights";
  cut.expiry_ns = 123456790;
  cut.request_high = ~uint64_t{0} - 2;
  cut.request_low = 5;
  cut.movable = true;
  cut.target_bytes = granule;
  LeaseRow odd = make_lease(4, 1);
  odd.tenant = "bob";
  odd.label.clear();
  odd.reason = "expired";
  odd.extents = {{DeviceId{1}, 0, 3}};
  odd.bytes = 3 * granule;
  odd.mode = LeaseMode::exclusive;
  odd.phase = LeasePhase::quarantined;
  odd.ttl_ns = odd.expiry_ns = odd.request_high = odd.request_low = 0;
  odd.cause = LeaseCause::expired;
  odd.next_object = "lease-4-9";
  Image image;
  image.meta = {.next_device = 3,
                .next_pool = 3,
                .next_lease = 6,
                .next_epoch = 6,
                .next_reservation = 2,
                .boot_id = "boot"};
  image.devices = {make_device(1), make_device(2)};
  image.devices[1].state = DeviceState::draining;
  image.pools = {
      PoolRow{.id = PoolId{1}, .name = "pool-1", .placement = Placement::striped, .stripe_bytes = 4 * granule},
      PoolRow{.id = PoolId{2}, .name = "empty"}};
  image.leases = {cut, odd};
  image.quotas = {QuotaRow{.tenant = "bob", .bytes_max = uint64_t{1} << 40, .leases_max = 7}};
  image.reservations = {
      ReservationRow{.id = ReservationId{1}, .pool = PoolId{1}, .tenant = "alice", .bytes = 8 * granule}};
  return image;
}

}  // namespace

TEST_CASE("Store migration: a store of version 1 keeps every row, and is sealed anew") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_version_1_store(path);
  for (int round = 0; round < 2; ++round) {
    const Result<Image> image = load_store(path);
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    CHECK(same(*image, version_1_image()));
  }
  CHECK(query(path, "PRAGMA user_version") == "3");
  CHECK(query(path, "SELECT sequence FROM meta") == "4");  // its mark is still a bound
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  Delta delta = make_grant(10);
  delta.leases[LeaseId{1}] = std::nullopt;
  CHECK((*store)->commit(delta).ok());
  store->reset();
  CHECK(load_store(path)->leases.size() == 4);
}

TEST_CASE("Store migration: damage to a store of version 1 is refused, not sealed in") {
  for (const char* attack : {"UPDATE lease SET tenant='mallory' WHERE id=2", "DELETE FROM lease WHERE id=2",
                             "DELETE FROM meta", "UPDATE pool SET name='other'",
                             "UPDATE device SET capacity_bytes=1 WHERE id=1", "UPDATE meta SET next_lease=1"}) {
    CAPTURE(attack);
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    make_version_1_store(path);
    {
      auto connection = Connection::open(path, false);
      REQUIRE(connection.ok());
      REQUIRE(connection->exec(attack, "test").ok());
      connection->keep_log(false);
    }
    const Result<Image> image = load_store(path);
    REQUIRE(!image.ok());
    CHECK_MESSAGE(image.error().code == ErrorCode::corrupt, image.error().to_string());
    CHECK(query(path, "PRAGMA user_version") == "1");
  }
}

TEST_CASE("Store migration: a store of version 2 keeps every row, and its pools say nothing of coherence") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_version_2_store(path);
  for (int round = 0; round < 2; ++round) {
    const Result<Image> image = load_store(path);
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    CHECK(same(*image, version_2_image()));
  }
  CHECK(query(path, "PRAGMA user_version") == "3");
  CHECK(query(path, "SELECT subject FROM audit") == "lease 3");
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  Delta delta;
  delta.pools[PoolId{2}] = PoolRow{.id = PoolId{2}, .name = "empty", .coherence = PoolCoherence::coherent};
  const PartId part = part_id(LeaseId{3}, 63);
  delta.owners[part] =
      OwnerRow{.id = part, .epoch = 8, .request = ~uint64_t{0}, .process = {7, 9, 11}, .holder = "a"};
  CHECK((*store)->commit(delta).ok());
  store->reset();
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->pools[1] == *delta.pools[PoolId{2}]);
  CHECK(image->owners == std::vector<OwnerRow>{*delta.owners[part]});
}

TEST_CASE("Store migration: damage to a store of version 2 is refused, not sealed in") {
  for (const char* attack : {"UPDATE pool SET placement=2, stripe_bytes=0 WHERE id=1",
                             "DELETE FROM pool WHERE id=2", "UPDATE lease SET tenant='mallory' WHERE id=3",
                             "DELETE FROM quota", "INSERT INTO pool VALUES(3,'third',0,0,1)"}) {
    CAPTURE(attack);
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    make_version_2_store(path);
    {
      auto connection = Connection::open(path, false);
      REQUIRE(connection.ok());
      REQUIRE(connection->exec(attack, "test").ok());
      connection->keep_log(false);
    }
    const Result<Image> image = load_store(path);
    REQUIRE(!image.ok());
    CHECK_MESSAGE(image.error().code == ErrorCode::corrupt, image.error().to_string());
    CHECK(query(path, "PRAGMA user_version") == "2");
  }
}

TEST_CASE("Store migration: an older store moves forward through every step, rows unchanged") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const Result<Image> before = load_store(path);
  const auto newer = with({{4, "notes", add_table}, {5, "notes from labels", fill_table}});
  for (int round = 0; round < 2; ++round) {
    const Result<Image> after = load_with(path, newer);
    REQUIRE_MESSAGE(after.ok(), after.error().to_string());
    CHECK(same(*after, *before));
  }
  CHECK(query(path, "PRAGMA user_version") == "5");
  CHECK(query(path, "SELECT count(*) FROM note") == "3");
}

TEST_CASE("Store migration: a fresh store runs all steps") {
  TemporaryFolder folder;
  REQUIRE(load_with(folder.file("state.db"), with({{4, "notes", add_table}})).ok());
  CHECK(query(folder.file("state.db"), "PRAGMA user_version") == "4");
}

TEST_CASE("Store migration: a newer store is a version mismatch, and stays as it is") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  REQUIRE(load_with(path, with({{4, "notes", add_table}})).ok());
  const std::string before = read_bytes(path);
  const Result<Image> image = load_store(path);
  REQUIRE(!image.ok());
  CHECK(image.error().code == ErrorCode::version_mismatch);
  CHECK(read_bytes(path) == before);
}

TEST_CASE("Store migration: a step that fails, or loses a row, leaves the old version whole") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  CHECK(!load_with(path, with({{4, "notes", add_table}, {5, "fails", fail_half_way}})).ok());
  const Result<Image> lossy = load_with(path, with({{4, "loses a lease", lose_a_row}}));
  REQUIRE(!lossy.ok());
  CHECK(lossy.error().code == ErrorCode::corrupt);
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 3);
  CHECK(query(path, "PRAGMA user_version") == "3");
}
