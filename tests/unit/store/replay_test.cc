// SPDX-License-Identifier: Apache-2.0
// Random deltas against a map of rows; the files are copied in the middle of it, as a crash would leave them,
// and must give every acknowledged commit and no half of one.
#include <doctest/doctest.h>

#include "core/base/prng.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

Delta random_delta(Prng& prng) {
  Delta delta;
  for (uint64_t n = prng.between(1, 5); n > 0; --n) {
    const LeaseId id{prng.between(1, 60)};
    delta.leases[id] = std::nullopt;
    if (prng.chance(1, 3)) continue;
    LeaseRow row = make_lease(id.value, prng.between(1, 30));
    row.expiry_ns = prng.next();
    delta.leases[id] = row;
  }
  if (prng.chance(1, 3)) {
    const std::string tenant = "tenant-" + std::to_string(prng.below(5));
    if (prng.chance(1, 2)) {
      delta.quotas[tenant] = QuotaRow{.tenant = tenant, .bytes_max = prng.next(), .leases_max = prng.next()};
    } else {
      delta.quotas[tenant] = std::nullopt;
    }
  }
  if (prng.chance(1, 4)) {
    const ReservationId id{prng.between(1, 4)};
    ReservationRow row;
    row.id = id;
    row.pool = PoolId{1};
    row.tenant = "alice";
    row.bytes = prng.next() | 1;
    delta.reservations[id] = row;
  }
  if (prng.chance(1, 3)) {
    const PartId id = part_id(LeaseId{prng.between(1, 3)}, prng.below(3));
    OwnerRow row{.id = id, .epoch = prng.next() | 1};
    if (prng.chance(1, 2)) {
      row.request = prng.next();
      row.process = {prng.between(1, 9), prng.next(), prng.next()};
      row.holder = "python3[7]";
      if (prng.chance(1, 2)) row.host = "hostb";
    } else if (prng.chance(1, 2)) {
      row.host = prng.chance(1, 2) ? any_host : "hostb";
    }
    delta.owners[id] = row;
    if (prng.chance(1, 4)) delta.owners[id] = std::nullopt;
    const ViewId view = view_id(LeaseId{prng.between(1, 3)}, prng.below(3));
    if (prng.chance(1, 2))
      delta.views[view] = ViewRow{.id = view, .object = "lease-1@b", .closing = prng.chance(1, 2)};
    if (prng.chance(1, 4)) delta.views[view] = std::nullopt;
  }
  if (prng.chance(1, 10)) delta.devices[DeviceId{1}] = make_device(1);
  return delta;
}

template <typename Rows>
auto values(const Rows& rows) {
  std::vector<typename Rows::mapped_type::value_type> list;
  for (const auto& [key, row] : rows)
    if (row.has_value()) list.push_back(*row);
  return list;
}

Image image_of(const Delta& model) {
  Image image;
  if (model.meta.has_value()) image.meta = *model.meta;
  image.devices = values(model.devices);
  image.leases = values(model.leases);
  image.quotas = values(model.quotas);
  image.reservations = values(model.reservations);
  image.owners = values(model.owners);
  image.views = values(model.views);
  return image;
}

}  // namespace

TEST_CASE(
    "Store journal: random deltas, files copied at any moment: the copy has exactly what was acknowledged") {
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    Prng prng(seed);
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    StoreOptions options;
    options.segment_bytes = 32 * kib;  // folds every few dozen commits
    auto store = open_small_store(path, options);
    REQUIRE(store.ok());
    Delta model;
    for (int step = 0; step < 400; ++step) {
      Delta delta = random_delta(prng);
      REQUIRE((*store)->commit(delta).ok());
      model.merge(std::move(delta));
      if (!prng.chance(1, 40)) continue;
      const Result<Image> now = (*store)->load();
      REQUIRE_MESSAGE(now.ok(), now.error().to_string());
      REQUIRE(same(*now, image_of(model)));
      // The copies below are not of one instant: folded here, so that no fold runs while they are made.
      REQUIRE((*store)->audit({}).ok());
      for (uint64_t more = prng.below(6); more > 0; --more) {
        Delta late = random_delta(prng);
        REQUIRE((*store)->commit(late).ok());
        model.merge(std::move(late));
      }
      if (prng.chance(1, 3)) store->reset();
      const Snapshot snapshot(path);
      if (*store) store->reset();
      snapshot.restore();
      store = open_small_store(path, options);
      REQUIRE_MESSAGE(store.ok(), store.error().to_string());
      const Result<Image> image = (*store)->load();
      REQUIRE_MESSAGE(image.ok(), image.error().to_string());
      REQUIRE(same(*image, image_of(model)));
    }
  }
}
