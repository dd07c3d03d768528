// SPDX-License-Identifier: Apache-2.0
#include "allocator/supply/control.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace terrace::supply {
namespace {

uint64_t load(uint64_t& cell) {
  return std::atomic_ref<uint64_t>(cell).load(std::memory_order_relaxed);
}

void add(const Slot& slot, Totals* totals) {
  totals->peak_live_process = std::max(totals->peak_live_process, slot.peak_live);
  totals->allocations_ddr += slot.allocations_ddr;
  totals->allocations_cxl += slot.allocations_cxl;
  totals->allocations_detached += slot.allocations_detached;
  totals->fallbacks += slot.fallbacks;
  totals->refused += slot.refused;
  totals->during_fork += slot.during_fork;
  totals->forks_switched += slot.forks_switched;
  totals->switched_bytes += slot.switched_bytes;
  totals->forks_failed += slot.forks_failed;
  totals->folded_bytes += slot.folded_bytes;
  totals->folds += slot.folds;
  ++totals->processes;
  if (slot.promotions + slot.demotions > 0) ++totals->processes_moved;
  totals->promotions += slot.promotions;
  totals->demotions += slot.demotions;
  totals->moves_undone += slot.moves_undone;
  totals->moves_skipped += slot.moves_skipped;
  totals->stalled_ns += slot.stalled_ns;
  totals->copy_ns += slot.copy_ns;
  totals->leases_left += slot.leases_left;
  totals->left_bytes += slot.left_bytes;
  totals->sampler_ns += slot.sampler_ns;
}

}  // namespace

Result<std::unique_ptr<ControlPage>> ControlPage::create(Budgets budgets) {
  std::unique_ptr<ControlPage> page(new ControlPage());
  page->fd_.reset(::memfd_create("terrace-control", MFD_CLOEXEC));
  struct stat status {};
  if (!page->fd_.valid() || ::ftruncate(page->fd_.get(), control_bytes) != 0 ||
      ::fstat(page->fd_.get(), &status) != 0)
    return os_error(errno, "ControlPage::create", "cannot make the control page");
  void* at = ::mmap(nullptr, control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd_.get(), 0);
  if (at == MAP_FAILED) return os_error(errno, "ControlPage::create", "cannot map the control page");
  page->device_ = status.st_dev;
  page->inode_ = status.st_ino;
  page->header_ = static_cast<ControlHeader*>(at);
  page->header_->magic = magic;
  page->header_->version = version;
  page->header_->fallback = budgets.fallback ? 1 : 0;
  page->header_->slots = slots_max;
  page->header_->ddr_budget = budgets.ddr_bytes;
  page->header_->cxl_budget = budgets.cxl_bytes;
  if (const Migration* migration = budgets.migration; migration != nullptr && !migration->policy.empty()) {
    if (migration->policy.size() >= policy_name_bytes)
      return Error{.code = ErrorCode::invalid_argument,
                   .where = "ControlPage::create",
                   .detail = "the policy's name is too long: " + migration->policy};
    migration->policy.copy(page->header_->policy, policy_name_bytes - 1);
    page->header_->copy_bytes_per_s = migration->copy_bytes_per_s;
    page->header_->round_ns = migration->round_ns;
    page->header_->access_events = migration->access_events ? 1 : 0;
    page->header_->userfault_from_device = migration->userfault_device >= 0 ? 1 : 0;
  }
  for (uint32_t i = 0; i < slots_max; ++i) page->slot(i).parent_slot = no_slot;
  return page;
}

ControlPage::~ControlPage() {
  if (header_ != nullptr) ::munmap(header_, control_bytes);
}

uint32_t ControlPage::claim(pid_t pid) {
  auto wanted = static_cast<uint32_t>(pid);
  for (uint32_t i = 0; i < slots_max; ++i)
    if (std::atomic_ref<uint32_t>(slot(i).pid).load(std::memory_order_relaxed) == wanted) reclaim(i);
  for (uint32_t i = 0; i < slots_max; ++i) {
    uint32_t expected = 0;
    if (std::atomic_ref<uint32_t>(slot(i).pid)
            // acquire: pairs with reclaim(): the slot is zeros.
            .compare_exchange_strong(expected, wanted, std::memory_order_acquire))
      return i;
  }
  return no_slot;
}

uint32_t ControlPage::pid(uint32_t index) const {
  // acquire: pairs with reclaim()
  return std::atomic_ref<uint32_t>(slot(index).pid).load(std::memory_order_acquire);
}

Slot ControlPage::read(uint32_t index) const {
  Slot copy{};
  Slot& source = slot(index);
  // acquire: no partner but reclaim(), since a claimer stores its pid first; the counters are each whole.
  copy.pid = std::atomic_ref<uint32_t>(source.pid).load(std::memory_order_acquire);
  copy.parent_slot = std::atomic_ref<uint32_t>(source.parent_slot).load(std::memory_order_relaxed);
  if (copy.pid == 0) return copy;  // nobody's, all zeros: most of a thousand are
  constexpr size_t cells = (sizeof(Slot) - offsetof(Slot, window_base)) / sizeof(uint64_t);
  auto* from = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&source) + offsetof(Slot, window_base));
  auto* into = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&copy) + offsetof(Slot, window_base));
  for (size_t i = 0; i < cells; ++i) into[i] = load(from[i]);
  return copy;
}

