// What is shown of leases, pools and devices: pure, no daemon.
#include "cli/show/describe.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

LeaseStatus some_lease() {
  LeaseStatus lease;
  lease.id = LeaseId{7};
  lease.epoch = LeaseEpoch{12};
  lease.pool = "main";
  lease.tenant = "uid-0";
  lease.host = "box";
  lease.label = "redis";
  lease.phase = "active";
  lease.tier = "cxl";
  lease.isolation = "kernel";
  lease.bytes = 64 * mib;
  lease.granule_bytes = 2 * mib;
  lease.ttl_ns = 60 * ns_per_s;
  lease.expires_in_ns = 59'700'000'000;
  lease.object = "lease-7";
  lease.object_bytes = 64 * mib;
  lease.measured = true;
  lease.extents = {{"emu:a", 0, 32 * mib}, {"emu:b", 4 * mib, 32 * mib}};
  return lease;
}

PoolInfo some_pool() {
  PoolInfo pool;
  pool.name = "main";
  pool.devices = {"emu:a", "emu:b"};
  pool.placement = PoolPlacement::striped;
  pool.stripe_bytes = 4 * mib;
  pool.granule_bytes = 2 * mib;
  pool.capacity_bytes = gib;
  pool.leased_bytes = 512 * mib;
  pool.scrubbing_bytes = 2 * mib;
  pool.free_bytes = 510 * mib;
  pool.grantable_bytes = 510 * mib;
  pool.largest_free_bytes = 255 * mib;
  pool.leases = 3;
  pool.free_runs = {{.run_bytes_min = 2 * mib, .runs = 3, .bytes = 6 * mib},
                    {.run_bytes_min = 128 * mib, .runs = 2, .bytes = 504 * mib}};
  return pool;
}

DeviceStatus some_device() {
  DeviceStatus device;
  device.serial = "emu:a";
  device.backend = "emulated";
  device.state = "in_service";
  device.pool = "main";
  device.adopted = device.present = true;
  device.capacity_bytes = device.free_bytes = gib;
  device.granule_bytes = 2 * mib;
  return device;
}

}  // namespace

