// SPDX-License-Identifier: Apache-2.0
// Leases on several hosts, at random, beside a world that has what the effects made: while any host has an object over a granule,
// that granule is nobody else's; no part has a second owner while its first one may store or has lines in a cache that the second
// does not read through; and what the Deltas left behind is the state.
#include <algorithm>
#include <map>
#include <set>

#include "core/base/prng.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr const char* hosts[] = {"", "hostb", "hostc", "hostd"};

class Run {
 public:
  explicit Run(uint64_t seed) : prng_(seed), m_({24}), coherent_(seed % 2 == 0) {
    if (coherent_) REQUIRE(m_.apply(SetPoolCoherence{"p", PoolCoherence::coherent}).reply.ok());
    stored_ = m_.machine.image();
  }

  void step() {
    m_.now_ns += prng_.below(second / 2);
    switch (prng_.below(12)) {
      case 8:
      case 9:
      case 10: return claim();
      case 11: return leave();
      case 0: return grant();
      case 1:
      case 2: return open();
      case 3: return lose();
      case 4: return end();
      case 5: return restart();
      default: return finish_work();
    }
  }
  void drain() {
    for (const auto& [id, lease] : std::map(m_.machine.leases()))
      if (lease.phase == LeasePhase::active) apply(Revoke{id, "", 0, m_.now_ns});
    for (int i = 0; i < 1000 && !work_.empty(); ++i) finish_work();
    CHECK(m_.machine.leases().empty());
    CHECK(m_.machine.views().empty());
    CHECK(objects_.empty());
  }
  uint64_t opened() const { return opened_; }
  uint64_t replaced() const { return replaced_; }
  uint64_t heirs() const { return heirs_; }       // parts that had an owner before
  uint64_t to_others() const { return others_; }  // of another host

 private:
  struct Part {
    std::string host;
    uint64_t epoch = 0;
    bool may_store = false;
    std::set<std::string> lines;  // hosts whose caches may have what an owner stored
  };
  Step apply(const Command& command) {
    Step step = m_.apply(command);
    keep(step.delta);
    for (const Effect& effect : step.effects) work_.push_back(effect);
    check();
    return step;
  }
  template <typename Id, typename Row>
  static void keep_rows(std::vector<Row>& rows, const std::map<Id, std::optional<Row>>& changes) {
    std::map<Id, Row> by_id;
    for (Row& row : rows) by_id[row.id] = row;
    for (const auto& [id, row] : changes) {
      if (row.has_value())
        by_id[id] = *row;
      else
        by_id.erase(id);
    }
    rows.clear();
    for (auto& [id, row] : by_id) rows.push_back(row);
  }
  void keep(const Delta& delta) {
    keep_rows(stored_.leases, delta.leases);
    keep_rows(stored_.views, delta.views);
    keep_rows(stored_.owners, delta.owners);
    if (delta.meta.has_value()) stored_.meta = *delta.meta;
  }
  // Of each granule one lease at most: each object that a host has is of a lease that has it.
  void check() {
    CHECK(stored_.views == m_.machine.image().views);
    CHECK(stored_.owners == m_.machine.image().owners);
    std::erase_if(parts_, [this](const auto& part) {
      const LeaseRow* row = m_.machine.find_lease(lease_of(part.first));
      return row == nullptr || row->phase != LeasePhase::active;
    });
    for (const auto& [object, lease] : objects_) {
      const LeaseRow* row = m_.machine.find_lease(lease);
      REQUIRE_MESSAGE(row != nullptr, object << " is there, and its granules are free");
      bool named = row->object == object;
      for (const ViewRow& view : m_.machine.views_of(lease)) named |= view.object == object;
      CHECK_MESSAGE(named, object << " is of no row: no fence would reach it");
    }
  }
  LeaseId pick() {
    std::vector<LeaseId> active;
    for (const auto& [id, lease] : m_.machine.leases())
      if (lease.phase == LeasePhase::active) active.push_back(id);
    return active.empty() ? LeaseId{} : active[prng_.below(active.size())];
  }

