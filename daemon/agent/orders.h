// SPDX-License-Identifier: Apache-2.0
// The agent's orders: carries out the manager's orders on this host's memory, and fences all of it when the
// host lease is no longer renewed.
//
// Place     HostAgent (the manager's capability) -> here -> the backends, on workers.
// Threads   The event loop's thread; the work runs on two workers, fences ahead of what takes long.
#pragma once

#include <kj/async.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "daemon/agent/fencing.h"
#include "daemon/consent/consented_holders.h"
#include "daemon/event_loop/worker.h"
#include "daemon/hosts/agent_wire.h"
#include "daemon/memory/backend.h"

namespace terrace::daemon {

class Orders {
 public:
  struct Guarding {
    // What has to be on record before an object exists; `registered`: all that earlier processes made is known.
    std::function<Status(bool registered)> record;
    // Shuts holders out of all that is on record, fast and whatever this process knows of it.
    std::function<Status()> fence;
  };
  // `in_force`: whether new memory may be made for the manager now. All are called on workers as well.
  // `consents`: the programs of this host that agreed to be ended at a fence.
  Orders(Backend& backend, ConsentedHolders& consents, std::function<bool()> in_force, Guarding guarding)
      : backend_(backend),
        consents_(consents),
        in_force_(std::move(in_force)),
        guarding_(std::move(guarding)) {}
  ConsentedHolders& consents() { return consents_; }

  // Asked before there is more to be fenced; on the event loop's thread. An error: it could not be fenced in time, or
  // not yet; with `must` it comes anyway.
  using Allow = std::function<Status(const FenceEstimate& more, bool must)>;
  void on_more(Allow allow) { allow_ = std::move(allow); }
  // What there is to be fenced, and what that takes.
  Fencing& fencing() { return fencing_; }

  // The capability for one connection to the manager. Orders that come after revoke() are refused.
  rpc::HostAgent::Client make_host_agent();
  void revoke() { ++generation_; }
  uint64_t generation() const { return generation_; }

  // What this host shows now.
  std::vector<SeenDevice> devices() { return backend_.discover(); }
  // The manager's devices of today; those of them that this host shows can be used from now on. Returns the
  // serials that are new.
  std::vector<std::string> know_devices(const std::vector<SeenDevice>& adopted);
  // What was on devices that the manager adopted meanwhile goes. One that cannot be taken over refuses carves.
  kj::Promise<void> take_over(std::vector<std::string> serials);
  // What should be here, and what is. On a worker.
  kj::Promise<Result<std::vector<ObservedObject>>> take_stock(std::vector<WireObject> assigned);
  kj::Promise<void> refresh();
  // Fences every object there is, and ends what is under way. Resolves when nothing of this process touches the
  // memory any more; an error names what could not be fenced. After revoke().
  kj::Promise<Status> fence_all();
  Status before_promise() { return guarding_.record(true); }

  // On a worker. What there is and will be belongs to the manager's store.
  kj::Promise<Status> claim(StoreClaim claim);
  // Orders of this connection are carried out from now on: its manager is the one that this host obeys.
  void obey() { obeyed_ = generation_ + 1; }
  bool obeys(uint64_t generation) const { return obeyed_ == generation + 1; }
  // Before a program here is given the object of a lease.
  Status hand_out(const std::string& name) { return backend_.hand_out(name); }
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) { return backend_.open(name, access); }
  Backend& backend() { return backend_; }
  // Of memory that is this host's alone there is nothing to write back.
  Status write_back(const std::string& object, const std::vector<Extent>& extents);
  Result<Nonce> exchange(const std::string& object, const std::vector<Extent>& extents, const Nonce& put);

  // --- for HostAgent ---
  // The object is to be made, or to have so many bytes. Counts it, unless it is refused.
  Status make_room(const std::string& object, uint64_t bytes, bool must = false);
  // On a worker; what it takes is measured.
  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents);
  Status fence_one(const std::string& object);
  Result<std::vector<Extent>> local_extents(const std::vector<WireExtent>& extents) const;
  bool in_force() const { return in_force_(); }
  Status before_carve() const { return guarding_.record(false); }
  template <typename Work>
  auto run(Work work, bool urgent) {
    return (urgent ? urgent_ : bulk_).run(std::move(work), urgent);
  }

 private:
  Backend& backend_;
  ConsentedHolders& consents_;
  std::function<bool()> in_force_;
  Guarding guarding_;
  Allow allow_;
  Fencing fencing_;
  const SystemClock clock_;
  std::map<std::string, KnownDevice> devices_;  // by serial; ids are this process's own
  std::atomic<uint64_t> generation_ = 0;
  std::atomic<uint64_t> obeyed_ = 0;  // 1 + the generation whose orders count
  Worker urgent_{Worker::make_thread(true)};
  Worker bulk_;
};

}  // namespace terrace::daemon
