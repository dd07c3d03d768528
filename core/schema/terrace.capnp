# SPDX-License-Identifier: Apache-2.0
@0xd7a3c1f0b5e94a26;
# Terrace's control plane. One connection begins at Gateway. Every reply carries `error` first: expected
# failures are data with stable codes (core/base/error.h); a Cap'n Proto exception means a broken
# connection or a defect. Sizes are bytes, durations nanoseconds, `...Ns` without "ttl" or "grace" are
# CLOCK_BOOTTIME of the daemon's machine.
#
# Evolution: fields and methods are only added. `Gateway.hello` settles a protocol version; a receiver
# must refuse a version that it does not know rather than guess.

using Cxx = import "/capnp/c++.capnp";
using Json = import "json.capnp";
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
  transferring @6;     # handed to another tenant; nobody holds it until that is done
  waiting @7;          # a grant in the queue of a full pool; never shown as granted
}

enum LeaseCause {      # why a lease was or is being taken from its holder
  none @0;
  released @1;
  expired @2;
  revoked @3;
  objectLost @4;
  deviceLost @5;
  moved @6;
}

# What becomes of the processes that hold a lease when its memory is taken. `kill`: each of them agreed to be ended first, so
# that what they pinned (a GPU's registration, say) holds up nobody (docs/design/0047-kill-then-fence.md).
enum OnFence { keep @0; kill @1; }

enum DeviceState { inService @0; draining @1; failed @2; }
enum Placement { linear @0; striped @1; spread @2; }
# Whether memory may go from one tenant to another who does not trust it: `verified` where nobody reaches it after a
# fence, which the kernel sees to or the manager proves; `trusting` where pages that were pinned may stay in reach.
enum Isolation { verified @0; trusting @1; }
enum Trust { none @0; mutual @1; } # what an operator says of a pool's tenants
enum Coherence { unknown @0; coherent @1; noncoherent @2; } # between the caches of hosts; unknown: take it for the last

enum Access { readOnly @0; readWrite @1; }

struct Extent {
  device @0 :Text;     # serial of the memdev
  offset @1 :UInt64 $Json.key("offset_bytes");   # from the device's start
  length @2 :UInt64 $Json.key("length_bytes");
}

struct Usage {         # what the holder said of its use, and when; a report, not a measurement of ours
  ddrBytes @0 :UInt64; # resident in the holder's local DDR under the same arena
  cxlBytes @1 :UInt64; # resident in this lease's memory
  liveBytes @2 :UInt64; # bytes the holder's allocations occupy in this lease
  reportedNs @3 :UInt64 $Json.hidden; # 0 = never reported
  holder @4 :Text;     # "redis-server[1234]"
  ageNs @5 :UInt64;    # how long ago it was reported, when the reply was made
}

struct RunCounters {   # since the run's start
  promotions @0 :UInt64; # granules that rose to DDR
  demotions @1 :UInt64;
  promotedBytes @2 :UInt64;
  demotedBytes @3 :UInt64;
  stalledNs @4 :UInt64; # in which an access could have waited for a move: a bound
  refused @5 :UInt64;  # large requests that found no room and failed
  fallbacks @6 :UInt64; # large requests that found no room, and that plain memory served
}

struct RunHeat {       # where a program's accesses go: the heap of its process with the most sampled memory, as bands of
                       # equal size from the heap's start to its last memory. Lists have an entry a band, 64 at most
  bandBytes @0 :UInt64;
  heat @1 :List(UInt8); # accesses a second of a granule there, on average: 0 none, else 1 and so many eighths of a
                       # doubling over one. An estimate, to be compared within one program
  ddrPercent @2 :List(UInt8); # of the band, what lies in DDR
  cxlPercent @3 :List(UInt8); # and in leased memory; the rest has no memory
}

struct RunFigures {    # what a program says of its memory: a report, not a measurement of ours (docs/design/0033-runs.md)
  program @0 :Text;
  processes @1 :UInt32;
  liveBytes @2 :UInt64; # the program's blocks
  ddrBytes @3 :UInt64; # charged to its DDR budget
  cxlBytes @4 :UInt64; # in use of what it leases
  plainBytes @5 :UInt64; # of its allocator, outside of both
  ddrBytesMax @6 :UInt64; # the budget
  leasedBytes @7 :UInt64;
  sampledBytes @8 :UInt64; # of memory whose accesses are looked at; 0: nobody looks
  ddrHitPermille @9 :UInt32 $Json.onlyWith("sampledBytes"); # of its accesses, those that DDR served: an estimate
  counters @10 :RunCounters;
  toldBefore @11 :RunCounters $Json.hidden; # of `counters`, what was told over an earlier connection; the same in
                       # every report of a connection
  heat @12 :RunHeat $Json.nullable; # absent: nobody looks at accesses, or of a program that is older
}

struct RunInfo {       # a program that reports, while its connection lives
  host @0 :Text;
  agent @1 :Text $Json.nullable; # the host whose agent passes it on; empty: it runs on the manager's own machine
  pid @2 :UInt32 $Json.nullable; # of who reports, as the manager sees it; 0: not known
  uid @3 :UInt32 $Json.onlyWith("pid");
  tenant @4 :Text;
  figures @5 :RunFigures;
  promotionsPerS @6 :UInt64; # between its last two reports, as the next ones
  demotionsPerS @7 :UInt64;
  copyBytesPerS @8 :UInt64;
  stalledNsPerS @9 :UInt64;
  ageNs @10 :UInt64;   # since its last report
}

