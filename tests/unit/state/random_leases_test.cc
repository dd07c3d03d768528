// SPDX-License-Identifier: Apache-2.0
// Commands of all kinds as the dice fall, on a pool that is nearly full: check_all after each, what each grant
// leaves to reservations and quotas, that the rows of the Deltas are the machine's, and restarts in between.
#include <algorithm>
#include <cstdlib>

#include "core/base/prng.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

// What a store would hold.
struct Rows {
  MetaRow meta;
  std::map<DeviceId, DeviceRow> devices;
  std::map<PoolId, PoolRow> pools;
  std::map<LeaseId, LeaseRow> leases;
  std::map<std::string, QuotaRow> quotas;
  std::map<ReservationId, ReservationRow> reservations;
  std::map<PartId, OwnerRow> owners;
  std::map<ViewId, ViewRow> views;

  template <typename Id, typename Row>
  static void apply(std::map<Id, Row>& rows, const std::map<Id, std::optional<Row>>& changes) {
    for (const auto& [id, row] : changes) {
      if (row.has_value()) {
        rows[id] = *row;
      } else {
        rows.erase(id);
      }
    }
  }
  void apply(const Delta& delta) {
    apply(devices, delta.devices);
    apply(pools, delta.pools);
    apply(leases, delta.leases);
    apply(quotas, delta.quotas);
    apply(reservations, delta.reservations);
    apply(owners, delta.owners);
    apply(views, delta.views);
    if (delta.meta.has_value()) meta = *delta.meta;
  }
  Image image() const {
    Image image;
    image.meta = meta;
    for (const auto& [id, row] : devices) image.devices.push_back(row);
    for (const auto& [id, row] : pools) image.pools.push_back(row);
    for (const auto& [id, row] : leases) image.leases.push_back(row);
    for (const auto& [tenant, row] : quotas) image.quotas.push_back(row);
    for (const auto& [id, row] : reservations) image.reservations.push_back(row);
    for (const auto& [id, row] : owners) image.owners.push_back(row);
    for (const auto& [id, row] : views) image.views.push_back(row);
    return image;
  }
};

class Run {
 public:
  explicit Run(uint64_t seed) : prng_(seed) {
    apply_recovery({}, "boot-0");
    for (const char* serial : {"emu:0", "emu:1"}) apply(AdoptDevice{serial, "emulated", 32 * granule, granule});
    apply(CreatePool{"p", {"emu:0", "emu:1"}});
  }

  void step() {
    if (prng_.chance(1, 3)) now_ns_ += prng_.below(3 * second);
    if (prng_.chance(1, 150)) {
      restart();
    } else {
      apply(random());
    }
  }
  const std::map<size_t, uint64_t>& accepted_of() const { return accepted_of_; }
  uint64_t refused() const { return refused_; }

 private:
  LeaseId pick(std::optional<LeasePhase> phase = std::nullopt) {
    std::vector<LeaseId> some, all;
    for (const auto& [id, lease] : machine_.leases()) {
      all.push_back(id);
      if (lease.phase == phase) some.push_back(id);
    }
    if (all.empty() || prng_.chance(1, 40)) return LeaseId{prng_.below(2000)};
    const auto& from = some.empty() || prng_.chance(1, 20) ? all : some;
    return from[prng_.below(from.size())];
  }
  std::string tenant() { return "t-" + std::to_string(prng_.below(4)); }
  std::string tenant_of(LeaseId id) {
    const LeaseRow* lease = machine_.find_lease(id);
    return lease == nullptr || prng_.chance(1, 4) ? (prng_.chance(1, 2) ? "" : tenant()) : lease->tenant;
  }
  Status outcome() { return prng_.chance(1, 12) ? Status(failure()) : Status(); }

