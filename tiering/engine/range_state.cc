// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/range_state.h"

#include <string.h>

namespace terrace::tiering {

using layout::TierState;

void copy_text(char* to, size_t size, const char* from) {
  size_t length = strnlen(from, size - 1);
  memcpy(to, from, length);
  memset(to + length, 0, size - length);
}

void RangeState::give_up(TierState state, const char* reason) {
  set_state(state);
  copy_text(page.reason, sizeof(page.reason), reason);
}

void RangeState::suspend(const char* reason) {
  if (state() != TierState::forked) paused_meanwhile = state() == TierState::paused;
  give_up(TierState::forked, reason);
}

void RangeState::resume() {
  if (state() != TierState::forked) return;
  set_state(paused_meanwhile ? TierState::paused : TierState::running);
  copy_text(page.reason, sizeof(page.reason), "");
}

void RangeState::set_paused(bool paused) {
  if (state() == TierState::running || state() == TierState::paused)
    set_state(paused ? TierState::paused : TierState::running);
  if (state() == TierState::forked) paused_meanwhile = paused;
}

void RangeState::set_policy(const PolicyEntry* policy) {
  options.policy = policy;
  copy_text(page.policy, sizeof(page.policy), policy->name);
}

void RangeState::set_ddr_granules_max(uint64_t granules) {
  options.ddr_granules_max = granules;
  page.ddr_bytes_max = granules * memory->granule_bytes();
}

bool RangeState::may_move() {
  if (state() != TierState::running && state() != TierState::paused) return false;
  const RangeHooks& hooks = options.hooks;
  const char* why = hooks.why_stop == nullptr ? nullptr : hooks.why_stop(hooks.owner);
  if (why != nullptr) give_up(TierState::stopped, why);
  return why == nullptr;
}

}  // namespace terrace::tiering