struct TierAttributes { # how fast and how durable memory is; 0: not known
  latencyNs @0 :UInt32 $Json.nullable;  # of a load, as seen from the nearest CPU
  bandwidthBytesPerS @1 :UInt64 $Json.nullable;
  numaNode @2 :Int32 = -1 $Json.nullable;
  numaDistance @3 :UInt32 $Json.nullable; # of that node from the nearest with CPUs (10: local)
  persistent @4 :Bool;   # keeps its bytes without power
  source @5 :Text $Json.nullable; # "hmat": the firmware's table; "cdat": the devices' own; "measured"; empty: no figures
  isolation @6 :Text $Json.nullable; # what a lease is, and who else can reach that memory: "device", "namespace", "node",
                         # "file" (docs/operations/devices.md); empty: not said
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
  expiresInNs @10 :UInt64 $Json.onlyWith("ttlNs"); # from the moment of the reply; 0 when persistent or lapsed
  extents @11 :List(Extent);
  object @12 :Text;    # name of the backing object, for the operator
  reason @13 :Text;    # why it is being taken back, once it is
  usage @14 :Usage $Json.nullable; # absent: never reported
  objectBytes @15 :UInt64 $Json.onlyWith("measured"); # bytes the backing object really occupies now
  hugePages @16 :Bool; # the object is backed by huge pages where aligned
  granuleBytes @17 :UInt64;
  tier @18 :Text;      # "cxl"
  isolation @19 :Text; # "kernel" or "cooperative"
  cause @20 :LeaseCause $Json.nullable;
  movable @21 :Bool;
  holders @22 :UInt32; # sessions that have it attached now
  attributes @23 :TierAttributes $Json.key("figures"); # of its devices together (docs/operations/devices.md)
  agent @24 :Text $Json.nullable; # the host whose agent holds its memory object; empty: the manager's own
  coherence @25 :Coherence; # of its pool
  owners @26 :List(PartOwner); # of its parts; empty in lists
  persistent @27 :Bool; # no expiry: ttlNs is 0
  measured @28 :Bool $Json.hidden; # objectBytes was looked at: the call was about this lease
  offeredTo @29 :Text $Json.nullable; # the tenant whose acceptance makes it that one's; empty: none
  onFence @30 :OnFence;
  furtherHosts @31 :List(Text); # that have it attached as well, besides the one of `agent`: it has a memory object on each
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
  state @9 :DeviceState $Json.onlyWith("adopted");
  largestFreeBytes @10 :UInt64;
  leases @11 :UInt32;  # with extents on it, whatever their phases
  usedBytes @12 :UInt64; # of those leases, on this device
  attributes @13 :TierAttributes $Json.key("figures");
  contents @14 :Text $Json.nullable; # what adopting it destroys, in words; empty: nothing
  isolation @15 :Isolation;
}

struct Inventory {     # what CXL and DAX hardware the kernel shows; nothing of it is adopted by being here
  struct Memdev {
    serial @0 :Text;   # "0x1234abcd"; "mem0@HOST" for one without
    name @1 :Text;     # "mem0", for this boot only
    model @2 :Text;    # PCI vendor:device, or a name
    firmware @3 :Text;
    health @4 :Text;   # in words: "ok", "media warning", "not readable: ..."
    ramBytes @5 :UInt64;
    pmemBytes @6 :UInt64;
    numaNode @7 :Int32 = -1 $Json.nullable;
    enabled @8 :Bool;  # bound to the driver
    path @9 :List(Text); # from the root: "ACPI0017:00 root0", "port1", "0000:0c:00.0", ...
    usedBy @10 :List(Text) $Json.hidden; # regions, each of which says it
    ramQosClass @11 :Int32 = -1 $Json.nullable; # CDAT's QoS throttling group of each partition; -1: not known
    pmemQosClass @12 :Int32 = -1 $Json.nullable;
  }
  struct Decoder {
    name @0 :Text;     # "decoder0.0"
    kind @1 :Text;     # "root", "switch", "endpoint"
    start @2 :UInt64;  # host physical address; of a root decoder: the window
    bytes @3 :UInt64;
    freeBytes @4 :UInt64 $Json.onlyWith("kind = root"); # of a root decoder: the longest extent a region could still take
    interleaveWays @5 :UInt32;
    interleaveGranularity @6 :UInt32;
    targets @7 :List(Text);
    pmem @8 :Bool;     # what it can decode
    volatile @9 :Bool $Json.key("ram");
    region @10 :Text $Json.nullable; # empty: none
  }
  struct Region {
    name @0 :Text;     # "region0", for this boot only
    kind @1 :Text;     # "pmem", "ram"
    start @2 :UInt64 $Json.nullable;
    bytes @3 :UInt64;
    interleaveWays @4 :UInt32;
    interleaveGranularity @5 :UInt32;
    memdevs @6 :List(Text); # serials, in the order of interleaving
    committed @7 :Bool;
    decoder @8 :Text;
    attributes @9 :TierAttributes $Json.key("figures"); # by the devices' own tables (CDAT), if the kernel has them
    position @10 :UInt64 $Json.hidden; # bytes into the first memdev at which it begins; the serial has it unless 0
    serial @11 :Text $Json.nullable; # as a device: "pmem:0xc0.0xc1"; empty: its memdevs are not known
  }
  struct DaxRegion {
    name @0 :Text;     # "region0" of the dax bus, or its device: "hmem.0"
    serial @1 :Text $Json.nullable; # as a device of `devices`: "dax:hmem@0x100000000"; empty: it cannot be one
    bytes @2 :UInt64;
    freeBytes @3 :UInt64;
    alignBytes @4 :UInt64;
    dynamic @5 :Bool $Json.hidden; # can be cut into devices, as all that are listed
    numaNode @6 :Int32 = -1 $Json.nullable;
  }
  struct DaxDevice {
    name @0 :Text;     # "dax0.1", for this boot only
    region @1 :Text;
    mode @2 :Text;     # "devdax", "system-ram", "disabled"
    bytes @3 :UInt64;
    alignBytes @4 :UInt64;
    numaNode @5 :Int32 = -1 $Json.nullable;
    online @6 :Bool;   # system-ram only
    holder @7 :Text $Json.nullable; # the lease it is, or who has it open: "lease 7", "vllm[12]"; empty: nobody seen
  }
  struct Namespace {
    name @0 :Text;     # "namespace0.1"
    region @1 :Text;
    mode @2 :Text;     # "devdax", "fsdax", "raw", "sector"
    bytes @3 :UInt64;
    uuid @4 :Text $Json.nullable;
    label @5 :Text $Json.nullable; # its alternative name: the lease's object where it is ours
    device @6 :Text $Json.nullable; # "dax0.1" or "pmem0"; empty: disabled
  }
  struct Node {
    id @0 :UInt32 $Json.key("node");
    cpus @1 :Bool;
    bytes @2 :UInt64;
    freeBytes @3 :UInt64;
    attributes @4 :TierAttributes $Json.key("figures");
  }
  memdevs @0 :List(Memdev);
  decoders @1 :List(Decoder);
  regions @2 :List(Region);
  daxRegions @3 :List(DaxRegion);
  daxDevices @4 :List(DaxDevice);
  namespaces @5 :List(Namespace);
  nodes @6 :List(Node);
  notes @7 :List(Text); # what could not be read, in words
}

