// SPDX-License-Identifier: Apache-2.0
// A machine made of files and links, for readers of sysfs and procfs that take a root directory.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

class MadeUpMachine {
 public:
  MadeUpMachine() {
    char path[] = "/tmp/terrace-inventory-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    root_ = path;
  }
  ~MadeUpMachine() { std::filesystem::remove_all(root_); }
  MadeUpMachine(const MadeUpMachine&) = delete;
  MadeUpMachine& operator=(const MadeUpMachine&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << text;
  }
  void folder(const std::string& name) const { std::filesystem::create_directories(root_ + name); }
  // `target` is a path of the made-up machine, or (for /proc) whatever text.
  void link(const std::string& name, const std::string& target, bool inside = true) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + name).parent_path());
    std::filesystem::create_symlink((inside ? root_ : "") + target, root_ + name);
  }
  // A device on the CXL bus, at `path` below /sys/devices.
  void cxl(const std::string& path) const {
    folder("/sys/devices" + path);
    link("/sys/bus/cxl/devices/" + path.substr(path.find_last_of('/') + 1), "/sys/devices" + path);
  }

 private:
  std::string root_;
};
