// SPDX-License-Identifier: Apache-2.0
// The memory of a machine against a machine that is slow, refuses, loses answers, and is started anew. What must
// never be: a lease that has gone, or is shorter than what the guest has of it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/vm/guest_memory.h"
#include "core/base/clock.h"
#include "core/base/units.h"
#include "tests/support/fake_session.h"

namespace terrace::cli {
namespace {

constexpr uint64_t block = GuestMemory::block_bytes;

// QEMU's part of it. The guest does what the test says.
class FakeMachine final : public Monitor {
 public:
  struct Device {
    UniqueFd memory;
    std::string object;
    uint64_t max = 0, requested = 0, size = 0;
    bool dimm = false;
    uint32_t asked_to_go = 0;
  };

  Result<nlohmann::json> ask(const std::string& command, const nlohmann::json& arguments) override {
    asked.push_back(command);
    if (before) before(command);
    if (lost_before == command) return gone();
    Result<nlohmann::json> answer = act(command, arguments);
    if (lost_after == command) return gone();
    return answer;
  }
  bool has_ended() override { return false; }

  // As a guest that follows at once.
  void follow() {
    for (auto& [id, device] : devices)
      if (!device.dimm) device.size = device.requested;
    std::erase_if(devices, [](const auto& one) { return one.second.dimm && one.second.asked_to_go != 0; });
  }
  bool memory_is_there() const {
    for (const auto& [id, device] : devices) {
      struct stat status {};
      if (::fstat(device.memory.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) < device.size)
        return false;
    }
    return true;
  }
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const auto& [id, device] : devices) bytes += device.size;
    return bytes;
  }

  std::map<std::string, Device> devices;
  std::vector<std::string> asked;
  std::function<void(const std::string&)> before;
  std::string lost_before, lost_after;  // the command whose answer does not come, not done or done
  std::set<std::string> stuck;          // devices whose requested-size is not set

 private:
  static Error gone() { return Error{ErrorCode::unavailable, 0, "FakeMachine", "no answer"}; }
  static Error refused() { return Error{ErrorCode::io_error, 0, "FakeMachine", "refused"}; }

  Result<nlohmann::json> act(const std::string& command, const nlohmann::json& arguments) {
    if (command == "query-memory-devices") return list();
    if (command == "query-pci") return nlohmann::json::array();
    if (command == "object-add") {
      objects_[arguments["id"]] = {arguments["mem-path"], arguments["size"]};
    } else if (command == "object-del") {
      if (objects_.erase(arguments["id"]) == 0) return refused();
    } else if (command == "device_add") {
      add(arguments);
    } else if (command == "qom-set") {
      const std::string id = arguments["path"].get<std::string>().substr(sizeof("/machine/peripheral/") - 1);
      if (stuck.contains(id) || !devices.contains(id)) return refused();
      devices[id].requested = arguments["value"];
    } else if (command == "device_del") {
      if (!devices.contains(arguments["id"])) return refused();
      ++devices[arguments["id"]].asked_to_go;
    }
    return nlohmann::json::object();
  }
  void add(const nlohmann::json& arguments) {
    const auto& [path, bytes] = objects_[arguments["memdev"]];
    Device device;
    device.memory.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    device.max = bytes;
    device.dimm = arguments["driver"] == "pc-dimm";
    if (device.dimm) device.size = bytes;
    devices[arguments["id"]] = std::move(device);
  }
  nlohmann::json list() const {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [id, device] : devices) {
      nlohmann::json data = {{"id", id}, {"size", device.size}};
      if (!device.dimm) data["requested-size"] = device.requested, data["max-size"] = device.max;
      all.push_back({{"type", device.dimm ? "dimm" : "virtio-mem"}, {"data", data}});
    }
    return all;
  }

  std::map<std::string, std::pair<std::string, uint64_t>> objects_;
};

GuestOptions options_of(GuestModel model) {
  GuestOptions options;
  options.label = "guest";
  options.model = model;
  return options;
}

