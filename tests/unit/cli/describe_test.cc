// SPDX-License-Identifier: Apache-2.0
// What is shown of leases, pools and devices: pure, no daemon.
#include "cli/show/describe.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/units.h"
#include "core/schema/words.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using LeaseFields = rpc::LeaseInfo::Builder;
using PoolFields = rpc::PoolInfo::Builder;
using DeviceFields = rpc::DeviceInfo::Builder;

LeaseStatus some_lease() {
  return LeaseStatus().changed([](LeaseFields lease) {
    lease.setId(7);
    lease.setEpoch(12);
    lease.setPool("main");
    lease.setTenant("uid-0");
    lease.setHost("box");
    lease.setLabel("redis");
    lease.setPhase(rpc::LeasePhase::ACTIVE);
    lease.setTier("cxl");
    lease.setIsolation("kernel");
    lease.setBytes(64 * mib);
    lease.setGranuleBytes(2 * mib);
    lease.setTtlNs(60 * ns_per_s);
    lease.setExpiresInNs(59'700'000'000);
    lease.setObject("lease-7");
    lease.setObjectBytes(64 * mib);
    lease.setMeasured(true);
    auto extents = lease.initExtents(2);
    extents[0].setDevice("emu:a");
    extents[0].setLength(32 * mib);
    extents[1].setDevice("emu:b");
    extents[1].setOffset(4 * mib);
    extents[1].setLength(32 * mib);
  });
}

PoolStatus some_pool() {
  return PoolStatus().changed([](PoolFields pool) {
    pool.setName("main");
    auto devices = pool.initDevices(2);
    devices.set(0, "emu:a");
    devices.set(1, "emu:b");
    pool.setPlacement(rpc::Placement::STRIPED);
    pool.setStripeBytes(4 * mib);
    pool.setGranuleBytes(2 * mib);
    pool.setCapacityBytes(gib);
    pool.setLeasedBytes(512 * mib);
    pool.setScrubbingBytes(2 * mib);
    pool.setFreeBytes(510 * mib);
    pool.setGrantableBytes(510 * mib);
    pool.setLargestFreeBytes(255 * mib);
    pool.setLeases(3);
    auto classes = pool.initFreeClasses(2);
    classes[0].setRunBytesMin(2 * mib);
    classes[0].setRuns(3);
    classes[0].setBytes(6 * mib);
    classes[1].setRunBytesMin(128 * mib);
    classes[1].setRuns(2);
    classes[1].setBytes(504 * mib);
  });
}

DeviceStatus some_device() {
  return DeviceStatus().changed([](DeviceFields device) {
    device.setSerial("emu:a");
    device.setBackend("emulated");
    device.setPool("main");
    device.setAdopted(true);
    device.setPresent(true);
    device.setCapacityBytes(gib);
    device.setFreeBytes(gib);
    device.setGranuleBytes(2 * mib);
  });
}

void fill_figures(rpc::TierAttributes::Builder figures) {
  figures.setLatencyNs(124);
  figures.setBandwidthBytesPerS(6 * gib);
  figures.setNumaNode(1);
  figures.setNumaDistance(20);
  figures.setSource("measured");
  figures.setIsolation("device");
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
  CHECK(document["agent"].is_null());

  document = to_json(lease.changed([](LeaseFields changed) {
    changed.setTtlNs(0);
    changed.setPersistent(true);
    changed.setAgent("box-b");
    changed.initUsage().setCxlBytes(2);
    changed.getUsage().setAgeNs(5);
  }));
  CHECK(document["persistent"] == true);
  CHECK(document["expires_in_ns"].is_null());
  CHECK(document["usage"]["cxl_bytes"] == 2);
  CHECK(document["usage"]["age_ns"] == 5);
  CHECK(document["agent"] == "box-b");
}

TEST_CASE("Lease: its block shows where the bytes are, and since when that is known") {
  LeaseStatus lease = some_lease();
  CHECK(contains(lease_block(lease), "has not reported"));
  CHECK(contains(lease_block(lease), "emu:b at 4 MiB, 32 MiB"));
  CHECK(contains(lease_block(lease), "in 59 s, ttl 1 min"));
  lease = lease.changed([](LeaseFields changed) {
    auto usage = changed.initUsage();
    usage.setDdrBytes(128 * mib);
    usage.setCxlBytes(48 * mib);
    usage.setHolder("redis-server[9]");
    usage.setAgeNs(2 * ns_per_s);
  });
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

TEST_CASE("Expiry: persistent, lapsed, waiting and running leases are told apart") {
  LeaseStatus lease = some_lease();
  CHECK(describe_expiry(lease) == "in 59 s");
  lease = lease.changed([](LeaseFields changed) { changed.setExpiresInNs(0); });
  CHECK(describe_expiry(lease) == "lapsed");
  CHECK(describe_expiry(
            lease.changed([](LeaseFields changed) { changed.setPhase(rpc::LeasePhase::WAITING); })) == "-");
  CHECK(describe_expiry(lease.changed([](LeaseFields changed) { changed.setTtlNs(0); })) == "persistent");
}

TEST_CASE("Mode: the schema's words and the older spelling are read, others are refused with the list") {
  for (const std::string& word : schema::enum_words<rpc::LeaseMode>()) {
    const auto parsed = parse_mode(word);
    REQUIRE(parsed.ok());
    CHECK(schema::enum_word(*parsed) == word);
  }
  CHECK(*parse_mode("shared-ro") == rpc::LeaseMode::SHARED_READ_ONLY);
  CHECK(*parse_mode("shared-coherent") == rpc::LeaseMode::SHARED_COHERENT);
  const auto refused = parse_mode("shared");
  REQUIRE(!refused.ok());
  CHECK(contains(refused.error().detail, "shared_read_only"));
}

TEST_CASE("Lease: one that is active without memory says that its object is missing") {
  LeaseStatus lease = some_lease().changed([](LeaseFields changed) { changed.setObjectBytes(0); });
  CHECK(contains(lease_block(lease), "object is missing"));
  // Erased already: nothing is wrong.
  CHECK(!contains(
      lease_block(lease.changed([](LeaseFields changed) { changed.setPhase(rpc::LeasePhase::SCRUBBING); })),
      "missing"));
  lease = lease.changed([](LeaseFields changed) { changed.setMeasured(false); });
  CHECK(contains(lease_block(lease), "not measured"));
  CHECK(to_json(lease)["object_bytes"].is_null());
}

TEST_CASE("Lease: cause and reason are both shown, and the cause is null when there is none") {
  LeaseStatus lease = some_lease();
  CHECK(to_json(lease)["cause"].is_null());
  lease = lease.changed([](LeaseFields changed) {
    changed.setPhase(rpc::LeasePhase::FENCING);
    changed.setCause(rpc::LeaseCause::DEVICE_LOST);
    changed.setReason("emu:a is gone");
  });
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
  CHECK(to_json(device)["state"] == "in_service");
  device = device.changed([](DeviceFields changed) { changed.setState(rpc::DeviceState::DRAINING); });
  CHECK(device_state(device) == "draining");
  CHECK(device_state(device.changed([](DeviceFields changed) { changed.setPresent(false); })) ==
        "draining, absent");
  device = some_device().changed([](DeviceFields changed) { changed.setPool(""); });
  CHECK(device_state(device) == "adopted");
  device = device.changed([](DeviceFields changed) { changed.setAdopted(false); });
  CHECK(device_state(device) == "seen");
  CHECK(to_json(device)["state"].is_null());
}

TEST_CASE("Speed: leases, pools and devices say it with where it comes from, or that it is not known") {
  LeaseStatus lease = some_lease();
  CHECK(contains(lease_block(lease), "cxl, speed not known"));
  CHECK(contains(lease_block(lease), "isolation  kernel\n"));
  CHECK(to_json(lease)["figures"]["latency_ns"].is_null());
  CHECK(to_json(lease)["tier"] == "cxl");
  lease = lease.changed([](LeaseFields changed) { fill_figures(changed.initAttributes()); });
  CHECK(contains(lease_block(lease), "cxl, 124 ns, 6 GiB/s (measured), node 1 at distance 20"));
  CHECK(contains(lease_block(lease), "kernel; a dax device of its own, which nothing else maps"));
  CHECK(to_json(lease)["figures"]["isolation"] == "device");
  PoolStatus pool = some_pool();
  CHECK(contains(pool_block(pool), "speed not known"));
  pool = pool.changed([](PoolFields changed) { fill_figures(changed.initAttributes()); });
  CHECK(contains(pool_block(pool), "124 ns, 6 GiB/s (measured)"));
  CHECK(contains(pool_block(pool), "a dax device of its own"));
  CHECK(to_json(pool)["figures"]["source"] == "measured");
  DeviceStatus device = some_device();
  CHECK(contains(device_block(device), "speed not known"));
  CHECK(!contains(device_block(device), "when it is adopted"));
  CHECK(!contains(device_table({device}), " ns"));
  CHECK(contains(device_block(device.changed([](DeviceFields changed) { changed.setAdopted(false); })),
                 "speed not known; measured when it is adopted"));
  device = device.changed([](DeviceFields changed) { fill_figures(changed.initAttributes()); });
  CHECK(to_json(device)["figures"]["source"] == "measured");
  CHECK(contains(device_table({device}), "124 ns"));
  CHECK(contains(device_table({device}), "6 GiB/s"));
  CHECK(contains(device_table({device}), "measured"));
  CHECK(contains(device_block(device), "a lease is  a dax device of its own"));
}

TEST_CASE("Device: long details stay out of the table and in the block") {
  const DeviceStatus device = some_device().changed([](DeviceFields changed) {
    changed.setDetail(
        "region0 is in system-ram mode; 'daxctl reconfigure-device --mode=devdax dax0.0' fixes that");
  });
  CHECK(!contains(device_table({device}), "fixes that"));
  CHECK(contains(device_table({device}), "region0"));
  CHECK(contains(device_block(device), "fixes that"));
}

TEST_CASE("Pool: the bar has its width, and what is not nothing is seen") {
  const PoolStatus pool = some_pool();
  for (size_t width : {4UL, 10UL, 48UL, 100UL}) {
    CAPTURE(width);
    const std::string bar = usage_bar(pool, width);
    CHECK(bar.size() == width);
    CHECK(contains(bar, "~"));
    CHECK(!contains(bar, "!"));
  }
  CHECK(contains(usage_bar(pool.changed([](PoolFields changed) { changed.setQuarantinedBytes(1); }), 48), "!"));
  CHECK(usage_bar(PoolStatus{}, 5) == "     ");
}

TEST_CASE("Pool: its block says how it is composed and how broken up it is") {
  const PoolStatus pool = some_pool();
  std::string text = pool_block(pool);
  CHECK(contains(text, "striped over 2 devices, stripe 4 MiB"));
  CHECK(contains(text, "largest free run 255 MiB of 510 MiB free (50% lies elsewhere)"));
  CHECK(contains(text, "128 MiB     2  504 MiB  ========================\n"));
  CHECK(contains(text, "no grant"));
  CHECK(contains(text, "verified: nobody reaches memory after its fence"));
  const PoolStatus trusting =
      pool.changed([](PoolFields changed) { changed.setIsolation(rpc::Isolation::TRUSTING); });
  CHECK(contains(pool_block(trusting), "trusting: nothing is granted, unless 'terrace pool set "));
  CHECK(contains(pool_block(trusting.changed([](PoolFields changed) { changed.setTrust(rpc::Trust::MUTUAL); })),
                 "trusting: only for tenants who trust each other, as an operator says"));
  text = pool_block(pool.changed([](PoolFields changed) {
    changed.setGrantableBytes(100 * mib);
    changed.setReservedBytes(64 * mib);
    changed.setWaiting(2);
    changed.setWaitingBytes(48 * mib);
  }));
  CHECK(contains(text, "510 MiB, of it 100 MiB on devices in service, 64 MiB of it reserved"));
  CHECK(contains(text, "2 grants for 48 MiB"));
}

TEST_CASE("Pool: what nobody has of an absent device is neither free nor used") {
  const PoolStatus whole = some_pool();
  CHECK(!contains(pool_block(whole), "absent"));
  CHECK(!contains(pool_table({whole}), "absent"));
  const PoolStatus pool = whole.changed([](PoolFields changed) {
    changed.setCapacityBytes(1024 * mib);
    changed.setLeasedBytes(256 * mib);
    changed.setScrubbingBytes(0);
    changed.setFreeBytes(256 * mib);
    changed.setAbsentBytes(512 * mib);
    changed.initAbsentDevices(1).set(0, "emu:b");
  });
  CHECK(contains(pool_table({pool}), "1 GiB  256 MiB   25%"));
  CHECK(contains(pool_table({pool}), "2, 1 absent"));
  CHECK(contains(pool_block(pool),
                 "? absent       512 MiB, nobody's, of emu:b, not there now: 'terrace health'\n"));
  CHECK(contains(pool_block(pool), ". free         256 MiB"));
  CHECK(usage_bar(pool, 8) == "##..????");
}

TEST_CASE("Pool: its JSON form has a stripe only where it is striped") {
  const PoolStatus pool = some_pool();
  CHECK(to_json(pool)["stripe_bytes"] == 4 * mib);
  CHECK(to_json(pool)["free_runs"][1]["bytes"] == 504 * mib);
  const auto document = to_json(pool.changed([](PoolFields changed) {
    changed.setPlacement(rpc::Placement::SPREAD);
    changed.setStripeBytes(0);
  }));
  CHECK(document["placement"] == "spread");
  CHECK(document["stripe_bytes"].is_null());
}

TEST_CASE("Moves: blockers are named with lease, tenant, label, size and why, a few of many") {
  DrainProgress progress;
  CHECK(describe_moves(0, progress->getMoves()) == "0 leases left to move, 0 B");
  const auto with = [](unsigned count) {
    return DrainProgress().changed([count](rpc::DeviceProgress::Builder out) {
      auto moves = out.initMoves(count);
      for (unsigned at = 0; at < count; ++at) {
        moves[at].setLease(3 + at);
        moves[at].setTenant(at == 0 ? "a" : "b");
        moves[at].setLabel(at == 0 ? "" : "kv");
        moves[at].setState(at == 0 ? "moving" : "not movable");
        moves[at].setBytes(at == 0 ? 2 * mib : 4 * mib);
        moves[at].setBlocked(at != 0);
      }
    });
  };
  progress = with(1);
  CHECK(!contains(describe_moves(2 * mib, progress->getMoves()), "blocked"));
  progress = with(6);
  const std::string text = describe_moves(22 * mib, progress->getMoves());
  CHECK(contains(text, "6 leases left to move, 22 MiB; 5 blocked: lease 4 (tenant b, kv, 4 MiB): not movable"));
  CHECK(contains(text, "and 2 more"));
  CHECK(!contains(text, "lease 7"));
}

TEST_CASE("describe: a table of who waits says whose turn it is, and whether room is kept") {
  const auto waiting = [](uint64_t lease, uint32_t place, bool turn) {
    return WaitingStatus().changed([=](rpc::WaitingGrant::Builder one) {
      one.setLease(lease);
      one.setPool("main");
      one.setTenant(place == 1 ? "train" : "serve");
      one.setHost("box");
      one.setBytes(place * 64 * mib);
      one.setWaitedNs(31'900'000'000);
      one.setEndsInNs(900'500'000);
      one.setPlace(place);
      one.setTurn(turn);
      one.setCalls(2);
    });
  };
  const std::string open = waiting_table({waiting(7, 1, false), waiting(9, 2, false)});
  CHECK(contains(open, " 7  main      1  train   box   -       64 MiB    31 s  in 900 ms  next      2\n"));
  CHECK(contains(open, " 9  main      2  serve   box   -      128 MiB    31 s  in 900 ms  -         2\n"));
  CHECK(contains(waiting_table({waiting(7, 1, true)}), "in 900 ms  room is kept      2\n"));
}
