// SPDX-License-Identifier: Apache-2.0
#include "daemon/model/placement.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"

namespace terrace::daemon {
namespace {

Pieces put_back(const ExtentMaps& devices, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces)
    TERRACE_CHECK(devices[piece.device]->give(piece.run), "a run that was just taken is free");
  return std::nullopt;
}

std::vector<size_t> emptiest_first(const ExtentMaps& devices) {
  std::vector<size_t> order(devices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return devices[a]->free_granules() > devices[b]->free_granules();
  });
  return order;
}

// Adds `granules` of one device to `pieces`: one run where there is one, else its longest ones.
void take_of(const ExtentMaps& devices, size_t device, uint64_t granules, std::vector<Piece>& pieces,
             size_t pieces_max) {
  ExtentMap& free = *devices[device];
  if (const auto run = free.take_fit(granules)) {
    pieces.push_back({device, *run});
    return;
  }
  while (granules > 0 && pieces.size() <= pieces_max) {
    const auto run = free.take_longest(granules);
    if (!run.has_value()) return;
    pieces.push_back({device, *run});
    granules -= run->count;
  }
}

uint64_t sum_of(const std::vector<Piece>& pieces) {
  uint64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.run.count;
  return sum;
}

Pieces longest_runs(const ExtentMaps& devices, uint64_t granules, size_t pieces_max) {
  std::vector<Piece> pieces;
  while (granules > 0 && pieces.size() < pieces_max) {
    size_t longest = 0;
    for (size_t i = 1; i < devices.size(); ++i)
      if (devices[i]->largest_run() > devices[longest]->largest_run()) longest = i;
    const auto run = devices.empty() ? std::nullopt : devices[longest]->take_longest(granules);
    if (!run.has_value()) break;
    pieces.push_back({longest, *run});
    granules -= run->count;
  }
  if (granules > 0) return put_back(devices, pieces);
  return pieces;
}

struct Turn {
  size_t device;
  uint64_t granules;
};

// Whose turn it is stripe by stripe; empty when no device has room for the next one.
std::vector<Turn> take_turns(const ExtentMaps& devices, uint64_t granules, uint64_t stripe) {
  const std::vector<size_t> order = emptiest_first(devices);
  std::vector<uint64_t> room;
  room.reserve(order.size());
  for (const size_t device : order) room.push_back(devices[device]->free_granules());
  std::vector<Turn> turns;
  size_t at = 0;
  while (granules > 0) {
    const uint64_t size = std::min(stripe, granules);
    size_t passed_over = 0;
    while (passed_over < order.size() && room[at] < size) {
      at = (at + 1) % order.size();
      ++passed_over;
    }
    if (passed_over == order.size()) return {};
    turns.push_back({order[at], size});
    room[at] -= size;
    granules -= size;
    at = (at + 1) % order.size();
  }
  return turns;
}

Pieces place_stripes(const ExtentMaps& devices, uint64_t granules, uint64_t stripe, size_t pieces_max) {
  const std::vector<Turn> turns = take_turns(devices, granules, stripe);
  if (turns.empty()) return std::nullopt;
  std::vector<uint64_t> share(devices.size());
  for (const Turn& turn : turns) share[turn.device] += turn.granules;
  std::vector<Piece> taken;
  for (size_t device = 0; device < devices.size(); ++device)
    if (share[device] > 0) take_of(devices, device, share[device], taken, pieces_max);
  if (sum_of(taken) != granules || taken.size() > pieces_max) return put_back(devices, taken);

  // Dealt out: each stripe is cut from the front of what its device gave.
  std::vector<size_t> next(devices.size(), 0);
  for (size_t i = taken.size(); i-- > 0;) next[taken[i].device] = i;
  std::vector<Piece> rest = taken;
  std::vector<Piece> dealt;
  for (Turn turn : turns) {
    while (turn.granules > 0) {
      GranuleRun& from = rest[next[turn.device]].run;
      const uint64_t count = std::min(from.count, turn.granules);
      const bool follows = !dealt.empty() && dealt.back().device == turn.device &&
                           dealt.back().run.first + dealt.back().run.count == from.first;
      if (follows) {
        dealt.back().run.count += count;
      } else {
        dealt.push_back({turn.device, {from.first, count}});
      }
      from = {from.first + count, from.count - count};
      turn.granules -= count;
      if (from.count == 0) ++next[turn.device];
    }
  }
  if (dealt.size() > pieces_max) return put_back(devices, taken);
  return dealt;
}

}  // namespace

Pieces place_linear(const ExtentMaps& devices, uint64_t granules, size_t pieces_max) {
  size_t best = devices.size();
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto fit = devices[i]->find_fit(granules);
    if (!fit.has_value()) continue;
    const bool close = fit->count / 2 < granules;
    if (best == devices.size() || close) best = i;
    if (close) break;
  }
  if (best == devices.size()) return longest_runs(devices, granules, pieces_max);
  return std::vector<Piece>{{best, *devices[best]->take_fit(granules)}};
}

Pieces place_striped(const ExtentMaps& devices, uint64_t granules, uint64_t stripe, size_t pieces_max) {
  const uint64_t stripes_per_piece = (granules - 1) / pieces_max / stripe + 1;
  for (stripe *= stripes_per_piece;; stripe *= 2) {
    if (Pieces pieces = place_stripes(devices, granules, stripe, pieces_max)) return pieces;
    if (stripe >= granules) return longest_runs(devices, granules, pieces_max);
  }
}

Pieces place_spread(const ExtentMaps& devices, uint64_t granules, size_t pieces_max) {
  const std::vector<size_t> order = emptiest_first(devices);
  for (const size_t device : order) {
    if (const auto run = devices[device]->take_fit(granules)) return std::vector<Piece>{{device, *run}};
  }
  std::vector<Piece> pieces;
  uint64_t left = granules;
  for (const size_t device : order) {
    const uint64_t here = std::min(left, devices[device]->free_granules());
    if (here == 0) break;
    take_of(devices, device, here, pieces, pieces_max);
    left -= here;
  }
  if (left == 0 && sum_of(pieces) == granules && pieces.size() <= pieces_max) return pieces;
  put_back(devices, pieces);
  return longest_runs(devices, granules, pieces_max);
}

}  // namespace terrace::daemon
