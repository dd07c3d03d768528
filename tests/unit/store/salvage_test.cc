// SPDX-License-Identifier: Apache-2.0
// What is read of damaged stores: all but what the damage hit, nothing that was never written, and rows that fit together.
#include "daemon/store/salvage/damaged_store.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/prng.h"
#include "daemon/store/backup/store_copy_file.h"
#include "daemon/store/salvage/settle_rows.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

constexpr uint64_t leases = 12;

std::vector<size_t> records_in(const std::string& bytes) {
  std::vector<size_t> at;
  for (size_t found = 0; (found = bytes.find("TRCJREC1", found)) != std::string::npos; ++found)
    at.push_back(found);
  return at;
}

void flip(const std::string& file, size_t at, char bits = 1) {
  std::string bytes = read_bytes(file);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ bits);
  write_bytes(file, bytes);
}

bool has_lease(const Image& image, uint64_t id) {
  return std::any_of(image.leases.begin(), image.leases.end(),
                     [id](const LeaseRow& row) { return row.id.value == id; });
}

// As the tool does it: read, settle, write, and what a start would make of the file.
Result<Image> salvage(const std::string& path, std::vector<std::string>* lost = nullptr) {
  auto read = read_damaged_store(path);
  if (!read.ok()) return read.error();
  for (const LeaseRow& row : read->image.leases)
    REQUIRE(row == make_lease(row.id.value));  // never anything else
  settle_rows(read->image, read->lost);
  const std::string file = path + ".salvaged";
  std::filesystem::remove(file);
  const Status written = write_salvaged_store(file, *read);
  REQUIRE_MESSAGE(written.ok(), written.error().to_string());
  const auto contents = inspect_copy(file, {});
  REQUIRE_MESSAGE(contents.ok(), contents.error().to_string());
  CHECK(contents->id == read->id);
  CHECK(contents->leases == read->image.leases.size());
  CHECK(read->image.meta.restored);
  CHECK(read->image.meta.next_lease > read->image.leases.size());
  if (lost != nullptr) *lost = read->lost;
  return read->image;
}

}  // namespace

TEST_CASE("Salvage: of a store that is whole nothing is lost") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, leases);
  std::vector<std::string> lost = {"?"};
  const auto image = salvage(path, &lost);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == leases);
  CHECK(image->meta.next_epoch == leases + 1);
  CHECK(lost.empty());
}

TEST_CASE("Salvage: a flipped bit in the journal costs the commit that it hit") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, leases);
  const Snapshot snapshot(path);
  const std::vector<size_t> records = records_in(snapshot.bytes("-journal-a"));
  REQUIRE(records.size() == leases + 1);
  Prng prng(7);
  for (size_t hit = 1; hit < records.size(); ++hit) {
    for (const size_t offset : {size_t{3}, size_t{9}, size_t{20}, size_t{26}, 32 + prng.below(40)}) {
      CAPTURE(hit);
      CAPTURE(offset);
      snapshot.restore();
      flip(path + "-journal-a", records[hit] + offset, static_cast<char>(1 << prng.below(8)));
      std::vector<std::string> lost;
      const auto image = salvage(path, &lost);
      REQUIRE_MESSAGE(image.ok(), image.error().to_string());
      CHECK(image->leases.size() == leases - 1);
      CHECK(!has_lease(*image, hit));
      CHECK(lost == std::vector<std::string>{"commit " + std::to_string(hit + 1)});
    }
  }
}

TEST_CASE("Salvage: the header of a journal, the whole journal and the mark may be damaged or gone") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, leases);
  const Snapshot snapshot(path);
  const auto count = [&] {
    const auto image = salvage(path);
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    return image->leases.size();
  };
  flip(path + "-journal-a", 17);
  CHECK(count() == leases);
  snapshot.restore();
  std::filesystem::remove(path + "-mark");
  CHECK(count() == leases);
  snapshot.restore();
  std::filesystem::remove(path + "-journal-b");
  CHECK(count() == leases);
  std::filesystem::remove(path + "-journal-a");
  std::vector<std::string> lost;
  REQUIRE(salvage(path, &lost).ok());
  CHECK(lost == std::vector<std::string>{"commits 1 to 13"});  // the mark knows of them
}

