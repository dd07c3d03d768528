// SPDX-License-Identifier: Apache-2.0
// The broker's eyes: which processes of the run live, what they map, what can go back, what is reported.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "allocator/supply/broker.h"
#include "core/base/kernel_clock.h"
#include "core/layout/tier_page.h"

namespace terrace::supply {
namespace {

constexpr int scans_before_release = 2;
// A scan walks page tables; it gets at most this part of one processor's time: a twentieth.
constexpr uint64_t scan_time_share = 20;

uint64_t thread_cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * ns_per_s + static_cast<uint64_t>(now.tv_nsec);
}

// A pidfd can be had for a living process only, but also not for want of descriptors: that is no end.
bool is_over(const UniqueFd& pidfd, pid_t pid) {
  if (!pidfd.valid()) return has_ended(pid);
  pollfd wait{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&wait, 1, 0) == 1;
}

}  // namespace

void Broker::watch_loop() {
  uint64_t pause_ns = options_.tick_ns;
  while (!stopping_) {
    std::vector<pollfd> waits = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    {
      MutexLock lock(mutex_);
      for (const auto& entry : pidfds_)
        waits.push_back({.fd = entry.second.get(), .events = POLLIN, .revents = 0});
    }
    // Descriptors only leave pidfds_ in scan_locked: on this thread, or on one that closes them under a poll,
    // which then ends at the pause.
    timespec pause{.tv_sec = static_cast<time_t>(pause_ns / ns_per_s),
                   .tv_nsec = static_cast<long>(pause_ns % ns_per_s)};
    if (::ppoll(waits.data(), waits.size(), &pause, nullptr) < 0 && errno != EINTR && errno != EBADF)
      return warn("cannot watch processes any more; leases are kept until the end");
    if (waits[0].revents != 0) return;
    uint64_t drained = 0;
    bool woken = ::read(wake_.get(), &drained, sizeof(drained)) == sizeof(drained);
    bool ended =
        std::any_of(waits.begin() + 2, waits.end(), [](const pollfd& one) { return one.revents != 0; });
    // What this thread worked, not what it waited on a busy machine: leases would go back late for nothing.
    const uint64_t begin_ns = thread_cpu_ns();
    scan();
    pause_ns = std::max(options_.tick_ns, (thread_cpu_ns() - begin_ns) * scan_time_share);
    // A process ended or came: look again soon, to release what it leaves or to watch it.
    if (ended || woken) pause_ns = std::min<uint64_t>(pause_ns, 20 * ns_per_ms);
  }
}

void Broker::scan() {
  MutexLock lock(scan_mutex_);
  scan_locked();
  // For the next one: processes answer meanwhile.
  MutexLock state(mutex_);
  control_->ask_for_statistics();
}

