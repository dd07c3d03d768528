# SPDX-License-Identifier: Apache-2.0
@0x9b1e57c4d0a83f62;
# The litmus run of devices: an extension of Admin. The server's Admin is one of these; a client that asks for it
# with castAs<LitmusAdmin>() gets `unimplemented` from a daemon that is older.
#
# Evolution: as in terrace.capnp.

using Cxx = import "/capnp/c++.capnp";
using Terrace = import "terrace.capnp";
$Cxx.namespace("terrace::rpc");

enum LitmusVerdict { inconclusive @0; coherent @1; notCoherent @2; }

struct LitmusShape {
  name @0 :Text;       # "message_passing"
  rounds @1 :UInt64;   # done, and judged
  met @2 :UInt64;      # of those, rounds that show that both sides were at it at once
  forbidden @3 :UInt64; # of those, rounds with an outcome that coherent memory cannot have
  example @4 :Text;    # the first of them, in words; empty: none
  verdict @5 :LitmusVerdict;
}

struct Litmus {
  device @0 :Text;     # serial
  verdict @1 :LitmusVerdict;
  shapes @2 :List(LitmusShape);
  tookNs @3 :UInt64;
  ageNs @4 :UInt64;    # how long ago it ended, when the reply was made
  note @5 :Text;       # what keeps it from being conclusive; empty: nothing
}

interface LitmusAdmin extends(Terrace.Admin) {
  lookAt @0 (serial :Text, rounds :UInt32) -> (error :Terrace.Error, litmus :Litmus);
  # On free memory of an adopted device, which is erased afterwards. Rounds of each shape; 0: the usual number.
  looked @1 () -> (error :Terrace.Error, devices :List(Litmus));
  # The last run of each adopted device since the manager's start.
}
