// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/actors/sim_owners.h"

namespace terrace::sim {
namespace {

constexpr uint64_t processes = 4;
constexpr uint64_t parts = 2;  // few, so that they are fought for

unsigned long long number(uint64_t value) {
  return value;
}

}  // namespace

SimOwners::SimOwners(Environment& environment, Manager& daemon)
    : environment_(environment), daemon_(daemon), connection_(environment, daemon), started_(processes, 1) {}

void SimOwners::end() {
  connection_.cut();
  for (uint64_t& started : started_) ++started;
}

void SimOwners::act() {
  Prng& prng = environment_.prng();
  if (settled_ || !daemon_.serving()) return;
  if (prng.chance(1, 12)) {
    ++started_[prng.below(processes)];
    return;
  }
  if (!claims_.empty() && prng.chance(1, 4)) {
    auto at = claims_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng.below(claims_.size())));
    if (alive(at->second.process)) give_back(at->first, at->second);
    return;
  }
  std::vector<const daemon::LeaseRow*> shared;
  for (const auto& [id, lease] : daemon_.machine().leases())
    if (lease.mode == daemon::LeaseMode::shared_coherent) shared.push_back(&lease);
  if (!shared.empty()) claim(*shared[prng.below(shared.size())], prng.below(parts));
}

void SimOwners::claim(const daemon::LeaseRow& lease, uint64_t part) {
  Prng& prng = environment_.prng();
  const uint64_t pid = prng.between(1, processes);
  const daemon::OwnerRow* owner = daemon_.machine().find_owner(lease.id, part);
  daemon::ClaimPart command{.lease = lease.id, .tenant = lease.tenant, .part = part};
  command.process = {pid, started_[pid - 1], 1};
  command.request = prng.next() | 1;
  command.holder = "process";
  if (owner != nullptr && owner->process.pid != 0 && !alive(owner->process)) command.dead_epoch = owner->epoch;
  if (prng.chance(1, 4)) command.last_epoch = prng.below(20);
  const ReplyAction answered = [this, command,
                                hand_overs = daemon_.hand_overs(lease.id)](const Result<daemon::Reply>& reply) {
    if (reply.ok()) claimed(command, hand_overs, std::get<daemon::OwnerReply>(*reply).owner);
  };
  connection_.send(command, answered);
  if (prng.chance(1, 4)) connection_.send(command, answered);  // as after a reply that was lost
}

// `hand_overs`: when it was asked for; later ones may have come before it or after.
void SimOwners::claimed(const daemon::ClaimPart& asked, uint64_t hand_overs, const daemon::OwnerRow& owner) {
  if (!alive(asked.process)) return;  // it does not hear the answer; nobody else may take it for its own
  const auto at = claims_.find({asked.lease, asked.part});
  if (at != claims_.end()) {
    const Claim& before = at->second;
    if (before.request == asked.request && before.epoch == owner.epoch) return;
    if (owner.epoch <= before.epoch) {
      environment_.fail("owner epoch: part %llu of lease %llu was given under %llu after %llu",
                        number(asked.part), number(asked.lease.value), number(owner.epoch),
                        number(before.epoch));
    }
    if (alive(before.process) && !before.leaving && before.hand_overs == daemon_.hand_overs(asked.lease)) {
      environment_.fail("owner: part %llu of lease %llu was given away while its owner lives",
                        number(asked.part), number(asked.lease.value));
    }
  }
  environment_.note("process %llu: owns part %llu of lease %llu under %llu", number(asked.process.pid),
                    number(asked.part), number(asked.lease.value), number(owner.epoch));
  claims_[{asked.lease, asked.part}] = {owner.epoch, asked.request, asked.process, hand_overs, false};
}

void SimOwners::give_back(const Part& part, Claim& claim) {
  claim.leaving = true;
  const daemon::LeaseRow* lease = daemon_.machine().find_lease(part.first);
  if (lease == nullptr) {
    claims_.erase(part);
    return;
  }
  connection_.send(daemon::ReleasePart{part.first, lease->tenant, part.second, claim.epoch, claim.process},
                   [](const Result<daemon::Reply>&) {});
}

}  // namespace terrace::sim
