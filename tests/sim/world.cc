// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.h"

#include "tests/sim/engine/engine_manager.h"
#include "tests/sim/manager/sim_daemon.h"

namespace terrace::sim {
namespace {

std::unique_ptr<Manager> make_manager(const Options& options, Environment& environment, SimStore& store,
                                      SimBackend& backend, Ledger& ledger) {
  if (options.engine) {
    return std::make_unique<EngineManager>(environment, store, backend, ledger, options.store);
  }
  return std::make_unique<SimDaemon>(environment, store, backend, ledger);
}

}  // namespace

World::World(const Options& options)
    : options_(options),
      environment_(options),
      store_(environment_),
      backend_(environment_),
      ledger_(environment_),
      manager_(make_manager(options, environment_, store_, backend_, ledger_)),
      daemon_(*manager_),
      operator_(environment_, daemon_, ledger_),
      owners_(environment_, daemon_) {
  const uint64_t count = environment_.prng().between(1, 6);
  const auto hand_over = [this](LeaseId lease, const std::string& host) {
    for (auto& client : clients_)
      if (client->host() == host) client->given(lease);
  };
  for (uint64_t i = 0; i < count; ++i) {
    clients_.push_back(
        std::make_unique<SimClient>(environment_, daemon_, backend_, ledger_, contents_, i, hand_over));
  }
  daemon_.on_notice([this](const daemon::NotifyHolders& notice) {
    for (auto& client : clients_) {
      if (environment_.chance_percent(environment_.faults().message_loss_percent)) continue;
      environment_.after(environment_.prng().below(ns_per_ms), [&client, notice] { client->notice(notice); });
    }
  });
  daemon_.on_move_request([this](LeaseId lease, uint64_t client) {
    environment_.after(environment_.prng().below(ns_per_ms),
                       [this, lease, client] { clients_.at(client)->move_requested(lease); });
  });
}

// --- turns and nemeses ------------------------------------------------------------------------------

void World::turn_of_client(size_t index) {
  environment_.after(environment_.prng().between(1, 300) * ns_per_ms, [this, index] {
    clients_[index]->act();
    turn_of_client(index);
  });
}

void World::turn_of_operator() {
  environment_.after(environment_.prng().between(1, 200) * ns_per_ms, [this] {
    operator_.act();
    turn_of_operator();
  });
}

void World::turn_of_owners() {
  environment_.after(environment_.prng().between(1, 400) * ns_per_ms, [this] {
    owners_.act();
    turn_of_owners();
  });
}

void World::schedule(uint64_t interval_ns, std::function<void()> nemesis) {
  if (interval_ns == 0) return;
  environment_.after(environment_.prng().below(2 * interval_ns), [this, interval_ns, nemesis] {
    if (calm_) return;
    nemesis();
    schedule(interval_ns, nemesis);
  });
}

void World::schedule_nemeses() {
  const Faults& faults = environment_.faults();
  schedule(faults.crash_interval_ns, [this] { daemon_.crash("killed"); });
  schedule(faults.reboot_interval_ns, [this] {
    daemon_.reboot();
    for (auto& client : clients_) client->end();
    operator_.end();
    owners_.end();
  });
  schedule(faults.jump_interval_ns, [this] {
    const uint64_t jump_ns = environment_.prng().below(30 * ns_per_s);
    environment_.note("clock: jumps by %.3f s", static_cast<double>(jump_ns) / 1e9);
    environment_.jump(jump_ns);
  });
  schedule(faults.full_interval_ns, [this] {
    environment_.note("store: the disk is full");
    store_.fill_up(environment_.prng().below(4 * ns_per_s));
  });
  schedule(faults.device_loss_interval_ns, [this] { lose_a_device(); });
}

void World::lose_a_device() {
  Prng& prng = environment_.prng();
  const std::string serial = "emu:" + std::to_string(prng.below(SimOperator::devices));
  if (!backend_.seen(serial)) return;
  const bool blank = environment_.chance_percent(environment_.faults().device_blank_percent);
  environment_.note("device %s: vanishes%s", serial.c_str(), blank ? ", and what was on it" : "");
  backend_.lose_device(serial, blank);
  ledger_.device_hit(daemon_.machine(), serial);
  // What comes back blank stays away until that was noticed, or is found out by the next start.
  const uint64_t away_ns = (blank ? 3 * ns_per_s : 0) + prng.below(15 * ns_per_s);
  environment_.after(away_ns, [this, serial] {
    environment_.note("device %s: is back", serial.c_str());
    backend_.return_device(serial);
    ledger_.device_hit(daemon_.machine(), serial);
  });
}

void World::watch() {
  environment_.after(500 * ns_per_ms, [this] {
    check_lost_devices();
    check_progress();
    watch();
  });
}

// --- the run ----------------------------------------------------------------------------------------

Outcome World::run() {
  daemon_.start();
  for (size_t i = 0; i < clients_.size(); ++i) turn_of_client(i);
  turn_of_operator();
  turn_of_owners();
  schedule_nemeses();
  watch();
  while (!environment_.failed() && environment_.step() < options_.steps) (void)environment_.run_one();
  drain();

  Outcome outcome;
  outcome.passed = !environment_.failed();
  outcome.failure = environment_.failure();
  outcome.step = environment_.step();
  outcome.lines = environment_.lines();
  outcome.grants = ledger_.grants();
  outcome.commits = store_.commits();
  outcome.crashes = daemon_.crashes();
  outcome.recoveries = daemon_.recoveries();
  outcome.moves = daemon_.moves();
  outcome.accepted = daemon_.accepted();
  return outcome;
}

void World::run_for(uint64_t ns) {
  const uint64_t end_ns = environment_.now_ns() + ns;
  while (!environment_.failed() && environment_.now_ns() < end_ns) (void)environment_.run_one();
}

Outcome run_seed(Options options) {
  const bool traced = options.trace;
  Outcome outcome = World(options).run();
  if (outcome.passed || traced) return outcome;
  options.trace = true;
  return World(options).run();
}

}  // namespace terrace::sim
