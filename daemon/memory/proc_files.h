// SPDX-License-Identifier: Apache-2.0
// Reads small files of procfs and sysfs, and keeps "it is not there" and "it could not be read" apart: a search
// for lost objects, or for users of a device, must not take want of descriptors or memory for "nothing".
//
// Place     daemon/memory.
// Threads   Plain functions.
// Errors    as os_error, of the path. A file that is gone, or hidden from us, is no error and has no content.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

// Whether an errno says that a file or its device is not there, or hidden from this process.
bool gone_or_hidden(int code);

// The names in a directory but those that begin with a dot.
Result<std::vector<std::string>> read_names(const std::string& path);
Result<std::string> read_content(const std::string& path);
// Its first line.
Result<std::string> read_attribute_line(const std::string& path);

// The processes that have one of `devices` ("/dev/dax0.1") open or mapped, but this one.
struct DeviceUser {
  pid_t pid = 0;
  std::string command;  // printable
  std::string device;
};
Result<std::vector<DeviceUser>> find_device_users(const std::vector<std::string>& devices,
                                                  const std::string& root = "");

}  // namespace terrace::daemon