  Command random() {
    switch (prng_.below(36)) {
      case 0:
        return SetQuota{{prng_.chance(1, 4) ? "*" : tenant(), prng_.below(40) * granule, prng_.below(20)}};
      case 1:
        return CreateReservation{"p", tenant(), prng_.between(1, 8 * granule),
                                 prng_.chance(1, 2) ? 0 : prng_.between(1, 30) * second, now_ns_};
      case 2: return RemoveReservation{ReservationId{prng_.below(40)}, now_ns_};
      case 3: {
        const LeaseId id = pick(LeasePhase::waiting);
        if (prng_.chance(1, 2)) return CancelWaiting{id, "", "an operator", now_ns_};
        return CancelGrant{id, now_ns_};
      }
      case 4:
      case 5:
      case 6: return CarveFinished{pick(LeasePhase::pending), outcome(), now_ns_};
      case 7:
      case 8: {
        const LeaseId id = pick(LeasePhase::active);
        if (prng_.chance(1, 2)) return Renew{id, tenant_of(id), 0, now_ns_};
        return RenewMany{{id, pick(LeasePhase::active), pick(LeasePhase::revoking)}, tenant_of(id), 0, now_ns_};
      }
      case 9: {
        const LeaseId id = pick(LeasePhase::active);
        return Release{id, tenant_of(id), now_ns_};
      }
      case 10: return Revoke{pick(LeasePhase::active), "because", prng_.below(3) * second, now_ns_};
      case 11:
      case 12: {
        const LeaseId id = pick(LeasePhase::active);
        return Resize{id, tenant_of(id), prng_.between(1, 12 * granule), now_ns_};
      }
      case 13:
      case 14: return ResizeFinished{pick(LeasePhase::active), outcome(), now_ns_};
      case 15: {
        const LeaseId id = pick(LeasePhase::active);
        return Transfer{id, tenant_of(id), tenant(), "", now_ns_};
      }
      case 16: return RebindFinished{pick(LeasePhase::transferring), outcome(), now_ns_};
      case 17:
      case 27:
      case 28: {
        const LeaseId id = pick(LeasePhase::active);
        return BeginMove{id, tenant_of(id), now_ns_};
      }
      case 18:
      case 29:
      case 30: return finish_move();
      case 19:
      case 20: return Tick{prng_.chance(1, 30) ? now_ns_ += limits::move_ns_max : now_ns_};
      case 21:
      case 22: return FenceFinished{pick(LeasePhase::fencing), outcome(), now_ns_};
      case 23:
      case 24: return ScrubFinished{pick(LeasePhase::scrubbing), outcome(), now_ns_};
      case 25: return ScrubAdvanced{pick(LeasePhase::scrubbing), prng_.below(6), now_ns_};
      case 26: {  // nothing stays quarantined for long
        return Release{pick(LeasePhase::quarantined), "", now_ns_};
      }
      default: return grant();
    }
  }
  // Mostly of a move that was begun; some of those have ended since.
  Command finish_move() {
    if (begun_.empty() || prng_.chance(1, 10))
      return FinishMove{pick(LeasePhase::active), pick(LeasePhase::pending), "", true, now_ns_};
    const size_t at = begun_.size() - 1 - prng_.below(std::min<size_t>(begun_.size(), 3));
    const LeaseId lease = begun_[at].first;
    return FinishMove{lease, begun_[at].second, tenant_of(lease), prng_.chance(3, 4), now_ns_};
  }
  Command grant() {
    Grant grant;
    grant.pool = "p";
    grant.tenant = tenant();
    grant.host = "host";
    if (prng_.chance(1, 3)) grant.label = "label-" + std::to_string(prng_.below(5));
    grant.bytes = prng_.between(1, (prng_.chance(1, 10) ? 50 : 8) * granule);
    grant.persistent = prng_.chance(1, 5);
    grant.ttl_ns = grant.persistent ? 0 : prng_.between(5, 60) * second;
    if (prng_.chance(1, 3)) grant.request_low = prng_.below(10);
    if (prng_.chance(1, 2)) grant.wait_ns = prng_.between(1, 60) * second;
    grant.now_ns = now_ns_;
    return grant;
  }

  void apply(const Command& command) {
    INFO("command " << command.index());
    const std::map<std::string, TenantUse> before = uses();
    const Step step = machine_.apply(command);
    const bool event = std::holds_alternative<CarveFinished>(command) ||
                       std::holds_alternative<ResizeFinished>(command) ||
                       std::holds_alternative<RebindFinished>(command);
    if (!step.reply.ok() && !event) {
      REQUIRE(step.delta.empty());
      REQUIRE(step.effects.empty());
    }
    if (step.reply.ok()) ++accepted_of_[command.index()];
    if (const auto* move = std::get_if<BeginMove>(&command); move != nullptr && step.reply.ok())
      begun_.emplace_back(move->lease, std::get<GrantPending>(*step.reply).lease);
    rows_.apply(step.delta);
    check(before);
    check_served(step);
  }

  std::map<std::string, TenantUse> uses() const {
    std::map<std::string, TenantUse> uses;
    for (int i = 0; i < 4; ++i) {
      const std::string name = "t-" + std::to_string(i);
      uses[name] = machine_.tenant_use(name);
    }
    return uses;
  }

  void check(const std::map<std::string, TenantUse>& before) {
    for (const std::string& problem : machine_.check_all()) FAIL(problem);
    for (const auto& [name, use] : uses()) {  // nobody gets more than the quota allows
      const QuotaRow quota = machine_.quota_of(name);
      const bool more_bytes = use.bytes > before.at(name).bytes,
                 more_leases = use.leases > before.at(name).leases;
      REQUIRE((!more_bytes || quota.bytes_max == 0 || use.bytes <= quota.bytes_max));
      REQUIRE((!more_leases || quota.leases_max == 0 || use.leases <= quota.leases_max));
    }
    // What the machine calls durable is what the Deltas said, but that neither reaching `scrubbing` nor a renewal of the
    // same TTL is recorded.
    Image image = machine_.image(), stored = rows_.image();
    for (Image* rows : {&image, &stored})
      for (LeaseRow& row : rows->leases) {
        if (row.phase == LeasePhase::scrubbing) row.phase = LeasePhase::fencing;
        row.expiry_ns = 0;
      }
    REQUIRE(image.leases == stored.leases);
    REQUIRE(image.quotas == stored.quotas);
    REQUIRE(image.reservations == stored.reservations);
    REQUIRE(image.owners == stored.owners);
  }

