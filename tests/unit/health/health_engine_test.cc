// SPDX-License-Identifier: Apache-2.0
// Every finding is raised and cleared by the facts that it is about, at its limit and not before.
#include "daemon/health/health_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

using namespace terrace;
using namespace terrace::daemon;

namespace {

// An engine with a clock, and facts of a manager that is well.
struct Watched {
  Watched() {
    view.version = "1";
    view.disk = HealthView::Disk{"/s/state.db", gib};
    view.pools.push_back({.name = "p",
                          .capacity_bytes = 100 * mib,
                          .grantable_bytes = 50 * mib,
                          .longest_runs_bytes = 50 * mib});
    view.devices.push_back(
        {.serial = "emu:a", .pool = "p", .used_bytes = 50 * mib, .capacity_bytes = 100 * mib});
    view.hosts.push_back({.name = "b", .version = "1", .lease_ns = 30 * ns_per_s});
    REQUIRE(look().empty());
  }

  HealthChanges look(uint64_t later_ns = ns_per_s) {
    now_ns += later_ns;
    return health.look(view, now_ns);
  }
  const HealthFinding* find(HealthCode code) const {
    const auto& all = health.findings();
    const auto at = std::find_if(all.begin(), all.end(), [code](const auto& one) { return one.code == code; });
    return at == all.end() ? nullptr : &*at;
  }
  // `make` raises the one finding at once, `mend` ends it; both are changes that are told once.
  void raises(HealthCode code, const std::function<void(HealthView&)>& make,
              const std::function<void(HealthView&)>& mend) {
    make(view);
    HealthChanges changes = look();
    REQUIRE(changes.raised.size() == 1);
    CHECK(changes.raised[0].code == code);
    CHECK(changes.raised[0].since_ns == now_ns);
    CHECK_FALSE(changes.raised[0].text.empty());
    CHECK_FALSE(changes.raised[0].advice.empty());
    const uint64_t since_ns = now_ns;
    CHECK(look().empty());
    REQUIRE(health.findings().size() == 1);
    CHECK(health.findings()[0].since_ns == since_ns);
    mend(view);
    changes = look();
    REQUIRE(changes.cleared.size() == 1);
    CHECK(changes.cleared[0].code == code);
    CHECK(health.findings().empty());
    CHECK(health.worst() == HealthSeverity::healthy);
  }

  HealthLimits limits;
  HealthEngine health{limits};
  HealthView view;
  uint64_t now_ns = 1000 * ns_per_s;
};

}  // namespace

TEST_CASE("Health: a device that is absent; critical when leases had memory of it") {
  Watched w;
  w.raises(
      HealthCode::device_absent, [](HealthView& view) { view.devices[0].absent = true; },
      [](HealthView& view) { view.devices[0].absent = false; });
  w.view.devices[0].absent = true;
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::device_absent)->name == "emu:a");
  CHECK(w.find(HealthCode::device_absent)->kind == "device");
  CHECK(w.find(HealthCode::device_absent)->text.find("50 MiB") != std::string::npos);
  CHECK(w.health.worst() == HealthSeverity::critical);
  w.view.devices[0].used_bytes = 0;
  const HealthChanges changes = w.look();
  REQUIRE(changes.raised.size() == 1);  // less severe now, since when it was
  CHECK(changes.cleared.empty());
  CHECK(changes.raised[0].severity == HealthSeverity::warning);
  CHECK(changes.raised[0].since_ns == w.now_ns - ns_per_s);
}

TEST_CASE("Health: a drain that lasts, while something is left on the device") {
  Watched w;
  w.view.devices[0].draining = true;
  CHECK(w.look().empty());
  CHECK(w.look(w.limits.draining_after_ns - 1).empty());
  REQUIRE(w.look(1).raised.size() == 1);
  CHECK(w.find(HealthCode::device_draining) != nullptr);
  CHECK(w.find(HealthCode::device_draining)->since_ns == w.now_ns - w.limits.draining_after_ns);
  w.view.devices[0].used_bytes = 0;
  CHECK(w.look().cleared.size() == 1);
  w.view.devices[0].used_bytes = mib;  // another drain counts from its own begin
  CHECK(w.look().empty());
}

