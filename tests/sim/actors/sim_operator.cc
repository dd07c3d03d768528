// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/actors/sim_operator.h"

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

constexpr uint64_t patience_ns = 500 * ns_per_ms;
constexpr uint64_t tries_max = 5;

std::string state_text(daemon::DeviceState state) {
  static const char* const states[] = {"in service", "draining", "failed"};
  return states[static_cast<size_t>(state)];
}

std::string serial_of(int device) {
  return "emu:" + std::to_string(device);
}

}  // namespace

SimOperator::SimOperator(Environment& environment, Manager& daemon, Ledger& ledger)
    : environment_(environment), daemon_(daemon), ledger_(ledger), connection_(environment, daemon) {
  Prng& prng = environment_.prng();
  for (int i = 0; i < devices; ++i) {
    shapes_.push_back(
        {serial_of(i), "emulated", prng.between(4, 20) * limits::granule_bytes, limits::granule_bytes});
    preparations_.emplace_back(shapes_.back(), Settings{});
  }
  const auto pool = [&](const char* name, std::vector<std::string> serials) {
    daemon::CreatePool create{name, std::move(serials)};
    create.placement = static_cast<daemon::Placement>(prng.below(3));
    if (create.placement == daemon::Placement::striped)
      create.stripe_bytes = prng.below(3) * limits::granule_bytes;
    return create;
  };
  pool_b_ = pool("b", {serial_of(2)});
  for (const daemon::CreatePool& create :
       {pool("a", {serial_of(0), serial_of(1)}), pool_b_, pool("c", {serial_of(3)})}) {
    Settings settings{{"pool " + create.name, "there"}};
    for (const std::string& serial : create.device_serials)
      settings.emplace_back("pool of " + serial, create.name);
    preparations_.emplace_back(create, std::move(settings));
  }
}

void SimOperator::end() {
  connection_.cut();
  asked_.reset();
}

// --- asking -----------------------------------------------------------------------------------------

void SimOperator::act() {
  if (asked_.has_value()) {
    if (environment_.now_ns() - sent_ns_ <= patience_ns) return;
    if (++asked_->tries > tries_max && prepared_ == preparations_.size()) {
      asked_.reset();
    } else {
      send();
    }
    return;
  }
  if (prepared_ < preparations_.size()) {
    ask(preparations_[prepared_].first, preparations_[prepared_].second);
  } else if (!silent_ && environment_.prng().chance(1, 6)) {
    do_something();
  }
}

void SimOperator::ask(daemon::Command command, Settings settings) {
  asked_ = Request{std::move(command), std::move(settings), {}, 0};
  for (const auto& [name, value] : asked_->settings) asked_->before.push_back(ledger_.setting_asked(name));
  send();
}

void SimOperator::send() {
  sent_ns_ = environment_.now_ns();
  environment_.note("operator: sends command %zu%s%s", asked_->command.index(),
                    asked_->settings.empty() ? "" : ", ",
                    asked_->settings.empty() ? "" : asked_->settings.front().first.c_str());
  if (const auto* failing = std::get_if<daemon::FailDevice>(&asked_->command))
    ledger_.device_hit(daemon_.machine(), failing->serial);
  if (const auto* revoking = std::get_if<daemon::Revoke>(&asked_->command))
    ledger_.revocation_asked(revoking->lease);
  connection_.send(asked_->command, [this, attempt = ++attempt_](const Result<daemon::Reply>& result) {
    if (attempt == attempt_ && asked_.has_value()) received(result);
  });
}

void SimOperator::received(const Result<daemon::Reply>& result) {
  if (!result.ok() &&
      (result.error().code == ErrorCode::io_error || result.error().code == ErrorCode::unavailable))
    return;  // unknown: asked again
  const Request request = std::move(*asked_);
  asked_.reset();
  const bool preparing = prepared_ < preparations_.size();
  const bool done = result.ok() || (preparing && result.error().code == ErrorCode::already_exists);
  if (preparing && done) ++prepared_;
  if (!done) {
    for (size_t i = 0; i < request.settings.size(); ++i) {  // sent once, and refused: nothing has changed
      if (request.tries == 0 && request.before[i].has_value())
        ledger_.setting_acknowledged(request.settings[i].first, *request.before[i]);
    }
    return;
  }
  for (const auto& [name, value] : request.settings) ledger_.setting_acknowledged(name, value);
  if (!result.ok()) return;
  if (const auto* device = std::get_if<daemon::DeviceReply>(&*result)) {
    ledger_.setting_acknowledged("device " + device->device.serial, state_text(device->device.state));
  } else if (const auto* made = std::get_if<daemon::ReservationReply>(&*result);
             made && made->reservation.ttl_ns == 0) {
    ledger_.setting_acknowledged("reservation " + std::to_string(made->reservation.id.value),
                                 setting_text(made->reservation, daemon_.machine()));
  } else if (const auto* revoked = std::get_if<daemon::Revoke>(&request.command)) {
    ledger_.revocation_acknowledged(revoked->lease);
  }
}

// --- what operators do ------------------------------------------------------------------------------

std::string SimOperator::some_serial() {
  return serial_of(static_cast<int>(environment_.prng().below(devices)));
}

std::string SimOperator::some_pool() {
  return std::string(1, static_cast<char>('a' + environment_.prng().below(3)));
}

