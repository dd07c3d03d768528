#include "tests/sim/sim_client.h"

#include <algorithm>
#include <utility>

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

constexpr uint64_t patience_ns = 1 * ns_per_s;  // before a request is sent again
constexpr uint64_t tries_max = 6;               // before it is given up
constexpr size_t leases_held_max = 4;

void stamp(daemon::Command& command, uint64_t now_ns) {
  std::visit(
      [now_ns](auto& c) {
        if constexpr (requires { c.now_ns; }) c.now_ns = now_ns;
      },
      command);
}

unsigned long long number(LeaseId id) {
  return id.value;
}

}  // namespace

uint64_t Connection::delay_ns(uint64_t& last_ns) {
  const uint64_t now_ns = environment_.now_ns();
  last_ns = std::max(last_ns, now_ns + environment_.prng().below(2 * ns_per_ms)) + 1;
  return last_ns - now_ns;
}

void Connection::send(const daemon::Command& command, ReplyAction received) {
  if (lost()) return;
  environment_.after(delay_ns(last_request_ns_), [this, life = life_, command, received = std::move(received)] {
    if (life != life_) return;
    daemon::Command stamped = command;
    stamp(stamped, environment_.now_ns());
    daemon_.submit(std::move(stamped), [this, life, received](const Result<daemon::Reply>& result) {
      if (lost()) return;
      environment_.after(delay_ns(last_reply_ns_), [this, life, received, result] {
        if (life == life_) received(result);
      });
    });
  });
}

SimClient::SimClient(Environment& environment, SimDaemon& daemon, SimBackend& backend, Ledger& ledger,
                     uint64_t index)
    : environment_(environment),
      backend_(backend),
      ledger_(ledger),
      connection_(environment, daemon),
      index_(index),
      tenant_("tenant-" + std::to_string(index % 3)),
      hostile_(environment.prng().chance(1, 3)),
      lazy_(environment.prng().chance(1, 3)) {}

void SimClient::act() {
  if (environment_.now_ns() < frozen_until_ns_) return;
  touch_all();
  if (silent_) return;
  if (environment_.prng().chance(1, 60)) {
    frozen_until_ns_ = environment_.now_ns() + environment_.prng().below(40 * ns_per_s);
    environment_.note("client %llu: freezes", static_cast<unsigned long long>(index_));
    return;
  }
  if (asking_ == Asking::nothing) {
    ask_something();
  } else if (environment_.now_ns() - sent_ns_ > patience_ns) {
    if (++tries_ > tries_max) {
      asking_ = Asking::nothing;
    } else {
      send();
    }
  }
}

void SimClient::end() {
  connection_.cut();
  held_.clear();
  last_grant_.reset();
  asking_ = Asking::nothing;
}

void SimClient::notice(const daemon::NotifyHolders& notice) {
  Held* held = find(notice.lease);
  if (held != nullptr && !notice.fenced && !hostile_) held->leaving = true;
}

SimClient::Held* SimClient::find(LeaseId id) {
  for (Held& held : held_) {
    if (held.lease.id == id) return &held;
  }
  return nullptr;
}

// --- memory -----------------------------------------------------------------------------------------

bool SimClient::touch(const Held& held, uint64_t granule, bool write) {
  uint64_t tag = 0;
  if (backend_.read(held.mapping, granule, &tag) == Access::sigbus) {
    if (ledger_.promised(held.lease.id)) {
      environment_.fail("the memory of lease %llu died although it is granted", number(held.lease.id));
    }
    return false;
  }
  if (tag != 0 && tag != held.lease.epoch.value) {
    environment_.fail("stale bytes: lease %llu (epoch %llu) reads what epoch %llu wrote", number(held.lease.id),
                      static_cast<unsigned long long>(held.lease.epoch.value),
                      static_cast<unsigned long long>(tag));
  }
  if (write) (void)backend_.write(held.mapping, granule, held.lease.epoch.value);
  return true;
}

