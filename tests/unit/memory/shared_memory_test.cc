// SPDX-License-Identifier: Apache-2.0
// Two machines over one memory: a manager's backends on one side, an agent's devdax backend on the other, and
// the orders between them carried out at once. The kernels of both are made up, their bytes are the same ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "daemon/memory/devdax/devdax.h"
#include "daemon/memory/machine/backend_set.h"
#include "daemon/memory/remote/remote_memory.h"
#include "tests/support/fake_dax_bus.h"
#include "tests/support/memory_backend.h"

namespace terrace::daemon {
namespace {

using test::FakeCrash;
using test::FakeDaxBus;

constexpr uint64_t granule = 2 * mib;
constexpr uint64_t base = 4 * gib;
constexpr uint64_t capacity = 32 * mib;
const std::string serial = "dax:hmem@0x100000000";
const std::vector<KnownDevice> adopted{{DeviceId{1}, serial, "devdax", capacity, granule}};

DevdaxOptions options() {
  return {.record_directory = "", .boot_id = "boot-1", .erase_threads = 1};
}

// What daemon/agent/orders.cc does with an order.
class DirectAgent final : public AgentOrders {
 public:
  explicit DirectAgent(Backend& backend) : backend_(&backend) {}

  AgentAnswer order(const std::string& host, const AgentOrder& order) override {
    CHECK(host == "hostb");
    kinds.push_back(order.kind);
    AgentAnswer answer{OrderOutcome::done, {}, 0};
    const Status status = carry_out(order, answer);
    if (!status.ok()) answer = {OrderOutcome::refused, status.error(), 0};
    return answer;
  }
  bool wait_until_forgotten(const std::string&) override { return true; }
  bool wait_until_settled() override { return true; }
  bool has_proved(const std::string&, const std::string& device) const override {
    return proved.contains(device);
  }
  void set_proved(const std::string&, const std::string& device) override { proved.insert(device); }

  size_t count(AgentOrder::Kind kind) const {
    return static_cast<size_t>(std::count(kinds.begin(), kinds.end(), kind));
  }
  std::vector<AgentOrder::Kind> kinds;
  std::set<std::string> proved;
  Backend* backend_;

 private:
  Status carry_out(const AgentOrder& order, AgentAnswer& answer) {
    std::vector<Extent> extents;
    for (const WireExtent& one : order.extents)
      extents.push_back({DeviceId{1}, one.offset / granule, one.length / granule});
    switch (order.kind) {
      case AgentOrder::Kind::carve: return backend_->carve(order.object, order.bytes, extents);
      case AgentOrder::Kind::fence: return backend_->fence(order.object);
      case AgentOrder::Kind::erase: return backend_->erase(order.object, extents, order.offset, order.length);
      case AgentOrder::Kind::rebind: return backend_->rebind(order.object, order.other, order.bytes, extents);
      case AgentOrder::Kind::kept: answer.kept = backend_->kept(order.object, extents); return {};
      case AgentOrder::Kind::write_back: return backend_->shared_by_hosts()->write_back(order.object, extents);
      case AgentOrder::Kind::exchange: {
        TERRACE_ASSIGN_OR_RETURN(answer.found,
                                 backend_->shared_by_hosts()->exchange(order.object, extents, order.put));
        return {};
      }
      case AgentOrder::Kind::scrub: {
        TERRACE_ASSIGN_OR_RETURN(answer.bytes, backend_->scrub(order.object));
        return {};
      }
      case AgentOrder::Kind::end_holders:
      case AgentOrder::Kind::resize:
      case AgentOrder::Kind::copy: break;
    }
    return Error{.code = ErrorCode::unsupported, .where = "test", .detail = "not for this test"};
  }
};

struct Hosts {
  explicit Hosts(bool same = true) {
    here.add_region(serial, base, capacity);
    there.add_region_of(here, same);
    agent_starts();
    manager_starts({});
    REQUIRE(set->take_over(serial).ok());
    REQUIRE(on_b->take_over(serial).ok());
  }
  void agent_starts(const std::vector<KnownObject>& objects = {}) {
    on_b = std::make_unique<DevdaxBackend>(there, options());
    on_b->know_devices(adopted);
    on_b->know_objects(objects);
    REQUIRE(on_b->list().ok());
    agent.backend_ = on_b.get();
  }
  void manager_starts(const std::vector<KnownObject>& objects) {
    set = std::make_unique<BackendSet>();
    devdax = std::make_unique<DevdaxBackend>(here, options());
    remote = std::make_unique<RemoteBackend>(agent, *set);
    set->add(emulated);
    set->add(*devdax);
    set->add_remote(*remote);
    set->know_devices(adopted);
    set->know_objects(objects);
    CHECK(set->refresh().ok());
    REQUIRE(set->list().ok());
  }
  bool zeros(uint64_t at, uint64_t length) {
    const auto read = here.read(base + at, length);
    return std::all_of(read.begin(), read.end(), [](std::byte one) { return one == std::byte{0}; });
  }

