// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/orders.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "core/base/failpoint.h"
#include "daemon/event_loop/processes.h"
#include "daemon/log/log.h"
#include "daemon/rpc/answers.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

Error too_late() {
  return Error{.code = ErrorCode::unavailable,
               .where = "HostAgent",
               .detail = "this order came too late: the host lease has run out, or another connection counts"};
}

class HostAgentServer final : public rpc::HostAgent::Server {
 public:
  HostAgentServer(Orders& orders, uint64_t generation) : orders_(orders), generation_(generation) {}

  kj::Promise<void> carve(CarveContext context) override {
    return with_object(context, context.getParams().getObject(),
                       [this, context](auto object, auto extents) mutable -> kj::Promise<void> {
                         if (Status room = orders_.make_room(object.name, object.bytes); !room.ok()) {
                           refuse(context, room.error());
                           return kj::READY_NOW;
                         }
                         return finish(context, false, [&orders = orders_, object, extents]() -> Status {
                           if (!orders.in_force()) return too_late();
                           TERRACE_RETURN_IF_ERROR(orders.before_carve());
                           Status status = orders.carve(object.name, object.bytes, extents);
                           [[maybe_unused]] const int armed = TERRACE_FAILPOINT(agent_after_carve);
                           return status;
                         });
                       });
  }

  kj::Promise<void> fence(FenceContext context) override {
    return with_name(context, context.getParams().getName(), [this, context](std::string name) mutable {
      return finish(context, true, [&orders = orders_, name]() -> Status {
        Status status = orders.fence_one(name);
        [[maybe_unused]] const int armed = TERRACE_FAILPOINT(agent_after_fence);
        return status;
      });
    });
  }

  kj::Promise<void> endHolders(EndHoldersContext context) override {
    return with_name(context, context.getParams().getName(), [this, context](std::string name) mutable {
      return orders_.consents().end_holders(name).then([context](HoldersEnded done) mutable {
        auto ended = context.getResults().initEnded(static_cast<uint32_t>(done.ended.size()));
        for (uint32_t i = 0; i < done.ended.size(); ++i) ended.set(i, done.ended[i].c_str());
        if (!done.status.ok()) refuse(context, done.status.error());
      });
    });
  }

  kj::Promise<void> hasEnded(HasEndedContext context) override {
    const auto process = context.getParams().getProcess();
    context.getResults().setEnded(
        told_process_has_ended({process.getPid(), process.getStarted(), process.getSpace()}));
    return kj::READY_NOW;
  }

  kj::Promise<void> erase(EraseContext context) override {
    const uint64_t offset = context.getParams().getOffset();
    const uint64_t length = context.getParams().getLength();
    return with_object(context, context.getParams().getObject(),
                       [this, context, offset, length](auto object, auto extents) mutable {
                         return finish(
                             context, false,
                             [&backend = orders_.backend(), object, extents, offset, length]() -> Status {
                               Status status = backend.erase(object.name, extents, offset, length);
                               [[maybe_unused]] const int armed = TERRACE_FAILPOINT(agent_after_erase);
                               return status;
                             });
                       });
  }

  kj::Promise<void> scrub(ScrubContext context) override {
    return with_name(context, context.getParams().getName(), [this, context](std::string name) mutable {
      auto scrubbed = std::make_shared<uint64_t>(0);
      return finish(context, false,
                    [&orders = orders_, name, scrubbed]() -> Status {
                      const auto bytes = orders.backend().scrub(name);
                      [[maybe_unused]] const int armed = TERRACE_FAILPOINT(agent_after_erase);
                      if (!bytes.ok()) return bytes.error();
                      orders.fencing().forget(name);
                      *scrubbed = *bytes;
                      return {};
                    })
          .then([this, context, name, scrubbed]() mutable {
            context.getResults().setBytes(*scrubbed);
            if (context.getResults().getError().getCode() == 0) orders_.consents().forget(name);
          });
    });
  }

  kj::Promise<void> resize(ResizeContext context) override {
    const uint64_t from = context.getParams().getFromBytes();
    return with_object(context, context.getParams().getObject(),
                       [this, context, from](auto object, auto extents) mutable -> kj::Promise<void> {
                         Status room;
                         if (object.bytes > from) room = orders_.make_room(object.name, object.bytes);
                         if (!room.ok()) {
                           refuse(context, room.error());
                           return kj::READY_NOW;
                         }
                         return finish(context, false, [&orders = orders_, object, extents, from]() -> Status {
                           if (!orders.in_force()) return too_late();
                           Status status = orders.backend().resize(object.name, from, object.bytes, extents);
                           orders.fencing().set(object.name,
                                                status.ok() ? object.bytes : std::max(from, object.bytes));
                           return status;
                         });
                       });
  }

