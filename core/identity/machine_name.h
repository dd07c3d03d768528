// SPDX-License-Identifier: Apache-2.0
// The default name of this machine, the same for manager, library and command line.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// The host name, if leases can carry it (letters, digits and "-_.:@", as daemon/state/names.h has it). A
// machine that has none, as in an initramfs ("(none)"), is called by its machine id, "machine-" and 64 bits of
// a hash, which is the same at each boot; one that has neither "localhost".
std::string machine_name();

// The same of given texts. Pure.
std::string machine_name_of(std::string_view host, std::string_view machine_id);

}  // namespace terrace
