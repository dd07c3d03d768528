// SPDX-License-Identifier: Apache-2.0
// PagePins on this machine: a BPF program reads the reference counts out of struct page, once on request and once
// at the entry of the kernel's arch_remove_memory, which an unbinding reaches after it has taken the mappings away.
//
// Needs x86-64, root (CAP_BPF, CAP_PERFMON), Linux 5.17 with CONFIG_KPROBES, CONFIG_BPF_EVENTS and
// CONFIG_KALLSYMS_ALL, and no lockdown to confidentiality. Debian's, Ubuntu's and Red Hat's kernels have it.
//
// Where a struct page lies is vmemmap_base + page number * 64, its count at offset 52 (Linux 4.16 to 6.18,
// include/linux/mm_types.h). Neither is taken on trust: usable() pins a page of this process, learn() one of the
// device, and exactly that must show.
//
// Threads   Any; during() counts for the thread that calls it, and others wait.
#pragma once

#include <memory>
#include <optional>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "daemon/memory/pins/page_pins.h"

namespace terrace::daemon {

class KernelPins final : public PagePins {
 public:
  KernelPins();
  ~KernelPins() override;

  Status usable() override;
  Result<PageBlock> learn(std::span<std::byte> memory, PageRange range, uint64_t bytes) override;
  Result<PinCount> look(const std::vector<PageRange>& ranges, PageBlock block) override;
  Result<PinCount> during(const std::vector<PageRange>& ranges, PageBlock block,
                          const std::function<Status()>& take_away) override;

 private:
  struct Shared;  // what the program and this process both see

  Status prepare() TERRACE_REQUIRES(mutex_);
  Status open() TERRACE_REQUIRES(mutex_);
  Status load(int program_type, UniqueFd& program) TERRACE_REQUIRES(mutex_);
  Status watch_unmapping() TERRACE_REQUIRES(mutex_);
  Status prove() TERRACE_REQUIRES(mutex_);
  Result<bool> shows(std::byte* page, PageRange range, PageBlock block) TERRACE_REQUIRES(mutex_);
  Result<uint64_t> peek(uint64_t address) TERRACE_REQUIRES(mutex_);
  Status arm(const std::vector<PageRange>& ranges, PageBlock block) TERRACE_REQUIRES(mutex_);
  Status run() TERRACE_REQUIRES(mutex_);
  Result<PinCount> count(const std::vector<PageRange>& ranges, PageBlock block) TERRACE_REQUIRES(mutex_);
  Result<PinCount> counted(const std::vector<PageRange>& ranges, PageBlock block) const
      TERRACE_REQUIRES(mutex_);

  Mutex mutex_;
  std::optional<Status> usable_ TERRACE_GUARDED_BY(mutex_);
  UniqueFd work_ TERRACE_GUARDED_BY(mutex_);
  UniqueFd segments_ TERRACE_GUARDED_BY(mutex_);
  UniqueFd types_ TERRACE_GUARDED_BY(mutex_);
  UniqueFd look_ TERRACE_GUARDED_BY(mutex_);
  UniqueFd probe_ TERRACE_GUARDED_BY(mutex_);
  UniqueFd event_ TERRACE_GUARDED_BY(mutex_);
  std::unique_ptr<Shared> shared_ TERRACE_GUARDED_BY(mutex_);
  uint64_t page_structs_ TERRACE_GUARDED_BY(mutex_) = 0;  // the kernel's address of page number 0's struct page
};

}  // namespace terrace::daemon
