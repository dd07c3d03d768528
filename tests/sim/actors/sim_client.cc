// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/actors/sim_client.h"

#include <algorithm>
#include <utility>

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

unsigned long long number(LeaseId id) {
  return id.value;
}

}  // namespace

SimClient::SimClient(Environment& environment, Manager& daemon, SimBackend& backend, Ledger& ledger,
                     Contents& contents, uint64_t index,
                     std::function<void(LeaseId, const std::string& host)> hand_over)
    : environment_(environment),
      daemon_(daemon),
      backend_(backend),
      ledger_(ledger),
      contents_(contents),
      connection_(environment, daemon, index),
      index_(index),
      hand_over_(std::move(hand_over)),
      tenant_("tenant-" + std::to_string(index % 3)),
      hostile_(environment.prng().chance(1, 3)),
      lazy_(environment.prng().chance(1, 3)) {}

void SimClient::act() {
  if (environment_.now_ns() < frozen_until_ns_) return;
  touch_all();
  if (silent_) return;
  bool movable = false;
  bool to_move = false;
  for (const Held& held : held_) {
    if (held.mapped && !held.over && daemon_.serving()) daemon_.hold(held.lease.id, index_);
    movable = movable || held.lease.movable;
    to_move = to_move || (held.move_wanted && held.mapped && !held.over);
  }
  // A process that lets its leases be moved keeps its session alive.
  if (!settled_ && !movable && asking_ == Asking::nothing && environment_.prng().chance(1, 60)) {
    frozen_until_ns_ = environment_.now_ns() + environment_.prng().below(40 * ns_per_s);
    environment_.note("client %llu: freezes", static_cast<unsigned long long>(index_));
    return;
  }
  if (asking_ == Asking::nothing) {
    ask_something();
  } else if (environment_.now_ns() - sent_ns_ > patience_ns()) {
    give_up();
  } else if (asking_ == Asking::grant && (settled_ ? to_move : environment_.prng().chance(1, 200))) {
    daemon_.cancel(std::get<daemon::Grant>(asked_));  // it does not want to wait any more, or has to move first
    ++attempt_;
    asking_ = Asking::nothing;
  }
}

void SimClient::end() {
  connection_.cut();
  held_.clear();
  given_.clear();
  last_grant_.reset();
  asking_ = Asking::nothing;
}

void SimClient::notice(const daemon::NotifyHolders& notice) {
  Held* held = find(notice.lease);
  if (held != nullptr && !notice.fenced && !hostile_) held->leaving = true;
}

void SimClient::move_requested(LeaseId lease) {
  if (Held* held = find(lease); held != nullptr && held->mapped && !held->over) {
    held->move_wanted = true;
  } else {
    daemon_.let_go(lease, index_);
  }
}

SimClient::Held* SimClient::find(LeaseId id) {
  for (Held& held : held_) {
    if (held.lease.id == id && !held.over) return &held;
  }
  return nullptr;
}

// The lease is not this client's any more. A hostile one keeps the mapping.
void SimClient::drop(Held* held) {
  if (held == nullptr) return;
  daemon_.let_go(held->lease.id, index_);
  held->over = true;
  if (!hostile_ || !held->mapped) held_.erase(held_.begin() + (held - held_.data()));
}

// --- memory -----------------------------------------------------------------------------------------

bool SimClient::touch(Held& held, uint64_t granule, bool write) {
  const LeaseId id = held.lease.id;
  const bool relied_on = !held.over && !held.doubtful && ledger_.promised(id);
  uint64_t stamp = 0;
  if (backend_.read(held.mapping, granule, &stamp) == Access::sigbus) {
    if (relied_on) environment_.fail("the memory of lease %llu died although it is granted", number(id));
    return false;
  }
  if (stamp != 0 && stamp >> 32 != id.value) {
    environment_.fail("stale bytes: lease %llu reads what lease %llu wrote", number(id),
                      number(LeaseId{stamp >> 32}));
    return true;
  }
  std::vector<uint64_t>& stamps = contents_.stamps[id];
  const bool current = !held.over && !held.doubtful && !held.target.valid();
  if (relied_on && granule < stamps.size() && stamps[granule] != Contents::unknown &&
      stamps[granule] != stamp) {
    environment_.fail("lost bytes: granule %llu of lease %llu reads %llx, and %llx was written",
                      static_cast<unsigned long long>(granule), number(id),
                      static_cast<unsigned long long>(stamp), static_cast<unsigned long long>(stamps[granule]));
  }
  if (!write || !(current || (hostile_ && held.over))) return true;
  const uint64_t next = id.value << 32 | (++contents_.last_stamp & 0xffffffff);
  if (backend_.write(held.mapping, granule, next) == Access::sigbus) return false;
  if (current && granule < stamps.size()) stamps[granule] = next;
  return true;
}

bool SimClient::verify(Held& held) {
  const uint64_t granules = backend_.granules_of(held.mapping);
  for (uint64_t i = 0; i < granules; ++i)
    if (!touch(held, i, false)) return false;
  return granules > 0;
}

void SimClient::touch_all() {
  for (size_t i = 0; i < held_.size();) {
    Held& held = held_[i];
    if (!held.mapped) {
      ++i;
      continue;
    }
    const uint64_t granules = held.over || held.doubtful ? backend_.granules_of(held.mapping)
                                                         : held.lease.bytes / limits::granule_bytes;
    const bool alive = granules != 0 && touch(held, environment_.prng().below(granules), true);
    if (alive || held.doubtful) {
      ++i;
      continue;
    }
    daemon_.let_go(held.lease.id, index_);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// The lease as it was answered is the truth now: its object is mapped, and has what was written.
void SimClient::map_again(Held& held, const daemon::LeaseRow& lease) {
  const auto mapping = backend_.open(lease.object);
  if (hostile_ && held.mapped && mapping != held.mapping) {  // it goes on with the old one as well
    Held old = held;
    old.over = true;
    held_.push_back(old);
    Held* again = find(lease.id);
    if (again == nullptr) return;
    again->mapping = mapping.value_or(0);
    again->lease = lease;
    again->doubtful = false;
    (void)verify(*again);
    return;
  }
  held.lease = lease;
  held.mapping = mapping.value_or(0);
  held.mapped = true;
  held.doubtful = false;
  (void)verify(held);
}

void SimClient::detach(Held& held) {
  environment_.note("client %llu: detaches lease %llu", static_cast<unsigned long long>(index_),
                    number(held.lease.id));
  held.mapped = false;
  daemon_.let_go(held.lease.id, index_);
}

// From here to the end of the move the holder writes nothing.
void SimClient::copy_to_target(Held& held, const daemon::MoveReady& ready) {
  held.target = ready.target;
  held.target_object = ready.object;
  const auto target = backend_.open(ready.object);
  if (!target.has_value()) return;
  for (uint64_t i = 0; i < held.lease.bytes / limits::granule_bytes; ++i) {
    uint64_t stamp = 0;
    if (backend_.read(held.mapping, i, &stamp) == Access::sigbus) return;
    if (stamp != 0) (void)backend_.write(*target, i, stamp);
  }
}

}  // namespace terrace::sim