struct Machine {
  explicit Machine(GuestModel model = GuestModel::virtio_mem, uint64_t pool_bytes = 16 * block)
      : session(pool_bytes), memory(session, monitor, options_of(model), [](const std::string&) {}) {}
  // The machine is looked at, and the guest follows, some times over.
  void settle() {
    for (int round = 0; round < 6; ++round) {
      (void)step();
      monitor.follow();
      CHECK(monitor.memory_is_there());
    }
    (void)step();
  }
  Status step() {
    const Status stepped = memory.step();
    CHECK(monitor.memory_is_there());
    return stepped;
  }
  FakeMachine::Device& device(uint64_t lease) { return monitor.devices.at("terrace-" + std::to_string(lease)); }

  test::FakeSession session;
  FakeMachine monitor;
  GuestMemory memory;
};

}  // namespace

TEST_CASE(
    "Guest memory: a guest that begins while it is asked to stop keeps its lease until it has none of it") {
  Machine m;
  m.memory.want(2 * block);
  REQUIRE(m.step().ok());
  CHECK(m.device(1).requested == 2 * block);
  m.memory.want(0);
  m.monitor.before = [&m](const std::string& command) {
    if (command == "qom-set") m.device(1).size = block;  // after the look, before the request
  };
  REQUIRE(m.step().ok());
  CHECK_FALSE(m.memory.empty());
  m.monitor.before = nullptr;
  REQUIRE(m.step().ok());
  CHECK(m.session.free_bytes() == 14 * block);
  m.settle();
  CHECK(m.memory.empty());
  CHECK(m.session.free_bytes() == 16 * block);
}

TEST_CASE("Guest memory: a device whose answer was lost is looked for before its lease goes back") {
  for (const GuestModel model : {GuestModel::virtio_mem, GuestModel::dimm}) {
    CAPTURE(static_cast<int>(model));
    Machine taken(model);
    taken.monitor.lost_after = "device_add";
    taken.memory.want(block);
    (void)taken.step();
    taken.monitor.lost_after.clear();
    taken.settle();
    CHECK(taken.monitor.bytes() == block);
    CHECK(taken.memory.plugged_bytes() == block);
    CHECK(taken.session.grants().size() == 1);

    Machine not_taken(model);
    not_taken.monitor.lost_before = "device_add";
    not_taken.memory.want(block);
    (void)not_taken.step();
    not_taken.monitor.lost_before.clear();
    not_taken.memory.want(0);
    not_taken.settle();
    CHECK(not_taken.memory.empty());
    CHECK(not_taken.session.free_bytes() == 16 * block);
    CHECK(not_taken.monitor.asked.back() == "query-memory-devices");
  }
}

TEST_CASE("Guest memory: what was asked for is read from the machine, as an answer may be lost") {
  Machine m;
  m.memory.want(4 * block);
  m.settle();
  m.memory.want(2 * block);
  m.monitor.lost_before = "qom-set";
  CHECK_FALSE(m.step().ok());
  m.monitor.lost_before.clear();
  m.settle();
  CHECK(m.device(1).requested == 2 * block);
  m.memory.want(3 * block);
  m.monitor.lost_after = "qom-set";
  CHECK_FALSE(m.step().ok());
  m.monitor.lost_after.clear();
  m.memory.want(2 * block);
  m.settle();
  CHECK(m.device(1).requested == 2 * block);
  CHECK(m.memory.settled());
}

TEST_CASE("Guest memory: one request that the machine refuses holds up no other part") {
  Machine m;
  m.memory.want(block);
  m.settle();
  m.memory.want(2 * block);
  m.settle();
  REQUIRE(m.monitor.devices.size() == 2);
  m.monitor.stuck.insert("terrace-1");
  m.memory.want(0);
  m.settle();
  CHECK(m.device(1).size == block);
  CHECK(m.device(2).size == 0);
  CHECK(m.session.free_bytes() == 15 * block);
  CHECK(m.memory.refusal().has_value());
  size_t before = m.monitor.asked.size();
  REQUIRE(m.step().ok());
  CHECK(m.monitor.asked.size() == before + 1);  // it looks, and repeats nothing
}