TEST_CASE("Health: what a memdev says of itself, other than that it is well or says nothing") {
  Watched w;
  w.view.memdevs = {{"0xc0", "ok"}, {"0xc1", "not readable: no mailbox"}, {"0xc2", ""}};
  CHECK(w.look().empty());
  w.raises(
      HealthCode::device_unhealthy, [](HealthView& view) { view.memdevs[0].health = "media lost data"; },
      [](HealthView& view) { view.memdevs[0].health = "ok"; });
}

TEST_CASE("Health: a pool of which little can be granted; it does not flap at the limit") {
  Watched w;
  const auto grantable = [&w](uint64_t bytes) {
    w.view.pools[0].grantable_bytes = w.view.pools[0].longest_runs_bytes = bytes;
    return w.look();
  };
  CHECK(grantable(10 * mib).empty());
  CHECK(grantable(10 * mib - 1).raised.size() == 1);
  CHECK(w.find(HealthCode::pool_nearly_full)->name == "p");
  CHECK(grantable(10 * mib).empty());
  CHECK(grantable(12 * mib - 1).empty());
  CHECK(grantable(12 * mib).cleared.size() == 1);
  CHECK(grantable(10 * mib).empty());
  CHECK(grantable(0).raised.size() == 1);
}

TEST_CASE("Health: a pool whose free memory is broken up") {
  Watched w;
  w.raises(
      HealthCode::pool_fragmented, [](HealthView& view) { view.pools[0].longest_runs_bytes = 4 * mib; },
      [](HealthView& view) { view.pools[0].longest_runs_bytes = 6 * mib; });
  w.view.pools[0].longest_runs_bytes = 5 * mib;
  CHECK(w.look().empty());
}

TEST_CASE("Health: a grant that waits for long") {
  Watched w;
  w.view.pools[0].waiting = 2;
  w.view.pools[0].waiting_bytes = 8 * mib;
  w.view.pools[0].oldest_wait_ns = w.now_ns;
  CHECK(w.look(w.limits.queue_after_ns - 1).empty());
  CHECK(w.look(1).raised.size() == 1);
  CHECK(w.find(HealthCode::queue_stuck)->text.find("2 grants for 8 MiB wait, the oldest for 1 min") !=
        std::string::npos);
  w.view.pools[0].oldest_wait_ns = w.now_ns;  // the oldest was served
  CHECK(w.look().cleared.size() == 1);
}

TEST_CASE("Health: whatever the limits, an empty pool ends what is said of its room") {
  HealthLimits limits;
  limits.pool_grantable_percent_min = 100;
  limits.pool_largest_run_percent_min = 100;
  HealthEngine health(limits);
  HealthView view;
  view.pools.push_back(
      {.name = "p", .capacity_bytes = 100 * mib, .grantable_bytes = 50 * mib, .longest_runs_bytes = 10 * mib});
  CHECK(health.look(view, ns_per_s).raised.size() == 2);
  view.pools[0].grantable_bytes = view.pools[0].longest_runs_bytes = 100 * mib;
  CHECK(health.look(view, 2 * ns_per_s).cleared.size() == 2);
}

TEST_CASE("Health: memory that is quarantined anew, until it is released or long ago") {
  Watched w;
  w.raises(
      HealthCode::quarantine_growing, [](HealthView& view) { view.pools[0].quarantined_bytes = 2 * mib; },
      [](HealthView& view) { view.pools[0].quarantined_bytes = 0; });
  w.view.pools[0].quarantined_bytes = 2 * mib;
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.look(w.limits.window_ns - 1).empty());
  CHECK(w.look(1).cleared.size() == 1);
  w.view.pools[0].quarantined_bytes = 4 * mib;
  CHECK(w.look().raised.size() == 1);
  // What was there at the start is no growth.
  HealthEngine fresh(w.limits);
  CHECK(fresh.look(w.view, w.now_ns).empty());
  CHECK(fresh.look(w.view, w.now_ns + ns_per_s).empty());
  // A pool that was made since began without any.
  w.view.pools.push_back(
      {.name = "q", .capacity_bytes = 100 * mib, .grantable_bytes = 50 * mib, .longest_runs_bytes = 50 * mib});
  w.view.pools.back().quarantined_bytes = 2 * mib;
  CHECK(fresh.look(w.view, w.now_ns + 2 * ns_per_s).raised.size() == 1);
}