struct HostInfo {      # a further host, whose agent does the work on its memory objects
  name @0 :Text;       # as its certificate says
  state @1 :Text;      # "connected", "registering", "away" (its leases may still be in use), "self-fenced", "removed"
  address @2 :Text;    # of the agent's connection, or of the last one
  version @3 :Text;
  lastContactNs @4 :UInt64; # how long ago it was heard of; 0 with an empty address: not since the start
  endsInNs @5 :UInt64; # while away, or removed and not forgotten: until its leases count as fenced
  leases @6 :UInt32;   # with a memory object there, whatever their phases
  leasedBytes @7 :UInt64;
  devices @8 :List(Text);   # serials that the agent sees
  detail @9 :Text;     # what is wrong, in words
  certificateDaysLeft @10 :Int32 = -1 $Json.nullable; # of its agent's; -1: not connected
  certificateEndsSoon @11 :Bool; # time to issue a new one
  # 0: its agent has not said so, or is of an earlier version.
  fenceNs @12 :UInt64 $Json.nullable;     # what taking away all that is leased there takes, as its agent has measured
  marginNs @13 :UInt64 $Json.nullable;    # how long before the end of its host lease it begins
  marginMaxNs @14 :UInt64 $Json.nullable; # a grant that would need more is refused
}

struct CertificateEnd { # until when one of the manager's own is good
  what @0 :Text;       # "certificate", "ca", "revocation list"
  name @1 :Text;       # whose; of the list: its file
  daysLeft @2 :Int32;
  soon @3 :Bool;       # time to do something about it
}

struct FreeClass {     # free runs of one power-of-two class of sizes
  runBytesMin @0 :UInt64; # the class holds runs of at least this and less than twice this
  runs @1 :UInt64;
  bytes @2 :UInt64;
}

struct PoolInfo {
  name @0 :Text;
  devices @1 :List(Text);
  capacityBytes @2 :UInt64;
  freeBytes @3 :UInt64;        # on devices that are there
  leasedBytes @4 :UInt64;      # active and revoking
  scrubbingBytes @5 :UInt64;   # fencing and scrubbing
  quarantinedBytes @6 :UInt64;
  leases @7 :UInt32;
  largestFreeBytes @8 :UInt64; # the longest free run
  granuleBytes @9 :UInt64;
  placement @10 :Placement;
  stripeBytes @11 :UInt64 $Json.nullable; # 0: not striped
  freeClasses @12 :List(FreeClass) $Json.key("free_runs"); # ascending, empty classes left out
  reservedBytes @13 :UInt64;   # of the free bytes, kept for tenants with reservations
  waiting @14 :UInt32;         # grants in the queue
  waitingBytes @15 :UInt64;
  grantableBytes @16 :UInt64;  # free on devices in service that are present
  attributes @17 :TierAttributes $Json.key("figures"); # of its devices together, as of a lease on all of them
  coherence @18 :Coherence;
  isolation @19 :Isolation;    # as the worst of its devices
  trust @20 :Trust;            # trusting memory is granted only where it is `mutual`
  absentBytes @21 :UInt64;     # of the capacity: nobody's, on devices that are not there; not free
  absentDevices @22 :List(Text); # serials, of `devices`
}

struct HostProcess {   # of an agent's host, as that agent sees it; means nothing on another host
  pid @0 :UInt64;      # 0: none
  started @1 :UInt64;  # /proc/PID/stat, field 22
  space @2 :UInt64;    # in the low half a hash of the namespaces that both are told in, in the high half one of the boot
}

struct PartOwner {     # of one part of a sharedCoherent lease
  part @0 :UInt32;
  epoch @1 :UInt64;    # of the owner, or of the last one
  owned @2 :Bool;      # false: it was given back, or its owner was shut out
  ended @3 :Bool;      # the owner's process, on the manager's own host, is no more: the next claim gets the part
  pid @4 :UInt32 $Json.onlyWith("owned");
  holder @5 :Text $Json.onlyWith("owned"); # "python3[1234]"
  host @6 :Text $Json.onlyWith("owned");   # where the process is; empty: the manager's own host
}

struct Move {          # a lease that should leave its place, for a drain or a compaction
  lease @0 :UInt64;
  tenant @1 :Text;
  label @2 :Text;
  bytes @3 :UInt64;    # of the lease; all of it moves
  state @4 :Text;      # "asked", "moving", "waits for room", "not movable", "held by several", ...
  blocked @5 :Bool;    # it will not go by itself; `state` says why and what to do
}

