// SPDX-License-Identifier: Apache-2.0
// benefit-density: in DDR is what saves most time per byte there. docs/design/0007-policy.md says what it
// estimates, and why so.
//
// One pass counts granules by worth (a few hundred levels); a second one, only when something may move,
// collects those beyond two thresholds. Nothing is sorted but what is moved.
#include <algorithm>
#include <bit>

#include "tiering/policy/learning.h"
#include "tiering/policy/plans.h"

namespace terrace::tiering {
namespace {

// By how many standard errors a candidate must beat its victim: there are hundreds of cells to be fooled by.
constexpr float doubts = 1.5f;

class Planner {
 public:
  Planner(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch, std::span<Move> moves)
      : input_(input), memory_(memory), learned_(memory.learned), scratch_(scratch), list_(input, moves) {}

  size_t run() {
    const float passed_s = memory_.last_plan_ns == 0 ? 0 : seconds(since(input_.now_ns, memory_.last_plan_ns));
    learn_waiting(memory_, input_.now_ns);
    look(passed_s);
    learned_.least_worth = least_worth();
    headroom_ = room_for_births(passed_s, learned_.least_worth);
    judge_outcomes();
    learned_.plan_before_ns = memory_.last_plan_ns;
    memory_.last_plan_ns = input_.now_ns;
    if (input_.moves_max == 0 || !collect()) return 0;
    choose();
    return list_.size();
  }

 private:
  bool announced(const Granule& granule) const {
    return granule.next_use_ns != 0 && granule.next_use_ns + memory_.options.half_life_ns > input_.now_ns;
  }
  bool announced_soon(const Granule& granule) const {
    return announced(granule) && since(granule.next_use_ns, input_.now_ns) <= memory_.options.horizon_ns;
  }

  // What is announced for a time t ahead is worth one use in t.
  float announced_worth(const Granule& granule) const {
    return 1 / std::max(seconds(since(granule.next_use_ns, input_.now_ns)), 1e-4f);
  }

  float worth_of(const Granule& granule) const {
    const float learned = learned_.value[cell_of(granule, input_.now_ns)];
    return announced(granule) ? std::max(learned, announced_worth(granule)) : learned;
  }

  uint32_t level_of_granule(const Granule& granule, size_t cell) const {
    const uint32_t level = learned_.level[cell];
    return announced(granule) ? std::max(level, level_of(announced_worth(granule))) : level;
  }

  // Counts what came to the range since the last plan: none, 1, 2-3, 4-7, ...
  void count_births(uint64_t alive) {
    const uint64_t born = memory_.last_plan_ns == 0 ? 0 : since(alive, learned_.alive);
    learned_.alive = alive;
    const size_t step = std::min<size_t>(std::bit_width(born), LearnedRates::birth_steps - 1);
    for (float& often : learned_.births) often *= 1 - 1.0f / 256;
    learned_.births[step] += 1;
    learned_.births_kept = learned_.births_kept * (1 - 1.0f / 256) + 1;
  }

  // How much DDR to keep free for new bytes: as long as one more granule is more likely to be wanted until the
  // next plan than the least worthy one in DDR is to be used.
  uint64_t room_for_births(float passed_s, float least_worth) const {
    if (passed_s <= 0 || learned_.births_kept < 4) return 0;
    const float likely = least_worth * passed_s;
    float more = 0;  // plans that saw more born than the steps above
    for (size_t step = LearnedRates::birth_steps; step-- > 1;) {
      const float here = learned_.births[step] / learned_.births_kept;
      const float begin = static_cast<float>(uint32_t{1} << (step - 1));
      if (more + here > likely) {
        // Within the octave, as if its births were spread evenly.
        const float part = here > 0 ? std::clamp((more + here - likely) / here, 0.0f, 1.0f) : 0;
        const float room = begin * (1 + part);
        return static_cast<uint64_t>(std::min(room, static_cast<float>(input_.ddr_granules_max) / 8));
      }
      more += here;
    }
    return 0;
  }

  // First pass: counts who waits where, and what the moves of late came to.
  void look(float passed_s) {
    uint64_t alive = 0;
    for (Granule& granule : input_.granules) {
      if (granule.residency == Residency::none) continue;
      ++alive;
      const size_t cell = cell_of(granule, input_.now_ns);
      learned_.waiting[cell] += 1;
      if ((granule.policy_a & moved_flags) != 0) look_at_moved(granule, passed_s);
      if (granule.busy != 0) continue;
      const uint32_t level = level_of_granule(granule, cell);
      if (granule.residency == Residency::cxl) {
        ++cxl_at_[level];
      } else if (!announced_soon(granule)) {
        ++ddr_at_[level];
      }
    }
    count_births(alive);
  }

