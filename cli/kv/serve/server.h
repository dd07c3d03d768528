// SPDX-License-Identifier: Apache-2.0
// The event loop of `terrace kv serve`: one thread, one epoll, sockets that never block.
//
// Place     cli/kv/kv_serve.cc builds it; connection.h has what is done for one client.
// Ownership Uses the space and the listener, which must outlive it.
// Threads   run() stays in the caller's. The space may have threads of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cli/kv/serve/commands.h"
#include "cli/kv/serve/connection.h"
#include "cli/kv/serve/listener.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "terrace/kv_space.h"

namespace terrace::kv_serve {

inline constexpr size_t connections_max = 1024;

class Server {
 public:
  Server(KvSpace& space, Commands::Options options, const Listener& listener, std::string version);

  // Serves until `signals`, a signalfd, can be read.
  // Errors    of KvSpace::health(): the space is gone
  //           as os_error
  Status run(int signals);

 private:
  Status watch(int fd, uint32_t events, int operation);
  Status loop(int signals);
  void take_signal(int signals);
  void handle(int fd, uint32_t events);
  void accept_all();
  void admit(UniqueFd socket);
  void after(Connection& connection);
  void work_for_all();
  void look_at_the_time();
  void begin_to_end();
  int wait_ms() const;

  KvSpace& space_;
  const Listener& listener_;
  ServerFigures figures_;
  Commands commands_;
  UniqueFd epoll_;
  struct Watched {
    std::unique_ptr<Connection> connection;
    uint32_t events = 0;
  };
  std::map<int, Watched> connections_;
  std::vector<int> working_;  // connections with requests that wait for their turn
  uint64_t next_id_ = 1;
  uint64_t looked_ns_ = 0;
  uint64_t end_ns_ = 0;  // not 0: ending, and gone then at the latest
  bool accepting_ = false;
  Status failure_;
};

}  // namespace terrace::kv_serve