void SimOperator::do_something() {
  Prng& prng = environment_.prng();
  switch (prng.below(14)) {
    case 0:
    case 1:
    case 2: revoke_one(); return;
    case 3: release_from_quarantine(); return;
    case 4:
    case 5: set_quota(); return;
    case 6:
    case 7: reserve(); return;
    case 8: {
      const uint64_t bytes = prng.chance(1, 4) ? 0 : prng.between(2, 10) * limits::granule_bytes;
      ask(daemon::CompactPool{some_pool(), bytes, prng.between(1, 15) * ns_per_s, 0});
      return;
    }
    case 9:
      if (prng.chance(1, 3)) remake_pool();
      return;
    default: change_device();
  }
}

void SimOperator::revoke_one() {
  if (!daemon_.serving() || daemon_.machine().leases().empty()) return;
  auto at = daemon_.machine().leases().begin();
  std::advance(at, static_cast<std::ptrdiff_t>(environment_.prng().below(daemon_.machine().leases().size())));
  const LeaseId id = at->first;
  if (at->second.phase == daemon::LeasePhase::waiting) {
    ask(daemon::CancelWaiting{id, "needed elsewhere", "the operator", 0});
    return;
  }
  const uint64_t grace_ns = environment_.prng().chance(1, 3) ? 0 : environment_.prng().below(10 * ns_per_s);
  environment_.note("operator: revokes lease %llu, grace %.3f s", static_cast<unsigned long long>(id.value),
                    static_cast<double>(grace_ns) / 1e9);
  ask(daemon::Revoke{id, "needed elsewhere", grace_ns, 0});
}

void SimOperator::release_from_quarantine() {
  if (!daemon_.serving()) return;
  for (const auto& [id, lease] : daemon_.machine().leases()) {
    if (lease.phase != daemon::LeasePhase::quarantined || environment_.prng().chance(1, 2)) continue;
    ask(daemon::Release{id, "", 0});
    return;
  }
}

void SimOperator::set_quota() {
  Prng& prng = environment_.prng();
  daemon::QuotaRow row;
  const uint64_t tenant = prng.below(4);
  row.tenant = tenant == 3 ? "*" : "tenant-" + std::to_string(tenant);
  if (prng.chance(1, 2)) row.bytes_max = prng.between(2, 16) * limits::granule_bytes;
  if (prng.chance(1, 2)) row.leases_max = prng.between(1, 6);
  const bool none = row.bytes_max == 0 && row.leases_max == 0;
  ask(daemon::SetQuota{row}, {{"quota of " + row.tenant, none ? "" : setting_text(row)}});
}

void SimOperator::reserve() {
  Prng& prng = environment_.prng();
  if (daemon_.serving() && !daemon_.machine().reservations().empty() && prng.chance(1, 2)) {
    const ReservationId id = daemon_.machine().reservations().begin()->first;
    ask(daemon::RemoveReservation{id, 0}, {{"reservation " + std::to_string(id.value), ""}});
    return;
  }
  daemon::CreateReservation create;
  create.pool = some_pool();
  create.tenant = "tenant-" + std::to_string(prng.below(3));
  create.bytes = prng.between(1, 6) * limits::granule_bytes;
  if (prng.chance(1, 2)) create.ttl_ns = prng.between(1, 20) * ns_per_s;
  ask(create);
}

void SimOperator::change_device() {
  Prng& prng = environment_.prng();
  const std::string serial = some_serial();
  const std::string state = "device " + serial;
  const std::string spare = serial_of(devices - 1);
  switch (prng.below(10)) {
    case 0:
    case 1:
    case 2: ask(daemon::DrainDevice{serial}, {{state, "draining"}}); return;
    case 3:
    case 4:
    case 5: ask(daemon::UndrainDevice{serial, 0}, {{state, "in service"}}); return;
    case 6:
      if (prng.chance(1, 2)) ask(daemon::FailDevice{serial, 0}, {{state, "failed"}});
      return;
    case 7: {
      const bool forget = prng.chance(1, 2);
      ask(daemon::RemoveDevice{spare, forget}, {{"device " + spare, ""}, {"pool of " + spare, ""}});
      return;
    }
    case 8: ask(shapes_.back(), {{"device " + spare, ""}}); return;
    default: {
      const std::string pool = some_pool();
      ask(daemon::AddDevice{pool, spare}, {{"pool of " + spare, pool}});
    }
  }
}

void SimOperator::remake_pool() {
  const std::string spare = serial_of(devices - 1);
  const bool there = daemon_.serving() && daemon_.machine().find_pool("b") != nullptr;
  ledger_.setting_forgotten("pool of " + spare);  // it may be a part of it
  if (there) {
    ask(daemon::DeletePool{"b"}, {{"pool b", ""}, {"pool of " + serial_of(2), ""}});
  } else {
    ask(pool_b_, {{"pool b", "there"}, {"pool of " + serial_of(2), "b"}});
  }
}

void SimOperator::tidy_up() {
  const auto tell = [this](daemon::Command command) {
    daemon_.submit(std::move(command), [](const Result<daemon::Reply>&) {});
  };
  std::vector<std::string> tenants;
  for (const auto& [tenant, row] : daemon_.machine().quotas()) tenants.push_back(tenant);
  for (const std::string& tenant : tenants) {
    ledger_.setting_forgotten("quota of " + tenant);
    tell(daemon::SetQuota{{tenant, 0, 0}});
  }
  std::vector<ReservationId> reservations;
  for (const auto& [id, row] : daemon_.machine().reservations()) reservations.push_back(id);
  for (const ReservationId id : reservations) {
    ledger_.setting_forgotten("reservation " + std::to_string(id.value));
    tell(daemon::RemoveReservation{id, environment_.now_ns()});
  }
  for (int i = 0; i < devices; ++i) {
    ledger_.setting_forgotten("device " + serial_of(i));
    tell(daemon::UndrainDevice{serial_of(i), environment_.now_ns()});
  }
}

}  // namespace terrace::sim
