#include "tests/sim/sim_operator.h"

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

constexpr uint64_t patience_ns = 500 * ns_per_ms;

const daemon::CreatePool make_pool_b{"b", {"emu:2"}};

}  // namespace

SimOperator::SimOperator(Environment& environment, SimDaemon& daemon, Ledger& ledger)
    : environment_(environment), daemon_(daemon), ledger_(ledger), connection_(environment, daemon) {
  for (const char* serial : {"emu:0", "emu:1", "emu:2"}) {
    const uint64_t granules = environment_.prng().between(6, 24);
    preparations_.push_back(
        daemon::AdoptDevice{serial, "emulated", granules * limits::granule_bytes, limits::granule_bytes});
  }
  preparations_.push_back(daemon::CreatePool{"a", {"emu:0", "emu:1"}});
  preparations_.push_back(make_pool_b);
}

void SimOperator::end() {
  connection_.cut();
}

void SimOperator::act() {
  check_pools();
  if (silent_) return;
  if (prepared_ < preparations_.size()) {
    if (sent_ns_ == 0 || environment_.now_ns() - sent_ns_ > patience_ns) set_up();
  } else if (environment_.prng().chance(1, 20)) {
    revoke_one();
  } else if (environment_.prng().chance(1, 40)) {
    remake_pool();
  }
}

void SimOperator::set_up() {
  sent_ns_ = environment_.now_ns();
  connection_.send(preparations_[prepared_], [this, step = prepared_](const Result<daemon::Reply>& result) {
    if (step != prepared_ || (!result.ok() && result.error().code != ErrorCode::already_exists)) return;
    ++prepared_;
    sent_ns_ = 0;
    if (prepared_ == preparations_.size()) pool_b_ = true;
  });
}

void SimOperator::revoke_one() {
  if (!daemon_.serving() || daemon_.machine().leases().empty()) return;
  auto at = daemon_.machine().leases().begin();
  std::advance(at, static_cast<std::ptrdiff_t>(environment_.prng().below(daemon_.machine().leases().size())));
  const LeaseId id = at->first;
  const uint64_t grace_ns = environment_.prng().chance(1, 3) ? 0 : environment_.prng().below(10 * ns_per_s);
  environment_.note("operator: revokes lease %llu, grace %.3f s", static_cast<unsigned long long>(id.value),
                    static_cast<double>(grace_ns) / 1e9);
  ledger_.revocation_asked(id);
  connection_.send(daemon::Revoke{id, "needed elsewhere", grace_ns, 0},
                   [this, id](const Result<daemon::Reply>& r) {
                     if (r.ok()) ledger_.revocation_acknowledged(id);
                   });
}

void SimOperator::remake_pool() {
  const bool there = daemon_.serving() && daemon_.machine().find_pool("b") != nullptr;
  const daemon::Command command =
      there ? daemon::Command{daemon::DeletePool{"b"}} : daemon::Command{make_pool_b};
  pool_b_.reset();
  connection_.send(command, [this, there, remake = ++remakes_](const Result<daemon::Reply>& result) {
    if (result.ok() && remake == remakes_) pool_b_ = !there;
  });
}

void SimOperator::check_pools() const {
  if (!daemon_.serving() || prepared_ < preparations_.size()) return;
  if (daemon_.machine().find_pool("a") == nullptr) environment_.fail("acknowledged pool a is gone");
  if (pool_b_.has_value() && (daemon_.machine().find_pool("b") != nullptr) != *pool_b_) {
    environment_.fail("pool b is not as it was acknowledged");
  }
}

}  // namespace terrace::sim
