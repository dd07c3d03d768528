// SPDX-License-Identifier: Apache-2.0
// What agents send each other over a stream, one direction each: a hello, which the receiver answers with one byte, then
// notifications. All numbers as the processor has them: both sides run on processors of one kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace terrace::nixl {

inline constexpr size_t token_bytes = 16;
inline constexpr uint32_t agent_name_bytes_max = 4096;
inline constexpr uint32_t notification_bytes_max = 16 << 20;
inline constexpr uint32_t enclosure_bytes_max = 1 << 20;
inline constexpr char hello_answer = 'K';

struct Hello {
  char what[8] = {'t', 'e', 'r', 'r', 'n', 'i', 'x', '1'};
  unsigned char token[token_bytes] = {};  // of the receiver's metadata: who has it may notify
  uint32_t name_bytes = 0;                // of the sender's name, which follows
};
static_assert(sizeof(Hello) == 28);

struct FrameHead {
  uint32_t message_bytes = 0;
  uint32_t enclosure_bytes = 0;  // what backends tell each other with it; follows the message
};
static_assert(sizeof(FrameHead) == 8);

struct Notification {
  std::string agent, message, enclosure;
};

}  // namespace terrace::nixl