  // I11, after each step that placed something: the other tenants' reservations have their room free.
  void check_served(const Step& step) {
    std::string taker;
    size_t takers = 0;
    for (const Effect& effect : step.effects) {
      LeaseId id;
      if (std::holds_alternative<RefuseGrant>(effect)) ++refused_;
      if (const auto* carve = std::get_if<CarveObject>(&effect)) id = carve->lease;
      if (const auto* resize = std::get_if<ResizeObject>(&effect))
        if (resize->to_bytes > resize->from_bytes) id = resize->lease;
      if (!id.valid()) continue;
      taker = machine_.find_lease(id)->tenant;
      ++takers;
    }
    if (takers != 1) return;
    const PoolUse use = machine_.pool_use(machine_.find_pool("p")->id);
    uint64_t kept = 0;
    std::map<std::string, uint64_t> reserved;
    for (const auto& [id, row] : machine_.reservations()) reserved[row.tenant] += row.bytes;
    for (const auto& [name, bytes] : reserved) {
      if (name == taker) continue;
      const uint64_t has = machine_.tenant_use(name).bytes;  // all in the one pool
      kept += bytes - std::min(bytes, has);
    }
    REQUIRE(use.grantable_bytes >= kept);
  }

  void apply_recovery(const Observation& observed, const std::string& boot) {
    machine_ = StateMachine();
    const auto recovery = machine_.recover(rows_.image(), observed, boot, now_ns_);
    REQUIRE(recovery.ok());
    rows_.apply(recovery->delta);
    for (const std::string& problem : machine_.check_all()) FAIL(problem);
  }

  void restart() {
    Observation observed;
    observed.device_serials = {"emu:0", "emu:1"};
    for (const LeaseRow& lease : rows_.image().leases) {
      if (prng_.chance(1, 30)) continue;
      uint64_t bytes = lease.bytes;
      if (lease.target_bytes != 0 && prng_.chance(1, 2)) bytes = lease.target_bytes;
      if (prng_.chance(1, 8)) bytes += granule;
      if (prng_.chance(1, 30)) bytes = 0;
      observed.objects.emplace_back(lease.object, bytes);
      if (!lease.next_object.empty() && prng_.chance(1, 2))
        observed.objects.emplace_back(lease.next_object, bytes);
    }
    if (prng_.chance(1, 3)) ++boot_;
    apply_recovery(observed, "boot-" + std::to_string(boot_));
  }

  Prng prng_;
  StateMachine machine_;
  Rows rows_;
  uint64_t now_ns_ = 100 * second;
  uint64_t boot_ = 0;
  uint64_t refused_ = 0;                            // grants that waited in vain
  std::vector<std::pair<LeaseId, LeaseId>> begun_;  // moves: lease, target
  std::map<size_t, uint64_t> accepted_of_;
};

}  // namespace

TEST_CASE("StateMachine: random commands of leases keep every invariant, quota and reservation") {
  const char* given = std::getenv("TERRACE_STATE_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
  std::map<size_t, uint64_t> accepted;
  uint64_t refused = 0;
  for (uint64_t seed = first; seed < first + 4; ++seed) {
    INFO("TERRACE_STATE_SEED=" << seed);
    Run run(seed);
    for (uint64_t i = 0; i < 2500; ++i) {
      INFO("step " << i);
      run.step();
    }
    for (const auto& [index, count] : run.accepted_of()) accepted[index] += count;
    refused += run.refused();
  }
  CHECK(refused >= 5);
  // Each kind of command was accepted often enough to have been tested.
  for (const Command& command : {Command(SetQuota{}),
                                 Command(CreateReservation{}),
                                 Command(RemoveReservation{}),
                                 Command(CancelGrant{}),
                                 Command(CancelWaiting{}),
                                 Command(Grant{}),
                                 Command(CarveFinished{}),
                                 Command(Renew{}),
                                 Command(RenewMany{}),
                                 Command(Release{}),
                                 Command(Revoke{}),
                                 Command(Resize{}),
                                 Command(ResizeFinished{}),
                                 Command(Transfer{}),
                                 Command(RebindFinished{}),
                                 Command(BeginMove{}),
                                 Command(FinishMove{}),
                                 Command(FenceFinished{}),
                                 Command(ScrubFinished{}),
                                 Command(ScrubAdvanced{})}) {
    CAPTURE(command.index());
    CHECK(accepted[command.index()] >= 5);
  }
}
