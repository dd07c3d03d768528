// SPDX-License-Identifier: Apache-2.0
// Tensors of a pool for C: views, guards, moves.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

// Nothing behind the last member: a member that is added later changes the size.
static_assert(sizeof(terrace_guard_options) == offsetof(terrace_guard_options, reserved) + sizeof(int));
static_assert(sizeof(terrace_advice) == offsetof(terrace_advice, passes) + sizeof(float));

Result<GuardOptions> guard_options(const terrace_guard_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  if (given.reserved != 0)
    return Error{ErrorCode::version_mismatch, 0, where,
                 "`reserved` of the guard's options is set, which this libterrace does not know"};
  GuardOptions wanted;
  wanted.hold = given.hold != 0;
  TERRACE_ASSIGN_OR_RETURN(const auto wait,
                           enum_of<GuardWait>(given.wait, 3, "wait (TERRACE_WAIT_...)", where));
  if (given.override_wait != 0) wanted.wait = wait;
  return wanted;
}

Status give_tensor(Result<std::shared_ptr<Tensor>> view, terrace_tensor** into) {
  if (!view.ok()) return std::move(view).error();
  *into = new terrace_tensor{std::move(view).value()};
  return {};
}

Status give_move(const terrace_tensor& tensor, Result<std::shared_ptr<MoveHandle>> move, terrace_move** into) {
  if (!move.ok()) return std::move(move).error();
  if (into != nullptr) *into = new terrace_move{tensor.tensor, std::move(move).value()};
  return {};
}

}  // namespace

extern "C" {

const char* terrace_tensor_name(const terrace_tensor* tensor) {
  return tensor == nullptr ? "" : tensor->tensor->name().c_str();
}

int terrace_tensor_dtype(const terrace_tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int>(tensor->tensor->dtype());
}

uint32_t terrace_tensor_rank(const terrace_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->tensor->shape().rank();
}

const uint64_t* terrace_tensor_shape(const terrace_tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->tensor->shape().dimensions().data();
}

const int64_t* terrace_tensor_strides(const terrace_tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->tensor->strides().data();
}

int terrace_tensor_is_view(const terrace_tensor* tensor) {
  return tensor != nullptr && tensor->tensor->is_view() ? 1 : 0;
}

void* terrace_tensor_data(const terrace_tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->tensor->data();
}

void* terrace_tensor_lowest(const terrace_tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->tensor->bytes().data();
}

uint64_t terrace_tensor_bytes(const terrace_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->tensor->bytes().size();
}

int terrace_tensor_hint(const terrace_tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int>(tensor->tensor->hint());
}

uint32_t terrace_tensor_flags(const terrace_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->tensor->flags();
}

void terrace_tensor_free(terrace_tensor* tensor) {
  delete tensor;
}

terrace_code terrace_tensor_slice(terrace_tensor* tensor, uint32_t dimension, uint64_t start, uint64_t length,
                                  uint64_t step, terrace_tensor** view) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_slice";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, view);
    return give_tensor(tensor->tensor->slice(dimension, start, length, step), view);
  });
}

terrace_code terrace_tensor_as_strided(terrace_tensor* tensor, uint32_t rank, const uint64_t* dimensions,
                                       const int64_t* strides, uint64_t offset, terrace_tensor** view) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_as_strided";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, view);
    TERRACE_ASSIGN_OR_RETURN(const Shape shape, shape_of(rank, dimensions, where));
    if (rank > 0) TERRACE_C_NEED(where, strides);
    Strides wanted{};
    std::copy_n(strides, rank, wanted.begin());
    return give_tensor(tensor->tensor->as_strided(shape, wanted, offset), view);
  });
}

terrace_code terrace_tensor_read(terrace_tensor* tensor, const terrace_guard_options* options,
                                 terrace_guard** guard) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_read";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, guard);
    TERRACE_ASSIGN_OR_RETURN(const GuardOptions wanted, guard_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(ReadGuard open, tensor->tensor->read(wanted));
    *guard = new terrace_guard{.tensor = tensor->tensor, .read = std::move(open)};
    return {};
  });
}

terrace_code terrace_tensor_write(terrace_tensor* tensor, const terrace_guard_options* options,
                                  terrace_guard** guard) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_write";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, guard);
    TERRACE_ASSIGN_OR_RETURN(const GuardOptions wanted, guard_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(WriteGuard open, tensor->tensor->write(wanted));
    *guard = new terrace_guard{.tensor = tensor->tensor, .write = std::move(open)};
    return {};
  });
}