struct DeviceProgress { # of a drain
  device @0 :DeviceInfo;
  leftBytes @1 :UInt64;
  moves @2 :List(Move);
}

struct Compaction {
  active @0 :Bool;     # false: the run is there, or the plan was ended
  device @1 :Text $Json.nullable; # empty: a run of that length is free already
  offset @2 :UInt64 $Json.key("offset_bytes") $Json.onlyWith("device");
  length @3 :UInt64 $Json.key("length_bytes") $Json.onlyWith("device");
  leftBytes @4 :UInt64;
  moves @5 :List(Move);
}

struct Quota {
  tenant @0 :Text;     # "*": those without a quota of their own
  bytesMax @1 :UInt64 $Json.nullable; # 0: no bound
  leasesMax @2 :UInt64 $Json.nullable;
  bytes @3 :UInt64 $Json.onlyWith("tenant != *"); # in use now; 0 for "*"
  leases @4 :UInt64 $Json.onlyWith("tenant != *");
}

struct Reservation {
  id @0 :UInt64;
  pool @1 :Text;
  tenant @2 :Text;
  bytes @3 :UInt64;
  ttlNs @4 :UInt64;    # 0: until it is removed
  expiresInNs @5 :UInt64 $Json.onlyWith("ttlNs");
  usedBytes @6 :UInt64; # of the tenant's leases in that pool, over all its reservations there
}

struct AuditQuery {
  after @0 :UInt64;    # sequence; entries that are newer
  limit @1 :UInt32;    # 0: limits::audit_rows_per_page_max
  tenant @2 :Text;     # empty filters match all
  verb @3 :Text;       # a prefix
  subject @4 :Text;
  sinceNs @5 :UInt64;  # CLOCK_REALTIME
  newestFirst @6 :Bool;
}

struct AuditEntry {
  sequence @0 :UInt64;
  wallNs @1 :UInt64;   # CLOCK_REALTIME
  actor @2 :Text;
  tenant @3 :Text;
  verb @4 :Text;
  subject @5 :Text;
  detail @6 :Text;
}

struct Finding {       # of a consistency check
  severity @0 :Text;   # "error", "warning", "note"
  subject @1 :Text;
  what @2 :Text;
  repair @3 :Text;     # what would fix it, and who does that
}

# A section of docs/operations/health.md for each.
enum HealthCode {
  storeFailing @0;
  storeSlow @1;
  stateDiskFilling @2;
  deviceAbsent @3;
  deviceDraining @4;
  deviceUnhealthy @5;
  poolNearlyFull @6;
  poolFragmented @7;
  queueStuck @8;
  quarantineGrowing @9;
  scrubBehind @10;
  fenceFailed @11;
  fenceSlow @12;
  hostAway @13;
  hostLeaseRunningOut @14;
  hostVersionDiffers @15;
  certificateEnding @16;
  callsDenied @17;
  managerAway @18;     # of an agent, as the next
  guardMissing @19;
  tierThrash @20;
  kernelLacks @21;
}
enum HealthSeverity { healthy @0; warning @1; critical @2; } # healthy: of no finding, but of none at all

struct HealthFinding { # something about the manager that an operator should know, for as long as it is so
  code @0 :HealthCode;
  severity @1 :HealthSeverity;
  kind @2 :Text;       # of what it is about: "device", "pool", "host", "tenant", "store", ...
  name @3 :Text $Json.nullable; # which of these; empty: there is one only
  sinceWallNs @4 :UInt64; # CLOCK_REALTIME: when the manager first saw it so
  lastedNs @5 :UInt64; # how long ago that is
  text @6 :Text;       # what is wrong, with figures
  advice @7 :Text;     # what to do
  page @8 :Text;       # "docs/operations/health.md#device_absent"
}

struct PoolHistory {   # a row for each of `ageNs`; zeros: the pool was not there then
  name @0 :Text;
  capacityBytes @1 :List(UInt64);
  freeBytes @2 :List(UInt64);
  leasedBytes @3 :List(UInt64);
  scrubbingBytes @4 :List(UInt64);
  quarantinedBytes @5 :List(UInt64);
  absentBytes @6 :List(UInt64);
  leases @7 :List(UInt64);
  waiting @8 :List(UInt64);
}

struct HealthSummary {
  severity @0 :HealthSeverity; # the worst
  critical @1 :UInt32; # findings
  warnings @2 :UInt32;
}

enum EventKind {
  leaseGranted @0;
  leaseAttached @1;      # its memory was handed to a program
  leaseReleased @2;
  leaseExpired @3;
  leaseRevoked @4;
  leaseFenced @5;
  leaseFenceFailed @6;
  leaseErased @7;        # all of its memory is erased, and free
  leaseQuarantined @8;   # what cannot be fenced or erased is kept from everybody
  leaseResized @9;
  leaseMoved @10;
  leaseTransferred @11;  # to another tenant or host
  poolCreated @12;
  poolRemoved @13;
  poolTrustChanged @14;
  poolCoherenceChanged @15;
  deviceAdopted @16;
  deviceAdded @17;       # to a pool
  deviceRemoved @18;
  deviceLost @19;
  deviceReturned @20;
  deviceDraining @21;
  deviceInService @22;   # after a drain that was ended, or a failure
  deviceFailed @23;
  hostRegistered @24;    # its agent, for the first time in this run of the manager
  hostAway @25;
  hostReturned @26;
  hostRemoved @27;
  callDenied @28;
  healthRaised @29;
  healthCleared @30;
  managerStarted @31;
  managerStopping @32;
  managerFailed @33;     # it cannot write its store, and refuses commands
  managerRecovered @34;
  configurationReloaded @35;
  configurationRefused @36;
  backupTaken @37;
  checkFoundProblems @38;
  eventsDropped @39;     # a sink of [events] did not take as many as `count`
  leaseHolderEnded @40;  # a process that had agreed to it, before the memory was taken
}
enum EventSeverity { info @0; warning @1; critical @2; }