void SimClient::touch_all() {
  for (size_t i = 0; i < held_.size();) {
    const uint64_t granules = backend_.granules_of(held_[i].mapping);
    const bool alive = granules != 0 && touch(held_[i], environment_.prng().below(granules), true);
    if (alive) {
      ++i;
    } else {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// --- requests ---------------------------------------------------------------------------------------

void SimClient::ask_something() {
  Prng& prng = environment_.prng();
  for (const Held& held : held_) {
    if (held.over) continue;
    if (held.leaving) {
      ask(Asking::release, held.lease.id, daemon::Release{held.lease.id, tenant_, 0});
      return;
    }
    const uint64_t now_ns = environment_.now_ns();
    const uint64_t expiry_ns = held.lease.expiry_ns;
    if (!lazy_ && expiry_ns != 0 && now_ns + 2 * held.lease.ttl_ns / 3 > expiry_ns) {
      ask(Asking::renew, held.lease.id, daemon::Renew{held.lease.id, tenant_, 0, 0});
      return;
    }
  }
  if (held_.size() < leases_held_max && prng.chance(1, 2)) {
    if (last_grant_.has_value() && prng.chance(1, 8)) {  // as if the reply had been lost on the last metres
      ask(Asking::grant, {}, *last_grant_);
    } else {
      ask_grant();
    }
    return;
  }
  if (held_.empty() || !prng.chance(1, 3)) return;
  Held& held = held_[prng.below(held_.size())];
  if (held.over) return;
  if (prng.chance(1, 2)) {
    const uint64_t ttl_ns = held.lease.ttl_ns != 0 && prng.chance(1, 3) ? prng.between(1, 20) * ns_per_s : 0;
    ask(Asking::renew, held.lease.id, daemon::Renew{held.lease.id, tenant_, ttl_ns, 0});
  } else {
    held.leaving = true;
    ask(Asking::release, held.lease.id, daemon::Release{held.lease.id, tenant_, 0});
  }
}

void SimClient::ask_grant() {
  Prng& prng = environment_.prng();
  daemon::Grant grant;
  grant.pool = prng.chance(2, 3) ? "a" : "b";
  grant.tenant = tenant_;
  grant.host = "host-" + std::to_string(index_);
  if (prng.chance(1, 4)) grant.label = "label-" + std::to_string(prng.below(4));
  grant.bytes = prng.between(1, 6 * limits::granule_bytes);
  grant.persistent = prng.chance(1, 8);
  if (!grant.persistent) grant.ttl_ns = prng.between(1, 20) * ns_per_s;
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
  if (asking_ == Asking::release) ledger_.release_asked(asked_lease_);
  if (asking_ == Asking::renew) ledger_.renewal_asked(asked_lease_, std::get<daemon::Renew>(asked_).ttl_ns);
  environment_.note("client %llu: asks for %s of lease %llu", static_cast<unsigned long long>(index_),
                    asking_ == Asking::grant ? "a grant" : (asking_ == Asking::renew ? "renewal" : "release"),
                    number(asked_lease_));
  connection_.send(asked_, [this, attempt](const Result<daemon::Reply>& result) {
    if (attempt == attempt_ && asking_ != Asking::nothing) received(result);
  });
}

void SimClient::received(const Result<daemon::Reply>& result) {
  if (!result.ok()) {
    refused(result.error());
    return;
  }
  const Asking asked = std::exchange(asking_, Asking::nothing);
  const auto* answer = std::get_if<daemon::LeaseReply>(&*result);
  if (asked == Asking::release) {
    ledger_.release_acknowledged(asked_lease_);
    environment_.note("client %llu: lease %llu is released", static_cast<unsigned long long>(index_),
                      number(asked_lease_));
    if (Held* held = find(asked_lease_)) {
      held->over = true;
      if (!hostile_) held_.erase(held_.begin() + (held - held_.data()));
    }
  } else if (answer == nullptr) {
    environment_.fail("a grant or renewal was answered without the lease");
  } else if (asked == Asking::renew) {
    ledger_.renewal_acknowledged(answer->lease);
    if (Held* held = find(asked_lease_)) held->lease = answer->lease;
  } else {
    granted(answer->lease);
  }
}

void SimClient::granted(const daemon::LeaseRow& lease) {
  environment_.note("client %llu: has lease %llu, epoch %llu, %llu granules",
                    static_cast<unsigned long long>(index_), number(lease.id),
                    static_cast<unsigned long long>(lease.epoch.value),
                    static_cast<unsigned long long>(lease.bytes / limits::granule_bytes));
  const auto& asked = std::get<daemon::Grant>(asked_);
  if (lease.tenant != tenant_ || lease.bytes < asked.bytes || lease.request_high != asked.request_high) {
    environment_.fail("lease %llu is not what was asked for", number(lease.id));
  }
  last_grant_ = asked;
  ledger_.grant_acknowledged(lease);
  if (find(lease.id) != nullptr) return;  // asked for once more, and held already
  const auto mapping = backend_.open(lease.object);
  if (!mapping.has_value()) {
    if (ledger_.promised(lease.id))
      environment_.fail("lease %llu was granted without memory", number(lease.id));
    return;
  }
  const Held held{lease, *mapping};
  for (uint64_t i = 0; i < backend_.granules_of(*mapping); ++i) {
    if (!touch(held, i, false)) return;
  }
  held_.push_back(held);
}

void SimClient::refused(const Error& error) {
  if (error.code == ErrorCode::io_error && environment_.prng().chance(1, 2))
    return;  // unknown: asks again later
  const Asking asked = std::exchange(asking_, Asking::nothing);
  const bool ended = error.code == ErrorCode::not_found || error.code == ErrorCode::lease_expired ||
                     error.code == ErrorCode::lease_revoked;
  if (asked == Asking::renew && ended && ledger_.promised(asked_lease_)) {
    environment_.fail("the renewal of lease %llu was refused although it is granted: %s", number(asked_lease_),
                      error.detail.c_str());
  }
}

}  // namespace terrace::sim
