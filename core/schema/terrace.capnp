@0xd7a3c1f0b5e94a26;
# Terrace's control plane. One connection begins at Gateway. Every reply carries `error` first: expected
# failures are data with stable codes (core/base/error.h); a Cap'n Proto exception means a broken
# connection or a defect. Sizes are bytes, durations nanoseconds, `...Ns` without "ttl" or "grace" are
# CLOCK_BOOTTIME of the daemon's machine.
#
# Evolution: fields and methods are only added. `Gateway.hello` settles a protocol version; a receiver
# must refuse a version that it does not know rather than guess.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("terrace::rpc");

const protocolVersion :UInt32 = 1;
const protocolVersionOldest :UInt32 = 1;

struct Error {
  code @0 :UInt16;      # 0 = no error; otherwise an ErrorCode
  osErrno @1 :Int32;
  where @2 :Text;
  detail @3 :Text;
}

enum LeaseMode {
  exclusive @0;        # one holder, mapped writable
  sharedReadOnly @1;   # one session writes (the granting one, or whoever attaches so first); others read
  sharedCoherent @2;   # several holders; tensors in it follow the coherence protocol
}

enum LeasePhase {
  pending @0;          # extents reserved, object being made; never durable, never shown as granted
  active @1;
  revoking @2;         # holder told; fenced at `deadlineNs` or when it releases
  fencing @3;          # holder is being shut out
  scrubbing @4;        # no holder; bytes being erased
  quarantined @5;      # could not be fenced or scrubbed; not granted until an administrator's release succeeds
}

enum Access { readOnly @0; readWrite @1; }

struct Extent {
  device @0 :Text;     # serial of the memdev
  offset @1 :UInt64;   # bytes from the device's start
  length @2 :UInt64;   # bytes
}

struct Usage {         # what the holder said of its use, and when; a report, not a measurement of ours
  ddrBytes @0 :UInt64; # resident in the holder's local DDR under the same arena
  cxlBytes @1 :UInt64; # resident in this lease's memory
  liveBytes @2 :UInt64; # bytes the holder's allocations occupy in this lease
  reportedNs @3 :UInt64; # 0 = never reported
  holder @4 :Text;     # "redis-server[1234]"
  ageNs @5 :UInt64;    # how long ago it was reported, when the reply was made
}

struct LeaseInfo {
  id @0 :UInt64;
  pool @1 :Text;
  tenant @2 :Text;
  host @3 :Text;
  label @4 :Text;
  bytes @5 :UInt64;
  epoch @6 :UInt64;    # LeaseEpoch, the fencing token
  mode @7 :LeaseMode;
  phase @8 :LeasePhase;
  ttlNs @9 :UInt64;    # 0 = persistent, no expiry
  expiresInNs @10 :UInt64; # from the moment of the reply; 0 when persistent or lapsed
  extents @11 :List(Extent);
  object @12 :Text;    # name of the backing object, for the operator
  reason @13 :Text;    # why it is being taken back, once it is
  usage @14 :Usage;
  objectBytes @15 :UInt64; # bytes the backing object really occupies now (0 when not asked for)
  hugePages @16 :Bool; # the object is backed by huge pages where aligned
  granuleBytes @17 :UInt64;
  tier @18 :Text;      # "cxl"
  isolation @19 :Text; # "kernel" or "cooperative"
}

struct DeviceInfo {
  serial @0 :Text;
  backend @1 :Text;    # emulated | numa | devdax | pmem
  capacityBytes @2 :UInt64;
  granuleBytes @3 :UInt64;
  adopted @4 :Bool;
  pool @5 :Text;       # empty: none
  present @6 :Bool;    # false: adopted once, not seen now
  detail @7 :Text;     # how it is reached, what is wrong with it
  freeBytes @8 :UInt64;
}

struct PoolInfo {
  name @0 :Text;
  devices @1 :List(Text);
  capacityBytes @2 :UInt64;
  freeBytes @3 :UInt64;
  leasedBytes @4 :UInt64;      # active and revoking
  scrubbingBytes @5 :UInt64;   # fencing and scrubbing
  quarantinedBytes @6 :UInt64;
  leases @7 :UInt32;
  largestFreeBytes @8 :UInt64; # the longest free run
  granuleBytes @9 :UInt64;
}