  FakeDaxBus here, there;
  std::unique_ptr<DevdaxBackend> on_b, devdax;
  DirectAgent agent{emulated};
  test::MemoryBackend emulated;
  std::unique_ptr<BackendSet> set;
  std::unique_ptr<RemoteBackend> remote;
  const std::vector<Extent> extents{{DeviceId{1}, 2, 4}};
  const uint64_t bytes = 8 * mib;
};

}  // namespace

TEST_CASE("shared memory: two machines prove that it is the same before the first lease, and once") {
  Hosts hosts;
  hosts.here.fill(base, capacity, 0x5a);
  REQUIRE(hosts.set->carve("devdax:lease-1@hostb", hosts.bytes, hosts.extents).ok());
  CHECK(hosts.agent.count(AgentOrder::Kind::exchange) == 1);
  CHECK(hosts.agent.proved.contains(serial));
  CHECK(hosts.zeros(4 * mib, hosts.bytes));
  CHECK_FALSE(hosts.zeros(0, 64));  // nothing beside the lease was written to
  REQUIRE(hosts.set->carve("devdax:lease-2@hostb", granule, {{DeviceId{1}, 8, 1}}).ok());
  CHECK(hosts.agent.count(AgentOrder::Kind::exchange) == 1);
  CHECK(hosts.here.devices(serial) == 1);  // the manager's own are gone
  CHECK(hosts.there.devices(serial) == 3);
}

TEST_CASE("shared memory: one serial for two memories is found out, and nothing is leased") {
  Hosts hosts(false);
  const Status carved = hosts.set->carve("devdax:lease-1@hostb", hosts.bytes, hosts.extents);
  REQUIRE_FALSE(carved.ok());
  CHECK(carved.error().detail.find("does not see the same memory") != std::string::npos);
  CHECK(hosts.agent.count(AgentOrder::Kind::carve) == 0);
  CHECK(hosts.agent.proved.empty());
  CHECK(hosts.here.devices(serial) == 1);
  CHECK(hosts.there.devices(serial) == 1);
  CHECK(hosts.zeros(4 * mib, granule));
  // What was written on the other machine is erased there before anybody has it.
  REQUIRE(hosts.on_b->carve("devdax:lease-1", hosts.bytes, hosts.extents).ok());
  const auto left = hosts.there.read(base + 4 * mib, 64);
  CHECK(std::count(left.begin(), left.end(), std::byte{0}) == 64);
}

TEST_CASE("shared memory: a step that fails during the proof refuses the lease and leaves no device behind") {
  for (const bool at_manager : {true, false}) {
    bool failed = true;
    for (int step = 1; failed; ++step) {
      Hosts hosts;
      FakeDaxBus& bus = at_manager ? hosts.here : hosts.there;
      bus.fail_step(step, EIO);
      failed = !hosts.set->carve("devdax:lease-1@hostb", hosts.bytes, hosts.extents).ok();
      bus.fail_step(0, 0);
      if (failed) {
        (void)hosts.set->fence("devdax:lease-1@hostb");
        REQUIRE(hosts.set->carve("devdax:lease-1@hostb", hosts.bytes, hosts.extents).ok());
      }
      CHECK(hosts.zeros(4 * mib, hosts.bytes));
      REQUIRE(step < 100);
    }
  }
}

TEST_CASE("shared memory: a lease goes to the other machine and back with its bytes") {
  Hosts hosts;
  REQUIRE(hosts.set->carve("devdax:lease-1", hosts.bytes, hosts.extents).ok());
  hosts.here.fill(base + 4 * mib, hosts.bytes, 0x11);
  REQUIRE(hosts.set->rebind("devdax:lease-1", "devdax:lease-1-2@hostb", hosts.bytes, hosts.extents).ok());
  CHECK(hosts.here.devices(serial) == 1);
  CHECK(hosts.there.devices(serial) == 2);
  CHECK(hosts.on_b->usage("devdax:lease-1-2")->bytes == hosts.bytes);
  CHECK(hosts.here.read(base + 4 * mib, 1)[0] == std::byte{0x11});
  // Done again, as after a crash before it was on record.
  REQUIRE(hosts.set->rebind("devdax:lease-1", "devdax:lease-1-2@hostb", hosts.bytes, hosts.extents).ok());
  hosts.here.fill(base + 4 * mib, hosts.bytes, 0x22);
  REQUIRE(hosts.set->rebind("devdax:lease-1-2@hostb", "devdax:lease-1-3", hosts.bytes, hosts.extents).ok());
  CHECK(hosts.there.devices(serial) == 1);
  CHECK(hosts.set->usage("devdax:lease-1-3")->bytes == hosts.bytes);
  CHECK(hosts.here.read(base + 4 * mib + hosts.bytes - 1, 1)[0] == std::byte{0x22});
  CHECK(hosts.here.revived.empty());
  CHECK(hosts.there.revived.empty());
}

TEST_CASE("shared memory: a hand-over between machines goes on wherever either of them was cut off") {
  const std::string from = "devdax:lease-1", to = "devdax:lease-1-2@hostb";
  for (const bool at_manager : {true, false}) {
    bool crashed = true;
    for (int step = 1; crashed; ++step) {
      Hosts hosts;
      REQUIRE(hosts.set->carve(from, hosts.bytes, hosts.extents).ok());
      hosts.here.fill(base + 4 * mib, hosts.bytes, 0x33);
      FakeDaxBus& bus = at_manager ? hosts.here : hosts.there;
      bus.fail_step(step, 0);
      crashed = false;
      try {
        (void)hosts.set->rebind(from, to, hosts.bytes, hosts.extents);
      } catch (const FakeCrash&) {
        crashed = true;
      }
      bus.fail_step(0, 0);
      if (crashed) {
        // Whoever died finds what the rows name, destroys what nobody wants, and the manager orders it again.
        if (at_manager) {
          hosts.manager_starts({{from, hosts.bytes, hosts.extents}, {to, hosts.bytes, hosts.extents}});
        } else {
          hosts.agent_starts({{"devdax:lease-1-2", hosts.bytes, hosts.extents}});
        }
        Backend& restarted = at_manager ? static_cast<Backend&>(*hosts.devdax) : *hosts.on_b;
        const auto there = restarted.list();
        REQUIRE(there.ok());
        for (const ObservedObject& object : *there)
          if (object.name.find("orphan") != std::string::npos) REQUIRE(restarted.fence(object.name).ok());
        REQUIRE(hosts.set->rebind(from, to, hosts.bytes, hosts.extents).ok());
      }
      CHECK(hosts.here.devices(serial) == 1);
      CHECK(hosts.there.devices(serial) == 2);
      const auto kept = hosts.here.read(base + 4 * mib, hosts.bytes);
      CHECK(std::count(kept.begin(), kept.end(), std::byte{0x33}) == static_cast<long>(hosts.bytes));
      REQUIRE(step < 100);
    }
  }
}

TEST_CASE("shared memory: what is one machine's alone is not handed to another") {
  Hosts hosts;
  REQUIRE(hosts.set->carve("lease-5", hosts.bytes, hosts.extents).ok());
  const Status moved = hosts.set->rebind("lease-5", "lease-5-2@hostb", hosts.bytes, hosts.extents);
  REQUIRE_FALSE(moved.ok());
  CHECK(moved.error().code == ErrorCode::unsupported);
  CHECK(hosts.set->usage("lease-5")->bytes == hosts.bytes);
}

TEST_CASE("shared memory: what the manager knows to be dirty is erased before the other machine's lease") {
  Hosts hosts;
  REQUIRE(hosts.set->carve("devdax:lease-1@hostb", hosts.bytes, hosts.extents).ok());
  REQUIRE(hosts.set->fence("devdax:lease-1@hostb").ok());
  REQUIRE(hosts.set->erase("devdax:lease-1@hostb", hosts.extents, 0, hosts.bytes).ok());
  REQUIRE(hosts.set->scrub("devdax:lease-1@hostb").ok());
  // The agent takes it for erased; a manager that starts again knows nothing of it.
  hosts.here.fill(base + 4 * mib, hosts.bytes, 0x44);
  hosts.manager_starts({});
  REQUIRE(hosts.set->carve("devdax:lease-2@hostb", hosts.bytes, hosts.extents).ok());
  CHECK(hosts.zeros(4 * mib, hosts.bytes));
}

TEST_CASE(
    "a view: both machines have the lease's bytes, and hiding it takes it from one of them, without a byte "
    "lost") {
  Hosts hosts;
  const std::string own = "devdax:lease-1", view = "devdax:lease-1-7@hostb", local = "devdax:lease-1-7";
  const auto intact = [&hosts] {
    const auto bytes = hosts.here.read(base + 4 * mib, hosts.bytes);
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0x5a}; });
  };
  REQUIRE(hosts.set->carve(own, hosts.bytes, hosts.extents).ok());
  hosts.here.fill(base + 4 * mib, hosts.bytes, 0x5a);
  REQUIRE(hosts.set->show(view, own, hosts.bytes, hosts.extents).ok());
  CHECK(hosts.set->show(view, own, hosts.bytes, hosts.extents).ok());  // an order that came twice
  CHECK(hosts.on_b->open(local, ObjectAccess::read_write).ok());
  CHECK(hosts.set->open(own, ObjectAccess::read_write).ok());
  CHECK(hosts.set->usage(view)->bytes == hosts.bytes);
  CHECK(intact());

  REQUIRE(hosts.set->hide(view, hosts.extents).ok());
  CHECK(hosts.set->hide(view, hosts.extents).ok());
  CHECK_FALSE(hosts.on_b->open(local, ObjectAccess::read_write).ok());
  CHECK(hosts.set->open(own, ObjectAccess::read_write).ok());
  CHECK(intact());
  CHECK(hosts.there.devices(serial) == 1);
  CHECK(hosts.agent.count(AgentOrder::Kind::write_back) >= 2);  // before it is made, and once it is shut out

  // Where the manager's own object goes first, the view is none the worse.
  REQUIRE(hosts.set->show(view, own, hosts.bytes, hosts.extents).ok());
  REQUIRE(hosts.set->fence(own).ok());
  CHECK(hosts.on_b->open(local, ObjectAccess::read_write).ok());
  REQUIRE(hosts.set->hide(view, hosts.extents).ok());
}