TEST_CASE(
    "Guest memory: a revoke takes another lease first, and does not wait for it longer than half of the "
    "grace") {
  Machine m;
  m.memory.want(2 * block);
  m.settle();
  const uint64_t now_ns = SystemClock().now_ns();
  m.memory.take_away(LeaseId{1}, now_ns + 3600 * ns_per_s);
  REQUIRE(m.step().ok());
  CHECK(m.device(2).requested == 2 * block);
  CHECK(m.device(1).requested == 2 * block);  // the guest has nothing else yet
  m.device(2).size = 2 * block;
  REQUIRE(m.step().ok());
  CHECK(m.device(1).requested == 0);
  m.settle();
  CHECK(m.session.free_bytes() == 14 * block);

  m.memory.take_away(LeaseId{2}, now_ns);  // no time: both at once
  REQUIRE(m.step().ok());
  CHECK(m.device(2).requested == 0);
  CHECK(m.device(3).requested == 2 * block);
  m.settle();
  CHECK(m.memory.settled());
}

TEST_CASE(
    "Guest memory: a revoke counts for a part that is leaving already, and a second move waits for the first") {
  Machine m;
  m.memory.want(2 * block);
  m.settle();
  REQUIRE(m.memory.replace_all().ok());
  REQUIRE(m.step().ok());
  CHECK(m.device(1).requested == 2 * block);  // the guest takes nothing of the other
  CHECK(m.memory.replace_all().error().code == ErrorCode::busy);
  CHECK(m.session.grants().size() == 2);
  m.memory.take_away(LeaseId{1}, SystemClock().now_ns());
  REQUIRE(m.step().ok());
  CHECK(m.device(1).requested == 0);
}

TEST_CASE("Guest memory: a full pool changes nothing, and a revoke is followed all the same") {
  Machine m(GuestModel::virtio_mem, 3 * block);
  m.memory.want(2 * block);
  m.settle();
  m.memory.want(4 * block);
  m.settle();
  CHECK(m.memory.refusal()->code == ErrorCode::capacity_exhausted);
  CHECK(m.memory.replace_all().error().code == ErrorCode::capacity_exhausted);
  m.memory.want(2 * block);
  m.memory.take_away(LeaseId{1}, SystemClock().now_ns() + 3600 * ns_per_s);
  m.settle();
  CHECK(m.memory.empty());
  CHECK(m.session.free_bytes() == 3 * block);
}

TEST_CASE("Guest memory: a dimm that the guest does not give up is kept, and no other is taken for it") {
  Machine m(GuestModel::dimm);
  m.memory.want(block);
  REQUIRE(m.step().ok());
  REQUIRE(m.step().ok());
  m.memory.want(0);
  REQUIRE(m.step().ok());
  CHECK(m.device(1).asked_to_go == 1);
  m.memory.keep_what_is_there();
  REQUIRE(m.step().ok());
  REQUIRE(m.step().ok());
  CHECK(m.session.grants().size() == 1);
  CHECK(m.memory.wanted_bytes() == block);
  CHECK(m.memory.settled());
  m.monitor.follow();  // late, it goes after all
  REQUIRE(m.step().ok());
  REQUIRE(m.step().ok());
  CHECK(m.session.grants().size() == 1);
  CHECK(m.memory.empty());
  CHECK(m.session.free_bytes() == 16 * block);
}

TEST_CASE("Guest memory: a machine that was started anew is known by what it lacks") {
  Machine m;
  m.memory.want(block);
  m.settle();
  CHECK_FALSE(m.memory.machine_is_another());
  m.monitor.devices.clear();
  CHECK(m.memory.step().error().code == ErrorCode::unavailable);
  CHECK(m.memory.machine_is_another());
}

TEST_CASE("Guest memory: a monitor that answers nonsense is an error, and nothing goes back for it") {
  class Nonsense final : public Monitor {
   public:
    Result<nlohmann::json> ask(const std::string&, const nlohmann::json&) override { return answer; }
    bool has_ended() override { return false; }
    nlohmann::json answer;
  };
  test::FakeSession session(block);
  Nonsense monitor;
  GuestMemory memory(session, monitor, options_of(GuestModel::virtio_mem), [](const std::string&) {});
  memory.want(block);
  for (const char* text : {"{}", "7", "null", R"([{"data": 7}])", R"([{"data": {"id": 7}}])", R"([7])"}) {
    CAPTURE(text);
    monitor.answer = nlohmann::json::parse(text);
    CHECK_FALSE(memory.adopt().ok());
  }
}

}  // namespace terrace::cli