// scan_mutex_ is held. /proc is read without mutex_, so that programs are served meanwhile.
void Broker::scan_locked() {
  std::vector<std::pair<uint32_t, Slot>> slots;
  {
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < slots_max; ++i) {
      Slot slot = control_->read(i);
      if (slot.pid == 0) continue;
      auto pid = static_cast<pid_t>(slot.pid);
      UniqueFd& pidfd = pidfds_[pid];
      if (!pidfd.valid()) pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      slots.emplace_back(i, slot);
    }
  }

  std::vector<View> views;
  std::set<pid_t> seen;
  for (const auto& [index, slot] : slots) {
    views.push_back(look_at(static_cast<pid_t>(slot.pid), &slot));
    seen.insert(static_cast<pid_t>(slot.pid));
  }
  const std::vector<pid_t> started = descendants(::getpid());
  const bool blind = read_maps(::getpid()).empty();  // out of descriptors
  for (pid_t pid : started)
    if (!seen.contains(pid)) views.push_back(look_at(pid, nullptr));

  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < slots.size(); ++i) {
      auto pid = static_cast<pid_t>(slots[i].second.pid);
      uint32_t index = slots[i].first;
      bool ended = is_over(pidfds_[pid], pid);
      // A stranger's number in a slot shall not keep the run from ending.
      bool ours = blind || std::find(started.begin(), started.end(), pid) != started.end();
      views[i].hidden = !views[i].known && !ended && ours;
      // Alive without the control page: it became another program, which has not come here.
      int& misses = slot_misses_[index];
      misses = views[i].control || views[i].hidden || greeting_.contains(pid) ? 0 : misses + 1;
      if (!ended && misses < scans_before_release) continue;
      if (control_->read(index).pid == slots[i].second.pid) control_->reclaim(index);
      if (ended) {
        fronts_.remove_if([&](const Front& front) { return front.owner == pid; });
        tokens_.remove_if([&](const Token& token) { return token.owner == pid; });
        still_.erase(pid);
        // What its engine told `terrace tier`; nobody else would come by for a while.
        ::unlink(
            (layout::tier_page_directory + std::to_string(::geteuid()) + "/" + std::to_string(pid)).c_str());
      }
      slot_misses_.erase(index);
      if (ended) pidfds_.erase(pid);
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      if (control_->read(slots[i].first).pid != slots[i].second.pid) continue;
      const auto pid = static_cast<pid_t>(slots[i].second.pid);
      history_.note_running(pid, process_name(pid), control_->read_statistics(slots[i].first));
    }
    note_peak();
    control_->reconcile();
    Totals totals = control_->totals();
    stats_.peak_live_bytes = std::max({stats_.peak_live_bytes, totals.peak_live_process,
                                       totals.live_ddr + totals.live_cxl + totals.live_detached});
    for (auto at = pidfds_.begin(); at != pidfds_.end();)
      at = seen.contains(at->first) ? std::next(at) : pidfds_.erase(at);
  }
  for (const auto& [index, slot] : slots) note_migration(static_cast<pid_t>(slot.pid), slot);
  ask_again_to_leave();
  note_outside(views);
  note_mappings(views);
  release_unmapped();
  report_usage(views);
}

Broker::View Broker::look_at(pid_t pid, const Slot* slot) {
  View view{.pid = pid,
            .known = false,
            .hidden = false,
            .slot = false,
            .control = false,
            .moves = false,
            .ddr_bytes = 0,
            .outside_bytes = 0,
            .cxl_bytes = {}};
  view.slot = slot != nullptr;
  view.moves = slot != nullptr && slot->migration_state == static_cast<uint64_t>(MigrationState::running);
  std::vector<MappedRange> ranges = slot != nullptr ? read_smaps(pid) : read_maps(pid);
  view.known = !ranges.empty();
  MutexLock lock(mutex_);
  for (const MappedRange& range : ranges) {
    if (range.inode != 0 && range.inode == control_->inode() && range.device == control_->device()) {
      view.control = true;
      continue;
    }
    bool leased = false;
    if (range.inode != 0)
      for (const Segment& segment : segments_) {
        if (segment.inode != range.inode || segment.device != range.device) continue;
        leased = true;
        // Private copies of leased pages are in DDR.
        view.cxl_bytes[segment.key] += range.rss_bytes - std::min(range.rss_bytes, range.anonymous_bytes);
        view.ddr_bytes += range.anonymous_bytes;
      }
    if (leased || slot == nullptr) continue;
    // The kernel may have merged the window's first or last pages with a neighbouring anonymous mapping: count
    // no more than what lies within.
    uint64_t begin = std::max<uint64_t>(range.begin, slot->window_base);
    uint64_t end = std::min<uint64_t>(range.end, slot->window_base + slot->window_bytes);
    const uint64_t within = begin < end ? std::min<uint64_t>(range.rss_bytes, end - begin) : 0;
    view.ddr_bytes += within;
    view.outside_bytes += range.anonymous_bytes - std::min(range.anonymous_bytes, within);
  }
  if (view.moves) view.ddr_bytes = slot->tier_ddr_bytes;
  return view;
}

void Broker::note_outside(const std::vector<View>& views) {
  std::map<pid_t, uint64_t> outside;
  uint64_t others = 0, bytes = 0;
  for (const View& view : views) {
    if (view.slot) {
      outside[view.pid] = view.outside_bytes;
    } else if (const uint64_t its = anonymous_bytes(view.pid); its > 0) {
      ++others;
      bytes += its;
    }
  }
  MutexLock lock(mutex_);
  outside_ = std::move(outside);
  other_processes_ = others;
  other_bytes_ = bytes;
}

