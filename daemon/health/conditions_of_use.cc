// SPDX-License-Identifier: Apache-2.0
// Findings about who uses the manager and its memory: callers, and programs that report. The rest is in conditions.cc.
#include <algorithm>
#include <cmath>
#include <utility>

#include "daemon/health/health_engine.h"
#include "daemon/health/words.h"

namespace terrace::daemon {
namespace {

// Where DDR serves as much of the accesses, the moves have brought what they are made for.
constexpr double thrash_hits_max = 0.8, thrash_hits_over = 0.85;

}  // namespace

void HealthEngine::look_at_denials(const HealthView& view, uint64_t now_ns) {
  for (const HealthView::Denials& denied : view.denials) {
    Recent& recent = denials_.try_emplace(denied.tenant, limits_.window_ns).first->second;
    const uint64_t calls = recent.note(denied.calls, now_ns);
    const bool known = is_raised(HealthCode::calls_denied, "tenant", denied.tenant);
    if (calls < (known ? 1 : limits_.denied_calls_min)) continue;
    holds({.code = HealthCode::calls_denied,
           .kind = "tenant",
           .name = denied.tenant,
           .text = many(calls, "call") + " of the operator's interface refused in the last " +
                   lasted(limits_.window_ns) + "; the last: " + denied.last,
           .advice = "`terrace audit --verb denied --tenant " + denied.tenant +
                     "` says who; give the right, or stop the program"});
  }
}

// The same memory goes up and down: as much sinks as rises, many times all that there is of DDR, and DDR serves little.
void HealthEngine::look_at_programs(const HealthView& view, uint64_t now_ns) {
  for (const HealthView::Programs& programs : view.programs) {
    Recent& recent = exchanges_.try_emplace(programs.tenant, limits_.window_ns).first->second;
    const uint64_t exchanged = recent.note(programs.exchanged_bytes, now_ns);
    if (limits_.thrash_turns_min == 0 || programs.ddr_bytes == 0 || !programs.sampled) continue;
    const bool known = is_raised(HealthCode::tier_thrash, "tenant", programs.tenant);
    const uint64_t turns = exchanged / programs.ddr_bytes;
    const uint64_t least =
        known ? limits_.thrash_turns_min - limits_.thrash_turns_min / 5 : limits_.thrash_turns_min;
    if (turns < least || programs.ddr_hits >= (known ? thrash_hits_over : thrash_hits_max)) continue;
    holds({.code = HealthCode::tier_thrash,
           .kind = "tenant",
           .name = programs.tenant,
           .text = "its programs exchanged " + format_size(exchanged) + " between DDR and CXL in the last " +
                   lasted(limits_.window_ns) + ", " + many(turns, "time") +
                   " what they have in DDR, which serves " +
                   std::to_string(std::lround(programs.ddr_hits * 100)) + " % of their accesses",
           .advice = "what they use at one time is larger than their DDR: raise it (`terrace run --ddr`), or "
                     "let nothing "
                     "move (`--policy static`); `terrace top` shows which programs"});
  }
}

// Looked at by the manager on its own machine, as `terrace doctor` does.
void HealthEngine::look_at_kernel(const HealthView& view) {
  for (const HealthView::Lack& lack : view.lacks) {
    holds({.code = HealthCode::kernel_lacks,
           .kind = "machine",
           .name = lack.what,
           .text = lack.found,
           .advice = lack.advice});
  }
}

}  // namespace terrace::daemon