struct Event { # something that happened in the manager
  id @0 :UInt64;         # from 1 on, without gaps, in each run of the manager
  run @1 :Text;          # of the manager's process; with `id` it names the event
  timeWallNs @2 :UInt64 $Json.key("time_ns"); # CLOCK_REALTIME
  time @3 :Text;         # the same, "2026-11-27T10:15:30.123Z"
  kind @4 :EventKind;
  severity @5 :EventSeverity;
  message @6 :Text;      # one line for people
  lease @7 :UInt64 $Json.nullable;
  tenant @8 :Text $Json.nullable;
  pool @9 :Text $Json.nullable;
  device @10 :Text $Json.nullable;  # serial
  host @11 :Text $Json.nullable;
  code @12 :Text $Json.nullable;    # of a finding of health, or of the error
  cause @13 :Text $Json.nullable;   # why: "expired", "device_lost"; who: "uid 0 (terrace[12])"
  bytes @14 :UInt64 $Json.nullable;
  tookNs @15 :UInt64 $Json.nullable; # how long it took, or lasted
  traceId @17 :Text $Json.nullable; # of the call that it was done for: 32 hex digits
  count @16 :UInt32;     # how many alike this one stands for: 1, but for refused calls and dropped events
}

struct EventQuery { # empty fields match all
  since @0 :UInt64;      # ids greater than this
  run @1 :Text;          # the run that `since` is of. Of another one than this manager's: all of this one's match
  limit @2 :UInt32;      # 0: as many as one answer has
  waitMs @3 :UInt32;     # answered when there is one that matches, or after so long
  sinceWallNs @4 :UInt64; # CLOCK_REALTIME
  kind @5 :Text;         # the beginning of its word: "lease_", "health_raised"
  severity @6 :EventSeverity; # at least
  lease @7 :UInt64;
  tenant @8 :Text;
  pool @9 :Text;
  device @10 :Text;
  host @11 :Text;
  newest @12 :Bool;      # the newest `limit` of those that match, not the oldest
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
  scrubbedBytes @13 :UInt64;     # since the start
  scrubQueuedBytes @14 :UInt64;
  scrubBytesPerS @15 :UInt64 $Json.nullable; # the bound in the background; 0: none
  waiting @16 :UInt32;           # grants in queues
  storeId @17 :Text $Json.nullable; # of the state file; memory that another store made is refused. Empty: it has none
  descriptors @18 :UInt32;       # open files of the manager's process
  descriptorsMax @19 :UInt32;    # as many may be
  connectionsMax @20 :UInt32;    # open at once, fewer than configured where too few files may be open
  sockets @21 :List(ServedSocket); # where it is reached; the first is the main one
  certificates @22 :List(CertificateEnd); # by which agents know this manager; empty: it listens for none
  agent @23 :AgentInfo $Json.nullable; # of a further host's agent; absent: this is a manager
}

struct AgentInfo {     # what the agent of a further host says of itself
  host @0 :Text $Json.nullable; # as the manager calls this host; empty: it was never connected
  manager @1 :Text;    # its address
  connected @2 :Bool;
  trouble @3 :Text $Json.nullable; # why it is not connected
  hostLeaseLeftNs @4 :UInt64 $Json.nullable; # what is leased here stays so long without another word from the manager; 0: nothing is promised
  sessions @5 :UInt32; # of programs of this host
  guarded @6 :Bool;    # a guard fences this host's memory when the agent cannot
}

struct ServedSocket {  # a unix socket of the daemon, and what whoever connects there may do
  path @0 :Text;
  role @1 :Text;       # "by-uid", "tenant", "operator", "administrator" (docs/operations/configuration.md)
  tenant @2 :Text $Json.nullable; # whom every caller acts for; empty: by its uid
}

struct WaitingGrant {  # a grant in the queue of a full pool
  lease @0 :UInt64;    # the id that it has, and its lease once it is served
  pool @1 :Text;
  tenant @2 :Text;
  host @3 :Text;
  label @4 :Text;
  bytes @5 :UInt64;
  waitedNs @6 :UInt64;
  endsInNs @7 :UInt64; # refused then
  place @8 :UInt32;    # in its queue, from 1, as it would be served when room comes
  turn @9 :Bool;       # room is kept for it now: nobody is let in before it
  calls @10 :UInt32;   # that wait for the answer now
}

struct StoreBackup {   # a whole store in one file, verified
  storeId @0 :Text;
  sequence @1 :UInt64; # commits that it has
  bytes @2 :UInt64;
  leases @3 :UInt64;
  devices @4 :UInt64;
  pools @5 :UInt64;
}

interface BackupFile {
  # getFd(): the backup, open for reading, without a name. Gone once it is closed.
}

interface Gateway {
  # What a connection can reach before it is authenticated. The role of the unix socket, and where that is by-uid the
  # peer's uid (SO_PEERCRED), decide what the other two calls allow.
  hello @0 (oldest :UInt32, newest :UInt32, client :Text, traceparent :Text)
        -> (error :Error, version :UInt32, server :Text, admin :Bool, tenant :Text, role :Text);
  # traceparent: of W3C's Trace Context, 55 bytes: the calls of this connection belong to that trace. Empty, or what is none: to
  # no trace of the client's. Never an error.
  # admin: openAdmin is answered, on an operator's socket with fewer methods; role: of the socket, empty: unknown.
  openSession @1 (tenant :Text, host :Text, listener :LeaseListener)
        -> (error :Error, session :TenantSession, tenant :Text);
  # `tenant` empty: the peer's own. Only an administrator may name another one.
  openAdmin @2 () -> (error :Error, admin :Admin);
  renewCertificate @3 () -> (error :Error, certificate :Text);
  # Over TLS only: another one (PEM) for the key and the rights of the certificate that this connection came with. Busy
  # before half of its life is over; unsupported where the manager has not the CA's key.
}

