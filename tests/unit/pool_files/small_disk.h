// SPDX-License-Identifier: Apache-2.0
// A file system that is soon full: a tmpfs of a few MiB. Only root may mount one.
#pragma once

#include <doctest/doctest.h>
#include <sys/mount.h>

#include <string>

#include "tests/support/skip.h"
#include "tests/unit/io/temporary_directory.h"

namespace terrace::test {

class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size) {
    mounted_ = ::mount("terrace-test", directory_.file("").c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    if (!mounted_) TERRACE_SKIP(mount, "no right to mount a tmpfs");
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(directory_.file("").c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  std::string file(const std::string& name) const { return directory_.file(name); }
  size_t entries() const { return directory_.entries(); }

 private:
  TemporaryDirectory directory_;
  bool mounted_ = false;
};

}  // namespace terrace::test