TEST_CASE("Lease: its JSON form has stable keys, and null where there is nothing to say") {
  LeaseStatus lease = some_lease();
  auto document = to_json(lease);
  CHECK(document["id"] == 7);
  CHECK(document["mode"] == "exclusive");
  CHECK(document["bytes"] == 64 * mib);
  CHECK(document["expires_in_ns"] == 59'700'000'000);
  CHECK(document["extents"].size() == 2);
  CHECK(document["extents"][1]["offset_bytes"] == 4 * mib);
  CHECK(document["usage"].is_null());
  CHECK(document["persistent"] == false);

  lease.ttl_ns = 0;
  lease.usage = {.ddr_bytes = 1, .cxl_bytes = 2, .live_bytes = 3, .holder = "x[1]"};
  lease.usage_age_ns = 5;
  document = to_json(lease);
  CHECK(document["persistent"] == true);
  CHECK(document["expires_in_ns"].is_null());
  CHECK(document["usage"]["cxl_bytes"] == 2);
  CHECK(document["usage"]["age_ns"] == 5);
}

TEST_CASE("Lease: its block shows where the bytes are, and since when that is known") {
  LeaseStatus lease = some_lease();
  CHECK(contains(lease_block(lease), "has not reported"));
  CHECK(contains(lease_block(lease), "emu:b at 4 MiB, 32 MiB"));
  CHECK(contains(lease_block(lease), "in 59 s, ttl 1 min"));
  lease.usage = {.ddr_bytes = 128 * mib, .cxl_bytes = 48 * mib, .live_bytes = 3, .holder = "redis-server[9]"};
  lease.usage_age_ns = 2 * ns_per_s;
  const std::string text = lease_block(lease);
  CHECK(contains(text, "redis-server[9], reported 2 s ago"));
  const auto value_of = [&text](const std::string& field) {  // whatever the widest field is called
    const size_t at = text.find(field);
    const size_t value = at == std::string::npos ? at : text.find_first_not_of(' ', at + field.size());
    return value == std::string::npos ? "" : text.substr(value, text.find('\n', value) - value);
  };
  CHECK(value_of("in DDR") == "128 MiB");
  CHECK(value_of("in CXL") == "48 MiB");
}

TEST_CASE("Expiry: persistent, lapsed and running leases are told apart") {
  LeaseStatus lease = some_lease();
  CHECK(describe_expiry(lease) == "in 59 s");
  lease.expires_in_ns = 0;
  CHECK(describe_expiry(lease) == "lapsed");
  lease.ttl_ns = 0;
  CHECK(describe_expiry(lease) == "persistent");
}

TEST_CASE("Mode: names go both ways and others are refused with the list") {
  for (const LeaseMode mode : {LeaseMode::exclusive, LeaseMode::shared_read_only, LeaseMode::shared_coherent}) {
    const auto parsed = parse_mode(mode_name(mode));
    REQUIRE(parsed.ok());
    CHECK(*parsed == mode);
  }
  const auto refused = parse_mode("shared");
  REQUIRE(!refused.ok());
  CHECK(contains(refused.error().detail, "shared-ro"));
}

TEST_CASE("Lease: one that is active without memory says that its object is missing") {
  LeaseStatus lease = some_lease();
  lease.object_bytes = 0;
  CHECK(contains(lease_block(lease), "object is missing"));
  lease.phase = "scrubbing";  // erased already: nothing is wrong
  CHECK(!contains(lease_block(lease), "missing"));
  lease.phase = "active";
  lease.measured = false;
  CHECK(contains(lease_block(lease), "not measured"));
  CHECK(to_json(lease)["object_bytes"].is_null());
}

TEST_CASE("Lease: cause and reason are both shown, and the cause is null when there is none") {
  LeaseStatus lease = some_lease();
  CHECK(to_json(lease)["cause"].is_null());
  lease.phase = "fencing";
  lease.cause = LeaseCause::device_lost;
  lease.reason = "emu:a is gone";
  CHECK(to_json(lease)["cause"] == "device_lost");
  CHECK(contains(lease_block(lease), "fencing (device lost): emu:a is gone"));
  CHECK(contains(lease_table({lease}), "device lost"));
}

TEST_CASE("Sizes: what is rounded elsewhere is said in the unit that holds all of it") {
  CHECK(exact_size(1'075'838'976) == "1026 MiB");
  CHECK(exact_size(gib) == "1 GiB");
  CHECK(exact_size(gib + gib / 2) == "1.5 GiB");
  CHECK(exact_size(gib + gib / 4) == "1.25 GiB");
  CHECK(exact_size(2 * mib) == "2 MiB");
  CHECK(exact_size(mib + 1) == "1048577 B");
  CHECK(exact_size(0) == "0 B");
  CHECK(exact_size(UINT64_MAX) == "18446744073709551615 B");
}

TEST_CASE("Texts: shortened at a word, never inside a character") {
  CHECK(shortened("short", 10) == "short");
  CHECK(shortened("a file of 2 GiB in /run/terrace", 20) == "a file of 2 GiB...");
  CHECK(shortened("0123456789abcdef", 10) == "0123456...");
  for (size_t columns = 6; columns < 16; ++columns) {
    const std::string cut =
        shortened("\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc", columns);
    CHECK(cut.size() <= columns);
    CHECK((cut.size() - 3) % 2 == 0);
  }
}

TEST_CASE("Device: its state says what an operator may expect of it") {
  DeviceStatus device = some_device();
  CHECK(device_state(device) == "in service");
  device.state = "draining";
  CHECK(device_state(device) == "draining");
  device.present = false;
  CHECK(device_state(device) == "draining, absent");
  device = some_device();
  device.pool.clear();
  CHECK(device_state(device) == "adopted");
  device.adopted = false;
  CHECK(device_state(device) == "seen");
  CHECK(to_json(device)["state"].is_null());
}

TEST_CASE("Speed: leases, pools and devices say it with where it comes from, or that it is not known") {
  const TierFigures figures{.latency_ns = 124,
                            .bandwidth_bytes_per_s = 6 * gib,
                            .node = 1,
                            .distance = 20,
                            .persistent = false,
                            .source = "measured",
                            .isolation = "device"};
  LeaseStatus lease = some_lease();
  CHECK(contains(lease_block(lease), "cxl, speed not known"));
  CHECK(contains(lease_block(lease), "isolation  kernel\n"));
  CHECK(to_json(lease)["figures"]["latency_ns"].is_null());
  CHECK(to_json(lease)["tier"] == "cxl");
  lease.figures = figures;
  CHECK(contains(lease_block(lease), "cxl, 124 ns, 6 GiB/s (measured), node 1 at distance 20"));
  CHECK(contains(lease_block(lease), "kernel; a dax device of its own, which nothing else maps"));
  CHECK(to_json(lease)["figures"]["isolation"] == "device");
  PoolInfo pool = some_pool();
  CHECK(contains(pool_block(pool), "speed not known"));
  pool.figures = figures;
  CHECK(contains(pool_block(pool), "124 ns, 6 GiB/s (measured)"));
  CHECK(contains(pool_block(pool), "a dax device of its own"));
  CHECK(to_json(pool)["figures"]["source"] == "measured");
  DeviceStatus device = some_device();
  CHECK(contains(device_block(device), "speed not known"));
  CHECK(!contains(device_block(device), "when it is adopted"));
  CHECK(!contains(device_table({device}), " ns"));
  device.adopted = false;
  CHECK(contains(device_block(device), "speed not known; measured when it is adopted"));
  device.adopted = true;
  device.tier = figures;
  CHECK(contains(device_table({device}), "124 ns"));
  CHECK(contains(device_table({device}), "6 GiB/s"));
  CHECK(contains(device_table({device}), "measured"));
  CHECK(contains(device_block(device), "a lease is  a dax device of its own"));
}

TEST_CASE("Device: long details stay out of the table and in the block") {
  DeviceStatus device = some_device();
  device.detail = "region0 is in system-ram mode; 'daxctl reconfigure-device --mode=devdax dax0.0' fixes that";
  CHECK(!contains(device_table({device}), "fixes that"));
  CHECK(contains(device_table({device}), "region0"));
  CHECK(contains(device_block(device), "fixes that"));
}

TEST_CASE("Pool: the bar has its width, and what is not nothing is seen") {
  PoolInfo pool = some_pool();
  for (size_t width : {4UL, 10UL, 48UL, 100UL}) {
    CAPTURE(width);
    const std::string bar = usage_bar(pool, width);
    CHECK(bar.size() == width);
    CHECK(contains(bar, "~"));
    CHECK(!contains(bar, "!"));
  }
  pool.quarantined_bytes = 1;
  CHECK(contains(usage_bar(pool, 48), "!"));
  CHECK(usage_bar(PoolInfo{}, 5) == "     ");
}

TEST_CASE("Pool: its block says how it is composed and how broken up it is") {
  PoolInfo pool = some_pool();
  std::string text = pool_block(pool);
  CHECK(contains(text, "striped over 2 devices, stripe 4 MiB"));
  CHECK(contains(text, "largest free run 255 MiB of 510 MiB free (50% lies elsewhere)"));
  CHECK(contains(text, "128 MiB     2  504 MiB  ========================\n"));
  CHECK(contains(text, "no grant"));
  pool.grantable_bytes = 100 * mib;
  pool.reserved_bytes = 64 * mib;
  pool.waiting = 2;
  pool.waiting_bytes = 48 * mib;
  text = pool_block(pool);
  CHECK(contains(text, "510 MiB, of it 100 MiB on devices in service, 64 MiB of it reserved"));
  CHECK(contains(text, "2 grants for 48 MiB"));
}

TEST_CASE("Pool: its JSON form has a stripe only where it is striped") {
  PoolInfo pool = some_pool();
  CHECK(to_json(pool)["stripe_bytes"] == 4 * mib);
  CHECK(to_json(pool)["free_runs"][1]["bytes"] == 504 * mib);
  pool.placement = PoolPlacement::spread;
  CHECK(to_json(pool)["placement"] == "spread");
  CHECK(to_json(pool)["stripe_bytes"].is_null());
}

TEST_CASE("Moves: blockers are named with lease, tenant, label, size and why, a few of many") {
  std::vector<MoveStatus> moves;
  CHECK(describe_moves(0, moves) == "0 leases left to move, 0 B");
  moves.push_back({.lease = LeaseId{3}, .tenant = "a", .label = "", .state = "moving", .bytes = 2 * mib});
  CHECK(!contains(describe_moves(2 * mib, moves), "blocked"));
  for (uint64_t id = 4; id < 9; ++id)
    moves.push_back({.lease = LeaseId{id},
                     .tenant = "b",
                     .label = "kv",
                     .state = "not movable",
                     .bytes = 4 * mib,
                     .blocked = true});
  const std::string text = describe_moves(22 * mib, moves);
  CHECK(contains(text, "6 leases left to move, 22 MiB; 5 blocked: lease 4 (tenant b, kv, 4 MiB): not movable"));
  CHECK(contains(text, "and 2 more"));
  CHECK(!contains(text, "lease 7"));
}

TEST_CASE("Quota: no bound is null, and '*' uses nothing itself") {
  CHECK(
      to_json(QuotaStatus{.tenant = "a", .bytes_max = 0, .leases_max = 3, .bytes = 1, .leases = 1})["bytes_max"]
          .is_null());
  CHECK(to_json(QuotaStatus{.tenant = "*", .bytes_max = 5})["bytes"].is_null());
}