interface LeaseListener {
  # Called by the daemon, at least once for each revocation of a lease that this session granted or
  # attached. The receiver should stop using the memory and release before `graceNs` has passed.
  revoking @0 (lease :UInt64, graceNs :UInt64, reason :Text);
  fenced @1 (lease :UInt64, reason :Text, cause :LeaseCause);   # the descriptor is dead from now on
  moveRequested @2 (lease :UInt64, reason :Text);
  # Sent, and now and then repeated, to the one holder of a movable lease: it should call Lease.beginMove when
  # it can. Nothing happens to one that does not; operators see it named.
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
  movable @8 :Bool;        # may be asked to move, and be moved while no session has it attached: a holder
                           # that keeps it mapped must then stay connected
  waitNs @9 :UInt64;       # how long to wait in the queue of a full pool; 0: not at all
  endsWithHolders @10 :Bool;  # given back at once when every process that had it handed over, on the manager's
                              # own machine, has ended; else it lives until its expiry. Not with persistent
  onFence @11 :OnFence;       # kill: whoever holds it is ended before its memory is taken, and the caller agrees to that
  process @12 :UInt32;        # of the caller, as it knows itself (getpid). With `kill` it has to be the process that
                              # opened this connection: nobody agrees for another one
}

interface TenantSession {
  grant @0 (request :GrantRequest) -> (error :Error, info :LeaseInfo, lease :Lease);
  attach @1 (lease :UInt64, label :Text, access :Access, endsWithHolders :Bool, withoutMemory :Bool,
             onFence :OnFence, process :UInt32)
      -> (error :Error, info :LeaseInfo, lease :Lease);
  # By id, or by label when the id is 0. Read-only access gives a descriptor that the kernel refuses to
  # map writable. Other tenants' leases do not exist for this session. endsWithHolders: what the process asked
  # for in its grant, for a manager that was restarted since. withoutMemory: where none can be handed over (TLS), the
  # capability comes without a descriptor and makes nobody a holder; elsewhere it says nothing. A lease whose onFence is
  # `kill` is attached only with the same word, as in a grant; of another one the word says nothing.
  list @2 (after :UInt64, limit :UInt32) -> (error :Error, leases :List(LeaseInfo));
  pools @3 () -> (error :Error, pools :List(PoolInfo));
  renewMany @4 (leases :List(UInt64), ttlNs :UInt64) -> (error :Error, failed :List(RenewFailure));
  # All of them in one durable step; ttlNs 0 keeps each lease's own.
  userfaultfd @5 () -> (error :Error, device :UserfaultfdDevice);
  offers @6 (after :UInt64, limit :UInt32) -> (error :Error, leases :List(LeaseInfo));
  # Leases of other tenants that are offered to this one; pages as of `list`.
  acceptOffer @7 (lease :UInt64) -> (error :Error, info :LeaseInfo);
  # From now on it is this tenant's: counts against its quota, holds its label, is attached by `attach`.
  reportRun @8 (figures :RunFigures) -> (error :Error);
  # What this program's memory does, as of now; the last report of a connection counts, until it ends. A program that
  # holds leases may send one every few seconds.
}

interface UserfaultfdDevice {
  # getFd() is the receiver's own machine's /dev/userfaultfd, open. On it the receiver makes, with
  # USERFAULTFD_IOC_NEW, userfaultfds of its own address space that see the kernel's faults as well; one made
  # here would watch the daemon's. It cannot be taken back.
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
  resize @4 (bytes :UInt64) -> (error :Error, info :LeaseInfo, lease :Lease);
  # Rounded up to granules. Use the new capability, and its descriptor, from then on. Shrinking cuts the end off.
  transfer @5 (tenant :Text, host :Text) -> (error :Error, info :LeaseInfo, offered :Bool);
  # The bytes stay, every holder is fenced, the LeaseEpoch steps; empty host: the same. `offered`: nothing of that yet,
  # it waits for the other tenant's acceptOffer. An administrator's session asks nobody.
  beginMove @6 () -> (error :Error, move :LeaseMove, bytes :UInt64, object :Text);
  claimPart @7 (part :UInt32, lastEpoch :UInt64, key :UInt64, process :HostProcess) -> (error :Error, epoch :UInt64);
  # Makes the calling process the owner of a part (0 to 63) of a sharedCoherent lease, under an epoch greater than
  # `lastEpoch` and than every one before; busy while another process has it. `key`, not 0, is drawn for each claim:
  # repeated with the same one by the same process it answers the same. Ends with releasePart, with the process, or
  # with the lease; not with the connection. `process`: from an agent, whose program calls; others leave it out.
  releasePart @8 (part :UInt32, epoch :UInt64, process :HostProcess) -> (error :Error);
  partIsDead @9 (part :UInt32, epoch :UInt64) -> (error :Error, dead :Bool);
  # Whether the owner under `epoch` can store nothing any more: it gave the part back, or its process has ended.
  withdrawOffer @10 () -> (error :Error);
  openPath @11 (anotherUser :Bool, user :UInt32) -> (error :Error, path :Text);
  # Admits the calling user, or where an administrator (at an agent: root) asks for it another one, to the memory by a
  # path on this host, read-only or writable as this capability is. Whoever opens it is no holder, but has the grace of
  # a revoke: meanwhile the file's modification time is its end. Refused for a movable lease, whose path would not stay.
}