  // Of what may be moved out of DDR.
  float least_worth() const {
    for (uint32_t level = 0; level < levels; ++level)
      if (ddr_at_[level] > 0) return worth_at(level);
    return 0;
  }

  void look_at_moved(Granule& granule, float passed_s) {
    const bool promoted = (granule.policy_a & promoted_flag) != 0;
    const auto now = static_cast<uint32_t>(input_.now_ns >> 20);
    const bool there = granule.residency == (promoted ? Residency::ddr : Residency::cxl);
    if (!there || now - granule.policy_b > static_cast<uint32_t>(memory_.options.horizon_ns >> 20)) {
      granule.policy_a &= static_cast<uint16_t>(~moved_flags);
      return;
    }
    (promoted ? learned_.promoted_waited : learned_.demoted_waited) += passed_s;
  }

  // Promotions pay when what went up is used more than what went down. Where it is not, by more than chance
  // explains, less is moved.
  void judge_outcomes() {
    const float up = learned_.promoted_uses, down = learned_.demoted_uses;
    if (up + down < 32 || learned_.promoted_waited <= 0 || learned_.demoted_waited <= 0) return;
    const float up_rate = (up + 1) / learned_.promoted_waited, down_rate = (down + 1) / learned_.demoted_waited;
    if (up_rate < down_rate * (1 + memory_.options.hysteresis)) {
      learned_.margin = std::min(learned_.margin * 2 + 0.25f, 2.0f);
    } else {
      learned_.margin = learned_.margin < 0.05f ? 0 : learned_.margin * 0.75f;
    }
    learned_.promoted_uses *= 0.5f;
    learned_.promoted_waited *= 0.5f;
    learned_.demoted_uses *= 0.5f;
    learned_.demoted_waited *= 0.5f;
  }

  // Second pass: candidates to the front of scratch, victims to its back. False when nothing can come of it.
  bool collect() {
    const uint64_t most = std::min<uint64_t>(input_.moves_max, input_.granules.size());
    uint64_t above = 0, below = 0;
    uint32_t candidate_level = levels, victim_level = 0;
    while (candidate_level > 0 && above < most) above += cxl_at_[--candidate_level];
    while (victim_level < levels && below < most) below += ddr_at_[victim_level++];
    uint32_t best = levels, worst = 0;
    while (best > 0 && cxl_at_[best - 1] == 0) --best;
    while (worst < levels && ddr_at_[worst] == 0) ++worst;
    const bool wants_room = list_.ddr_above() > 0 || list_.ddr_free() < headroom_;
    const bool has_room = list_.ddr_free() > headroom_;
    if (!wants_room && !has_room && best <= worst + 1) return false;
    for (uint32_t index = 0; index < input_.granules.size(); ++index) {
      const Granule& granule = input_.granules[index];
      if (granule.residency == Residency::none || granule.busy != 0) continue;
      const uint32_t level = level_of_granule(granule, cell_of(granule, input_.now_ns));
      if (granule.residency == Residency::cxl) {
        if (level >= candidate_level && level > 0) scratch_[candidates_++] = index;
      } else if (level < victim_level && !announced_soon(granule)) {
        scratch_[scratch_.size() - ++victims_] = index;
      }
    }
    const auto worthier = [&](uint32_t a, uint32_t b) { return before(b, a); };
    const auto lesser = [&](uint32_t a, uint32_t b) { return before(a, b); };
    candidates_ = sort_first(scratch_.first(candidates_), most, worthier);
    victims_begin_ = scratch_.size() - victims_;
    victims_ = sort_first(scratch_.last(victims_), most, lesser);
    return true;
  }

  // Less worth, and of equal worth the one unused longer.
  bool before(uint32_t a, uint32_t b) const {
    const Granule& one = input_.granules[a];
    const Granule& other = input_.granules[b];
    const float worth = worth_of(one), other_worth = worth_of(other);
    if (worth != other_worth) return worth < other_worth;
    if (one.last_access_ns != other.last_access_ns) return one.last_access_ns < other.last_access_ns;
    return a < b;
  }

  template <typename Before>
  static size_t sort_first(std::span<uint32_t> indices, uint64_t most, Before order) {
    const size_t taken = std::min<uint64_t>(indices.size(), most);
    const auto cut = indices.begin() + static_cast<ptrdiff_t>(taken);
    if (taken < indices.size()) std::nth_element(indices.begin(), cut, indices.end(), order);
    std::sort(indices.begin(), cut, order);
    return taken;
  }