TEST_CASE("a view: made or hidden on this machine, of a lease whose own object is on another") {
  Hosts hosts;
  const std::string own = "devdax:lease-1@hostb", view = "devdax:lease-1-7";
  REQUIRE(hosts.set->carve(own, hosts.bytes, hosts.extents).ok());
  REQUIRE(hosts.set->show(view, own, hosts.bytes, hosts.extents).ok());
  CHECK(hosts.set->open(view, ObjectAccess::read_write).ok());
  CHECK(hosts.set->hide(view, hosts.extents).value() == Hidden::written_back);
  CHECK(hosts.set->hide(view, hosts.extents).value() == Hidden::lines_may_remain);  // it does not know any more
  CHECK(hosts.here.devices(serial) == 1);
  CHECK(hosts.there.devices(serial) == 2);
}

TEST_CASE("a view: each step that fails leaves what can be done again, or taken back") {
  for (const bool hiding : {false, true}) {
    bool failed = true;
    for (int step = 1; failed; ++step) {
      Hosts hosts;
      const std::string own = "devdax:lease-1", view = "devdax:lease-1-7@hostb";
      REQUIRE(hosts.set->carve(own, hosts.bytes, hosts.extents).ok());
      hosts.here.fill(base + 4 * mib, hosts.bytes, 0x33);
      if (hiding) REQUIRE(hosts.set->show(view, own, hosts.bytes, hosts.extents).ok());
      hosts.there.fail_step(step, EIO);
      failed = hiding ? !hosts.set->hide(view, hosts.extents).ok()
                      : !hosts.set->show(view, own, hosts.bytes, hosts.extents).ok();
      hosts.there.fail_step(0, 0);
      REQUIRE(hosts.set->hide(view, hosts.extents).ok());
      CHECK_FALSE(hosts.on_b->open("devdax:lease-1-7", ObjectAccess::read_write).ok());
      CHECK(hosts.here.read(base + 4 * mib, 1)[0] == std::byte{0x33});
      // Nothing of it stands in the way of what comes there next.
      REQUIRE(hosts.set->fence(own).ok());
      REQUIRE(hosts.set->erase(own, hosts.extents, 0, hosts.bytes).ok());
      REQUIRE(hosts.set->scrub(own).ok());
      REQUIRE(hosts.set->carve("devdax:lease-2@hostb", hosts.bytes, hosts.extents).ok());
      CHECK(hosts.zeros(4 * mib, hosts.bytes));
      REQUIRE(step < 100);
    }
  }
}

TEST_CASE("a view of memory that is one machine's alone is refused") {
  Hosts hosts;
  const Status refused = hosts.set->show("lease-1-7@hostb", "lease-1", granule, {{DeviceId{1}, 0, 1}});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::unsupported);
}

}  // namespace terrace::daemon