  kj::Promise<void> rebind(RebindContext context) override {
    const std::string from = read_text(context.getParams().getFrom());
    return with_object(
        context, context.getParams().getTo(), [this, context, from](auto object, auto extents) mutable {
          // Its old holder is shut out, and nobody else has its bytes: not refused here (may_grant() was asked).
          [[maybe_unused]] const Status room = orders_.make_room(object.name, object.bytes, true);
          return finish(context, false,
                        [&orders = orders_, object, extents, from]() -> Status {
                          TERRACE_RETURN_IF_ERROR(
                              orders.backend().rebind(from, object.name, object.bytes, extents));
                          orders.fencing().forget(from);
                          return {};
                        })
              .then([this, context, from]() mutable {
                if (context.getResults().getError().getCode() == 0) orders_.consents().forget(from);
              });
        });
  }

  kj::Promise<void> copy(CopyContext context) override {
    const auto params = context.getParams();
    const std::string from = read_text(params.getFrom());
    const std::string to = read_text(params.getTo());
    const uint64_t bytes = params.getBytes();
    return may_begin(context, false)
        .then([this, context, from, to, bytes](bool may) mutable -> kj::Promise<void> {
          if (!may) return kj::READY_NOW;
          return finish(context, false, [&backend = orders_.backend(), from, to, bytes]() -> Status {
            return backend.copy(from, to, bytes);
          });
        });
  }

  kj::Promise<void> exchange(ExchangeContext context) override {
    const capnp::Data::Reader data = context.getParams().getPut();
    Nonce put{};
    if (data.size() != put.size()) {
      refuse(context, Error{.code = ErrorCode::invalid_argument,
                            .where = "HostAgent",
                            .detail = "what is exchanged has 64 bytes"});
      return kj::READY_NOW;
    }
    std::copy(data.begin(), data.end(), put.begin());
    auto found = std::make_shared<Nonce>();
    return with_object(context, context.getParams().getObject(),
                       [this, context, put, found](auto object, auto extents) mutable {
                         return finish(context, false,
                                       [&orders = orders_, object, extents, put, found]() -> Status {
                                         if (!orders.in_force()) return too_late();
                                         TERRACE_ASSIGN_OR_RETURN(*found,
                                                                  orders.exchange(object.name, extents, put));
                                         return {};
                                       })
                             .then([context, found]() mutable {
                               context.getResults().setFound(kj::arrayPtr(found->data(), found->size()));
                             });
                       });
  }

  kj::Promise<void> writeBack(WriteBackContext context) override {
    return with_object(context, context.getParams().getObject(),
                       [this, context](auto object, auto extents) mutable {
                         return finish(context, false, [&orders = orders_, object, extents]() -> Status {
                           if (!orders.in_force()) return too_late();
                           return orders.write_back(object.name, extents);
                         });
                       });
  }

  kj::Promise<void> kept(KeptContext context) override {
    auto found = std::make_shared<Kept>(Kept::yes);
    return with_object(context, context.getParams().getObject(),
                       [this, context, found](auto object, auto extents) mutable {
                         return finish(context, false,
                                       [&orders = orders_, object, extents, found]() -> Status {
                                         *found = orders.backend().kept(object.name, extents);
                                         return {};
                                       })
                             .then([context, found]() mutable {
                               context.getResults().setKept(*found != Kept::no);
                               context.getResults().setEnded(*found == Kept::ended);
                             });
                       });
  }