TEST_CASE("Salvage: damage anywhere in the database costs rows, and never makes any up") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, leases);
  const Snapshot snapshot(path);
  Prng prng(11);
  size_t read = 0, refused = 0, complete = 0;
  for (size_t at = 0; at < snapshot.bytes("").size(); at += 53) {
    CAPTURE(at);
    snapshot.restore();
    flip(path, at, static_cast<char>(1 << prng.below(8)));
    const auto image = salvage(path);
    if (!image.ok()) {
      ++refused;
      const ErrorCode code = image.error().code;
      CHECK_MESSAGE((code == ErrorCode::corrupt || code == ErrorCode::version_mismatch ||
                     code == ErrorCode::invalid_argument || code == ErrorCode::internal),
                    image.error().to_string());
      continue;
    }
    ++read;
    complete += image->leases.size() == leases;
  }
  MESSAGE("flips in state.db: " << read << " read, " << complete << " of them with all leases, " << refused
                                << " refused");
  CHECK(read > 10 * refused);
  CHECK(complete * 2 > read);
}

TEST_CASE("Salvage: of rows from before and after a missing commit the newer ones stay") {
  Image image;
  for (const uint64_t id : {1, 2}) image.devices.push_back(make_device(id));
  image.pools.push_back({.id = PoolId{1}, .name = "pool-1"});
  for (const uint64_t id : {3, 4, 5, 6}) image.leases.push_back(make_lease(id));
  image.leases[1].extents = image.leases[3].extents;  // 4 was released, and 6 has its place
  image.leases[2].label = image.leases[0].label;      // 3 was released, and 5 has its label
  image.leases[2].mode = LeaseMode::exclusive;
  image.owners = {
      {.id = part_id(LeaseId{3}, 0)}, {.id = part_id(LeaseId{5}, 0)}, {.id = part_id(LeaseId{9}, 1)}};
  image.reservations = {{.id = ReservationId{4}, .pool = PoolId{7}, .tenant = "bob"}};
  std::vector<std::string> lost;
  settle_rows(image, lost);
  REQUIRE(image.leases.size() == 3);
  CHECK(!has_lease(image, 4));
  CHECK(image.leases[0].label.empty());
  CHECK(image.leases[1].label == make_lease(3).label);
  CHECK(image.owners.size() == 1);
  CHECK(image.reservations.empty());
  CHECK(lost.size() == 3);
  CHECK(image.meta.next_lease == 7);
  CHECK(image.meta.next_epoch == 7);
  CHECK(image.meta.next_reservation == 5);
}

TEST_CASE("Salvage: a pool or a device whose row is missing") {
  Image image;
  image.devices = {make_device(1), make_device(2), make_device(3)};
  image.devices[2].serial = image.devices[0].serial;  // 1 was removed and adopted again as 3
  image.leases = {make_lease(1), make_lease(2, 1), make_lease(3, 1)};
  image.leases[1].extents = {{DeviceId{2}, 5, 1}};
  image.leases[2].extents = {{DeviceId{3}, 4 * gib / limits::granule_bytes, 1}};  // behind its end
  std::vector<std::string> lost;
  settle_rows(image, lost);
  REQUIRE(image.devices.size() == 2);
  CHECK(image.devices[1].id == DeviceId{3});
  REQUIRE(image.pools.size() == 1);
  CHECK(image.pools[0].id == PoolId{1});
  CHECK(image.pools[0].name == "salvaged-1");
  REQUIRE(image.leases.size() == 1);
  CHECK(image.leases[0].id == LeaseId{2});
  CHECK(lost.size() == 4);
}
