// SPDX-License-Identifier: Apache-2.0
// Adopts devices for `device adopt`, `pool create --adopt` and `pool add-device --adopt`: first it names the
// data that will be lost, and asks.
#pragma once

#include <string>
#include <vector>

#include "cli/client/admin_client.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

// What adopting those of `serials` that are not adopted yet destroys: "SERIAL (what); SERIAL (what)"; empty:
// nothing. Pure.
std::string adoption_losses(const std::vector<DeviceStatus>& devices, const std::vector<std::string>& serials);

// Says what is lost, asks unless `yes` or there is nothing, and adopts one after the other.
// Errors    those of confirm() and AdminClient::adopt(); says how many were adopted before
Result<std::vector<DeviceStatus>> adopt_devices(const Context& context, AdminClient& client,
                                                const std::vector<std::string>& serials, bool yes);

}  // namespace terrace::cli