void Broker::note_mappings(const std::vector<View>& views) {
  MutexLock lock(mutex_);
  for (Segment& segment : segments_) {
    bool mapped = segment.connection != 0 || std::any_of(views.begin(), views.end(), [&](const View& view) {
                    return view.hidden || view.cxl_bytes.contains(segment.key);
                  });
    segment.scans_unmapped = mapped ? 0 : segment.scans_unmapped + 1;
  }
}

// The last look before releases: every process that may be read, not only this one's descendants, once for all
// `candidates`. The keys of those that somebody maps.
std::set<uint64_t> Broker::mapped_by_anyone(const std::vector<Segment>& candidates) {
  std::map<std::pair<ino_t, dev_t>, uint64_t> keys;
  for (const Segment& segment : candidates) keys[{segment.inode, segment.device}] = segment.key;
  std::set<uint64_t> mapped;
  for (pid_t pid : all_processes()) {
    if (pid == ::getpid()) continue;  // the supervisor itself never maps a lease
    for (const MappedRange& range : read_maps(pid))
      if (auto at = keys.find({range.inode, range.device}); at != keys.end()) mapped.insert(at->second);
  }
  if (read_maps(::getpid()).empty())  // out of descriptors: nothing was seen at all
    for (const Segment& segment : candidates) mapped.insert(segment.key);
  return mapped;
}

void Broker::release_unmapped() {
  // While the manager is away nothing can be given back; asking would only hold up those who wait for a scan.
  if (!session_.connected()) return;
  std::vector<Segment> candidates;
  {
    MutexLock lock(mutex_);
    for (const Segment& segment : segments_)
      if (segment.scans_unmapped >= scans_before_release) candidates.push_back(segment);
  }
  if (candidates.empty()) return;
  const std::set<uint64_t> mapped = mapped_by_anyone(candidates);
  std::set<uint64_t> moved_out;
  {
    MutexLock lock(mutex_);
    std::erase_if(candidates, [&](const Segment& segment) { return mapped.contains(segment.key); });
    for (Segment& segment : segments_)
      if (mapped.contains(segment.key)) segment.scans_unmapped = 0;
    // Nobody gets their descriptors from here on.
    for (const Segment& segment : candidates) {
      auto at = std::find_if(segments_.begin(), segments_.end(),
                             [&](const Segment& one) { return one.key == segment.key; });
      leased_bytes_ -= std::min(leased_bytes_, segment.lease->bytes());
      if (at->leaving && pidfds_.contains(segment.owner)) moved_out.insert(segment.key);
      segments_.erase(at);
      ++stats_.leases_released;
      released_ns_ = boot_ns();
    }
  }
  for (const Segment& segment : candidates) {
    if (moved_out.contains(segment.key))
      warn(segment.owner_name + "[" + std::to_string(segment.owner) + "] has moved out of lease " +
           std::to_string(segment.lease->id().value) + " in time; it goes back now");
    Status released = segment.lease->release();
    if (!released.ok() && segment.lease->state() == LeaseState::live)
      warn("lease " + std::to_string(segment.lease->id().value) +
           " could not be given back now, it ends with its TTL: " + released.error().to_string());
  }
}

// A process that had a child of fork, or no engine yet, when the notice came may move since.
void Broker::ask_again_to_leave() {
  std::vector<std::string> can;
  {
    MutexLock lock(mutex_);
    for (Segment& segment : segments_) {
      if (!segment.taken_back || segment.leaving) continue;
      segment.leaving = control_->ask_to_leave(segment.owner, segment.index, segment.spare_bytes);
      if (segment.leaving)
        can.push_back(segment.owner_name + "[" + std::to_string(segment.owner) + "]: lease " +
                      std::to_string(segment.lease->id().value));
    }
  }
  for (const std::string& who : can)
    warn(who +
         " is being taken back; memory of this process moves again: what lies in the lease moves to DDR, also "
         "beyond the budget, and to other leases now");
}

