// SPDX-License-Identifier: Apache-2.0
// The table of policies, and the one that does nothing.
#include "tiering/policy/plans.h"

namespace terrace::tiering {
namespace {

constexpr PolicyEntry table[] = {
    {.name = "benefit-density",
     .what = "in DDR is what saves most time there, as learned from how its like was used; moves must pay "
             "(default)",
     .plan = plan_benefit_density},
    {.name = "watermark-lru",
     .what = "used since the last look goes up, longest unused goes down when DDR is nearly full",
     .plan = plan_watermark_lru},
    {.name = "static", .what = "nothing moves: bytes stay where they were first put", .plan = plan_static},
};

}  // namespace

std::span<const PolicyEntry> policies() {
  return table;
}

const PolicyEntry* find_policy(std::string_view name) {
  for (const PolicyEntry& entry : table)
    if (name == entry.name) return &entry;
  return nullptr;
}

size_t plan_static(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t>, std::span<Move>) {
  memory.last_plan_ns = input.now_ns;
  return 0;
}

}  // namespace terrace::tiering
