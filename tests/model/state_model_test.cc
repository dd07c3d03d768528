// SPDX-License-Identifier: Apache-2.0
// Random commands, applied to the state machine and to the reference: replies and effects agree in kind,
// states agree after each command, and what the Deltas made of a store recovers to the same state.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "core/base/limits.h"
#include "daemon/state/state_machine.h"
#include "tests/model/commands.h"
#include "tests/support/reply_kinds.h"

using namespace terrace;
using namespace terrace::model;

namespace {

constexpr uint64_t commands_per_seed = 4000;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string describe(const daemon::Effect& effect) {
  struct Words {
    std::string operator()(const daemon::CarveObject& e) { return "carve " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::FenceObject& e) { return "fence " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::ScrubObject& e) { return "scrub " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::RefuseGrant& e) { return "refuse " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::ResizeObject& e) { return "resize " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::RebindObject& e) { return "rebind " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::ShowObject& e) { return "show " + std::to_string(e.lease.value); }
    std::string operator()(const daemon::HideObject& e) { return "hide " + std::to_string(e.id.value); }
    std::string operator()(const daemon::NotifyHolders& e) {
      return (e.fenced ? "fenced " : "notice ") + std::to_string(e.lease.value);
    }
  };
  return std::visit(Words{}, effect);
}

std::multiset<std::string> describe(const std::vector<daemon::Effect>& effects) {
  std::multiset<std::string> words;
  for (const daemon::Effect& effect : effects) words.insert(describe(effect));
  return words;
}

// Granule by granule: neighbouring extents may be one or two.
std::vector<daemon::Extent> single(const std::vector<daemon::Extent>& extents) {
  std::vector<daemon::Extent> granules;
  for (const daemon::Extent& extent : extents)
    for (uint64_t i = 0; i < extent.granules; ++i)
      granules.push_back({extent.device, extent.first_granule + i, 1});
  return granules;
}

std::string joined(const std::multiset<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The rows that the Deltas left behind, as a store would.
class Rows {
 public:
  void apply(const daemon::Delta& delta) {
    apply(devices_, delta.devices);
    apply(pools_, delta.pools);
    apply(leases_, delta.leases);
    apply(quotas_, delta.quotas);
    apply(reservations_, delta.reservations);
    apply(owners_, delta.owners);
    apply(views_, delta.views);
    if (delta.meta.has_value()) meta_ = *delta.meta;
  }
  daemon::Image image() const {
    daemon::Image image;
    image.meta = meta_;
    for (const auto& [id, row] : devices_) image.devices.push_back(row);
    for (const auto& [id, row] : pools_) image.pools.push_back(row);
    for (const auto& [id, row] : leases_) image.leases.push_back(row);
    for (const auto& [tenant, row] : quotas_) image.quotas.push_back(row);
    for (const auto& [id, row] : reservations_) image.reservations.push_back(row);
    for (const auto& [id, row] : owners_) image.owners.push_back(row);
    for (const auto& [id, row] : views_) image.views.push_back(row);
    return image;
  }

 private:
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

  daemon::MetaRow meta_;
  std::map<DeviceId, daemon::DeviceRow> devices_;
  std::map<PoolId, daemon::PoolRow> pools_;
  std::map<LeaseId, daemon::LeaseRow> leases_;
  std::map<std::string, daemon::QuotaRow> quotas_;
  std::map<ReservationId, daemon::ReservationRow> reservations_;
  std::map<PartId, daemon::OwnerRow> owners_;
  std::map<daemon::ViewId, daemon::ViewRow> views_;
};

class Run {
 public:
  explicit Run(uint64_t seed) : prng_(seed) {
    const auto recovery = machine_.recover({}, {}, "boot-0", now_ns_);
    REQUIRE(recovery.ok());
    rows_.apply(recovery->delta);
  }

  void step() {
    const auto due_ns = reference_.next_due_ns();
    if (due_ns.has_value() && *due_ns > now_ns_ && prng_.chance(1, 20)) {
      now_ns_ = *due_ns - prng_.below(2);  // the very moment, or just before it
    } else if (prng_.chance(1, 3)) {
      now_ns_ += prng_.below(5 * ns_per_s);
    }
    if (prng_.chance(1, 100)) {
      restart();
    } else {
      command();
    }
    compare();
  }
  uint64_t accepted() const { return accepted_; }
  const std::set<std::string>& kinds() const { return kinds_; }  // of commands that were accepted

 private:
  void command() {
    const daemon::Command command = random_command(prng_, reference_, now_ns_);
    INFO("command " << std::string(command_name(command)));
    const Expected expected = reference_.apply(command);
    const daemon::Step step = machine_.apply(command);
    const ErrorCode code = step.reply.ok() ? ErrorCode::ok : step.reply.error().code;
    REQUIRE(std::string(error_code_name(code)) == std::string(error_code_name(expected.code)));
    const bool report = std::holds_alternative<daemon::CarveFinished>(command) ||
                        std::holds_alternative<daemon::ResizeFinished>(command) ||
                        std::holds_alternative<daemon::RebindFinished>(command);
    if (!step.reply.ok() && !report) REQUIRE(step.delta.empty());
    rows_.apply(step.delta);
    if (step.reply.ok()) {
      REQUIRE(test::is_reply_to(command, *step.reply));
      ++accepted_;
      kinds_.insert(command_name(command));
      if (const auto* renewals = std::get_if<daemon::RenewalsReply>(&*step.reply)) {
        std::vector<std::pair<LeaseId, ErrorCode>> failed;
        for (const auto& [lease, error] : renewals->failed) failed.emplace_back(lease, error.code);
        REQUIRE(failed == expected.failed_renewals);
      }
    }

    const bool cut = std::holds_alternative<daemon::ResizeFinished>(command);  // also after a failed growth
    if ((step.reply.ok() || cut) && take_over(command, expected, step)) return;
    REQUIRE(joined(describe(step.effects)) == joined(expected.effects));
    if (!expected.same_lease.has_value()) return;
    const auto* active = std::get_if<daemon::LeaseReply>(&*step.reply);
    const LeaseId id = active != nullptr ? active->lease.id : std::get<daemon::GrantPending>(*step.reply).lease;
    REQUIRE(id == *expected.same_lease);
  }

  // What the machine chose, where it had a choice: checked, and made the reference's.
  bool take_over(const daemon::Command& command, const Expected& expected, const daemon::Step& step) {
    if (const auto* grant = std::get_if<daemon::Grant>(&command); grant && !expected.same_lease.has_value()) {
      const LeaseId id = std::get<daemon::GrantPending>(*step.reply).lease;
      REQUIRE(describe(step.effects) == std::multiset<std::string>{"carve " + std::to_string(id.value)});
      REQUIRE(step.delta.empty());
      REQUIRE(reference_.placed(*grant, *machine_.find_lease(id)) == "");
      return true;
    }
    if (const auto* begin = std::get_if<daemon::BeginMove>(&command)) {
      const LeaseId id = std::get<daemon::GrantPending>(*step.reply).lease;
      REQUIRE(describe(step.effects) == std::multiset<std::string>{"carve " + std::to_string(id.value)});
      REQUIRE(reference_.placed_target(begin->lease, *machine_.find_lease(id)) == "");
      return true;
    }
    if (const auto* resize = std::get_if<daemon::Resize>(&command);
        resize && reference_.growing(resize->lease)) {
      REQUIRE(step.effects.size() == 1);
      REQUIRE(reference_.grown(resize->lease, std::get<daemon::ResizeObject>(step.effects[0]).extents) == "");
    }
    if (const auto* transfer = std::get_if<daemon::Transfer>(&command))
      REQUIRE(reference_.handed(*machine_.find_lease(transfer->lease)) == "");
    if (const auto* accept = std::get_if<daemon::AcceptOffer>(&command))
      REQUIRE(reference_.handed(*machine_.find_lease(accept->lease)) == "");
    if (const auto* resized = std::get_if<daemon::ResizeFinished>(&command);
        resized && expected.effects.contains("scrub the tail")) {
      REQUIRE(step.effects.size() == 1);
      const LeaseId tail = std::get<daemon::ScrubObject>(step.effects[0]).lease;
      REQUIRE(reference_.cut_off(resized->lease, *machine_.find_lease(tail)) == "");
      return true;
    }
    return false;
  }

  void restart() {
    INFO("restart");
    const bool same_boot = prng_.chance(2, 3);
    if (!same_boot) ++boot_;
    daemon::Observation observed;
    for (const auto& device : reference_.devices())
      if (!prng_.chance(1, 12)) observed.device_serials.push_back(device.serial);
    std::map<std::string, uint64_t> objects;
    for (const auto& lease : reference_.leases()) {
      if (prng_.chance(1, 20)) continue;
      objects[lease.object] = prng_.chance(1, 20) ? 0 : lease.bytes;
      if (prng_.chance(1, 20)) objects[lease.object] = lease.bytes + 2 * limits::granule_bytes;
      if (lease.target_bytes != 0 && prng_.chance(1, 2)) objects[lease.object] = lease.target_bytes;
      if (prng_.chance(1, 2)) objects[lease.object] = reference_.bytes_to_come(lease);
      if (lease.next_object.empty() || prng_.chance(1, 3)) continue;
      if (prng_.chance(1, 2)) objects.erase(lease.object);
      objects[lease.next_object] = lease.bytes;
    }
    // Objects of grants that were never acknowledged, and one that nobody knows.
    std::vector<std::string> orphans;
    for (const auto& lease : reference_.leases()) {
      if (lease.phase == LeasePhase::pending && objects.contains(lease.object)) orphans.push_back(lease.object);
    }
    if (prng_.chance(1, 3)) orphans.push_back("stray");
    observed.objects.assign(objects.begin(), objects.end());
    if (!orphans.empty() && orphans.back() == "stray") observed.objects.emplace_back("stray", 0);
    const std::string boot = "boot-" + std::to_string(boot_);
    machine_ = daemon::StateMachine();
    const auto recovery = machine_.recover(rows_.image(), observed, boot, now_ns_);
    REQUIRE(recovery.ok());
    const std::set<std::string> seen(observed.device_serials.begin(), observed.device_serials.end());
    REQUIRE(joined(describe(recovery->effects)) ==
            joined(reference_.restart(objects, seen, same_boot, now_ns_).effects));
    REQUIRE(std::set<std::string>(recovery->orphans.begin(), recovery->orphans.end()) ==
            std::set<std::string>(orphans.begin(), orphans.end()));
    rows_.apply(recovery->delta);

    daemon::StateMachine again;
    const auto repeated = again.recover(rows_.image(), observed, boot, now_ns_);
    REQUIRE(repeated.ok());
    REQUIRE(repeated->delta.empty());
  }

  void compare() {
    for (const std::string& problem : machine_.check_all()) FAIL(problem);
    REQUIRE(machine_.devices().size() == reference_.devices().size());
    for (const auto& device : reference_.devices()) {
      const auto* row = machine_.find_device(device.serial);
      REQUIRE(row != nullptr);
      REQUIRE(row->capacity_bytes == device.capacity_bytes);
      REQUIRE(row->state == device.state);
      REQUIRE(machine_.absent(row->id) == reference_.is_absent(device.serial));
      const std::string& pool = reference_.pool_of(device.serial);
      REQUIRE((row->pool.valid() ? machine_.find_pool(row->pool)->name : "") == pool);
    }
    REQUIRE(machine_.pools().size() == reference_.pools().size());
    for (const std::string& name : reference_.pools()) {
      REQUIRE(machine_.find_pool(name) != nullptr);
      const PoolId id = machine_.find_pool(name)->id;
      REQUIRE(machine_.pool_use(id).free_bytes ==
              reference_.free_granules(name) * machine_.pool_granule_bytes(id));
    }
    REQUIRE(machine_.leases().size() == reference_.leases().size());
    for (const auto& expected : reference_.leases()) {
      const auto* lease = machine_.find_lease(expected.id);
      REQUIRE(lease != nullptr);
      REQUIRE(lease->phase == expected.phase);
      REQUIRE(single(lease->extents) == single(expected.extents));
      REQUIRE(lease->bytes == expected.bytes);
      if (lease->phase != LeasePhase::pending)
        REQUIRE(static_cast<int>(lease->cause) == static_cast<int>(expected.cause));
      REQUIRE(lease->object == expected.object);
      REQUIRE(lease->next_object == expected.next_object);
      REQUIRE(lease->target_bytes == expected.target_bytes);
      REQUIRE(lease->epoch == expected.epoch);
      REQUIRE(lease->ttl_ns == expected.ttl_ns);
      REQUIRE(lease->expiry_ns == expected.expiry_ns);
      REQUIRE(lease->deadline_ns == expected.deadline_ns);
      REQUIRE(lease->tenant == expected.tenant);
      REQUIRE(lease->label == expected.label);
      for (uint64_t part = 0; part < daemon::lease_parts_max; ++part) {
        const auto* owner = machine_.find_owner(expected.id, part);
        REQUIRE((owner == nullptr ? 0 : owner->epoch) == reference_.owner_epoch(expected.id, part));
        REQUIRE((owner == nullptr ? 0 : owner->process.pid) == reference_.owner_pid(expected.id, part));
      }
    }
    REQUIRE(machine_.quotas() == reference_.quotas());
    REQUIRE(machine_.reservations().size() == reference_.reservations());
    REQUIRE(machine_.next_due_ns() == reference_.next_due_ns());
  }

  Prng prng_;
  daemon::StateMachine machine_;
  Reference reference_;
  Rows rows_;
  uint64_t now_ns_ = 100 * ns_per_s;
  uint64_t boot_ = 0;
  uint64_t accepted_ = 0;
  std::set<std::string> kinds_;
};

}  // namespace

TEST_CASE("StateMachine: agrees with the reference model over random commands and restarts") {
  const uint64_t first = number_from("TERRACE_MODEL_SEED", 1);
  const uint64_t seeds = number_from("TERRACE_MODEL_SEEDS", 10);
  uint64_t accepted = 0;
  std::set<std::string> kinds;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    INFO("TERRACE_MODEL_SEED=" << seed);
    Run run(seed);
    for (uint64_t i = 0; i < commands_per_seed; ++i) {
      INFO("step " << i);
      run.step();
    }
    accepted += run.accepted();
    kinds.insert(run.kinds().begin(), run.kinds().end());
  }
  kinds.insert("CancelWaiting");  // nobody waits here: it is refused each time
  for (const char* of_views : {"OpenView", "ViewOpened", "ViewClosed", "LoseObject"}) kinds.insert(of_views);
  CHECK(kinds.size() == std::variant_size_v<daemon::Command>);
  // Refusals are tested too, but a run of nothing else would test little.
  CHECK(accepted > seeds * commands_per_seed / 5);
  MESSAGE(seeds << " seeds of " << commands_per_seed << " commands, " << accepted << " accepted");
}
