// SPDX-License-Identifier: Apache-2.0
// Pools and devices for people: where the bytes are, and what stands in the way.
#include <algorithm>
#include <array>

#include "cli/show/describe.h"
#include "cli/show/describe_inventory.h"
#include "cli/terminal/output.h"
#include "core/schema/words.h"

namespace terrace::cli {
namespace {

constexpr size_t bar_columns = 48;
constexpr size_t class_bar_columns = 24;
constexpr size_t blockers_named_max = 3;

std::string describe_placement(const PoolStatus& pool) {
  std::string text = std::string(schema::enum_word(pool->getPlacement())) + " over " +
                     count_text(pool->getDevices().size(), "device");
  if (pool->getPlacement() == rpc::Placement::STRIPED) text += ", stripe " + exact_size(pool->getStripeBytes());
  return text;
}

// How much of the free memory one lease could not get in one piece.
std::string describe_fragmentation(const PoolStatus& pool) {
  const uint64_t free = pool->getFreeBytes(), largest = pool->getLargestFreeBytes();
  if (free == 0) return "nothing is free";
  const double split = 1.0 - static_cast<double>(largest) / static_cast<double>(free);
  return "largest free run " + exact_size(largest) + " of " + exact_size(free) + " free (" +
         std::to_string(static_cast<int>(100 * std::max(split, 0.0))) + "% lies elsewhere)";
}

std::string free_class_table(const PoolStatus& pool) {
  uint64_t most = 1;
  for (const auto runs : pool->getFreeClasses()) most = std::max(most, runs.getBytes());
  std::vector<std::vector<std::string>> rows;
  for (const auto runs : pool->getFreeClasses()) {
    const auto columns = static_cast<size_t>(static_cast<double>(runs.getBytes()) / static_cast<double>(most) *
                                             static_cast<double>(class_bar_columns));
    rows.push_back({exact_size(runs.getRunBytesMin()), std::to_string(runs.getRuns()),
                    exact_size(runs.getBytes()), std::string(std::max<size_t>(columns, 1), '=')});
  }
  return format_table({"FREE RUNS FROM", "RUNS", "BYTES", "SHARE"}, rows);
}

std::string describe_move(rpc::Move::Reader move) {
  std::string text = "lease " + std::to_string(move.getLease()) + " (tenant " + str(move.getTenant());
  if (move.getLabel().size() != 0) text += ", " + str(move.getLabel());
  return text + ", " + exact_size(move.getBytes()) + "): " + str(move.getState());
}

}  // namespace

std::string usage_bar(const PoolStatus& pool, size_t width) {
  struct Part {
    uint64_t bytes;
    char mark;
    size_t columns = 0;
  };
  std::array<Part, 5> parts{{{pool->getLeasedBytes(), '#'},
                             {pool->getScrubbingBytes(), '~'},
                             {pool->getQuarantinedBytes(), '!'},
                             {pool->getFreeBytes(), '.'},
                             {pool->getAbsentBytes(), '?'}}};
  uint64_t whole = 0;
  size_t shown = 0;
  for (const Part& part : parts) {
    whole += part.bytes;
    shown += part.bytes != 0;
  }
  if (whole == 0 || width < shown) return std::string(width, ' ');
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

namespace {

std::string describe_free(const PoolStatus& pool) {
  std::string free = exact_size(pool->getFreeBytes());
  if (pool->getGrantableBytes() < pool->getFreeBytes())
    free += ", of it " + exact_size(pool->getGrantableBytes()) + " on devices in service";
  if (pool->getReservedBytes() != 0) free += ", " + exact_size(pool->getReservedBytes()) + " of it reserved";
  return free;
}

std::string describe_absence(const PoolStatus& pool) {
  const std::string these = join(strings(pool->getAbsentDevices()), ", ");
  return exact_size(pool->getAbsentBytes()) + ", nobody's, of " + these + ", not there now: 'terrace health'";
}

std::string describe_coherence(const PoolStatus& pool) {
  const bool unknown = pool->getCoherence() == rpc::Coherence::UNKNOWN;
  return std::string(schema::enum_word(pool->getCoherence())) + (unknown ? ": treated as noncoherent" : "");
}

std::string describe_pool_isolation(const PoolStatus& pool) {
  const std::string word(schema::enum_word(pool->getIsolation()));
  if (pool->getIsolation() == rpc::Isolation::VERIFIED) return word + ": nobody reaches memory after its fence";
  return word + (pool->getTrust() == rpc::Trust::MUTUAL
                     ? ": only for tenants who trust each other, as an operator says that they do"
                     : ": nothing is granted, unless 'terrace pool set " + printable(str(pool->getName())) +
                           " --trust mutual' says that its tenants trust each other");
}

}  // namespace

std::string pool_block(const PoolStatus& pool) {
  const uint64_t quarantined = pool->getQuarantinedBytes();
  std::vector<std::pair<std::string, std::string>> fields = {
      {"placement", describe_placement(pool)},
      {"tier", describe_tier(pool->getAttributes())},
      {"a lease is", or_dash(describe_isolation(pool->getAttributes()))},
      {"isolation", describe_pool_isolation(pool)},
      {"coherence", describe_coherence(pool)},
      {"capacity", exact_size(pool->getCapacityBytes()) + ", granule " + exact_size(pool->getGranuleBytes())},
      {"", "[" + usage_bar(pool, bar_columns) + "]"},
      {"# leased", exact_size(pool->getLeasedBytes()) + " in " + count_text(pool->getLeases(), "lease")},
      {"~ scrubbing", exact_size(pool->getScrubbingBytes())},
      {"! quarantined", exact_size(quarantined) +
                            (quarantined == 0 ? "" : "; 'terrace lease quarantined' says why and what to do")},
      {". free", describe_free(pool)},
      {"waiting", pool->getWaiting() == 0 ? "no grant"
                                          : count_text(pool->getWaiting(), "grant") + " for " +
                                                exact_size(pool->getWaitingBytes())},
      {"fragmentation", describe_fragmentation(pool)}};
  if (pool->getAbsentDevices().size() != 0) {
    const auto at =
        std::find_if(fields.begin(), fields.end(), [](const auto& field) { return field.first == "waiting"; });
    fields.insert(at, {"? absent", describe_absence(pool)});
  }
  std::string text = "pool " + printable(str(pool->getName())) + "\n" + format_block(fields);
  if (pool->getFreeClasses().size() != 0) text += "\n" + free_class_table(pool);
  return text;
}

std::string device_block(const DeviceStatus& device) {
  const Figures figures = device->getAttributes();
  std::vector<std::pair<std::string, std::string>> fields = {
      {"state", device_state(device)},
      {"backend", str(device->getBackend())},
      {"pool", or_dash(str(device->getPool()))},
      {"capacity",
       exact_size(device->getCapacityBytes()) + ", granule " + exact_size(device->getGranuleBytes())}};
  if (device->getAdopted()) {
    if (device->getPresent()) {
      fields.emplace_back("free", exact_size(device->getFreeBytes()) + ", largest run " +
                                      exact_size(device->getLargestFreeBytes()));
    } else {
      fields.emplace_back("free",
                          "nothing while it is absent; " + exact_size(device->getFreeBytes()) + " is nobody's");
    }
    fields.emplace_back("used",
                        exact_size(device->getUsedBytes()) + " by " + count_text(device->getLeases(), "lease"));
  }
  const bool to_measure = !device->getAdopted() && figures.getSource().size() == 0;
  fields.emplace_back("tier", describe_tier(figures) + (to_measure ? "; measured when it is adopted" : ""));
  if (const std::string isolation = describe_isolation(figures); !isolation.empty())
    fields.emplace_back("a lease is", isolation);
  if (device->getContents().size() != 0) fields.emplace_back("adopting loses", str(device->getContents()));
  if (device->getDetail().size() != 0) fields.emplace_back("detail", str(device->getDetail()));
  return "device " + printable(str(device->getSerial())) + "\n" + format_block(fields);
}

// Whole units are enough to act on, as for expiries.
std::string waiting_table(const std::vector<WaitingStatus>& waiting) {
  const auto whole = [](uint64_t ns) {
    return format_duration(ns >= ns_per_s ? ns / ns_per_s * ns_per_s : ns / ns_per_ms * ns_per_ms);
  };
  std::vector<std::vector<std::string>> rows;
  for (const WaitingStatus& one : waiting) {
    const std::string turn = one->getTurn() ? "room is kept" : one->getPlace() == 1 ? "next" : "-";
    rows.push_back({std::to_string(one->getLease()), str(one->getPool()), std::to_string(one->getPlace()),
                    str(one->getTenant()), str(one->getHost()), or_dash(str(one->getLabel())),
                    exact_size(one->getBytes()), whole(one->getWaitedNs()), "in " + whole(one->getEndsInNs()),
                    turn, std::to_string(one->getCalls())});
  }
  return format_table(
      {"ID", "POOL", "PLACE", "TENANT", "HOST", "LABEL", "SIZE", "WAITED", "ENDS", "TURN", "CALLS"}, rows);
}

std::string move_table(Moves moves) {
  std::vector<std::vector<std::string>> rows;
  for (const auto move : moves) {
    rows.push_back({std::to_string(move.getLease()), or_dash(str(move.getLabel())), str(move.getTenant()),
                    exact_size(move.getBytes()), move.getBlocked() ? "yes" : "no", str(move.getState())});
  }
  return format_table({"LEASE", "LABEL", "TENANT", "SIZE", "BLOCKED", "STATE"}, rows);
}

std::string describe_moves(uint64_t left_bytes, Moves moves) {
  std::string text = count_text(moves.size(), "lease") + " left to move, " + exact_size(left_bytes);
  size_t blocked = 0;
  std::string named;
  for (const auto move : moves) {
    if (!move.getBlocked()) continue;
    if (++blocked <= blockers_named_max) named += (named.empty() ? " " : "; ") + describe_move(move);
  }
  if (blocked == 0) return text;
  text += "; " + std::to_string(blocked) + " blocked:" + named;
  if (blocked > blockers_named_max) text += "; and " + std::to_string(blocked - blockers_named_max) + " more";
  return text;
}

}  // namespace terrace::cli
