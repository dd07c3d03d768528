// SPDX-License-Identifier: Apache-2.0
#include "core/os/fault_guard.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "core/os/lossy_access.h"

#if defined(TERRACE_LOSSY_TABLE)
// One a lossy access: where its instruction is and where to go on, both relative to the number itself.
struct LossyEntry {
  int32_t instruction, after;
};
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names
[[gnu::weak, gnu::visibility("hidden")]] extern const LossyEntry __start_terrace_lossy[];
[[gnu::weak, gnu::visibility("hidden")]] extern const LossyEntry __stop_terrace_lossy[];
// NOLINTEND(bugprone-reserved-identifier)
}
#endif

namespace terrace::os {
namespace {

// Read by the handler: nothing may have to be made for the thread at the first use.
[[gnu::tls_model("initial-exec")]] thread_local FaultGuard* innermost = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local const void* lost = nullptr;
// That this thread does not block SIGBUS; and its loads by load_alone().
[[gnu::tls_model("initial-exec")]] thread_local bool seen_open = false;
[[gnu::tls_model("initial-exec")]] thread_local uint8_t loads_alone = 0;
// The tick of the coarse clock at which this thread last looked at the handler for LossyAccesses::Often.
[[gnu::tls_model("initial-exec")]] thread_local timespec looked_at = {};

// The kernel's, which has 64 signals.
using Mask = uint64_t;
constexpr Mask bit_of(int signal) {
  return Mask{1} << (signal - 1);
}
Mask mask_of(const sigset_t& set) {
  Mask mask = 0;
  std::memcpy(&mask, &set, sizeof mask);
  return mask;
}
Mask change_mask(int how, Mask mask) {
  Mask before = 0;
  ::syscall(SYS_rt_sigprocmask, how, &mask, &before, sizeof mask);
  return before;
}

// An access of this thread made it, now. Otherwise somebody sent it, or it is about memory that nobody reads.
bool is_fault(const siginfo_t& info) {
  return info.si_code == BUS_ADRALN || info.si_code == BUS_ADRERR || info.si_code == BUS_OBJERR ||
         info.si_code == BUS_MCEERR_AR || info.si_code == SI_KERNEL;
}

bool is_function(const struct sigaction& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

constexpr int kept_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER | static_cast<int>(SA_RESETHAND);

bool same(const struct sigaction& one, const struct sigaction& other) {
  return one.sa_handler == other.sa_handler && (one.sa_flags & kept_flags) == (other.sa_flags & kept_flags) &&
         mask_of(one.sa_mask) == mask_of(other.sa_mask);
}

// Each time that another handler is found in our place we go in front of it with another function of ours, so
// that each function knows for good whom it was put in front of: a handler that calls the one before it, or
// puts that back and returns, gets the one before it and not itself.
struct Place {
  struct sigaction before {};
  std::atomic<bool> used_up = false;  // `before` was SA_RESETHAND and has run
};
// As many different handlers. No place is used again: a handler that calls the one before it would come back to
// itself. Two copies of this library in one process go in front of each other until one has none left, and stays
// behind the other, which hands on what is not its own.
constexpr size_t places_max = 32;
Place places[places_max];
size_t places_used = 0;  // under the lock

template <size_t index>
void enter(int signal, siginfo_t* info, void* context);

using Entry = void (*)(int, siginfo_t*, void*);
template <size_t... index>
constexpr std::array<Entry, places_max> all_entries(std::index_sequence<index...>) {
  return {enter<index>...};
}
constexpr std::array<Entry, places_max> entries = all_entries(std::make_index_sequence<places_max>());

bool is_ours(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) == 0) return false;
  for (const Entry entry : entries)
    if (action.sa_sigaction == entry) return true;
  return false;
}

struct sigaction handler_now() {
  struct sigaction action {};
  ::sigaction(SIGBUS, nullptr, &action);
  return action;
}

// A lock that a forked child does not find taken by a thread that it has not.
class InstallLock {
 public:
  InstallLock() : mask_(change_mask(SIG_SETMASK, ~bit_of(SIGBUS))), self_(::getpid()) {
    pid_t holder = 0;
    // pairs with ~InstallLock()
    while (!holder_.compare_exchange_weak(holder, self_, std::memory_order_acquire))
      if (holder == self_) holder = 0;  // another's: the parent's, which is taken over
  }
  ~InstallLock() {
    holder_.store(0, std::memory_order_release);  // release: pairs with InstallLock()
    change_mask(SIG_SETMASK, mask_);
  }

