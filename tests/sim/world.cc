#include "tests/sim/world.h"

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

// Longer than any TTL or grace of the run, with room for the slowest fence and scrub of everything.
constexpr uint64_t rest_ns = 60 * ns_per_s;

}  // namespace

World::World(const Options& options)
    : options_(options),
      environment_(options),
      store_(environment_),
      backend_(environment_),
      ledger_(environment_),
      daemon_(environment_, store_, backend_, ledger_),
      operator_(environment_, daemon_, ledger_) {
  const uint64_t count = environment_.prng().between(1, 6);
  for (uint64_t i = 0; i < count; ++i) {
    clients_.push_back(std::make_unique<SimClient>(environment_, daemon_, backend_, ledger_, i));
  }
  daemon_.on_notice([this](const daemon::NotifyHolders& notice) {
    for (auto& client : clients_) {
      if (environment_.chance_percent(environment_.faults().message_loss_percent)) continue;
      environment_.after(environment_.prng().below(ns_per_ms), [&client, notice] { client->notice(notice); });
    }
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

void World::schedule_crash() {
  const uint64_t interval_ns = environment_.faults().crash_interval_ns;
  if (interval_ns == 0) return;
  environment_.after(environment_.prng().below(2 * interval_ns), [this] {
    if (calm_) return;
    daemon_.crash("killed");
    schedule_crash();
  });
}

void World::schedule_reboot() {
  const uint64_t interval_ns = environment_.faults().reboot_interval_ns;
  if (interval_ns == 0) return;
  environment_.after(environment_.prng().below(2 * interval_ns), [this] {
    if (calm_) return;
    daemon_.reboot();
    for (auto& client : clients_) client->end();
    operator_.end();
    schedule_reboot();
  });
}

void World::schedule_jump() {
  const uint64_t interval_ns = environment_.faults().jump_interval_ns;
  if (interval_ns == 0) return;
  environment_.after(environment_.prng().below(2 * interval_ns), [this] {
    if (calm_) return;
    const uint64_t jump_ns = environment_.prng().below(30 * ns_per_s);
    environment_.note("clock: jumps by %.3f s", static_cast<double>(jump_ns) / 1e9);
    environment_.jump(jump_ns);
    schedule_jump();
  });
}

// --- the run ----------------------------------------------------------------------------------------

Outcome World::run() {
  daemon_.start();
  for (size_t i = 0; i < clients_.size(); ++i) turn_of_client(i);
  turn_of_operator();
  schedule_crash();
  schedule_reboot();
  schedule_jump();
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
  return outcome;
}

void World::run_for(uint64_t ns) {
  const uint64_t end_ns = environment_.now_ns() + ns;
  while (!environment_.failed() && environment_.now_ns() < end_ns) (void)environment_.run_one();
}

// Faults stop and clients fall silent; within bounded time everything they had must be free again.
void World::drain() {
  if (environment_.failed()) return;
  environment_.note("world: calm");
  calm_ = true;
  environment_.calm();
  for (auto& client : clients_) client->fall_silent();
  run_for(5 * ns_per_s);
  operator_.fall_silent();
  run_for(5 * ns_per_s);
  if (environment_.failed()) return;
  if (!daemon_.serving()) {
    environment_.fail("liveness: the daemon does not serve 10 s after the last fault");
    return;
  }
  std::vector<LeaseId> persistent;
  for (const auto& [id, lease] : daemon_.machine().leases()) {
    if (lease.phase == daemon::LeasePhase::active && lease.ttl_ns == 0) persistent.push_back(id);
  }
  for (const LeaseId id : persistent) {
    ledger_.revocation_asked(id);
    daemon_.submit(daemon::Revoke{id, "the end", 0, environment_.now_ns()},
                   [](const Result<daemon::Reply>&) {});
  }
  run_for(rest_ns);
  if (environment_.failed()) return;
  check_rest();
  if (!environment_.failed()) check_fitting_grant();
}

void World::check_rest() {
  uint64_t quarantined = 0;
  for (const auto& [id, lease] : daemon_.machine().leases()) {
    if (lease.phase == daemon::LeasePhase::quarantined) {
      ++quarantined;
    } else {
      environment_.fail("liveness: lease %llu is still in phase %u, %.0f s after the last fault",
                        static_cast<unsigned long long>(id.value), static_cast<unsigned>(lease.phase),
                        static_cast<double>(rest_ns) / 1e9);
    }
  }
  if (!daemon_.idle()) environment_.fail("liveness: something is still under way in the daemon");
  if (backend_.objects() > quarantined)
    environment_.fail("leak: there are more objects than quarantined leases");
  for (const auto& [id, pool] : daemon_.machine().pools()) {
    const daemon::PoolUse use = daemon_.machine().pool_use(id);
    if (use.free_bytes + use.quarantined_bytes != use.capacity_bytes ||
        use.leased_bytes + use.scrubbing_bytes != 0) {
      environment_.fail("accounting: pool %s at rest: free and quarantined are not its capacity",
                        pool.name.c_str());
    }
  }
}

// A grant of everything that is free must succeed and read as zeros.
void World::check_fitting_grant() {
  for (const auto& [id, pool] : daemon_.machine().pools()) {
    const uint64_t free_bytes = daemon_.machine().pool_use(id).free_bytes;
    if (free_bytes == 0) continue;
    bool answered = false;
    daemon::Grant grant;
    grant.pool = pool.name;
    grant.tenant = "last";
    grant.host = "host";
    grant.bytes = free_bytes;
    grant.now_ns = environment_.now_ns();
    daemon_.submit(grant, [&](const Result<daemon::Reply>& result) {
      answered = true;
      if (!result.ok()) {
        environment_.fail("liveness: a grant that fits was refused: %s", result.error().to_string().c_str());
        return;
      }
      const daemon::LeaseRow& lease = std::get<daemon::LeaseReply>(*result).lease;
      ledger_.grant_acknowledged(lease);
      const auto mapping = backend_.open(lease.object);
      if (!mapping.has_value()) {
        environment_.fail("the last grant has no memory");
        return;
      }
      for (uint64_t i = 0; i < backend_.granules_of(*mapping); ++i) {
        uint64_t tag = 0;
        if (backend_.read(*mapping, i, &tag) == Access::sigbus || tag != 0) {
          environment_.fail("stale bytes: the last grant reads what epoch %llu wrote",
                            static_cast<unsigned long long>(tag));
        }
      }
    });
    run_for(5 * ns_per_s);
    if (!answered) environment_.fail("liveness: a grant was not answered within 5 s");
    if (environment_.failed()) return;
  }
}

Outcome run_seed(Options options) {
  const bool traced = options.trace;
  Outcome outcome = World(options).run();
  if (outcome.passed || traced) return outcome;
  options.trace = true;
  return World(options).run();
}

}  // namespace terrace::sim
