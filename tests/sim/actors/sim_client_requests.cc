// SPDX-License-Identifier: Apache-2.0
// What a client asks for.
#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "tests/sim/actors/sim_client.h"

namespace terrace::sim {
namespace {

constexpr uint64_t tries_max = 6;  // before a request is given up
constexpr size_t leases_held_max = 4;

unsigned long long number(LeaseId id) {
  return id.value;
}

}  // namespace

uint64_t SimClient::patience_ns() const {
  const auto* grant = std::get_if<daemon::Grant>(&asked_);
  return ns_per_s + (asking_ == Asking::grant && grant != nullptr ? grant->wait_ns / 2 : 0);
}

// --- asking -----------------------------------------------------------------------------------------

void SimClient::ask_something() {
  Prng& prng = environment_.prng();
  for (Held& held : held_) {
    if (!held.over && ask_what_is_due(held)) return;
  }
  if (!given_.empty()) {
    const LeaseId lease = given_.back();
    given_.pop_back();
    ask(Asking::attach, lease, daemon::Tick{});
    return;
  }
  if (settled_) return;
  if (held_.size() < leases_held_max && prng.chance(1, 2)) {
    if (last_grant_.has_value() && prng.chance(1, 8)) {  // as if the reply had been lost on the last metres
      ask(Asking::grant, {}, *last_grant_);
    } else {
      ask_grant();
    }
    return;
  }
  if (held_.empty() || !prng.chance(1, 2)) return;
  Held& held = held_[prng.below(held_.size())];
  if (!held.over) ask_to_change(held);
}

// What must not wait: true when something was asked.
bool SimClient::ask_what_is_due(Held& held) {
  const LeaseId id = held.lease.id;
  const uint64_t now_ns = environment_.now_ns();
  if (held.leaving) {
    ask(Asking::release, id, daemon::Release{id, tenant_, 0});
    return true;
  }
  const uint64_t expiry_ns = held.lease.expiry_ns;
  if (!lazy_ && expiry_ns != 0 && now_ns + 2 * held.lease.ttl_ns / 3 > expiry_ns) {
    if (environment_.prng().chance(1, 2))
      ask(Asking::renew, id, daemon::Renew{id, tenant_, 0, 0});
    else
      ask(Asking::renew, id, renew_all(id));
    return true;
  }
  if (held.target.valid()) {
    const bool commit = settled_ || !environment_.prng().chance(1, 8);
    ask(Asking::finish_move, id, daemon::FinishMove{id, held.target, tenant_, commit, 0});
    return true;
  }
  if (held.doubtful || (!held.mapped && environment_.prng().chance(1, settled_ ? 200 : 25))) {
    ask(Asking::attach, id, daemon::Tick{});
    return true;
  }
  if (held.move_wanted && held.mapped) {
    held.move_wanted = false;
    ask(Asking::begin_move, id, daemon::BeginMove{id, tenant_, 0});
    return true;
  }
  return false;
}

// One that is due, and all others with it. With a TTL, since the answer does not say which one each has: a change of it
// whose answer was lost may have been carried out.
daemon::RenewMany SimClient::renew_all(LeaseId due) {
  daemon::RenewMany renew{{due}, tenant_, environment_.prng().between(2, 20) * ns_per_s, 0};
  for (const Held& held : held_)
    if (held.lease.id != due && held.lease.ttl_ns != 0) renew.leases.push_back(held.lease.id);
  return renew;
}

void SimClient::ask_to_change(Held& held) {
  Prng& prng = environment_.prng();
  const LeaseId id = held.lease.id;
  const uint64_t granules = held.lease.bytes / limits::granule_bytes;
  switch (prng.below(12)) {
    case 0:
    case 1: {
      const uint64_t ttl_ns = held.lease.ttl_ns != 0 && prng.chance(1, 3) ? prng.between(1, 20) * ns_per_s : 0;
      ask(Asking::renew, id, daemon::Renew{id, tenant_, ttl_ns, 0});
      return;
    }
    case 2:
    case 3: held.leaving = true; return;
    case 4:
    case 5: {
      if (!held.mapped) return;
      const uint64_t to = prng.chance(1, 2) ? granules + prng.between(1, 4) : prng.between(1, granules);
      ask(Asking::resize, id, daemon::Resize{id, tenant_, to * limits::granule_bytes, 0});
      return;
    }
    case 6: {
      if (!held.mapped || !prng.chance(1, 2)) return;
      const uint64_t to = prng.below(6);
      ask(Asking::transfer, id,
          daemon::Transfer{id, tenant_, "tenant-" + std::to_string(to % 3), "host-" + std::to_string(to), 0});
      return;
    }
    case 7:
      if (held.mapped) ask(Asking::begin_move, id, daemon::BeginMove{id, tenant_, 0});
      return;
    default:
      if (held.mapped && held.lease.movable) detach(held);
  }
}

void SimClient::ask_grant() {
  Prng& prng = environment_.prng();
  daemon::Grant grant;
  const uint64_t pool = prng.below(6);
  grant.pool = pool < 3 ? "a" : (pool < 5 ? "b" : "c");
  grant.tenant = tenant_;
  grant.host = host();
  if (prng.chance(1, 4)) grant.label = "label-" + std::to_string(prng.below(4));
  grant.bytes = prng.between(1, 6 * limits::granule_bytes);
  grant.persistent = prng.chance(1, 8);
  if (!grant.persistent) grant.ttl_ns = prng.between(1, 20) * ns_per_s;
  grant.movable = prng.chance(1, 2);
  if (prng.chance(1, 2)) grant.mode = daemon::LeaseMode::shared_coherent;
  if (prng.chance(1, 2)) grant.wait_ns = prng.between(1, 15) * ns_per_s;
  grant.request_high = prng.next();
  grant.request_low = prng.next();
  ask(Asking::grant, {}, grant);
}

void SimClient::ask(Asking kind, LeaseId lease, daemon::Command command) {
  asking_ = kind;
  asked_lease_ = lease;
  asked_ = std::move(command);
  tries_ = 0;
  send();
}

void SimClient::send() {
  sent_ns_ = environment_.now_ns();
  const uint64_t attempt = ++attempt_;
  Held* held = find(asked_lease_);
  if (asking_ == Asking::release) ledger_.release_asked(asked_lease_);
  if (asking_ == Asking::renew) {
    if (const auto* many = std::get_if<daemon::RenewMany>(&asked_))
      for (const LeaseId id : many->leases) ledger_.renewal_asked(id, many->ttl_ns);
    else
      ledger_.renewal_asked(asked_lease_, std::get<daemon::Renew>(asked_).ttl_ns);
  }
  if (asking_ == Asking::transfer) ledger_.transfer_asked(asked_lease_);
  if (asking_ == Asking::resize ||
      (asking_ == Asking::finish_move && std::get<daemon::FinishMove>(asked_).commit))
    ledger_.change_asked(asked_lease_);
  if (held != nullptr && asking_ == Asking::transfer) held->doubtful = true;
  if (asking_ == Asking::resize) {  // a shrink's tail is not its own any more
    std::vector<uint64_t>& stamps = contents_.stamps[asked_lease_];
    for (size_t i = std::get<daemon::Resize>(asked_).bytes / limits::granule_bytes; i < stamps.size(); ++i)
      stamps[i] = Contents::unknown;
    if (held != nullptr) held->doubtful = true;
  }
  if (held != nullptr && asking_ == Asking::finish_move) held->doubtful = true;
  environment_.note("client %llu: asks for %s of lease %llu", static_cast<unsigned long long>(index_),
                    name_of(asking_), number(asked_lease_));
  const ReplyAction action = [this, attempt](const Result<daemon::Reply>& result) {
    if (attempt == attempt_ && asking_ != Asking::nothing) received(result);
  };
  if (asking_ == Asking::attach) {
    connection_.send_attach(asked_lease_, tenant_, action);
  } else {
    connection_.send(asked_, action);
  }
}

// No answer: asks again, with the rest of its time to wait, or gives it up and finds out later.
void SimClient::give_up() {
  if (++tries_ <= tries_max) {
    if (auto* grant = std::get_if<daemon::Grant>(&asked_))
      grant->wait_ns -= std::min(grant->wait_ns, environment_.now_ns() - sent_ns_);
    send();
    return;
  }
  const Asking asked = std::exchange(asking_, Asking::nothing);
  ++attempt_;
  if (asked == Asking::grant) {
    daemon_.cancel(std::get<daemon::Grant>(asked_));
  } else if (asked == Asking::transfer) {
    ledger_.dropped(asked_lease_);
    drop(find(asked_lease_));
  } else if (Held* held = find(asked_lease_); held != nullptr && asked == Asking::finish_move) {
    held->target = LeaseId{};  // to be attached again, whichever object it has
  }
}

}  // namespace terrace::sim
