// Pools and devices for people: where the bytes are, and what stands in the way.
#include <algorithm>
#include <array>

#include "cli/show/describe.h"
#include "cli/show/describe_inventory.h"
#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

constexpr size_t bar_columns = 48;
constexpr size_t class_bar_columns = 24;
constexpr size_t blockers_named_max = 3;

std::string describe_placement(const PoolInfo& pool) {
  std::string text =
      std::string(placement_name(pool.placement)) + " over " + count_text(pool.devices.size(), "device");
  if (pool.placement == PoolPlacement::striped) text += ", stripe " + exact_size(pool.stripe_bytes);
  return text;
}

// How much of the free memory one lease could not get in one piece.
std::string describe_fragmentation(const PoolInfo& pool) {
  if (pool.free_bytes == 0) return "nothing is free";
  const double split =
      1.0 - static_cast<double>(pool.largest_free_bytes) / static_cast<double>(pool.free_bytes);
  return "largest free run " + exact_size(pool.largest_free_bytes) + " of " + exact_size(pool.free_bytes) +
         " free (" + std::to_string(static_cast<int>(100 * std::max(split, 0.0))) + "% lies elsewhere)";
}

std::string free_class_table(const PoolInfo& pool) {
  uint64_t most = 1;
  for (const FreeRuns& runs : pool.free_runs) most = std::max(most, runs.bytes);
  std::vector<std::vector<std::string>> rows;
  for (const FreeRuns& runs : pool.free_runs) {
    const auto columns = static_cast<size_t>(static_cast<double>(runs.bytes) / static_cast<double>(most) *
                                             static_cast<double>(class_bar_columns));
    rows.push_back({exact_size(runs.run_bytes_min), std::to_string(runs.runs), exact_size(runs.bytes),
                    std::string(std::max<size_t>(columns, 1), '=')});
  }
  return format_table({"FREE RUNS FROM", "RUNS", "BYTES", "SHARE"}, rows);
}

std::string describe_move(const MoveStatus& move) {
  std::string text = "lease " + std::to_string(move.lease.value) + " (tenant " + move.tenant;
  if (!move.label.empty()) text += ", " + move.label;
  return text + ", " + exact_size(move.bytes) + "): " + move.state;
}

}  // namespace

std::string usage_bar(const PoolInfo& pool, size_t width) {
  struct Part {
    uint64_t bytes;
    char mark;
    size_t columns = 0;
  };
  std::array<Part, 4> parts{{{pool.leased_bytes, '#'},
                             {pool.scrubbing_bytes, '~'},
                             {pool.quarantined_bytes, '!'},
                             {pool.free_bytes, '.'}}};
  uint64_t whole = 0;
  for (const Part& part : parts) whole += part.bytes;
  if (whole == 0 || width < parts.size()) return std::string(width, ' ');
  size_t used = 0;
  for (Part& part : parts) {
    if (part.bytes == 0) continue;
    const double share = static_cast<double>(part.bytes) / static_cast<double>(whole);
    part.columns = std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(width)));
    used += part.columns;
  }
  // Rounding is made good where it shows least: on the longest part.
  Part& longest = *std::max_element(parts.begin(), parts.end(), [](const Part& left, const Part& right) {
    return left.columns < right.columns;
  });
  longest.columns = longest.columns + width - used;
  std::string bar;
  for (const Part& part : parts) bar.append(part.columns, part.mark);
  return bar;
}

std::string pool_block(const PoolInfo& pool) {
  std::string free = exact_size(pool.free_bytes);
  if (pool.grantable_bytes < pool.free_bytes)
    free += ", of it " + exact_size(pool.grantable_bytes) + " on devices in service";
  if (pool.reserved_bytes != 0) free += ", " + exact_size(pool.reserved_bytes) + " of it reserved";
  std::vector<std::pair<std::string, std::string>> fields = {
      {"placement", describe_placement(pool)},
      {"tier", describe_tier(pool.figures)},
      {"a lease is", or_dash(describe_isolation(pool.figures))},
      {"coherence", std::string(memory_coherence_name(pool.coherence)) +
                        (pool.coherence == MemoryCoherence::unknown ? ": treated as noncoherent" : "")},
      {"capacity", exact_size(pool.capacity_bytes) + ", granule " + exact_size(pool.granule_bytes)},
      {"", "[" + usage_bar(pool, bar_columns) + "]"},
      {"# leased", exact_size(pool.leased_bytes) + " in " + count_text(pool.leases, "lease")},
      {"~ scrubbing", exact_size(pool.scrubbing_bytes)},
      {"! quarantined",
       exact_size(pool.quarantined_bytes) +
           (pool.quarantined_bytes == 0 ? "" : "; 'terrace lease quarantined' says why and what to do")},
      {". free", free},
      {"waiting", pool.waiting == 0
                      ? "no grant"
                      : count_text(pool.waiting, "grant") + " for " + exact_size(pool.waiting_bytes)},
      {"fragmentation", describe_fragmentation(pool)}};
  std::string text = "pool " + printable(pool.name) + "\n" + format_block(fields);
  if (!pool.free_runs.empty()) text += "\n" + free_class_table(pool);
  return text;
}

std::string device_block(const DeviceStatus& device) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"state", device_state(device)},
      {"backend", device.backend},
      {"pool", or_dash(device.pool)},
      {"capacity", exact_size(device.capacity_bytes) + ", granule " + exact_size(device.granule_bytes)}};
  if (device.adopted) {
    fields.emplace_back(
        "free", exact_size(device.free_bytes) + ", largest run " + exact_size(device.largest_free_bytes));
    fields.emplace_back("used", exact_size(device.used_bytes) + " by " + count_text(device.leases, "lease"));
  }
  const bool to_measure = !device.adopted && device.tier.source.empty();
  fields.emplace_back("tier", describe_tier(device.tier) + (to_measure ? "; measured when it is adopted" : ""));
  if (const std::string isolation = describe_isolation(device.tier); !isolation.empty())
    fields.emplace_back("a lease is", isolation);
  if (!device.contents.empty()) fields.emplace_back("adopting loses", device.contents);
  if (!device.detail.empty()) fields.emplace_back("detail", device.detail);
  return "device " + printable(device.serial) + "\n" + format_block(fields);
}

std::string move_table(const std::vector<MoveStatus>& moves) {
  std::vector<std::vector<std::string>> rows;
  for (const MoveStatus& move : moves) {
    rows.push_back({std::to_string(move.lease.value), or_dash(move.label), move.tenant, exact_size(move.bytes),
                    move.blocked ? "yes" : "no", move.state});
  }
  return format_table({"LEASE", "LABEL", "TENANT", "SIZE", "BLOCKED", "STATE"}, rows);
}

std::string describe_moves(uint64_t left_bytes, const std::vector<MoveStatus>& moves) {
  std::string text = count_text(moves.size(), "lease") + " left to move, " + exact_size(left_bytes);
  const auto blocked = static_cast<size_t>(
      std::count_if(moves.begin(), moves.end(), [](const MoveStatus& move) { return move.blocked; }));
  if (blocked == 0) return text;
  text += "; " + std::to_string(blocked) + " blocked:";
  size_t named = 0;
  for (const MoveStatus& move : moves) {
    if (!move.blocked || named == blockers_named_max) continue;
    text += (named == 0 ? " " : "; ") + describe_move(move);
    ++named;
  }
  if (named < blocked) text += "; and " + std::to_string(blocked - named) + " more";
  return text;
}

}  // namespace terrace::cli