TEST_CASE("Health: erasing that falls behind") {
  Watched w;
  w.view.scrub = {.erased_bytes = 10 * mib, .queued_bytes = 40 * mib};
  CHECK(w.look().empty());
  w.view.scrub = {.erased_bytes = 30 * mib, .queued_bytes = 20 * mib};
  CHECK(w.look(w.limits.scrub_after_ns - 1).empty());
  CHECK(w.look(1).raised.size() == 1);
  CHECK(w.find(HealthCode::scrub_behind) != nullptr);
  w.view.scrub = {.erased_bytes = 50 * mib, .queued_bytes = 0};
  CHECK(w.look().cleared.size() == 1);
}

TEST_CASE("Health: a fence that failed, for a while; and one that lasts") {
  Watched w;
  w.view.fences.failed = 1;
  w.view.fences.last_failure = "lease 7: no";
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::fence_failed)->severity == HealthSeverity::critical);
  CHECK(w.look(w.limits.window_ns - 20 * ns_per_s).empty());
  CHECK(w.look(w.limits.window_ns).cleared.size() == 1);

  w.raises(
      HealthCode::fence_slow,
      [&w](HealthView& view) {
        view.fences.under_way = 1;
        view.fences.oldest_lease = 7;
        view.fences.oldest_for_ns = w.limits.fence_after_ns;
      },
      [](HealthView& view) { view.fences.oldest_for_ns = 5; });
}

TEST_CASE("Health: a store that fails leaves all else as it was") {
  Watched w;
  w.view.devices[0].absent = true;
  REQUIRE(w.look().raised.size() == 1);
  HealthView failing;
  failing.store.serving = false;
  failing.store.refusal = "no space";
  const HealthChanges changes = w.health.look(failing, w.now_ns + 1);
  REQUIRE(changes.raised.size() == 1);
  CHECK(changes.raised[0].code == HealthCode::store_failing);
  CHECK(changes.raised[0].text.find("no space") != std::string::npos);
  CHECK(changes.cleared.empty());
  CHECK(w.health.findings().size() == 2);
  w.view.devices[0].absent = false;
  CHECK(w.look().cleared.size() == 2);
}

TEST_CASE("Health: commits that take long: several, and not one in a hundred less") {
  Watched w;
  w.view.store.commits = 1000;
  w.view.store.slow_commits = 2;
  CHECK(w.look().empty());
  w.view.store.slow_commits = 9;
  CHECK(w.look().empty());
  w.view.store.slow_commits = 10;
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::store_slow)->severity == HealthSeverity::warning);
  CHECK(w.look(w.limits.window_ns - 20 * ns_per_s).empty());
  CHECK(w.look(w.limits.window_ns).cleared.size() == 1);
  // One that does not end at all.
  w.raises(
      HealthCode::store_slow,
      [&w](HealthView& view) { view.store.commit_for_ns = 100 * w.limits.commit_max_ns; },
      [](HealthView& view) { view.store.commit_for_ns = 0; });
}

TEST_CASE("Health: the file system of the state; critical when almost nothing is left") {
  Watched w;
  const auto left = [&w](uint64_t bytes) {
    w.view.disk->free_bytes = bytes;
    return w.look();
  };
  CHECK(left(64 * mib).empty());
  CHECK(left(63 * mib).raised.size() == 1);
  CHECK(w.health.worst() == HealthSeverity::warning);
  CHECK(left(15 * mib).raised.size() == 1);
  CHECK(w.health.worst() == HealthSeverity::critical);
  CHECK(left(70 * mib).raised.size() == 1);
  CHECK(left(77 * mib).cleared.size() == 1);
  w.view.disk = std::nullopt;
  CHECK(w.look().empty());
}