  static std::string host_of_object(const std::string& object) {
    const size_t at = object.find('@');
    return at == std::string::npos ? "" : object.substr(at + 1);
  }
  bool has_object(LeaseId lease, const std::string& host) const {
    return std::any_of(objects_.begin(), objects_.end(), [&](const auto& one) {
      return one.second == lease && host_of_object(one.first) == host;
    });
  }
  // The object is no more: nobody of its host stores there. In order its caches were written back before.
  void remove_object(const std::string& object, bool in_order) {
    const auto at = objects_.find(object);
    if (at == objects_.end()) return;
    const LeaseId lease = at->second;
    objects_.erase(at);
    const std::string host = host_of_object(object);
    if (has_object(lease, host)) return;
    for (auto& [id, part] : parts_) {
      if (lease_of(id) != lease) continue;
      if (part.host == host) part.may_store = false;
      if (in_order) part.lines.erase(host);
    }
  }
  void claim() {
    const LeaseId lease = pick();
    if (!lease.valid()) return;
    const uint64_t number = prng_.below(2);
    Part& part = parts_[part_id(lease, number)];
    ClaimPart command{.lease = lease, .tenant = "alice", .part = number};
    command.host = hosts[prng_.below(4)];
    command.process = {prng_.between(1, 3), 1, 1};
    command.request = ++requests_;
    command.holder = "p";
    if (!part.may_store && prng_.chance(3, 4)) command.dead_epoch = part.epoch;
    command.now_ns = m_.now_ns;
    const Step step = apply(command);
    if (!step.reply.ok()) return;
    CHECK_MESSAGE(!part.may_store, "a part with two owners");
    CHECK_MESSAGE(has_object(lease, command.host), "an owner without the memory");
    if (!coherent_)
      for (const std::string& host : part.lines)
        CHECK_MESSAGE(host == command.host, "lines of an earlier owner are in caches of " << host);
    const uint64_t epoch = std::get<OwnerReply>(*step.reply).owner.epoch;
    CHECK(epoch > part.epoch);
    heirs_ += part.epoch != 0;
    others_ += part.epoch != 0 && part.host != command.host;
    part.host = command.host;
    part.epoch = epoch;
    part.may_store = true;
    part.lines.insert(command.host);
  }
  // An owner gives its part back, or dies.
  void leave() {
    if (parts_.empty()) return;
    auto at = parts_.begin();
    std::advance(at, prng_.below(parts_.size()));
    if (!at->second.may_store) return;
    at->second.may_store = false;
    if (prng_.chance(1, 2)) return;
    const OwnerRow* owner = m_.machine.find_owner(lease_of(at->first), part_of(at->first));
    REQUIRE(owner != nullptr);
    apply(ReleasePart{lease_of(at->first), "alice", part_of(at->first), at->second.epoch, owner->process,
                      owner->host});
  }

