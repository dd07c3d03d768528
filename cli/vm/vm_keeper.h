// SPDX-License-Identifier: Apache-2.0
// What `terrace vm run` and `attach` do while the machine runs: hold its leases, bring the guest what it should have,
// give way to a revoke, answer `resize`, `move`, `detach` and `show`.
//
// Ownership Has the session, the monitor, and the leases of the machine.
// Threads   run() is one thread's; notices come on the session's; end_within() any.
#pragma once

#include <atomic>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/output.h"
#include "cli/vm/guest_memory.h"
#include "cli/vm/monitor.h"
#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "terrace/session.h"

namespace terrace::cli {

struct KeeperOptions {
  GuestOptions guest;
  uint64_t bytes = 0;                  // that the guest shall have; 0: what it has already
  uint64_t detach_ns = 60 * ns_per_s;  // for the guest to let go, when it is told to end
  bool ends_when_detached = true;
  const char* where = "terrace vm";
};

class VmKeeper {
 public:
  // Takes the label among this user's machines, and connects to the manager. Errors: as Session's and lock_vm()'s.
  static Result<std::unique_ptr<VmKeeper>> make(const Context& context, KeeperOptions options);
  ~VmKeeper();

  // Plugs the first part in, or takes over what is there. Errors: why the machine has no memory of the manager's.
  Status start(std::unique_ptr<Monitor> monitor);
  // Until the machine has ended, or the guest has let go of all. `signals`: read by it; the first has the guest let go,
  // a second one ends it at once. -1: none.
  // Errors    busy   a second signal came, and the guest still has memory that nobody renews then
  Status run(int signals);
  // The machine should end by itself now; run() waits `ns` at most for it.
  void end_within(uint64_t ns);

 private:
  struct Client {
    UniqueFd socket;
    std::string received;
    bool waits = false;     // for the guest
    uint64_t until_ns = 0;  // when it is sent away
    bool force = false;     // or the memory is taken then
  };
  struct Told {
    LeaseNotice notice;
    uint64_t at_ns = 0;
  };

  VmKeeper(std::unique_ptr<Session> session, KeeperOptions options, std::string socket_path, UniqueFd lock,
           UniqueFd listening, UniqueFd woken);
  void take_notices();
  void serve(Client& client);
  void obey(Client& client, const nlohmann::json& request);
  bool settled() const;
  void take_what_is_due();
  void answer_settled();
  void answer(Client& client, const nlohmann::json& document);
  void refuse(Client& client, const Error& error);
  void look_at_signals(int signals);
  void accept_clients();
  void wait(int signals);
  void detach_within(uint64_t until_ns);
  void note_trouble(const Error& error);

  std::unique_ptr<Session> session_;
  const KeeperOptions options_;
  const std::string socket_path_;
  const UniqueFd lock_;
  const UniqueFd listening_;
  const UniqueFd woken_;  // eventfd: a notice, or end_within()
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<GuestMemory> memory_;
  std::vector<Client> clients_;
  uint64_t before_bytes_ = 0;  // that the guest should have before the last resize
  bool detaching_ = false;
  uint64_t detach_until_ns_ = 0;
  uint32_t signals_seen_ = 0;
  std::string last_trouble_;
  std::atomic<uint64_t> end_by_ns_{0};  // 0: no such time
  Mutex mutex_;
  std::vector<Told> told_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::cli