TEST_CASE("Health: a host that is away, and one half of whose time is gone") {
  Watched w;
  HealthView::Host& host = w.view.hosts[0];
  host.state = HealthView::HostState::away;
  host.lease_left_ns = 30 * ns_per_s;
  CHECK(w.look().empty());
  CHECK(w.look(w.limits.away_after_ns).raised.size() == 1);
  CHECK(w.find(HealthCode::host_away)->text.find("its leases end in 30 s") != std::string::npos);
  host.lease_left_ns = 15 * ns_per_s - 1;
  HealthChanges changes = w.look();
  REQUIRE(changes.raised.size() == 1);
  CHECK(changes.raised[0].code == HealthCode::host_lease_running_out);
  CHECK(w.health.worst() == HealthSeverity::critical);
  host.state = HealthView::HostState::self_fenced;
  changes = w.look();
  REQUIRE(changes.cleared.size() == 1);
  CHECK(changes.cleared[0].code == HealthCode::host_lease_running_out);
  CHECK(w.find(HealthCode::host_away)->text.find("its leases have ended") != std::string::npos);
  host.state = HealthView::HostState::connected;
  CHECK(w.look().cleared.size() == 1);
}

TEST_CASE("Health: an agent of another version") {
  Watched w;
  w.raises(
      HealthCode::host_version_differs, [](HealthView& view) { view.hosts[0].version = "2"; },
      [](HealthView& view) { view.hosts[0].version = "1"; });
  w.view.hosts[0].version = "";  // it has not said yet
  CHECK(w.look().empty());
}

TEST_CASE("Health: certificates that end, of an agent and of the manager") {
  Watched w;
  w.raises(
      HealthCode::certificate_ending,
      [](HealthView& view) {
        view.hosts[0].certificate_ends_soon = true;
        view.hosts[0].certificate_days_left = 5;
      },
      [](HealthView& view) { view.hosts[0].certificate_ends_soon = false; });
  w.view.certificates.push_back({.what = "ca", .name = "x", .days_left = 3, .ends_soon = true});
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::certificate_ending)->severity == HealthSeverity::critical);
  CHECK(w.find(HealthCode::certificate_ending)->kind == "ca");
  w.view.certificates[0].ends_soon = false;
  CHECK(w.look().cleared.size() == 1);
  w.view.clients.push_back({.what = "client", .name = "ops", .days_left = 5, .ends_soon = true});
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::certificate_ending)->severity == HealthSeverity::warning);
  CHECK(w.find(HealthCode::certificate_ending)->text == "the certificate of client ops ends in 5 days");
  CHECK(w.find(HealthCode::certificate_ending)->advice.find("`terrace cert client ops`") != std::string::npos);
  w.view.clients[0].days_left = -1;
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::certificate_ending)->severity == HealthSeverity::critical);
  CHECK(w.find(HealthCode::certificate_ending)->text == "the certificate of client ops has ended");
  w.view.clients.clear();
  CHECK(w.look().cleared.size() == 1);
}

TEST_CASE("Health: an agent whose manager is away, and one without a guard") {
  Watched w;
  w.view.agent = HealthView::Agent{.manager = "m:1", .lease_ns = 30 * ns_per_s, .lease_left_ns = 20 * ns_per_s};
  CHECK(w.look().empty());
  w.raises(
      HealthCode::manager_away, [](HealthView& view) { view.agent->connected = false; },
      [](HealthView& view) { view.agent->connected = true; });
  w.view.agent->connected = false;
  w.view.agent->trouble = "refused";
  CHECK(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::manager_away)->name == "m:1");
  CHECK(w.find(HealthCode::manager_away)->text == "cannot be reached: refused; this host's leases end in 20 s");
  w.view.agent->lease_left_ns = 15 * ns_per_s - 1;
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::manager_away)->severity == HealthSeverity::critical);
  w.view.agent->lease_left_ns = 0;  // fenced: there is nothing left to lose
  CHECK(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::manager_away)->severity == HealthSeverity::warning);
  CHECK(w.find(HealthCode::manager_away)->text.find("nothing is leased here") != std::string::npos);
  w.view.agent->connected = true;
  CHECK(w.look().cleared.size() == 1);
  w.raises(
      HealthCode::guard_missing, [](HealthView& view) { view.agent->guarded = false; },
      [](HealthView& view) { view.agent->guarded = true; });
}