const void* terrace_guard_data(const terrace_guard* guard) {
  if (guard == nullptr) return nullptr;
  return guard->read ? guard->read->bytes().data() : guard->write->bytes().data();
}

void* terrace_guard_writable(terrace_guard* guard) {
  return guard == nullptr || !guard->write ? nullptr : guard->write->bytes().data();
}

uint64_t terrace_guard_bytes(const terrace_guard* guard) {
  if (guard == nullptr) return 0;
  return guard->read ? guard->read->bytes().size() : guard->write->bytes().size();
}

void terrace_guard_free(terrace_guard* guard) {
  delete guard;
}

terrace_code terrace_tensor_pin(terrace_tensor* tensor, int tier, terrace_move** move) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_pin";
    TERRACE_C_NEED(where, tensor);
    TERRACE_ASSIGN_OR_RETURN(const Tier wanted, tier_of(tier, where));
    return give_move(*tensor, tensor->tensor->pin(wanted), move);
  });
}

terrace_code terrace_tensor_unpin(terrace_tensor* tensor) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_tensor_unpin", tensor);
    return tensor->tensor->unpin();
  });
}

terrace_code terrace_tensor_prefetch(terrace_tensor* tensor, terrace_move** move) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_tensor_prefetch", tensor);
    return give_move(*tensor, tensor->tensor->prefetch(), move);
  });
}

terrace_code terrace_tensor_prefetch_to(terrace_tensor* tensor, int tier, terrace_move** move) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_prefetch_to";
    TERRACE_C_NEED(where, tensor);
    TERRACE_ASSIGN_OR_RETURN(const Tier wanted, tier_of(tier, where));
    return give_move(*tensor, tensor->tensor->prefetch(wanted), move);
  });
}

terrace_code terrace_tensor_move_to(terrace_tensor* tensor, int tier, terrace_move** move) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_move_to";
    TERRACE_C_NEED(where, tensor);
    TERRACE_ASSIGN_OR_RETURN(const Tier wanted, tier_of(tier, where));
    return give_move(*tensor, tensor->tensor->move_to(wanted), move);
  });
}

terrace_code terrace_tensor_advise(terrace_tensor* tensor, const terrace_advice* advice) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_advise";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, advice);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(advice, where));
    TensorAdvice wanted;
    TERRACE_ASSIGN_OR_RETURN(const TensorHint hint, hint_of(given.hint, where));
    if (given.set_hint != 0) wanted.hint = hint;
    if (given.flags > TensorFlags::all)
      return invalid(where, std::to_string(given.flags) + " has flags that are none (TERRACE_FLAG_...)");
    if (given.set_flags != 0) wanted.flags = static_cast<uint8_t>(given.flags);
    if (given.set_passes != 0 && !(given.passes >= 0)) return invalid(where, "passes is negative or no number");
    if (given.set_passes != 0) wanted.passes = given.passes;
    tensor->tensor->advise(wanted);
    return {};
  });
}

terrace_code terrace_tensor_residency(const terrace_tensor* tensor, uint64_t* ddr_bytes, uint64_t* cxl_bytes) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_residency";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, ddr_bytes);
    TERRACE_C_NEED(where, cxl_bytes);
    const TensorResidency residency = tensor->tensor->residency();
    *ddr_bytes = residency.ddr_bytes;
    *cxl_bytes = residency.cxl_bytes;
    return {};
  });
}

terrace_code terrace_tensor_get_statistics(const terrace_tensor* tensor,
                                           struct terrace_tensor_statistics* statistics) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_get_statistics";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, statistics);
    const TensorStatistics of = tensor->tensor->statistics();
    struct terrace_tensor_statistics told {};
    told.reads = of.reads;
    told.writes = of.writes;
    told.guard_waits = of.guard_waits;
    told.guard_wait_ns = of.guard_wait_ns;
    told.uses_per_step = of.uses_per_step;
    told.pins = of.pins;
    told.device_reads = of.device_reads;
    told.device_writes = of.device_writes;
    return give(statistics, told, where);
  });
}

int terrace_move_done(const terrace_move* move) {
  return move != nullptr && move->handle->done() ? 1 : 0;
}

terrace_code terrace_move_wait(terrace_move* move, uint64_t timeout_ns) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_move_wait", move);
    return move->handle->wait(timeout_ns);
  });
}

uint64_t terrace_move_bytes_there(const terrace_move* move) {
  return move == nullptr ? 0 : move->handle->bytes_there();
}

void terrace_move_free(terrace_move* move) {
  delete move;
}

}  // extern "C"
