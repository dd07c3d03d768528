// SPDX-License-Identifier: Apache-2.0
// `terraced --fsck`: what it prints and returns, and that no file of the manager changes by a byte.
#include "daemon/fsck/command.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "core/base/clock.h"
#include "daemon/store/store.h"
#include "tests/unit/fsck/fsck_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A manager that is not running: its state, its runtime directory and its objects, all in one folder.
class Stopped {
 public:
  Stopped() {
    std::string name = "/dev/shm/terrace-fsck-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
    fs::create_directories(path_ + "/objects");
    config.runtime_directory = path_;
    config.state_path = path_ + "/state/terraced.db";
    config.object_directory = path_ + "/objects";
    config.emulated = {{"a", 64 * mib}, {"b", 64 * mib}};
    world.image.meta.boot_id = read_boot_id();
    auto store = open_store(config.state_path);
    REQUIRE_MESSAGE(store.ok(), store.error().to_string());
    Delta delta;
    delta.meta = world.image.meta;
    for (const DeviceRow& row : world.image.devices) delta.devices[row.id] = row;
    for (const PoolRow& row : world.image.pools) delta.pools[row.id] = row;
    for (const LeaseRow& row : world.image.leases) delta.leases[row.id] = row;
    REQUIRE((*store)->commit(delta).ok());
    for (const ObservedObject& object : world.objects) {
      std::ofstream(file(object.name)) << "";
      fs::resize_file(file(object.name), object.bytes);
    }
  }
  ~Stopped() { fs::remove_all(path_); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

  std::string file(const std::string& object) const { return path_ + "/objects/" + object + ".obj"; }

  // Every file of the state, with its bytes.
  std::map<std::string, std::string> state() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(path_ + "/state"))
      files[entry.path().filename().string()] = content_of(entry.path());
    return files;
  }

  struct Outcome {
    int code = -1;
    std::string out;
  };
  Outcome fsck(bool json = false) const {
    const auto before = state();
    const std::string captured = path_ + "/out";
    std::fflush(stdout);
    const int kept = ::dup(STDOUT_FILENO);
    const int fd = ::open(captured.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    ::dup2(fd, STDOUT_FILENO);
    Outcome outcome;
    outcome.code = run_fsck(config, json);
    std::fflush(stdout);
    ::dup2(kept, STDOUT_FILENO);
    ::close(kept);
    ::close(fd);
    outcome.out = content_of(captured);
    CHECK(state() == before);
    return outcome;
  }

  World world;
  DaemonConfig config;

 private:
  std::string path_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("terraced --fsck: a healthy manager gives 0 and says what was looked at") {
  const Stopped manager;
  const auto text = manager.fsck();
  CHECK(text.code == 0);
  CHECK_MESSAGE(has(text.out, "3 leases, 2 devices; 3 objects in "), text.out);
  CHECK(has(text.out, "0 errors, 0 warnings"));
  const auto json = manager.fsck(true);
  CHECK(json.code == 0);
  CHECK(has(json.out, "\"errors\": 0"));
  CHECK(has(json.out, "\"leases\": 3"));
}

TEST_CASE("terraced --fsck: an error gives 1, a warning alone 0") {
  Stopped manager;
  std::ofstream(manager.file("lease-8")) << "x";
  auto text = manager.fsck();
  CHECK(text.code == 0);
  CHECK(has(text.out, "warning  object lease-8"));
  fs::remove(manager.file("lease-2"));
  text = manager.fsck();
  CHECK(text.code == 1);
  CHECK(has(text.out, "error    lease 2 (tenant t): its memory object lease-2 is gone"));
  CHECK(has(text.out, "fix: start terraced"));
  const auto json = manager.fsck(true);
  CHECK(json.code == 1);
  CHECK(has(json.out, "{\"severity\": \"error\", \"subject\": \"lease 2 (tenant t)\""));
  fs::remove_all(manager.config.object_directory);
  CHECK(manager.fsck().code == 1);
}

TEST_CASE("terraced --fsck: an unplugged device is absent") {
  const Stopped manager;
  std::ofstream(manager.config.object_directory + "/a.unplugged") << "";
  const auto text = manager.fsck();
  CHECK(text.code == 1);
  CHECK(has(text.out, "device emu:a: is adopted and not there"));
}

TEST_CASE("terraced --fsck: a running manager is left alone") {
  const Stopped manager;
  auto store = open_store(manager.config.state_path);
  REQUIRE(store.ok());
  const auto text = manager.fsck();
  CHECK(text.code == 2);
  CHECK(text.out.empty());
}

TEST_CASE("terraced --fsck: a store that cannot be read is an error, never an empty one") {
  Stopped manager;
  const auto patch = [&manager](off_t at, const std::string& bytes) {
    std::fstream file(manager.config.state_path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file << bytes;
  };
  SUBCASE("none") {
    manager.config.state_path += "-elsewhere";
    const auto text = manager.fsck();
    CHECK(text.code == 1);
    CHECK(has(text.out, "there is no store at "));
  }
  SUBCASE("its database is gone") {
    fs::remove(manager.config.state_path);
    const auto text = manager.fsck();
    CHECK(text.code == 1);
    CHECK(has(text.out, "corrupt"));
    CHECK(has(text.out, manager.config.state_path));
    CHECK(!has(text.out, "terrace-fsck-XXXXXX"));
  }
  SUBCASE("damaged") {
    patch(4096, std::string(4096, 'x'));
    const auto text = manager.fsck();
    CHECK(text.code == 1);
    CHECK(has(text.out, "corrupt"));
  }
  SUBCASE("of a newer version") {
    patch(60, std::string("\x7f\x00\x00\x01", 4));
    const auto text = manager.fsck();
    CHECK(text.code == 1);
    CHECK_MESSAGE(has(text.out, "version_mismatch"), text.out);
    CHECK(has(text.out, "newer"));
  }
}
