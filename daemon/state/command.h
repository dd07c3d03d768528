// The commands, replies and effects of the state machine. Time and randomness are fields: the machine
// itself reaches no clock, socket or disk, so that a simulation can drive the same object.
//
// Place     daemon/rpc makes commands from requests, daemon/event_loop applies them and performs effects.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/base/result.h"
#include "daemon/state/rows.h"

namespace terrace::daemon {

// --- commands -------------------------------------------------------------------------------------

struct AdoptDevice {
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
};
struct CreatePool {
  std::string name;
  std::vector<std::string> device_serials;
};
struct DeletePool {
  std::string name;
};
struct Grant {
  std::string pool;
  std::string tenant;
  std::string host;
  std::string label;
  uint64_t bytes = 0;
  LeaseMode mode = LeaseMode::exclusive;
  bool persistent = false;
  uint64_t ttl_ns = 0;  // 0: limits::ttl_ns_default
  uint64_t request_high = 0;
  uint64_t request_low = 0;
  uint64_t now_ns = 0;
};
struct CarveFinished {
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};
// `tenant` empty: an administrator acts; otherwise another tenant's lease is not_found.
struct Renew {
  LeaseId lease;
  std::string tenant;
  uint64_t ttl_ns = 0;  // 0: the lease's own
  uint64_t now_ns = 0;
};
struct Release {
  LeaseId lease;
  std::string tenant;
  uint64_t now_ns = 0;
};
struct Revoke {
  LeaseId lease;
  std::string reason;
  uint64_t grace_ns = 0;
  uint64_t now_ns = 0;
};
// Applies everything that is due at `now_ns`: expiries, and revocations whose grace is over.
struct Tick {
  uint64_t now_ns = 0;
};
struct FenceFinished {
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};
struct ScrubFinished {
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};

using Command = std::variant<AdoptDevice, CreatePool, DeletePool, Grant, CarveFinished, Renew, Release, Revoke,
                             Tick, FenceFinished, ScrubFinished>;

// --- effects: what the shell does once the step's Delta is durable ---------------------------------
// CarveObject is the one exception: its step has no Delta and it runs at once, before the grant is durable.

struct CarveObject {
  LeaseId lease;
  std::string object;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
};
struct FenceObject {
  LeaseId lease;
  std::string object;
};
struct ScrubObject {
  LeaseId lease;
  std::string object;
};
// Tell the holders: sent when a revocation begins. `fenced` notices follow a finished fence.
struct NotifyHolders {
  LeaseId lease;
  std::string reason;
  uint64_t grace_ns = 0;
  bool fenced = false;
};

using Effect = std::variant<CarveObject, FenceObject, ScrubObject, NotifyHolders>;

// --- replies --------------------------------------------------------------------------------------

struct Done {};        // nothing more to say
struct GrantPending {  // reply to the client when CarveFinished for this lease was applied
  LeaseId lease;
};
struct LeaseReply {  // an active (or retried) lease
  LeaseRow lease;
};
struct DeviceReply {
  DeviceRow device;
};
struct PoolReply {
  PoolRow pool;
};

using Reply = std::variant<Done, GrantPending, LeaseReply, DeviceReply, PoolReply>;

struct Step {
  Result<Reply> reply = Reply{Done{}};
  Delta delta;  // empty when the command was refused or changed nothing
  std::vector<Effect> effects;
};

}  // namespace terrace::daemon