 private:
  static inline std::atomic<pid_t> holder_ = 0;
  const Mask mask_;
  const pid_t self_;
};

// places_max: none is left.
size_t place_for(const struct sigaction& before) {
  size_t index = 0;
  while (index < places_used && !same(places[index].before, before)) ++index;
  if (index == places_max) return index;
  if (index == places_used) {
    places[index].before = before;
    ++places_used;
  }
  places[index].used_up.store(false, std::memory_order_relaxed);
  return index;
}

void install() {
  const InstallLock lock;
  for (struct sigaction before = handler_now(); !is_ours(before);) {
    const size_t place = place_for(before);
    if (place == places_max) return;
    struct sigaction action {};
    action.sa_sigaction = entries[place];
    // The stack is the program's choice where it has a handler; else the one that cannot be too short.
    action.sa_flags = SA_SIGINFO | (is_function(before) ? before.sa_flags & (SA_ONSTACK | SA_RESTART)
                                                        : SA_ONSTACK | SA_RESTART);
    struct sigaction replaced {};
    ::sigaction(SIGBUS, &action, &replaced);
    if (same(replaced, before)) return;
    before = replaced;  // the program installed another one in between
    if (is_ours(before)) ::sigaction(SIGBUS, &before, nullptr);
  }
}

}  // namespace

struct FaultHandler {
  static bool skip_lossy_access(const siginfo_t& info, ucontext_t& context);
  static void leave(const FaultGuard& guard, const ucontext_t& context);
  static FaultGuard* guard_of(const void* address);
  static void take_default_action(const siginfo_t& info);
  static void call(const struct sigaction& before, int signal, siginfo_t* info, ucontext_t* context);
  static void handle(Place& place, int signal, siginfo_t* info, ucontext_t* context);
};

namespace {

template <size_t index>
void enter(int signal, siginfo_t* info, void* context) {
  FaultHandler::handle(places[index], signal, info, static_cast<ucontext_t*>(context));
}

}  // namespace

bool FaultHandler::skip_lossy_access([[maybe_unused]] const siginfo_t& info,
                                     [[maybe_unused]] ucontext_t& context) {
#if defined(TERRACE_LOSSY_TABLE)
  const greg_t instruction = context.uc_mcontext.gregs[REG_RIP];
  for (const LossyEntry* entry = __start_terrace_lossy; entry != __stop_terrace_lossy; ++entry) {
    if (reinterpret_cast<intptr_t>(&entry->instruction) + entry->instruction != instruction) continue;
    context.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<intptr_t>(&entry->after) + entry->after;
    if (lost == nullptr) lost = info.si_addr;
    return true;
  }
#endif
  return false;
}

// A guard further out may cover what the innermost one does not.
FaultGuard* FaultHandler::guard_of(const void* address) {
  FaultGuard* guard = innermost;
  while (guard != nullptr && !guard->covers(address)) guard = guard->outer_;
  return guard;
}

// On the faulting thread, within the access itself: nothing of the runtime's was under way. What returning from
// the handler would put back is put back here: the mask, and an alternate stack that was off meanwhile.
void FaultHandler::leave(const FaultGuard& guard, const ucontext_t& context) {
#if defined(SS_AUTODISARM)
  if ((static_cast<unsigned>(context.uc_stack.ss_flags) & static_cast<unsigned>(SS_AUTODISARM)) != 0)
    ::sigaltstack(&context.uc_stack, nullptr);
#endif
  change_mask(SIG_SETMASK, mask_of(context.uc_sigmask));
  siglongjmp(const_cast<FaultGuard&>(guard).where_, 1);
}

void FaultHandler::take_default_action(const siginfo_t& info) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &action, nullptr);
  if (is_fault(info)) return;  // the access is done again
  siginfo_t again = info;      // with who sent it and why
  if (::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::syscall(SYS_gettid), SIGBUS, &again) != 0) ::raise(SIGBUS);
}

// As the kernel would have called it.
void FaultHandler::call(const struct sigaction& before, int signal, siginfo_t* info, ucontext_t* context) {
  Mask mask = mask_of(context->uc_sigmask) | mask_of(before.sa_mask);
  if ((before.sa_flags & SA_NODEFER) == 0) mask |= bit_of(signal);
  change_mask(SIG_SETMASK, mask);
  if ((before.sa_flags & SA_SIGINFO) != 0)
    before.sa_sigaction(signal, info, context);
  else
    before.sa_handler(signal);
}