// The engine's thread has no stderr: what hinders it is said here, once a process.
void Broker::note_migration(pid_t pid, const Slot& slot) {
  const auto reason = static_cast<int>(slot.migration_state >> 32);
  if (reason <= 0 || reason >= 4096) return;
  {
    MutexLock lock(mutex_);
    if (!still_.insert(pid).second) return;
  }
  const char* hint = reason == EPERM || reason == EACCES ? " (no right to userfaultfd: see 'terrace doctor')"
                     : reason == ENOSYS || reason == ENOTTY || reason == EINVAL
                         ? " (the kernel lacks what it takes: Linux 6.7 and userfaultfd)"
                         : "";
  warn(process_name(pid) + "[" + std::to_string(pid) +
       "]: its memory stays where it is: " + std::system_category().message(reason) + hint);
}

void Broker::report_usage(const std::vector<View>& views) {
  if (!session_.connected()) return;  // the next scan reports again
  struct Report {
    std::shared_ptr<Lease> lease;
    UsageReport usage;
  };
  std::map<uint64_t, Report> reports;
  {
    MutexLock lock(mutex_);
    std::map<pid_t, Slot> slots;
    for (uint32_t i = 0; i < slots_max; ++i)
      if (Slot slot = control_->read(i); slot.pid != 0) slots[static_cast<pid_t>(slot.pid)] = slot;
    for (const Segment& segment : segments_) {
      Report& report = reports[segment.key];
      report.lease = segment.lease;
      report.usage.holder = segment.owner_name + "[" + std::to_string(segment.owner) + "]";
      auto slot = slots.find(segment.owner);
      if (slot != slots.end() && segment.index < segments_max)
        report.usage.live_bytes = std::min(slot->second.segment_live[segment.index], segment.lease->bytes());
    }
    for (const View& view : views) {
      // A process's DDR goes with its first lease, or with the first that it maps when it has none of its own.
      const Segment* first = nullptr;
      for (const Segment& segment : segments_) {
        if (!view.cxl_bytes.contains(segment.key)) continue;
        if (first == nullptr || (segment.owner == view.pid && first->owner != view.pid)) first = &segment;
        UsageReport& usage = reports[segment.key].usage;
        const bool owned = view.moves && segment.owner == view.pid;
        const uint64_t bytes = owned ? usage.live_bytes : view.cxl_bytes.at(segment.key);
        usage.cxl_bytes = std::min(usage.cxl_bytes + bytes, segment.lease->bytes());
      }
      if (first != nullptr) reports[first->key].usage.ddr_bytes += view.ddr_bytes;
    }
  }
  for (auto& entry : reports)
    if (entry.second.lease->state() == LeaseState::live) {
      Status reported = entry.second.lease->report_usage(entry.second.usage);
      if (!reported.ok()) break;
    }
}

bool Broker::in_use() {
  MutexLock lock(mutex_);
  if (!greeting_.empty()) return true;
  for (const Segment& segment : segments_)
    // Unmapped for good, but the manager is away: it lapses, nobody needs to wait for that.
    if (segment.scans_unmapped < scans_before_release || session_.connected()) return true;
  for (uint32_t i = 0; i < slots_max; ++i)
    if (control_->read(i).pid != 0) return true;
  return false;
}

std::vector<pid_t> Broker::processes() {
  MutexLock lock(mutex_);
  std::vector<pid_t> found;
  for (uint32_t i = 0; i < slots_max; ++i)
    if (Slot slot = control_->read(i); slot.pid != 0) found.push_back(static_cast<pid_t>(slot.pid));
  return found;
}

RunStats Broker::stats() {
  MutexLock lock(mutex_);
  return stats_locked();
}

RunStats Broker::stats_locked() {
  RunStats stats = stats_;
  stats.totals = control_->totals();
  stats.peak_live_bytes = std::max(stats.peak_live_bytes, stats.totals.peak_live_process);
  stats.leased_bytes = leased_bytes_;
  stats.ddr_used = control_->ddr_used();
  return stats;
}

}  // namespace terrace::supply
