// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/copy_team.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace terrace::tiering {
namespace {

constexpr size_t part_alignment = 4096;

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  ::syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

int CopyTeam::start(uint32_t threads) {
  stop();
  const uint32_t wanted = threads < 1 ? 0 : threads > threads_max ? threads_max - 1 : threads - 1;
  stopping_.store(false, std::memory_order_relaxed);
  block_.store(0, std::memory_order_relaxed);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = 0;
  while (helpers_ < wanted && failed == 0) {
    Helper& helper = made_[helpers_];
    helper.team = this;
    helper.index = helpers_;
    failed = ::pthread_create(&helper.thread, nullptr, run, &helper);
    if (failed == 0) ++helpers_;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed;
}

void CopyTeam::stop() {
  if (helpers_ == 0) return;
  stopping_.store(true, std::memory_order_relaxed);
  block_.fetch_add(1, std::memory_order_release);  // release: pairs with run()
  futex(&block_, FUTEX_WAKE_PRIVATE, INT_MAX);
  for (uint32_t i = 0; i < helpers_; ++i) ::pthread_join(made_[i].thread, nullptr);
  helpers_ = 0;
}

void* CopyTeam::run(void* argument) {
  auto* me = static_cast<Helper*>(argument);
  CopyTeam& team = *me->team;
  // A block that was given before this thread ran is not missed: copy() waits for every helper.
  for (uint32_t seen = 0;;) {
    uint32_t now = team.block_.load(std::memory_order_acquire);  // acquire: pairs with copy(), stop()
    if (team.stopping_.load(std::memory_order_relaxed)) return nullptr;
    if (now == seen) {
      futex(&team.block_, FUTEX_WAIT_PRIVATE, seen);
      continue;
    }
    seen = now;
    team.copy_part(me->index);
    // release: pairs with the loads at the end of copy(): the part is there when it sees the count.
    if (team.working_.fetch_sub(1, std::memory_order_release) == 1)
      futex(&team.working_, FUTEX_WAKE_PRIVATE, 1);
  }
}

void CopyTeam::copy_part(uint32_t index) {
  const size_t each = bytes_ / (helpers_ + 1) & ~(part_alignment - 1);
  const size_t begin = index * each;
  if (!copy_block(copy_, to_ + begin, from_ + begin, index == helpers_ ? bytes_ - begin : each))
    lost_.store(true, std::memory_order_relaxed);
}

bool CopyTeam::copy(char* to, const char* from, size_t bytes) {
  to_ = to;
  from_ = from;
  bytes_ = bytes;
  lost_.store(false, std::memory_order_relaxed);
  if (helpers_ > 0) {
    working_.store(helpers_, std::memory_order_relaxed);
    block_.fetch_add(1, std::memory_order_release);  // release: pairs with run()
    futex(&block_, FUTEX_WAKE_PRIVATE, INT_MAX);
  }
  copy_part(helpers_);
  // acquire: pairs with the end of a part in run()
  for (uint32_t left = working_.load(std::memory_order_acquire); left != 0;
       left = working_.load(std::memory_order_acquire))
    futex(&working_, FUTEX_WAIT_PRIVATE, left);
  return !lost_.load(std::memory_order_relaxed);
}

}  // namespace terrace::tiering
