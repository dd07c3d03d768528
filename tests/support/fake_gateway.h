// SPDX-License-Identifier: Apache-2.0
// A manager for tests of the client: speaks the real schema on a real socket, keeps leases as memory files,
// and breaks where it is told to, also in ways that a real manager cannot be made to.
//
// Threads   All methods from any thread. The server runs on one of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "terrace/session.h"

namespace terrace::test {

enum class Fault {
  drop_before,    // breaks the connection without having done the call
  drop_after,     // does the call, then breaks the connection: the reply is lost
  hang,           // does the call and never answers
  defect,         // throws, as a defect in the manager would
  refuse,         // replies with the error set by refuse_with()
  no_descriptor,  // grants and attaches, but sends no descriptor
  unknown,        // does not know the call, as an older manager
};

// A report of a program's memory.
struct FakeRun {
  RunFigures figures;  // with counters only
  RunCounters told_before;
};

struct FakeLease {
  uint64_t id = 0, epoch = 0, bytes = 0, ttl_ns = 0;
  std::string label, phase = "active", reason, holder;
  uint64_t ddr_bytes = 0;
  uint64_t renewals = 0;
  std::string tenant = "tester", host;
  bool movable = false;
  uint32_t holders = 1;
  uint64_t moves = 0, moves_given_up = 0;
};

class FakeGateway {
 public:
  FakeGateway();  // makes its own temporary directory
  ~FakeGateway();
  FakeGateway(const FakeGateway&) = delete;
  FakeGateway& operator=(const FakeGateway&) = delete;

  const std::string& socket_path() const { return socket_path_; }

  // A stopped manager forgets its connections and keeps its leases, as a killed one does.
  void start();
  void stop();
  void restart() {
    stop();
    start();
  }
  void drop_connections();

  // Methods by the schema's name: "hello", "openSession", "grant", "attach", "list", "pools", "renewMany", "reportRun",
  // "info", "renew", "release", "reportUsage", "resize", "transfer", "beginMove", "commit", "abandon".
  void fail_next(const std::string& method, Fault fault, int times = 1);
  bool faults_pending() const;  // of fail_next
  void fail_always(const std::string& method, Fault fault);
  void refuse_with(ErrorCode code, const std::string& detail);
  void clear_faults();
  void set_version(uint32_t version);
  void add_bare_leases(uint64_t count);  // for lists: leases without memory behind them

  int calls(const std::string& method) const;
  int connections() const;  // accepted so far
  std::string last_client() const;
  std::vector<FakeLease> leases() const;
  std::vector<FakeRun> runs() const;   // all reports, as they came
  FakeLease lease(uint64_t id) const;  // id 0 when there is none

  // Takes a lease back: tells the holders and truncates its file on fence().
  void revoke(uint64_t id, uint64_t grace_ns, const std::string& reason);
  void fence(uint64_t id, const std::string& reason, LeaseCause cause = LeaseCause::none);
  void tell_fenced(uint64_t id, const std::string& reason, LeaseCause cause);  // and fences nothing
  void request_move(uint64_t id, const std::string& reason);
  void lose_silently(uint64_t id);  // as an expiry while the client was away
  void change_epoch(uint64_t id);   // as if the id had been granted again

  // A full pool makes grants wait, or refuses those that do not want to.
  void set_full(bool full);
  std::vector<uint64_t> waits_ns() const;  // wait_ns of each grant asked for
  void use_new_file_on_resize();           // from now on a resize changes the object, as some backends do
  void resize_as_operator(uint64_t id, uint64_t bytes);  // no holder is told
  void set_holders(uint64_t id, uint32_t holders);       // what the lease's description says

  struct State;
  class Server;

 private:
  std::string directory_;
  std::string socket_path_;
  std::shared_ptr<State> state_;
  std::unique_ptr<Server> server_;
};

}  // namespace terrace::test
