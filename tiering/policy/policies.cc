// The table of policies.
#include "tiering/policy/policy.h"

namespace terrace::tiering {
namespace {

size_t plan_nothing(const PlanInput&, PolicyMemory&, std::span<uint32_t>, std::span<Move>) {
  return 0;
}

constexpr PolicyEntry table[] = {
    {.name = "static", .what = "nothing moves: bytes stay where they were first put", .plan = plan_nothing},
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

void note_access(Granule& granule, PolicyMemory&, uint64_t now_ns, float) {
  granule.last_access_ns = now_ns;
  if (granule.accesses != UINT32_MAX) ++granule.accesses;
}

float heat_at(const Granule& granule, const PolicyMemory&, uint64_t) {
  return granule.heat;
}

void report_outcome(PolicyMemory& memory, uint32_t done, uint32_t failed) {
  memory.moves_done = done;
  memory.moves_failed = failed;
}

void share_ddr(std::span<RangeShare> shares, uint64_t ddr_granules, uint64_t) {
  for (RangeShare& share : shares) share.ddr_granules_max = ddr_granules / shares.size();
}

}  // namespace terrace::tiering