void FaultHandler::handle(Place& place, int signal, siginfo_t* info, ucontext_t* context) {
  const int error = errno;
  if (is_fault(*info)) {
    if (skip_lossy_access(*info, *context)) return;
    if (const FaultGuard* guard = guard_of(info->si_addr); guard != nullptr) leave(*guard, *context);
  }
  const struct sigaction before = place.before;
  if (before.sa_handler == SIG_IGN && !is_fault(*info)) return;
  bool theirs = is_function(before);
  if (theirs && (static_cast<unsigned>(before.sa_flags) & SA_RESETHAND) != 0)
    theirs = !place.used_up.exchange(true, std::memory_order_relaxed);
  if (theirs) {
    errno = error;
    call(before, signal, info, context);
  } else {
    take_default_action(*info);  // also of what is ignored: the kernel lets no fault be
  }
  errno = error;
}

void watch_faults() {
  if (!is_ours(handler_now())) [[unlikely]]
    install();
}

FaultGuard::FaultGuard(std::span<const GuardedRange> ranges) : ranges_(ranges), outer_(innermost) {
  if (outer_ == nullptr) {
    watch_faults();
    // A fault while its signal is blocked is death, whatever the handler.
    was_blocked_ = (change_mask(SIG_UNBLOCK, bit_of(SIGBUS)) & bit_of(SIGBUS)) != 0;
  }
  innermost = this;
}

FaultGuard::~FaultGuard() {
  innermost = outer_;
  if (was_blocked_) change_mask(SIG_BLOCK, bit_of(SIGBUS));
}

bool FaultGuard::covers(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  for (const GuardedRange range : ranges_)
    if (std::less_equal<>()(range.data(), at) && std::less<>()(at, range.data() + range.size())) return true;
  return ranges_.empty();
}

// A thread that has SIGBUS blocked is asked once: hardly any changes that later, and asking costs as much as
// looking at the handler does.
LossyAccesses::LossyAccesses() : outer_(std::exchange(lost, nullptr)) {
  watch_faults();
  if (!seen_open) [[unlikely]]
    open_signal();
}

LossyAccesses::LossyAccesses(Often) : outer_(std::exchange(lost, nullptr)) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  if (now.tv_nsec != looked_at.tv_nsec || now.tv_sec != looked_at.tv_sec) {
    watch_faults();
    looked_at = now;
  }
  if (!seen_open) [[unlikely]]
    open_signal();
}

void LossyAccesses::open_signal() {
  was_blocked_ = (change_mask(SIG_UNBLOCK, bit_of(SIGBUS)) & bit_of(SIGBUS)) != 0;
  seen_open = !was_blocked_;
}

LossyAccesses::~LossyAccesses() {
  if (outer_ != nullptr) lost = outer_;  // else what was lost here is lost to who is around, too
  if (was_blocked_) change_mask(SIG_BLOCK, bit_of(SIGBUS));
}

const void* LossyAccesses::lost_address() {
  return lost;
}

uint64_t load_alone(const uint64_t* word) {
  if (seen_open && ++loads_alone != 0) [[likely]]
    return load_or_zero(word);
  const LossyAccesses accesses;
  return load_or_zero(word);
}

#if !defined(TERRACE_LOSSY_TABLE)
namespace {

template <typename Access>
void lossy([[maybe_unused]] const void* at, Access&& access) {
#if defined(TERRACE_LOSSY_PLAIN)
  access();
#else
  if (!guarded(std::forward<Access>(access)) && lost == nullptr) lost = at;
#endif
}

}  // namespace

#if !defined(TERRACE_LOSSY_PLAIN)
uint64_t load_or_zero(const uint64_t* word) {
  uint64_t value = 0;
  // acquire: pairs with the two stores below.
  lossy(word, [&] { value = __atomic_load_n(word, __ATOMIC_ACQUIRE); });
  return value;
}
void store_or_drop(uint64_t* word, uint64_t value) {
  lossy(word, [&] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });  // release: pairs with load_or_zero()
}
void replace_or_drop(uint64_t* word, uint64_t expected, uint64_t value) {
  lossy(word, [&] {
    // seq_cst: a full barrier, which pairs with that of another thread that replaces or fences.
    __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  });
}
#endif
#if !defined(TERRACE_LOSSY_PLAIN) || !defined(__x86_64__)
void copy_or_drop(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  lossy(from, [&] {
    for (size_t at = 0; at < bytes; ++at)
      __atomic_store_n(out + at, __atomic_load_n(in + at, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  });
}
#endif
#endif

}  // namespace terrace::os
