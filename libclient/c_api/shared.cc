// SPDX-License-Identifier: Apache-2.0
// Tensors of a space for C: reading by copy and in place, writing, publishing.
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

Status give_version(Result<uint64_t> version, uint64_t* into) {
  if (!version.ok()) return std::move(version).error();
  if (into != nullptr) *into = *version;
  return {};
}

}  // namespace

extern "C" {

const char* terrace_shared_name(const terrace_shared* shared) {
  return shared == nullptr ? "" : shared->name.c_str();
}

int terrace_shared_dtype(const terrace_shared* shared) {
  return shared == nullptr ? 0 : static_cast<int>(shared->tensor.dtype());
}

uint32_t terrace_shared_rank(const terrace_shared* shared) {
  return shared == nullptr ? 0 : shared->tensor.shape().rank();
}

const uint64_t* terrace_shared_shape(const terrace_shared* shared) {
  return shared == nullptr ? nullptr : shared->tensor.shape().dimensions().data();
}

uint64_t terrace_shared_bytes(const terrace_shared* shared) {
  return shared == nullptr ? 0 : shared->tensor.bytes();
}

uint32_t terrace_shared_part(const terrace_shared* shared) {
  return shared == nullptr ? 0 : shared->tensor.part();
}

int terrace_shared_double_buffered(const terrace_shared* shared) {
  return shared != nullptr && shared->tensor.double_buffered() ? 1 : 0;
}

const int64_t* terrace_shared_strides(const terrace_shared* shared) {
  return shared == nullptr ? nullptr : shared->tensor.strides().data();
}

int terrace_shared_hint(const terrace_shared* shared) {
  return shared == nullptr ? 0 : static_cast<int>(shared->tensor.hint());
}

uint32_t terrace_shared_flags(const terrace_shared* shared) {
  return shared == nullptr ? 0 : shared->tensor.flags();
}

terrace_code terrace_shared_identity(const terrace_shared* shared, struct terrace_tensor_identity* identity) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_shared_identity";
    TERRACE_C_NEED(where, shared);
    TERRACE_C_NEED(where, identity);
    const auto& [memory, part, record, incarnation] = shared->tensor.identity();
    return give(identity,
                {.size = 0, .memory = memory, .part = part, .record = record, .incarnation = incarnation},
                where);
  });
}

void terrace_shared_free(terrace_shared* shared) {
  delete shared;
}

terrace_code terrace_shared_remove(terrace_shared* shared, uint64_t wait_ns) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_shared_remove", shared);
    return shared->space->remove(shared->tensor, wait_ns);
  });
}

terrace_code terrace_shared_version(terrace_shared* shared, uint64_t* version) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_shared_version";
    TERRACE_C_NEED(where, shared);
    TERRACE_C_NEED(where, version);
    return give_version(shared->space->version(shared->tensor), version);
  });
}

int terrace_shared_is_current(terrace_shared* shared, uint64_t version) {
  int current = 0;
  if (shared == nullptr) return current;
  const terrace_code code = call([&]() -> Status {
    current = shared->space->is_current(shared->tensor, version) ? 1 : 0;
    return {};
  });
  return code == TERRACE_OK ? current : 0;
}

terrace_code terrace_shared_read(terrace_shared* shared, void* into, uint64_t bytes, uint64_t known,
                                 uint64_t wait_ns, uint64_t* version) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_shared_read";
    TERRACE_C_NEED(where, shared);
    if (bytes > 0) TERRACE_C_NEED(where, into);
    return give_version(
        shared->space->read(shared->tensor, {static_cast<std::byte*>(into), bytes}, known, wait_ns), version);
  });
}

terrace_code terrace_shared_publish(terrace_shared* shared, const void* data, uint64_t bytes, uint64_t wait_ns,
                                    uint64_t* version) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_shared_publish";
    TERRACE_C_NEED(where, shared);
    if (bytes > 0) TERRACE_C_NEED(where, data);
    return give_version(
        shared->space->publish(shared->tensor, {static_cast<const std::byte*>(data), bytes}, wait_ns), version);
  });
}

terrace_code terrace_shared_wait_for_version(terrace_shared* shared, uint64_t at_least, uint64_t wait_ns,
                                             uint64_t* version) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_shared_wait_for_version", shared);
    return give_version(shared->space->wait_for_version(shared->tensor, at_least, wait_ns), version);
  });
}

terrace_code terrace_shared_pin(terrace_shared* shared, uint64_t wait_ns, terrace_pin** pin) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_shared_pin";
    TERRACE_C_NEED(where, shared);
    TERRACE_C_NEED(where, pin);
    TERRACE_ASSIGN_OR_RETURN(TensorPin taken, shared->space->pin(shared->tensor, wait_ns));
    auto held = std::make_shared<terrace_pin::Held>();
    held->space = shared->space;
    held->tensor = shared->tensor;
    held->pin = std::move(taken);
    *pin = new terrace_pin{std::move(held)};
    return {};
  });
}

const void* terrace_pin_data(const terrace_pin* pin) {
  return pin == nullptr ? nullptr : pin->held->pin.bytes().data();
}

uint64_t terrace_pin_bytes(const terrace_pin* pin) {
  return pin == nullptr ? 0 : pin->held->pin.bytes().size();
}

uint64_t terrace_pin_version(const terrace_pin* pin) {
  return pin == nullptr ? 0 : pin->held->pin.version();
}

void terrace_pin_free(terrace_pin* pin) {
  delete pin;
}

terrace_code terrace_shared_write(terrace_shared* shared, uint64_t wait_ns, terrace_write** write) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_shared_write";
    TERRACE_C_NEED(where, shared);
    TERRACE_C_NEED(where, write);
    TERRACE_ASSIGN_OR_RETURN(TensorWrite begun, shared->space->write(shared->tensor, wait_ns));
    *write = new terrace_write{shared->space, std::move(begun), shared->tensor.bytes()};
    return {};
  });
}

void* terrace_write_data(terrace_write* write) {
  return write == nullptr || !write->write ? nullptr : write->write->bytes().data();
}

uint64_t terrace_write_bytes(const terrace_write* write) {
  return write == nullptr ? 0 : write->bytes;
}

terrace_code terrace_write_publish(terrace_write* write, uint64_t* version) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_write_publish";
    TERRACE_C_NEED(where, write);
    if (!write->write) return invalid(where, "it was published already");
    const uint64_t published = write->write->publish();
    write->write.reset();
    if (published == 0) TERRACE_RETURN_IF_ERROR(write->space->health());
    if (published == 0)
      return Error{ErrorCode::cancelled, 0, where, "a forked child publishes nothing: attach the space there"};
    if (version != nullptr) *version = published;
    return {};
  });
}

void terrace_write_free(terrace_write* write) {
  delete write;
}

}  // extern "C"
