// SPDX-License-Identifier: Apache-2.0
// Hotplug: events that are written into a socket pair stand for the kernel's where the sender does not matter;
// otherwise the messages are parsed alone.
#include "daemon/event_loop/hotplug.h"

#include <doctest/doctest.h>
#include <kj/async-io.h>
#include <sys/socket.h>

#include <string>

#include "daemon/inventory/uevent.h"

using namespace terrace;
using namespace terrace::daemon;
using inventory::parse_uevent;
using inventory::Uevent;

namespace {

std::string message(const std::string& header, std::initializer_list<std::string> fields) {
  std::string text = header + '\0';
  for (const std::string& field : fields) text += field + '\0';
  return text;
}

const std::string mem_added =
    message("add@/devices/pci0000:0c/0000:0d:00.0/mem0",
            {"ACTION=add", "DEVPATH=/devices/pci0000:0c/0000:0d:00.0/mem0", "SUBSYSTEM=cxl", "SEQNUM=7"});

// Messages go through a pair of sockets; unlike the kernel's they have no netlink sender, so that they are read
// here without asking for one.
inventory::ReadUevent read_any(int socket) {
  char buffer[512];
  const ssize_t got = recv(socket, buffer, sizeof buffer, 0);
  if (got < 0) return {.kind = inventory::ReadUevent::Kind::none};
  if (got == 0) return {.kind = inventory::ReadUevent::Kind::lost};
  auto event = parse_uevent({buffer, static_cast<size_t>(got)});
  if (!event) return {.kind = inventory::ReadUevent::Kind::other};
  return {.kind = inventory::ReadUevent::Kind::event, .event = *event};
}

struct Machine {
  explicit Machine(Hotplug::Read read = read_any) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    writer = UniqueFd(pair[1]);
    hotplug = kj::heap<Hotplug>(
        UniqueFd(pair[0]), io.unixEventPort, io.provider->getTimer(),
        [this]() {
          ++looks;
          return io.provider->getTimer().afterDelay(look_ms * kj::MILLISECONDS);
        },
        HotplugOptions{.gather_ns = 10 * ns_per_ms, .pause_ns = 10 * ns_per_ms}, std::move(read));
  }
  void send(const std::string& text) const {
    REQUIRE(::send(writer.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }
  void wait(int ms) { io.provider->getTimer().afterDelay(ms * kj::MILLISECONDS).wait(io.waitScope); }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  UniqueFd writer;
  int looks = 0;
  int look_ms = 0;
  kj::Own<Hotplug> hotplug;
};

}  // namespace

TEST_CASE("Uevent: a message of the kernel is taken apart") {
  const auto event = parse_uevent(mem_added);
  REQUIRE(event.has_value());
  CHECK(*event == Uevent{"add", "cxl", "mem0", "/devices/pci0000:0c/0000:0d:00.0/mem0"});
}

TEST_CASE("Uevent: what is no message of the kernel, or a torn one, is nothing") {
  CHECK(!parse_uevent("").has_value());
  CHECK(!parse_uevent("libudev\0\xfe\xed\xca\xfe").has_value());
  CHECK(!parse_uevent(message("libudev", {"ACTION=add", "SUBSYSTEM=cxl"})).has_value());
  CHECK(!parse_uevent(message("add@/devices/x", {"ACTION=add"})).has_value());
  for (size_t cut = 0; cut < mem_added.size(); ++cut) {
    const auto event = parse_uevent(std::string_view(mem_added).substr(0, cut));
    if (event.has_value()) CHECK(event->action == "add");
  }
}

TEST_CASE("Uevent: CXL, dax, namespaces, memory and nodes concern devices; leases being carved are not told") {
  CHECK(concerns_devices(Uevent{"add", "dax", "dax0.0", "/devices/platform/hmem.0/dax0.0"}));
  CHECK(!concerns_devices(Uevent{"add", "dax", "dax0.1", "/devices/platform/hmem.0/dax0.1"}));
  CHECK(!concerns_devices(Uevent{"add", "dax", "dax1.0", "/devices/x/ndbus0/region1/dax1.0/dax1.0"}));
  CHECK(concerns_devices(Uevent{"add", "nd", "region1"}));
  CHECK(!concerns_devices(Uevent{"add", "nd", "namespace1.0"}));
  for (const char* subsystem : {"cxl", "memory", "node"})
    CHECK(concerns_devices(Uevent{"add", subsystem, "x"}));
  for (const char* subsystem : {"net", "block", "pci", ""})
    CHECK(!concerns_devices(Uevent{"add", subsystem, "x"}));
  CHECK(worth_telling(Uevent{"add", "cxl", "mem0"}));
  CHECK(worth_telling(Uevent{"remove", "cxl", "region3"}));
  CHECK(worth_telling(Uevent{"add", "node", "node1"}));
  CHECK(!worth_telling(Uevent{"add", "dax", "dax0.1"}));
  CHECK(!worth_telling(Uevent{"add", "memory", "memory33"}));
  CHECK(!worth_telling(Uevent{"bind", "cxl", "mem0"}));
}

TEST_CASE("Uevent: a message that did not come from the kernel is not listened to") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  const UniqueFd reader(pair[0]), writer(pair[1]);
  CHECK(inventory::read_uevent(reader.get()).kind == inventory::ReadUevent::Kind::none);
  REQUIRE(send(writer.get(), mem_added.data(), mem_added.size(), 0) > 0);
  CHECK(inventory::read_uevent(reader.get()).kind == inventory::ReadUevent::Kind::other);
  CHECK(inventory::read_uevent(reader.get()).kind == inventory::ReadUevent::Kind::none);
}

TEST_CASE("Hotplug: a flock of events is one look") {
  Machine machine;
  for (int i = 0; i < 20; ++i) machine.send(mem_added);
  machine.wait(200);
  CHECK(machine.looks == 1);
  machine.send(mem_added);
  machine.wait(200);
  CHECK(machine.looks == 2);
}

TEST_CASE("Hotplug: what comes while a look is under way is looked at after it, once") {
  Machine machine;
  machine.look_ms = 100;
  machine.send(mem_added);
  machine.wait(50);
  REQUIRE(machine.looks == 1);
  for (int i = 0; i < 5; ++i) machine.send(mem_added);
  machine.wait(20);
  CHECK(machine.looks == 1);  // never two at once
  machine.wait(400);
  CHECK(machine.looks == 2);
}

TEST_CASE("Hotplug: events that were dropped make it look, those of other hardware do not") {
  Machine machine;
  machine.send(message("add@/devices/x/eth0", {"ACTION=add", "SUBSYSTEM=net"}));
  machine.send("nonsense");
  machine.wait(100);
  CHECK(machine.looks == 0);
  machine.send("");
  machine.wait(100);
  CHECK(machine.looks == 1);
}

TEST_CASE("Hotplug: strangers' messages make nobody look") {
  Machine machine(inventory::read_uevent);
  machine.send(mem_added);
  machine.wait(100);
  CHECK(machine.looks == 0);
}
