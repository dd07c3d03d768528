# SPDX-License-Identifier: Apache-2.0
@0xc1f6a2d07b9e4853;
# Between a manager and the agents of further hosts, over mutual TLS. The agent connects; who it is says the name
# in its certificate and nothing else. The manager decides, the agent does what is to be done on its host, and
# serves that host's programs with the interfaces of terrace.capnp.
#
#   agent                                     manager
#   AgentGateway.enroll(what I see)    ->   the objects that should be there
#   Registration.report(what is there)   ->   HostAgent orders: what nobody wants is destroyed
#                                        <-   AgentService: from now on orders, sessions, heartbeats
#
# The host lease. An answered heartbeat promises the agent its objects for `hostLeaseNs` from the moment when it
# SENT it; the manager counts from when it RECEIVED it, and longer (daemon/model/host_lease.h). An agent whose
# promise runs out fences all its objects; only then does the manager give their extents to others.
#
# Evolution: as in terrace.capnp.

using Cxx = import "/capnp/c++.capnp";
using Terrace = import "terrace.capnp";
$Cxx.namespace("terrace::rpc");

const agentProtocolVersion :UInt32 = 1;
const agentProtocolVersionOldest :UInt32 = 1;

struct AgentDevice {   # a device that the agent's host shows
  serial @0 :Text;     # the same serial is the same memory
  backend @1 :Text;
  capacityBytes @2 :UInt64;
  granuleBytes @3 :UInt64;
}

struct AgentObject {   # a memory object, by its name without "@host"
  name @0 :Text;
  bytes @1 :UInt64;    # 0: fenced
  extents @2 :List(Terrace.Extent);
  handedOut @3 :Bool;  # in a report: a program may have been given it. One that no lease has stays then
}

struct AgentFencing {  # what it would take to fence all memory of the agent's host, as the agent has measured
  objects @0 :UInt32;
  bytes @1 :UInt64;    # that programs can have mapped
  fenceNs @2 :UInt64;
  marginNs @3 :UInt64; # how long before the end of the host lease the agent begins; 0: an older agent, which does not say
  marginMaxNs @4 :UInt64; # what would need more is refused there
}

interface AgentGateway {
  enroll @0 (oldest :UInt32, newest :UInt32, software :Text, instance :UInt64,
             devices :List(AgentDevice), agent :HostAgent)
         -> (error :Terrace.Error, version :UInt32, host :Text, hostLeaseNs :UInt64, adopted :List(AgentDevice),
             objects :List(AgentObject), registration :Registration, store :Text);
  # `instance`: drawn once a process; the same one replaces its own older connection, another is refused while
  # that one lives.
  # `store`: the id of the manager's store (32 hexadecimal digits). An agent keeps it, and registers with no manager
  # of another store until an operator says so. Empty: an older manager's, which is taken for any.
}

interface Registration {
  report @0 (objects :List(AgentObject), fencing :AgentFencing) -> (error :Terrace.Error, service :AgentService);
  # What there is. The answer comes when what nobody wants was destroyed; the host lease begins with this call.
}

interface AgentService {
  heartbeat @0 (devices :List(AgentDevice), fencing :AgentFencing)
            -> (error :Terrace.Error, adopted :List(AgentDevice));
  # An error means: the host lease has run out. Fence everything, and register again.
  openSession @1 (tenant :Text, client :Text, uid :UInt32, listener :Terrace.LeaseListener, traceparent :Text)
              -> (error :Terrace.Error, session :Terrace.TenantSession);
  # For a program on the agent's host, and what it said in Gateway.hello. Its leases are carved there; their capabilities carry no descriptor.
  renewCertificate @2 () -> (error :Terrace.Error, certificate :Text);
  # PEM: for the name and the key of the connection's certificate, with a new end. `unsupported`: this manager has no
  # CA key. A manager of an earlier version does not know the call.
}

interface HostAgent {
  # Orders. Each can be repeated; names are without "@host". Offsets of extents are bytes.
  carve @0 (object :AgentObject) -> (error :Terrace.Error);
  fence @1 (name :Text) -> (error :Terrace.Error);
  erase @2 (object :AgentObject, offset :UInt64, length :UInt64) -> (error :Terrace.Error);
  scrub @3 (name :Text) -> (error :Terrace.Error, bytes :UInt64);
  resize @4 (object :AgentObject, fromBytes :UInt64) -> (error :Terrace.Error);
  rebind @5 (from :Text, to :AgentObject) -> (error :Terrace.Error);
  copy @6 (from :Text, to :Text, bytes :UInt64) -> (error :Terrace.Error);
  usage @7 (name :Text) -> (error :Terrace.Error, bytes :UInt64, allocated :UInt64);
  list @8 () -> (error :Terrace.Error, objects :List(AgentObject));
  exchange @9 (object :AgentObject, put :Data) -> (error :Terrace.Error, found :Data);
  # The proof that both see the same memory: reads the first 64 bytes of the extents, then writes `put`, past
  # all caches. No object has these extents.
  writeBack @10 (object :AgentObject) -> (error :Terrace.Error);
  # Leaves nothing of the extents in this host's caches.
  kept @11 (object :AgentObject) -> (error :Terrace.Error, kept :Bool, ended :Bool);
  # Whether a fenced object's memory is kept for pages that somebody on this host still holds; `ended`: it was, and nobody
  # holds any more. Changes nothing. An agent of an earlier version does not know the call.
  endHolders @12 (name :Text) -> (error :Terrace.Error, ended :List(Text));
  # Before `fence` and `rebind` of a lease whose onFence is `kill`: ends those of this host's processes that agreed to it,
  # and names them ("python3[1234]"). Answered once they run no more; `busy`: one has not ended yet, says which. Can be
  # repeated. An agent of an earlier version does not know the call, and has given no such lease to anybody.
  hasEnded @13 (process :Terrace.HostProcess) -> (error :Terrace.Error, ended :Bool);
  # Whether a process of this host that owned a part of a lease runs no instruction any more. false when in doubt. An
  # agent of an earlier version does not know the call, and claims no part.
}