struct ServerInfo {
  version @0 :Text;
  pid @1 :UInt32;
  uptimeNs @2 :UInt64;
  bootId @3 :Text;
  runtimeDirectory @4 :Text;
  stateFile @5 :Text;
  objectDirectory @6 :Text;
  hugePages @7 :Text;          # what the object directory's mount allows, in words
  storeCommits @8 :UInt64;
  commandsApplied @9 :UInt64;
  connections @10 :UInt32;
  recovered @11 :Text;         # what the last start found and did
  failpoints @12 :Bool;
}

interface Gateway {
  # What a connection can reach before it is authenticated. On the unix socket the peer's uid
  # (SO_PEERCRED) decides what the other two calls allow.
  hello @0 (oldest :UInt32, newest :UInt32, client :Text)
        -> (error :Error, version :UInt32, server :Text, admin :Bool, tenant :Text);
  openSession @1 (tenant :Text, host :Text, listener :LeaseListener)
        -> (error :Error, session :TenantSession, tenant :Text);
  # `tenant` empty: the one that the peer's uid maps to. Only an admin uid may name another one.
  openAdmin @2 () -> (error :Error, admin :Admin);
}

interface LeaseListener {
  # Called by the daemon, at least once for each revocation of a lease that this session granted or
  # attached. The receiver should stop using the memory and release before `graceNs` has passed.
  revoking @0 (lease :UInt64, graceNs :UInt64, reason :Text);
  fenced @1 (lease :UInt64, reason :Text);   # the descriptor is dead from now on
}

struct GrantRequest {
  pool @0 :Text;
  bytes @1 :UInt64;        # rounded up to granules
  mode @2 :LeaseMode;
  ttlNs @3 :UInt64;        # 0 with persistent = true: no expiry; 0 otherwise: the default
  persistent @4 :Bool;
  label @5 :Text;          # shown to operators; unique within the tenant when not empty
  requestHigh @6 :UInt64;  # a 128-bit key chosen at random; a retry with the same key returns the same
  requestLow @7 :UInt64;   # lease instead of a second one. Both 0: no protection
}

interface TenantSession {
  grant @0 (request :GrantRequest) -> (error :Error, info :LeaseInfo, lease :Lease);
  attach @1 (lease :UInt64, label :Text, access :Access) -> (error :Error, info :LeaseInfo, lease :Lease);
  # By id, or by label when the id is 0. Read-only access gives a descriptor that the kernel refuses to
  # map writable. Other tenants' leases do not exist for this session.
  list @2 (after :UInt64, limit :UInt32) -> (error :Error, leases :List(LeaseInfo));
  pools @3 () -> (error :Error, pools :List(PoolInfo));
  renewMany @4 (leases :List(UInt64), ttlNs :UInt64) -> (error :Error, failed :List(RenewFailure));
  # All of them in one durable step; ttlNs 0 keeps each lease's own.
}

struct RenewFailure {
  lease @0 :UInt64;
  error @1 :Error;
}

interface Lease {
  # Holding this capability keeps nothing alive: the lease lives by its expiry, not by the connection.
  # The memory's descriptor is the capability's own: getFd().
  info @0 () -> (error :Error, info :LeaseInfo);
  renew @1 (ttlNs :UInt64) -> (error :Error, expiresInNs :UInt64);
  release @2 () -> (error :Error);
  reportUsage @3 (usage :Usage) -> (error :Error);
}

interface Admin {
  status @0 () -> (error :Error, server :ServerInfo, pools :List(PoolInfo), leases :UInt32);
  devices @1 () -> (error :Error, devices :List(DeviceInfo));
  adopt @2 (serial :Text) -> (error :Error, device :DeviceInfo);
  createPool @3 (name :Text, devices :List(Text)) -> (error :Error, pool :PoolInfo);
  pools @4 () -> (error :Error, pools :List(PoolInfo));
  deletePool @5 (name :Text) -> (error :Error);
  leases @6 (pool :Text, tenant :Text, after :UInt64, limit :UInt32) -> (error :Error, leases :List(LeaseInfo));
  # Ascending ids greater than `after`; empty filters match all; a short answer is the last one.
  lease @7 (lease :UInt64, label :Text) -> (error :Error, info :LeaseInfo);
  revoke @8 (lease :UInt64, graceNs :UInt64, reason :Text) -> (error :Error, info :LeaseInfo);
  renew @9 (lease :UInt64, ttlNs :UInt64) -> (error :Error, info :LeaseInfo);
  release @10 (lease :UInt64) -> (error :Error);
  check @11 () -> (error :Error, problems :List(Text));
  # Re-derives every invariant of the state machine and compares it with the objects that exist.
}