TEST_CASE("Health: calls of the operator's interface that are refused again and again") {
  Watched w;
  w.view.denials.push_back({.tenant = "t", .calls = 2, .last = "status"});
  CHECK(w.look().empty());
  w.view.denials[0].calls = 3;
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::calls_denied)->name == "t");
  CHECK(w.look(w.limits.window_ns - 20 * ns_per_s).empty());
  w.view.denials[0].calls = 4;  // one is enough to go on
  CHECK(w.look().empty());
  CHECK(w.look(w.limits.window_ns - 20 * ns_per_s).empty());
  CHECK(w.look(w.limits.window_ns).cleared.size() == 1);
}

TEST_CASE("Health: programs that exchange all of their DDR again and again, and gain little") {
  Watched w;
  const auto exchanges = [&w](uint64_t bytes, double hits) {
    w.view.programs = {
        {.tenant = "t", .ddr_bytes = gib, .exchanged_bytes = bytes, .sampled = true, .ddr_hits = hits}};
  };
  exchanges(10 * gib - 1, 0.5);
  CHECK(w.look().empty());
  exchanges(10 * gib, 0.8);  // the moves pay
  CHECK(w.look().empty());
  exchanges(10 * gib, 0.5);
  REQUIRE(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::tier_thrash)->name == "t");
  CHECK(w.find(HealthCode::tier_thrash)->text.find("exchanged 10 GiB") != std::string::npos);
  CHECK(w.find(HealthCode::tier_thrash)->text.find("serves 50 %") != std::string::npos);
  exchanges(10 * gib, 0.84);  // hardly better
  CHECK(w.look().empty());
  exchanges(10 * gib, 0.86);
  CHECK(w.look().cleared.size() == 1);
  exchanges(20 * gib, 0.5);
  CHECK(w.look().raised.size() == 1);
  CHECK(w.look(2 * w.limits.window_ns).cleared.size() == 1);  // nothing moved any more
  exchanges(40 * gib, 0.5);
  w.view.programs[0].sampled = false;  // nobody knows what DDR serves
  CHECK(w.look().empty());
}

TEST_CASE("Health: the room of the state counts the journal's with it") {
  Watched w;
  w.view.store.journal_bytes = 16 * mib;
  w.view.store.journal_used_bytes = 12 * mib;  // as ever under load
  CHECK(w.look().empty());
  w.view.store.journal_used_bytes = mib;
  w.view.disk->free_bytes = 60 * mib;
  CHECK(w.look().raised.size() == 1);
  CHECK(w.find(HealthCode::state_disk_filling)->severity == HealthSeverity::warning);
  CHECK(w.find(HealthCode::state_disk_filling)->text.find("the journal 15 MiB of 16 MiB") != std::string::npos);
  w.view.store.journal_used_bytes = 9 * mib;
  w.look();
  CHECK(w.find(HealthCode::state_disk_filling)->severity == HealthSeverity::critical);
}

TEST_CASE("Health: what the kernel lacks") {
  Watched w;
  w.raises(
      HealthCode::kernel_lacks,
      [](HealthView& view) {
        view.lacks.push_back({"userfaultfd", "is not there", "build it in"});
      },
      [](HealthView& view) { view.lacks.clear(); });
}

TEST_CASE("Health: the worst come first, then those that hold for longest") {
  Watched w;
  w.view.hosts[0].version = "2";
  w.look();
  w.view.pools[0].grantable_bytes = 0;
  w.look();
  w.view.devices[0].absent = true;
  w.look();
  REQUIRE(w.health.findings().size() == 3);
  CHECK(w.health.findings()[0].code == HealthCode::device_absent);
  CHECK(w.health.findings()[1].code == HealthCode::host_version_differs);
  CHECK(w.health.findings()[2].code == HealthCode::pool_nearly_full);
}
