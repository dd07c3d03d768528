# SPDX-License-Identifier: Apache-2.0
@0x99ae784e300a68ba;
# What a field becomes in JSON (core/schema/json.h), where that is not its name in snake_case with its value.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("terrace::rpc");

annotation key @0xbc5a0b9e465f84f9 (field) :Text;
# Another name than the field's.
annotation hidden @0xa32bce833a280e21 (field) :Void;
# Not in JSON: a number of the manager's own, or one that another field says better.
annotation nullable @0xe351a8ba24900fa5 (field) :Void;
# null at its default value, which stands for "not known" or "none". A struct: null where it was not sent.
annotation onlyWith @0xcaefeba088932970 (field) :Text;
# null unless another field of the struct is set: "ttlNs" (has not its default value), "kind = root", "tenant != *".
