// SPDX-License-Identifier: Apache-2.0
// What a test tells the fake CUDA driver, and what it saw. The library is loaded by its path, as the real one
// is; `fake_cuda()` is found by dlsym.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace::test {

struct FakeCuda {
  // How it is to behave.
  std::atomic<int> init_code{0};
  std::atomic<int> context_code{0};     // not 0: no context is pushed
  std::atomic<int> set_code{0};         // not 0: nor set
  std::atomic<uint64_t> context_id{1};  // another after a reset; 0: the context was reset and nobody uses it
  std::atomic<int> dead_handles{0};     // streams and events of a context that was reset, used all the same
  std::atomic<int> devices{2};
  std::atomic<uint64_t> capacity_bytes{uint64_t{256} << 20};
  std::atomic<int> register_code{0};                // not 0: registrations are refused so
  std::atomic<uint64_t> register_bytes_max{~0ull};  // larger ones: out of memory
  std::atomic<bool> read_only_registration{true};
  std::atomic<bool> hold_register{false}, hold_unregister{false};  // do not return until told
  std::atomic<int> host_allocate_code{0};
  std::atomic<uint32_t> copy_delay_us{0};  // before each copy
  std::atomic<uint32_t> text_delay_us{0};  // before an error's name is told
  std::atomic<int> lose_at_copy{0};        // not 0: this copy from now breaks the device, with lost_code
  std::atomic<int> lost_code{700};
  // Since a reset.
  std::atomic<uint64_t> direct_copies{0}, staged_copies{0}, pageable_copies{0}, peer_copies{0};
  std::atomic<uint64_t> registrations{0}, staged_bytes_max{0};
  // Now.
  std::atomic<int64_t> contexts{0}, streams{0}, events{0}, buffers{0}, host_buffers{0}, registered{0},
      pushed{0};
  std::atomic<int> broken{0};
  std::atomic<int> held{0};  // calls that are

  void reset() {  // nothing may be in use
    init_code = 0;
    context_code = 0;
    set_code = 0;
    context_id = 1;
    dead_handles = 0;
    devices = 2;
    capacity_bytes = uint64_t{256} << 20;
    register_code = 0;
    register_bytes_max = ~0ull;
    read_only_registration = true;
    hold_register = hold_unregister = false;
    host_allocate_code = 0;
    copy_delay_us = 0;
    text_delay_us = 0;
    lose_at_copy = 0;
    lost_code = 700;
    direct_copies = staged_copies = pageable_copies = peer_copies = 0;
    registrations = staged_bytes_max = 0;
    broken = 0;
  }
};

using GetFakeCuda = FakeCuda*();

}  // namespace terrace::test
