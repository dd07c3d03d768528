// SPDX-License-Identifier: Apache-2.0
// Notifications of other agents: a listening socket, and a thread that reads all connections until NIXL fetches what
// came. A sender never waits for the program, only where more than inbox_bytes_max are unread.
//
// Threads   open() once, before the rest; the rest from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "bindings/nixl/notifications/frames.h"
#include "core/base/result.h"
#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"

namespace terrace::nixl {

inline constexpr size_t inbox_bytes_max = 64 << 20;

class Inbox {
 public:
  // `listen`: as Settings::listen.
  Status open(const std::string& listen);
  ~Inbox();

  // For other agents: "address=unix:/... token=..."
  std::string connection_info() const;
  void add(Notification one);
  std::vector<Notification> take();

 private:
  struct Sender {
    UniqueFd socket;
    std::string unread;  // of a frame that is not whole
    std::string agent;
    bool known = false;  // its hello was right
  };

  void serve();
  void accept_one();
  bool read_some(Sender& sender);    // false: it has ended, or sends what it may not
  bool take_frames(Sender& sender);  // the same
  bool take_hello(Sender& sender, size_t& used);
  bool has_room();

  UniqueFd listener_, poll_, stop_;
  std::string address_, path_, token_;
  std::map<int, Sender> senders_;  // the thread's own
  Mutex mutex_;
  ConditionVariable room_;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  size_t bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::vector<Notification> waiting_ TERRACE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace::nixl
