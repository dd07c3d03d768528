// SPDX-License-Identifier: Apache-2.0
// Memory objects on other hosts (`lease-7@hostb`), as a Backend of the manager: each call of the engine becomes
// an order to that host's agent. If the agent is away, a result that cannot be known is waited for.
//
//   agent     carve, resize, ...        fence                    erase, scrub
//   connected ordered                   ordered                  ordered
//   away      refused, nothing changed  not yet (EAGAIN)         not yet (EAGAIN)
//   lapsed    refused                   done: it fenced itself   done here, on the manager's own device
//
// Before the first carve on a device that both machines see, they prove that it is the same memory:
// each writes into the extents of the new lease, and the other reads it. Otherwise a serial with two
// meanings would give programs of two hosts one lease and two memories, and the manager would erase the
// wrong one.
//
// An order whose outcome is unknown (the connection broke meanwhile) is never taken for done or for not done:
// it is given again, or, for a carve, the object's end is waited for.
//
// Place     BackendSet sends objects with a host in their names here; daemon/hosts/agents.h carries orders out.
// Threads   As Backend's. carve, fence and the like block for as long as AgentOrders does: on a worker of that
//           host's own (Engine's lanes).
// Errors    unavailable with EAGAIN   passes: try again (passing_failure)
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/host_names.h"
#include "core/base/sync/mutex.h"
#include "daemon/memory/backend.h"

namespace terrace::daemon {

// "hostb" of "devdax:lease-7@hostb"; empty: an object of this machine.
std::string_view object_host(std::string_view name);
// "devdax:lease-7" of it: the name that the agent has it by.
std::string_view object_on_host(std::string_view name);

// An extent by what both machines know it by. Bytes.
struct WireExtent {
  std::string serial;
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct AgentOrder {
  enum class Kind { carve, fence, erase, scrub, resize, rebind, copy, exchange, write_back, kept, end_holders };
  Kind kind = Kind::fence;
  std::string object;  // without the host
  std::string other;   // rebind, copy: the object that takes the bytes
  uint64_t bytes = 0;
  uint64_t from_bytes = 0;  // resize
  uint64_t offset = 0;      // erase
  uint64_t length = 0;
  std::vector<WireExtent> extents;
  Nonce put = {};  // exchange
};

enum class OrderOutcome {
  done,
  refused,   // the agent said no: `error`
  not_sent,  // it is away: nothing happened
  unknown,   // it may have happened
  lapsed,    // its host lease ran out: every object of that host is fenced
};

struct AgentAnswer {
  OrderOutcome outcome = OrderOutcome::not_sent;
  Error error;                          // in words, unless done
  uint64_t bytes = 0;                   // scrub
  Nonce found = {};                     // exchange
  Kept kept = Kept::yes;                // kept
  std::vector<std::string> ended = {};  // end_holders
};

// Gives orders to agents; blocks until the outcome is there, or is given up as unknown.
class AgentOrders {
 public:
  virtual ~AgentOrders() = default;
  virtual AgentAnswer order(const std::string& host, const AgentOrder& order) = 0;
  // Blocks until an object that may have been carved on that host can be no more: it was destroyed there when
  // its agent registered again, or its host lease ran out. false: the manager is ending.
  virtual bool wait_until_forgotten(const std::string& host) = 0;
  // Whether the agent that is connected now has proved that it sees the memory of that device; for as long as
  // that process of it lives.
  // Blocks until every host that an earlier run of the manager had is heard of again, or its host lease has run
  // out: until then one of them may be at work on memory that no row names, by an order of that run. false: the
  // manager is ending.
  virtual bool wait_until_settled() = 0;
  virtual bool has_proved(const std::string& host, const std::string& serial) const = 0;
  virtual void set_proved(const std::string& host, const std::string& serial) = 0;
};

class RemoteBackend final : public Backend, public SharedByHosts {
 public:
  // `local`: the manager's own memory, which erases what an agent left behind. Both outlive it.
  RemoteBackend(AgentOrders& agents, Backend& local) : agents_(agents), local_(local) {}

  std::string_view kind() const override { return "remote"; }
  SharedByHosts* shared_by_hosts() override { return this; }
  std::vector<SeenDevice> discover() override { return {}; }
  void know_devices(const std::vector<KnownDevice>& devices) override;
  // Until an agent reports, its objects are taken to be as the rows say.
  void know_objects(const std::vector<KnownObject>& objects) override;
  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  Result<uint64_t> scrub(const std::string& name) override;
  bool erases_in_place(std::string_view name) const override;
  Status erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
               uint64_t length) override;
  // `yes` of a host that is away, that has lapsed, or whose agent does not know the question.
  Kept kept(const std::string& name, const std::vector<Extent>& extents) override;
  HoldersEnded end_holders(const std::string& name) override;
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<Extent>& extents) override;
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  bool is_shared(std::string_view name) const override;
  // Before anything new lies on memory that several machines see (AgentOrders::wait_until_settled).
  Status may_make_shared();
  // The host has it no more, or has lost it: registration destroys what is left.
  void forget(const std::string& name, bool unwritten);
  Result<Nonce> exchange(const std::string& name, const std::vector<Extent>& extents,
                         const Nonce& put) override;
  Status write_back(const std::string& name, const std::vector<Extent>& extents) override;
  bool take_unwritten(const std::string& name) override;
  Result<Hidden> hide(const std::string& view, const std::vector<Extent>& extents) override;
  std::string describe_memory() const override { return "memory of other hosts"; }
  bool huge_pages(std::string_view name) const override;

  // Extents as they go over the wire; devices that are not adopted are left out.
  std::vector<WireExtent> on_the_wire(const std::vector<Extent>& extents) const;

 private:
  AgentOrder order_of(AgentOrder::Kind kind, uint64_t bytes = 0, const std::vector<Extent>& extents = {}) const;
  AgentAnswer give(const std::string& name, AgentOrder order);
  void set_bytes(const std::string& name, uint64_t bytes);
  // Unless it has: that the agent sees the memory of these extents, where nobody has any yet.
  Status prove(const std::string& name, const std::vector<Extent>& extents);

  AgentOrders& agents_;
  Backend& local_;
  mutable Mutex mutex_;
  std::map<DeviceId, KnownDevice> devices_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> objects_
      TERRACE_GUARDED_BY(mutex_);                               // name -> bytes, as far as is known here
  std::set<std::string> unwritten_ TERRACE_GUARDED_BY(mutex_);  // until it is asked, or the object is forgotten
};

}  // namespace terrace::daemon