  // What one noted access saves in DDR: the first page at the difference of latency with four loads under way
  // at a time, the rest at the difference of bandwidth.
  float saved_ns() const {
    const TierCosts& costs = input_.costs;
    const float lines = std::min(costs.access_bytes, 4096.0f) / 64;
    const float latency_ns =
        std::max(costs.cxl_latency_ns - costs.ddr_latency_ns, 0.0f) * std::max(lines / 4, 1.0f);
    const float stream_ns =
        costs.access_bytes * 1e9f * (1 / costs.cxl_bandwidth_bytes_per_s - 1 / costs.ddr_bandwidth_bytes_per_s);
    return (latency_ns + std::max(stream_ns, 0.0f)) * std::max(learned_.weight, 1.0f);
  }

  // What a move costs the program: a quarter of the overhead (its translations are lost; the system calls are
  // the engine's), and of the copy little while the bandwidth is there anyway, all of it when CXL is the
  // bottleneck.
  float move_ns() const {
    const float share = 0.02f + 0.98f * std::clamp(input_.cxl_bandwidth_use, 0.0f, 1.0f) *
                                    std::clamp(input_.cxl_bandwidth_use, 0.0f, 1.0f);
    return 0.25f * input_.costs.move_overhead_ns + share * 1e9f * static_cast<float>(input_.granule_bytes) /
                                                       std::max(input_.costs.copy_bytes_per_s, 1.0f);
  }

  // Whether promoting pays, in place of `victim` (nullptr: into free room).
  bool pays(const Granule& candidate, const Granule* victim) const {
    if (announced_soon(candidate)) return victim == nullptr || worth_of(candidate) > worth_of(*victim);
    const size_t cell = cell_of(candidate, input_.now_ns);
    const float worth = worth_of(candidate);
    float left = 0;
    if (victim != nullptr) {
      const size_t victim_cell = cell_of(*victim, input_.now_ns);
      const float victim_worth = worth_of(*victim);
      left = victim_worth / std::max(worth, 1e-30f);
      const float margin = (1 + memory_.options.hysteresis) * (1 + learned_.margin);
      if (worth - doubts * learned_.doubt[cell] <
          (victim_worth + doubts * learned_.doubt[victim_cell]) * margin)
        return false;
    }
    const float uses = std::max(learned_.chance[cell], worth * seconds(memory_.options.horizon_ns));
    return uses * (1 - left) * saved_ns() > move_ns() * (victim == nullptr ? 1.0f : 2.0f);
  }

  void mark(uint32_t index, uint16_t flag) {
    Granule& granule = input_.granules[index];
    granule.policy_a = static_cast<uint16_t>((granule.policy_a & ~moved_flags) | flag);
    granule.policy_b = static_cast<uint32_t>(input_.now_ns >> 20);
  }

  // Announced ones first, into whatever room there is; then room for new bytes; then what pays.
  void choose() {
    const auto granule = [&](uint32_t index) -> const Granule& { return input_.granules[index]; };
    const auto victim = [&](size_t at) { return scratch_[victims_begin_ + at]; };
    size_t next = 0, out = 0;
    while (list_.ddr_above() > 0 && out < victims_ && list_.demote(victim(out))) ++out;
    for (; next < candidates_ && announced_soon(granule(scratch_[next])); ++next) {
      if (!bring_up(scratch_[next], 0, out)) break;
    }
    while (list_.ddr_free() < headroom_ && out < victims_ && list_.demote(victim(out)))
      mark(victim(out++), demoted_flag);
    for (; next < candidates_; ++next) {
      if (!bring_up(scratch_[next], headroom_, out)) break;
    }
  }

  bool bring_up(uint32_t candidate, uint64_t keep_free, size_t& out) {
    const Granule& granule = input_.granules[candidate];
    if (list_.ddr_free() > keep_free) {
      if (!pays(granule, nullptr) || !list_.promote(candidate)) return false;
      mark(candidate, promoted_flag);
      return true;
    }
    if (out == victims_) return false;
    const uint32_t victim = scratch_[victims_begin_ + out];
    if (!pays(granule, &input_.granules[victim]) || !list_.swap(victim, candidate)) return false;
    mark(victim, demoted_flag);
    mark(candidate, promoted_flag);
    ++out;
    return true;
  }

  const PlanInput& input_;
  PolicyMemory& memory_;
  LearnedRates& learned_;
  std::span<uint32_t> scratch_;
  MoveList list_;
  uint64_t headroom_ = 0;
  size_t candidates_ = 0;
  size_t victims_ = 0;
  size_t victims_begin_ = 0;
  uint32_t ddr_at_[levels] = {};
  uint32_t cxl_at_[levels] = {};
};

}  // namespace

size_t plan_benefit_density(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch,
                            std::span<Move> moves) {
  return Planner(input, memory, scratch, moves).run();
}

}  // namespace terrace::tiering