  kj::Promise<void> usage(UsageContext context) override {
    const auto found = orders_.backend().usage(read_text(context.getParams().getName()));
    if (found.ok()) {
      context.getResults().setBytes(found->bytes);
      context.getResults().setAllocated(found->allocated);
    } else {
      refuse(context, found.error());
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> list(ListContext context) override {
    auto found = std::make_shared<std::vector<ObservedObject>>();
    return finish(context, false,
                  [&backend = orders_.backend(), found]() -> Status {
                    auto listed = backend.list();
                    if (!listed.ok()) return listed.error();
                    *found = std::move(*listed);
                    return {};
                  })
        .then([context, found]() mutable {
          auto out = context.getResults().initObjects(static_cast<uint32_t>(found->size()));
          for (uint32_t i = 0; i < found->size(); ++i) write_observed(out[i], (*found)[i]);
        });
  }

 private:
  // What takes memory away from its holders is always done; what makes memory, only while the host lease holds:
  // an order that was long on its way may be about extents that are another's by now.
  template <typename Context>
  kj::Promise<bool> may_begin(Context& context, bool takes_away) {
    const bool counts = generation_ == orders_.generation() && orders_.obeys(generation_);
    if (counts && (takes_away || orders_.in_force())) return true;
    refuse(context, too_late());
    return false;
  }

  template <typename Context, typename Do>
  kj::Promise<void> with_name(Context& context, capnp::Text::Reader text, Do work) {
    std::string name = read_text(text);
    if (!valid_name(name)) {
      refuse(context, Error{.code = ErrorCode::invalid_argument,
                            .where = "HostAgent",
                            .detail = "an impossible name of a memory object"});
      return kj::READY_NOW;
    }
    return may_begin(context, true).then([work, name = std::move(name)](bool may) mutable -> kj::Promise<void> {
      if (!may) return kj::READY_NOW;
      return work(std::move(name));
    });
  }

  template <typename Context, typename Do>
  kj::Promise<void> with_object(Context& context, rpc::AgentObject::Reader in, Do work) {
    auto object = read_object(in);
    Result<std::vector<Extent>> extents = std::vector<Extent>();
    if (object.ok()) extents = orders_.local_extents(object->extents);
    if (!object.ok() || !extents.ok()) {
      refuse(context, object.ok() ? extents.error() : object.error());
      return kj::READY_NOW;
    }
    return may_begin(context, false)
        .then([work, object = std::move(*object),
               extents = std::move(*extents)](bool may) mutable -> kj::Promise<void> {
          if (!may) return kj::READY_NOW;
          return work(std::move(object), std::move(extents));
        });
  }

  template <typename Context, typename Work>
  kj::Promise<void> finish(Context context, bool urgent, Work work) {
    // Once more when its turn has come: what waited behind other work may be about another's memory by now.
    auto in_time = [&orders = orders_, generation = generation_, urgent,
                    work = kj::mv(work)]() mutable -> Status {
      if (!urgent && (generation != orders.generation() || !orders.in_force())) return too_late();
      return work();
    };
    return orders_.run(kj::mv(in_time), urgent).then([context](Status status) mutable {
      if (!status.ok()) refuse(context, status.error());
    });
  }

  Orders& orders_;
  const uint64_t generation_;
};

}  // namespace

rpc::HostAgent::Client Orders::make_host_agent() {
  return kj::heap<HostAgentServer>(*this, generation_);
}

Status Orders::make_room(const std::string& object, uint64_t bytes, bool must) {
  Status allowed;
  if (allow_) allowed = allow_(fencing_.estimate_with(object, bytes, clock_.now_ns()), must);
  if (!allowed.ok() && !must) return allowed;
  fencing_.set(object, bytes);
  return {};
}

Status Orders::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  Status status = backend_.carve(name, bytes, extents);
  if (status.ok()) return {};
  if (status.error().code != ErrorCode::already_exists) {
    fencing_.forget(name);
    return status;
  }
  // Made by an order that came twice: it is there, whole, and nobody had it yet.
  const auto there = backend_.usage(name);
  return there.ok() && there->bytes == bytes && !there->handed_out ? Status() : status;
}

Status Orders::write_back(const std::string& object, const std::vector<Extent>& extents) {
  SharedByHosts* shared = backend_.shared_by_hosts();
  return shared == nullptr ? Status() : shared->write_back(object, extents);
}

Result<Nonce> Orders::exchange(const std::string& object, const std::vector<Extent>& extents,
                               const Nonce& put) {
  SharedByHosts* shared = backend_.shared_by_hosts();
  if (shared != nullptr) return shared->exchange(object, extents, put);
  return Error{.code = ErrorCode::unsupported,
               .where = "HostAgent",
               .detail = "this host has no memory that another one sees"};
}

Status Orders::fence_one(const std::string& object) {
  const uint64_t begin_ns = clock_.now_ns();
  if (Status fenced = backend_.fence(object); !fenced.ok()) {
    fencing_.failed();
    return fenced;
  }
  const uint64_t end_ns = clock_.now_ns();
  fencing_.observe(object, end_ns - begin_ns, end_ns);
  return {};
}

