// SPDX-License-Identifier: Apache-2.0
#include "tests/coherence/fiber.h"

#include <cstdint>
#include <cstdlib>

#include "core/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define TERRACE_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TERRACE_FIBER_ASAN 1
#endif
#endif
#if defined(TERRACE_FIBER_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

// The registers that a called function keeps go to the old stack; the rest is the compiler's business, as at
// any call.
extern "C" void terrace_fiber_switch(void** save, void* load);
asm(R"(
.text
.globl terrace_fiber_switch
.type terrace_fiber_switch, @function
terrace_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size terrace_fiber_switch, .-terrace_fiber_switch
.section .note.GNU-stack,"",@progbits
.text
)");

namespace terrace::coherence {
namespace {

thread_local Fiber* entering = nullptr;

void leave_stack([[maybe_unused]] void** fake, [[maybe_unused]] const void* to, [[maybe_unused]] size_t bytes) {
#if defined(TERRACE_FIBER_ASAN)
  __sanitizer_start_switch_fiber(fake, to, bytes);
#endif
}
void arrive_on_stack([[maybe_unused]] void* fake, [[maybe_unused]] const void** from,
                     [[maybe_unused]] size_t* bytes) {
#if defined(TERRACE_FIBER_ASAN)
  __sanitizer_finish_switch_fiber(fake, from, bytes);
#endif
}

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(stack_bytes)) {
  const auto top = (reinterpret_cast<uintptr_t>(stack_.get()) + stack_bytes) & ~uintptr_t{15};
  auto* at = reinterpret_cast<uint64_t*>(top);
  *--at = 0;  // where enter() would return to; keeps the stack at 16 n + 8 there
  *--at = reinterpret_cast<uint64_t>(&Fiber::enter);
  for (int registers = 0; registers < 6; ++registers) *--at = 0;
  inside_ = at;
}

Fiber::~Fiber() {
  TERRACE_CHECK(finished_ || !begun_, "a fiber ends before it is destroyed");
}

void Fiber::resume() {
  TERRACE_CHECK(!finished_, "a fiber that finished is not resumed");
  begun_ = true;
  entering = this;
  void* fake = nullptr;
  leave_stack(&fake, stack_.get(), stack_bytes);
  terrace_fiber_switch(&outside_, inside_);
  arrive_on_stack(fake, nullptr, nullptr);
}

void Fiber::pause() {
  leave_stack(finished_ ? nullptr : &fake_inside_, outside_stack_, outside_bytes_);
  terrace_fiber_switch(&inside_, outside_);
  arrive_on_stack(fake_inside_, &outside_stack_, &outside_bytes_);
}

void Fiber::enter() {
  entering->run();
  std::abort();  // nobody resumes what finished
}

void Fiber::run() {
  arrive_on_stack(nullptr, &outside_stack_, &outside_bytes_);
  try {
    body_();
  } catch (...) {
    check_failed("body_()", __FILE__, __LINE__, "a fiber's body lets nothing out");
  }
  finished_ = true;
  pause();
}

}  // namespace terrace::coherence
