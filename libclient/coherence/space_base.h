// SPDX-License-Identifier: Apache-2.0
// The parts of TensorSpace for both kinds of memory: errors with their texts, waiting, and the parts of public
// objects that call back into the space.
#pragma once

#include <string>

#include "core/base/clock.h"
#include "libclient/coherence/part.h"
#include "terrace/tensor_space.h"

namespace terrace {

// A Located with its name, which SharedTensor's views point into.
struct FoundTensor : coherence::Located {
  std::string name;
};

class SpaceBase : public TensorSpace {
 public:
  virtual uint64_t finish_write(const coherence::Ticket& ticket) = 0;
  virtual void fill_write(const coherence::Ticket& ticket, std::span<const std::byte> bytes) = 0;
  virtual void abort_write(const coherence::Ticket& ticket) = 0;

 protected:
  // `dead`: its writer is dead.
  static Error error_of(coherence::Outcome outcome, const SharedTensor& tensor, bool dead);
  static Error read_only(const SharedTensor& tensor);
  static Error without_seats(const SharedTensor& tensor);
  static Error foreign(const SharedTensor& tensor);
  // By its owner, in the time that was given. `dead`: the owner is.
  static Error not_removed(const SharedTensor& tensor, bool dead);
};

struct TensorWrite::State {
  SpaceBase* space = nullptr;
  coherence::Ticket ticket;
  bool open = true;
};

// Tries, waits, tries: until the answer is one that waiting does not change, or the time is over.
//
// A handful of attempts come first whatever wait_ns is: what raced once is another answer the next time. Then
// it polls, at first without giving up the processor: a publication elsewhere is heard of within its latency.
class Waiting {
 public:
  explicit Waiting(uint64_t wait_ns) : wait_ns_(wait_ns) {}

  // Whether to try again.
  bool again(coherence::Outcome outcome);
  // Now and then: worth asking whether somebody died.
  bool long_wait() const { return attempts_ % 4096 == 1; }

 private:
  const uint64_t wait_ns_;
  uint64_t begin_ns_ = 0;
  uint64_t attempts_ = 0;
  SystemClock clock_;
};

}  // namespace terrace