std::vector<std::string> Orders::know_devices(const std::vector<SeenDevice>& adopted) {
  std::vector<KnownDevice> known;
  std::vector<std::string> fresh;
  for (const SeenDevice& device : adopted) {
    const DeviceId id{devices_.size() + 1};
    if (!devices_.contains(device.serial)) fresh.push_back(device.serial);
    KnownDevice& own =
        devices_.try_emplace(device.serial, KnownDevice{id, device.serial, "", 0, 0}).first->second;
    own.backend = device.backend;
    own.capacity_bytes = device.capacity_bytes;
    own.granule_bytes = device.granule_bytes;
    known.push_back(own);
  }
  backend_.know_devices(known);
  return fresh;
}

kj::Promise<void> Orders::take_over(std::vector<std::string> serials) {
  if (serials.empty()) return kj::READY_NOW;
  return bulk_
      .run([this, serials = std::move(serials)]() -> Status {
        const std::vector<SeenDevice> seen = backend_.discover();
        for (const std::string& serial : serials) {
          const bool here = std::any_of(seen.begin(), seen.end(),
                                        [&](const SeenDevice& one) { return one.serial == serial; });
          if (!here) continue;
          if (Status status = backend_.take_over(serial); !status.ok())
            log::error("device {} was not taken over: {}", serial, status.error().to_string());
        }
        return {};
      })
      .ignoreResult();
}

Result<std::vector<Extent>> Orders::local_extents(const std::vector<WireExtent>& extents) const {
  std::vector<Extent> local;
  for (const WireExtent& extent : extents) {
    const auto device = devices_.find(extent.serial);
    const uint64_t granule = device == devices_.end() ? 0 : device->second.granule_bytes;
    if (granule == 0 || extent.offset % granule != 0 || extent.length % granule != 0 || extent.length == 0 ||
        extent.offset + extent.length > device->second.capacity_bytes) {
      return Error{.code = ErrorCode::invalid_argument,
                   .where = "HostAgent",
                   .detail = "an extent of device " + extent.serial + " that this host does not know"};
    }
    local.push_back({device->second.id, extent.offset / granule, extent.length / granule});
  }
  return local;
}

kj::Promise<Result<std::vector<ObservedObject>>> Orders::take_stock(std::vector<WireObject> assigned) {
  std::vector<KnownObject> known;
  for (WireObject& object : assigned) {
    auto extents = local_extents(object.extents);
    if (extents.ok()) known.push_back({std::move(object.name), object.bytes, std::move(*extents)});
  }
  auto stock = bulk_.run([this, known = std::move(known)]() -> Result<std::vector<ObservedObject>> {
    backend_.know_objects(known);
    TERRACE_RETURN_IF_ERROR(backend_.refresh());  // else what could not be seen would be reported as gone
    TERRACE_ASSIGN_OR_RETURN(std::vector<ObservedObject> observed, backend_.list());
    fencing_.reset(observed);
    return observed;
  });
  return stock.then([this](Result<std::vector<ObservedObject>> observed) {
    std::set<std::string> names;
    if (observed.ok())
      for (const ObservedObject& object : *observed) names.insert(object.name);
    if (observed.ok()) consents_.keep_only(names);
    return observed;
  });
}

kj::Promise<Status> Orders::claim(StoreClaim claim) {
  return bulk_.run([this, claim = std::move(claim)]() -> Status { return backend_.claim(claim); });
}

kj::Promise<void> Orders::refresh() {
  return bulk_.run([this]() -> Status { return backend_.refresh(); }).ignoreResult();
}

// First holders, all at once, then one object after the other. An order under way (a carve that erases, an
// erase) lost its device with that, and ends; one that makes a device just then loses it in the next round.
kj::Promise<Status> Orders::fence_all() {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  auto last = bulk_.run([ended]() -> Status {
    *ended = true;
    return {};
  });
  auto fenced = urgent_.run(
      [this, ended]() -> Status {
        Status first;
        bool once_more = true;
        while (once_more) {
          once_more = !*ended;
          first = guarding_.fence();
          if (once_more) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        const auto objects = backend_.list();
        if (!objects.ok()) return objects.error();
        for (const ObservedObject& object : *objects) {
          if (object.bytes == 0) continue;
          Status status = backend_.fence(object.name);
          if (!status.ok() && first.ok()) first = std::move(status);
        }
        return first;
      },
      true);
  return last.then([fenced = kj::mv(fenced)](Status) mutable { return kj::mv(fenced); });
}

}  // namespace terrace::daemon