  void grant() {
    Grant asked = m_.request(prng_.between(1, 3) * granule);
    asked.mode = prng_.chance(1, 4) ? LeaseMode::shared_read_only : LeaseMode::shared_coherent;
    asked.agent = hosts[prng_.below(4)];
    asked.persistent = true;
    asked.ttl_ns = 0;
    const Step pending = m_.apply(asked);
    if (!pending.reply.ok()) return;
    const LeaseId id = std::get<GrantPending>(*pending.reply).lease;
    const Step done = apply(CarveFinished{id, {}, m_.now_ns});
    REQUIRE(done.reply.ok());
    objects_[std::get<LeaseReply>(*done.reply).lease.object] = id;
  }
  void open() {
    const LeaseId id = pick();
    if (id.valid()) apply(OpenView{id, "alice", hosts[prng_.below(4)], m_.now_ns});
  }
  // An object is gone, with what its host did: the row may have it, or no more.
  void lose() {
    if (prng_.chance(1, 3) && !m_.machine.views().empty()) {  // one that may be being made just now
      auto view = m_.machine.views().begin();
      std::advance(view, prng_.below(m_.machine.views().size()));
      apply(LoseObject{lease_of(view->first), view->second.object, "its host is gone", m_.now_ns});
      return;
    }
    if (objects_.empty()) return;
    auto at = objects_.begin();
    std::advance(at, prng_.below(objects_.size()));
    const LeaseRow* row = m_.machine.find_lease(at->second);
    const bool own = row != nullptr && row->object == at->first;
    const LoseObject command{at->second, at->first, "its host is gone", m_.now_ns};
    remove_object(command.object, false);
    apply(command);
    row = m_.machine.find_lease(command.lease);
    replaced_ += own && row != nullptr && row->phase == LeasePhase::active;
  }
  void end() {
    const LeaseId id = pick();
    if (id.valid() && prng_.chance(1, 2)) apply(Revoke{id, "", 0, m_.now_ns});
  }
  // What was under way is gone; what was made stays. The rows are those that the Deltas left.
  void restart() {
    if (!prng_.chance(1, 3)) return;
    Image image = m_.machine.image();
    image.leases = stored_.leases;
    image.views = stored_.views;
    image.owners = stored_.owners;
    work_.clear();
    Observation observed;
    observed.device_serials = {"emu:0"};
    for (const auto& [object, lease] : objects_)
      observed.objects.emplace_back(object, m_.machine.find_lease(lease)->bytes);
    // Those of further hosts are taken to be as the rows say (daemon/memory/remote).
    for (const LeaseRow& row : image.leases)
      if (row.object.find('@') != std::string::npos && !objects_.contains(row.object))
        observed.objects.emplace_back(row.object, row.bytes);
    StateMachine machine;
    auto recovery = machine.recover(std::move(image), observed, "boot-1", m_.now_ns);
    REQUIRE_MESSAGE(recovery.ok(), recovery.error().detail);
    m_.machine = std::move(machine);
    keep(recovery->delta);
    for (const Effect& effect : recovery->effects) work_.push_back(effect);
    for (const std::string& orphan : recovery->orphans) objects_.erase(orphan);
    if (prng_.chance(1, 2)) return check();  // the engine's own recovery: nobody registers anew
    // Agents register: what they do not have is lost.
    for (const auto& [id, view] : std::map(m_.machine.views()))
      if (!view.closing && !objects_.contains(view.object))
        apply(LoseObject{lease_of(id), view.object, "gone when the host came back", m_.now_ns});
    for (const auto& [id, row] : std::map(m_.machine.leases()))
      if (row.phase == LeasePhase::active && !objects_.contains(row.object))
        apply(LoseObject{id, row.object, "gone when the host came back", m_.now_ns});
    check();
  }

  void finish_work() {
    if (work_.empty()) return;
    const size_t at = prng_.below(work_.size());
    const Effect effect = work_[at];
    work_.erase(work_.begin() + static_cast<ptrdiff_t>(at));
    if (const auto* show = std::get_if<ShowObject>(&effect)) {
      Status status;
      // As the engine: nothing is made for a lease that is being fenced, or after it was given up.
      if (!m_.machine.opening(show->id, show->view) || prng_.chance(1, 4)) {
        status = failure();
      } else {
        objects_[show->view] = show->lease;
        ++opened_;
      }
      apply(ViewOpened{show->id, show->view, status, m_.now_ns});
    } else if (const auto* hide = std::get_if<HideObject>(&effect)) {
      const bool there = objects_.contains(hide->view);
      remove_object(hide->view, true);
      apply(ViewClosed{hide->id, hide->view, !there, m_.now_ns});
    } else if (const auto* fence = std::get_if<FenceObject>(&effect)) {
      for (const std::string& view : fence->views) objects_.erase(view);
      apply(FenceFinished{fence->lease, {}, m_.now_ns});
    } else if (const auto* scrub = std::get_if<ScrubObject>(&effect)) {
      objects_.erase(scrub->object);
      apply(ScrubFinished{scrub->lease, {}, m_.now_ns});
    }
  }
  Prng prng_;
  Manager m_;
  Image stored_;
  std::map<std::string, LeaseId> objects_;  // that hosts have
  std::vector<Effect> work_;
  const bool coherent_;
  std::map<PartId, Part> parts_;
  uint64_t requests_ = 0;
  uint64_t opened_ = 0, replaced_ = 0, heirs_ = 0, others_ = 0;
};

}  // namespace

TEST_CASE("views: at random, no granule is free while a host has an object over it") {
  uint64_t opened = 0, replaced = 0, heirs = 0, others = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Run run(seed);
    for (int i = 0; i < 400; ++i) run.step();
    run.drain();
    opened += run.opened();
    replaced += run.replaced();
    heirs += run.heirs();
    others += run.to_others();
  }
  CHECK(opened > 300);
  CHECK(replaced > 20);
  CHECK(heirs > 150);
  CHECK(others > 20);
  MESSAGE(opened << " views, of which " << replaced << " took the place of a lost object; " << heirs
                 << " heirs of a part, " << others << " on another host");
}
