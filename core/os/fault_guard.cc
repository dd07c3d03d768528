#include "core/os/fault_guard.h"

#include <signal.h>

#include <mutex>

namespace terrace::os {
namespace {

thread_local FaultGuard* innermost = nullptr;
struct sigaction before;

}  // namespace

// On the faulting thread, within the access itself: nothing of the runtime's was under way.
void jump_out(int) {
  if (innermost != nullptr) siglongjmp(innermost->where_, 1);
  ::sigaction(SIGBUS, &before, nullptr);  // the access is done again, and is theirs
}

FaultGuard::FaultGuard() : outer_(innermost) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    struct sigaction action {};
    action.sa_handler = jump_out;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
  });
  innermost = this;
}

FaultGuard::~FaultGuard() {
  innermost = outer_;
}

}  // namespace terrace::os