ProcessStatistics ControlPage::read_statistics(uint32_t index) const {
  ProcessStatistics copy{};
  constexpr size_t words = sizeof(ProcessStatistics) / sizeof(uint64_t);
  constexpr size_t sequence = offsetof(ProcessStatistics, small_sequence) / sizeof(uint64_t);
  auto* from = reinterpret_cast<uint64_t*>(&statistics_of(header_)[index]);
  auto* into = reinterpret_cast<uint64_t*>(&copy);
  // acquire pairs with the writer's last store; the fence keeps the second look behind the copying.
  const uint64_t before = std::atomic_ref<uint64_t>(from[sequence]).load(std::memory_order_acquire);
  for (size_t i = 0; i < words; ++i) into[i] = load(from[i]);
  // acquire: pairs with the release fence of look() in small_classes.cc.
  std::atomic_thread_fence(std::memory_order_acquire);
  copy.small_sequence = load(from[sequence]) == before ? before : before | 1;
  return copy;
}

void ControlPage::ask_for_statistics() {
  std::atomic_ref<uint32_t>(header_->statistics_asked).fetch_add(1, std::memory_order_relaxed);
}

void ControlPage::give_back(uint64_t bytes) {
  std::atomic_ref<uint64_t> used(header_->ddr_used);
  uint64_t now = used.load(std::memory_order_relaxed);
  while (!used.compare_exchange_weak(now, now - std::min(now, bytes), std::memory_order_relaxed)) {
  }
}

bool ControlPage::ask_to_leave(pid_t owner, uint32_t segment, uint64_t room_bytes) {
  for (uint32_t i = 0; i < slots_max && segment < segments_max; ++i) {
    if (pid(i) != static_cast<uint32_t>(owner)) continue;
    Slot& its = slot(i);
    if (static_cast<uint32_t>(load(its.migration_state)) != static_cast<uint32_t>(MigrationState::running))
      return false;
    std::atomic_ref<uint64_t>(its.leave_room).store(room_bytes, std::memory_order_relaxed);
    // release pairs with the engine's exchange: it sees the room.
    std::atomic_ref<uint64_t>(its.leaving).fetch_or(uint64_t{1} << segment, std::memory_order_release);
    return true;
  }
  return false;
}

void ControlPage::stay(pid_t owner, uint32_t segment) {
  for (uint32_t i = 0; i < slots_max && segment < segments_max; ++i)
    if (pid(i) == static_cast<uint32_t>(owner))
      std::atomic_ref<uint64_t>(slot(i).leaving)
          .fetch_and(~(uint64_t{1} << segment), std::memory_order_relaxed);
}

void ControlPage::reclaim(uint32_t index) {
  Slot& gone = slot(index);
  Slot counters = read(index);
  if (counters.pid == 0) return;
  const ProcessStatistics told = read_statistics(index);
  if (on_end_) on_end_(counters, told);
  add(counters, &ended_);
  uint64_t held = counters.ddr_charged + counters.inherited_charge;
  for (uint32_t i = 0; i < slots_max; ++i) {
    Slot& child = slot(i);
    // acquire: no partner but reclaim(), as in read().
    if (i == index || std::atomic_ref<uint32_t>(child.pid).load(std::memory_order_acquire) == 0 ||
        std::atomic_ref<uint32_t>(child.parent_slot).load(std::memory_order_relaxed) != index)
      continue;
    uint64_t room =
        load(child.inherited_bytes) - std::min(load(child.inherited_bytes), load(child.inherited_charge));
    uint64_t moved = std::min(held, room);
    std::atomic_ref<uint64_t>(child.inherited_charge).fetch_add(moved, std::memory_order_relaxed);
    std::atomic_ref<uint32_t>(child.parent_slot).store(no_slot, std::memory_order_relaxed);
    held -= moved;
  }
  give_back(held);
  std::memset(reinterpret_cast<char*>(&gone) + offsetof(Slot, window_base), 0,
              sizeof(Slot) - offsetof(Slot, window_base));
  // Pages that nobody wrote to stay holes.
  if (told.program[0] != 0) std::memset(&statistics_of(header_)[index], 0, sizeof(ProcessStatistics));
  std::atomic_ref<uint32_t>(gone.parent_slot).store(no_slot, std::memory_order_relaxed);
  // release pairs with the next claimer's acquire: it finds zeros.
  std::atomic_ref<uint32_t>(gone.pid).store(0, std::memory_order_release);
}

void ControlPage::reconcile() {
  uint64_t accounted = 0;
  uint64_t used = ddr_used();
  for (uint32_t i = 0; i < slots_max; ++i) {
    Slot one = read(i);
    if (one.pid != 0) accounted += one.ddr_charged + one.inherited_charge;
  }
  surplus_min_ = std::min(surplus_min_, used - std::min(used, accounted));
  if (++surplus_rounds_ < reconcile_rounds) return;
  give_back(surplus_min_);
  surplus_min_ = UINT64_MAX;
  surplus_rounds_ = 0;
}

Totals ControlPage::totals() const {
  Totals sum = ended_;
  for (uint32_t i = 0; i < slots_max; ++i) {
    Slot one = read(i);
    if (one.pid == 0) continue;
    add(one, &sum);
    sum.live_ddr += one.live_ddr;
    sum.live_cxl += one.live_cxl;
    sum.live_detached += one.live_detached;
    if (static_cast<uint32_t>(one.migration_state) == static_cast<uint32_t>(MigrationState::running)) {
      ++sum.processes_moving;
      sum.tier_ddr += one.tier_ddr_bytes;
      sum.tier_cxl += one.tier_cxl_bytes;
    }
  }
  return sum;
}

uint32_t ControlPage::processes() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < slots_max; ++i)
    count += std::atomic_ref<uint32_t>(slot(i).pid).load(std::memory_order_relaxed) != 0 ? 1 : 0;
  return count;
}

uint64_t ControlPage::ddr_used() const {
  return load(header_->ddr_used);
}

}  // namespace terrace::supply
