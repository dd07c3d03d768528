// SPDX-License-Identifier: Apache-2.0
#include "cli/pools/adopt.h"

#include <algorithm>

#include "cli/terminal/confirm.h"

namespace terrace::cli {

std::string adoption_losses(const std::vector<DeviceStatus>& devices, const std::vector<std::string>& serials) {
  std::string text;
  for (const DeviceStatus& device : devices) {
    const std::string serial = str(device->getSerial());
    const bool meant = std::find(serials.begin(), serials.end(), serial) != serials.end();
    if (meant && !device->getAdopted() && device->getContents().size() != 0)
      text += (text.empty() ? "" : "; ") + serial + " (" + str(device->getContents()) + ")";
  }
  return text;
}

Result<std::vector<DeviceStatus>> adopt_devices(const Context& context, AdminClient& client,
                                                const std::vector<std::string>& serials, bool yes) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, client.devices());
  const std::string losses = adoption_losses(devices, serials);
  if (!losses.empty())
    TERRACE_RETURN_IF_ERROR(confirm(context, yes, "", "Adopting destroys what is on " + losses + ". Go on?"));
  std::vector<DeviceStatus> adopted;
  for (const std::string& serial : serials) {
    Result<DeviceStatus> device = client.adopt(serial);
    if (!device.ok()) {
      Error error = device.error();
      if (!adopted.empty())
        error.detail += " (" + std::to_string(adopted.size()) + " named before it were adopted)";
      return error;
    }
    adopted.push_back(*device);
  }
  return adopted;
}

}  // namespace terrace::cli
