// SPDX-License-Identifier: Apache-2.0
// What the verbs of `terrace lease` need of a connection: an operator has it for all leases, a tenant for its
// own.
//
// Threads   The thread that opened it; one a process is enough (it owns an event loop).
// Errors    As AdminClient's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/client/statuses.h"
#include "cli/terminal/output.h"
#include "core/base/result.h"
#include "terrace/session.h"

namespace terrace::cli {

// What a grant that waits for room is told about once a second: how many are before it, of how many in the
// queue.
using WaitReport = std::function<void(uint32_t before_it, uint64_t in_the_queue)>;

struct GrantOptions {
  LeaseRequest request;
  std::string tenant;  // empty: the one that this uid maps to
};

// What this program may do at a daemon's socket.
struct SocketRights {
  bool admin = false;  // the operator's interface, all of it or an operator's part
  std::string role;    // of the socket; empty: an older daemon's
  std::string tenant;  // empty: none
};
// Errors    as Connection::open's
Result<SocketRights> ask_rights(const Context& context);

class LeaseClient {
 public:
  // The operator's interface where this uid may have it, else a session of its tenant.
  // Errors    permission_denied  neither
  static Result<std::unique_ptr<LeaseClient>> connect(const Context& context);
  virtual ~LeaseClient() = default;

  // All leases that match, ascending by id; empty filters match all.
  virtual Result<std::vector<LeaseStatus>> leases(const std::string& pool, const std::string& tenant) = 0;
  // By id, or by label when the id is 0; the object is measured where that is possible.
  virtual Result<LeaseStatus> lease(LeaseId id, const std::string& label) = 0;
  // The lease does not depend on this connection: it lives by its ttl. A waiting grant ends with it.
  virtual Result<LeaseStatus> grant(const GrantOptions& options, const WaitReport& waiting) = 0;
  virtual Result<LeaseStatus> renew(LeaseId id, uint64_t ttl_ns) = 0;
  virtual Status release(LeaseId id) = 0;
  virtual Result<LeaseStatus> resize(LeaseId id, uint64_t bytes) = 0;
  // An operator's is done at once; a tenant's waits for the other one, unless that is itself.
  virtual Result<LeaseStatus> transfer(LeaseId id, const std::string& tenant, const std::string& host) = 0;
  // As the tenant that this uid acts for, an operator's, too.
  virtual Result<std::vector<LeaseStatus>> offers() = 0;
  virtual Result<LeaseStatus> accept_offer(LeaseId id) = 0;
  virtual Status withdraw_offer(LeaseId id) = 0;
};

}  // namespace terrace::cli