interface LeaseMove {
  # A move under way; its getFd() is the new memory, of the lease's size. Stop writing, copy, commit, map the
  # new descriptor, unmap the old one. Dropping it gives the move up.
  commit @0 () -> (error :Error, info :LeaseInfo, lease :Lease);
  # The old memory is fenced soon after: touch it no more. Repeated by the same holder it answers the same.
  abandon @1 () -> (error :Error);
}

enum CheckState { ok @0; limited @1; missing @2; } # limited: works, with less

struct DoctorCheck {   # one of `terrace doctor`, of the machine that the manager runs on
  name @0 :Text;       # stable, as in the command line
  group @1 :Text;      # machine, memory, limits, migration or hardware
  state @2 :CheckState;
  found @3 :Text;      # what was seen
  meaning @4 :Text;    # what that means for Terrace
  fix @5 :Text;        # what to do about it; empty: nothing
  essential @6 :Bool;  # missing: not even an emulated pool can be served
}

struct AdminGrant {      # a grant that an operator asks for, of which nobody is the holder: it lives by its TTL
  pool @0 :Text;         # may be left out where there is only one
  tenant @1 :Text;       # whose it is; empty: the caller's own. Only an administrator may name another one
  bytes @2 :UInt64;      # rounded up to granules
  mode @3 :LeaseMode;
  ttlNs @4 :UInt64;      # as in GrantRequest, and the next ones
  persistent @5 :Bool;
  label @6 :Text;
  movable @7 :Bool;
  requestHigh @8 :UInt64;
  requestLow @9 :UInt64;
  waitNs @10 :UInt64;    # of a preview only: a grant here does not wait
  onFence @11 :OnFence;
}

struct PreviewedAct {    # one of Admin's, with its parameters
  struct OfLease {
    lease @0 :UInt64;
    graceNs @1 :UInt64;  # of a revocation
    reason @2 :Text;
  }
  struct OfDevice {
    serial @0 :Text;
  }
  struct OfPool {
    pool @0 :Text;
    runBytes @1 :UInt64; # how long a free run is to be made
  }
  struct OfTenant {      # both bounds 0: removed
    tenant @0 :Text;
    bytesMax @1 :UInt64 $Json.nullable;
    leasesMax @2 :UInt64 $Json.nullable;
  }
  union {
    none @0 :Void $Json.hidden;
    grant @1 :AdminGrant;
    revoke @2 :OfLease;
    release @3 :OfLease;
    drain @4 :OfDevice;
    setQuota @5 :OfTenant;
    compact @6 :OfPool;
  }
}

struct PreviewedPlace {  # of a device: how much would come to it
  device @0 :Text;
  bytes @1 :UInt64;
}

struct PreviewedLease {  # that the act concerns
  lease @0 :UInt64 $Json.nullable; # 0: one that would be made
  tenant @1 :Text;
  host @2 :Text;
  label @3 :Text;
  bytes @4 :UInt64;
  to @5 :List(PreviewedPlace); # where it would lie; empty: nowhere else than now
  state @6 :Text;
  blocked @7 :Bool;      # it will not go by itself; `state` says why and what to do
  fromExtents @8 :List(Extent); # where a lease that would move lies now
  toExtents @9 :List(Extent); # of `to`: where exactly, if leases move one after the other
}

struct PreviewedTenant { # that the act concerns
  tenant @0 :Text;
  bytes @1 :UInt64;      # that it has; of a drain: on the device
  leases @2 :UInt64;
  bytesMax @3 :UInt64 $Json.nullable; # that it may have then; 0: no bound
  leasesMax @4 :UInt64 $Json.nullable;
  over @5 :Bool;         # it has more than that: it keeps it, and gets nothing more
}

struct Preview {         # what an act would do if nobody else asked for anything meanwhile
  summary @0 :Text;      # "moves 12 leases, 3.1 GiB"
  refusal @1 :Text $Json.nullable; # what the act would be refused with; empty: it would not be
  code @2 :UInt16 $Json.hidden;    # of that, as Error.code
  codeName @3 :Text $Json.key("code") $Json.nullable;
  notes @4 :List(Text);  # what else to know before it is done, in sentences
  leases @5 :UInt32;     # that it makes, moves or ends
  bytes @6 :UInt64;
  blockedLeases @7 :UInt32; # that would have to, and will not by themselves
  blockedBytes @8 :UInt64;
  to @9 :List(PreviewedPlace);
  all @10 :List(PreviewedLease) $Json.key("of_leases"); # the blocked ones first, at most 1000
  tenants @11 :List(PreviewedTenant); # at most 1000
  wouldWait @12 :Bool;   # of a grant without room: with a time to wait it would be in the queue
  waitingBefore @13 :UInt32 $Json.onlyWith("wouldWait"); # behind as many
  holders @14 :List(Text); # sessions that have the lease: "redis-server[1234]"
  run @15 :Extent $Json.nullable; # of a compaction: the place that it would clear; not sent: there is none
}

struct WhoAmI {          # who asks, as the manager sees it
  name @0 :Text;         # as in the audit log
  role @1 :Text;         # "operator", "administrator"
  tenant @2 :Text $Json.nullable; # whom it acts for
  methods @3 :List(Text); # of Admin, that it may call, in snake_case
  readOnly @4 :Text $Json.nullable; # why nothing can be changed this way; empty: it can
}

interface Admin {
  # Which methods an operator may call is in daemon/rpc/admin/rights.cc: a new one is added there.
  status @0 () -> (error :Error, server :ServerInfo, pools :List(PoolInfo), leases :UInt32, health :HealthSummary);
  devices @1 () -> (error :Error, devices :List(DeviceInfo));
  adopt @2 (serial :Text) -> (error :Error, device :DeviceInfo);
  createPool @3 (name :Text, devices :List(Text), placement :Placement, stripeBytes :UInt64,
                 coherence :Coherence, trust :Trust)
             -> (error :Error, pool :PoolInfo);
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
  addDevice @12 (pool :Text, serial :Text) -> (error :Error, pool :PoolInfo);
  drain @13 (serial :Text) -> (error :Error, progress :DeviceProgress);
  # Begins a drain; called again it reports where it stands.
  progress @14 (serial :Text) -> (error :Error, progress :DeviceProgress);
  undrain @15 (serial :Text) -> (error :Error, device :DeviceInfo);
  failDevice @16 (serial :Text) -> (error :Error, device :DeviceInfo);
  removeDevice @17 (serial :Text, forgetQuarantined :Bool) -> (error :Error);
  compact @18 (pool :Text, runBytes :UInt64, timeoutNs :UInt64) -> (error :Error, compaction :Compaction);
  # Begins a compaction for a free run of `runBytes`; 0 reports on the one under way; timeoutNs 0: an hour.
  endCompaction @19 (pool :Text) -> (error :Error);
  resize @20 (lease :UInt64, bytes :UInt64) -> (error :Error, info :LeaseInfo);
  transfer @21 (lease :UInt64, tenant :Text, host :Text) -> (error :Error, info :LeaseInfo);
  setQuota @22 (quota :Quota) -> (error :Error);   # both bounds 0: removed
  quotas @23 () -> (error :Error, quotas :List(Quota));
  reserve @24 (pool :Text, tenant :Text, bytes :UInt64, ttlNs :UInt64) -> (error :Error, reservation :Reservation);
  reservations @25 () -> (error :Error, reservations :List(Reservation));
  unreserve @26 (reservation :UInt64) -> (error :Error);
  audit @27 (query :AuditQuery) -> (error :Error, entries :List(AuditEntry), oldest :UInt64, newest :UInt64);
  fsck @28 () -> (error :Error, findings :List(Finding));
  # The store's rows against each other, against the devices and objects, and against what processes have
  # mapped (/proc). Changes nothing.
  quarantined @29 () -> (error :Error, leases :List(LeaseInfo));
  inventory @30 () -> (error :Error, inventory :Inventory);
  createRegion @31 (memdevs :List(Text), granularity :UInt32, bytes :UInt64) -> (error :Error, serial :Text);
  # Composes memdevs, by serial and in this order, into a region: a device that can be adopted. Granularity of
  # the interleaving and bytes: 0 is the most there is.
  destroyRegion @32 (serial :Text) -> (error :Error);
  # Of a region that is not adopted (any more).
  online @33 (serial :Text) -> (error :Error, serial :Text);
  # Gives a dax device that is not adopted to the kernel as memory of a CPU-less node; `serial`: of the device
  # that leases of that node's memory come from.
  offline @34 (serial :Text) -> (error :Error);
  hosts @35 () -> (error :Error, hosts :List(HostInfo));
  setPoolCoherence @36 (name :Text, coherence :Coherence) -> (error :Error, pool :PoolInfo);
  queue @37 (pool :Text, tenant :Text) -> (error :Error, waiting :List(WaitingGrant));
  # Grants that wait, by pool and then by place; empty filters match all.
  cancelWaiting @38 (lease :UInt64, reason :Text) -> (error :Error);
  # Refuses a grant that waits: those who wait for it get `cancelled` with the reason.
  backup @39 () -> (error :Error, backup :StoreBackup, file :BackupFile);
  # The store as it is now, in one file, while commits go on.
  removeHost @40 (name :Text, revoke :Bool) -> (error :Error);
  # Closes its agent's connection, refuses the agent from then on, and forgets the host once its leases are gone.
  # One with leases is refused as `busy` unless `revoke` says to take them back.
  allowHost @41 (name :Text) -> (error :Error);   # undoes it
  setPoolTrust @42 (name :Text, trust :Trust) -> (error :Error, pool :PoolInfo);
  health @43 () -> (error :Error, summary :HealthSummary, findings :List(HealthFinding));
  # What is wrong, the worst first. Answered while the store fails, too.
  history @44 () -> (error :Error, intervalNs :UInt64, ageNs :List(UInt64), grants :List(UInt64),
                     commands :List(UInt64), commits :List(UInt64), pools :List(PoolHistory));
  # The last hour of this process, the oldest first: how long ago each row was noted, what was done since the start
  # until then, and how full the pools were.
  events @45 (query :EventQuery)
         -> (error :Error, events :List(Event), next :UInt64, lost :UInt64, run :Text, more :Bool);
  # What happened, by ascending ids. Ask again with `since` = `next` and the `run` of the answer. `lost`: how many after
  # `since` up to `next` are kept no more, whether they would match or not. `more`: there are further ones that match.
  runs @46 () -> (error :Error, runs :List(RunInfo), leftOut :UInt32);
  # Programs that report what their memory does (TenantSession.reportRun), by tenant and pid; `leftOut`: further ones.
  doctor @47 () -> (error :Error, checks :List(DoctorCheck), basicService :Bool, uid :UInt32, ageNs :UInt64);
  # What the manager's machine can do for the manager's process, which runs as `uid`; looked at `ageNs` ago, by a process
  # of its own. Asked again within some seconds it answers the same.
  preview @48 (act :PreviewedAct) -> (error :Error, preview :Preview);
  # What the act would do and be answered with. Changes nothing.
  grant @49 (grant :AdminGrant) -> (error :Error, info :LeaseInfo);
  whoAmI @50 () -> (error :Error, who :WhoAmI);
}
