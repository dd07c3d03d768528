// SPDX-License-Identifier: Apache-2.0
// A catalog of named tensors inside a span of memory, usually a lease's mapping. One process writes and
// publishes it; any process that maps the same memory opens it, without a copy of the tensors.
//
// The bytes are described in core/layout/tensor_catalog.h and docs/formats/tensor_catalog.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "terrace/tensor.h"

namespace terrace {

// Key and value pairs that travel with the tensors (the `__metadata__` of a safetensors file).
using TensorMetadata = std::vector<std::pair<std::string, std::string>>;

// Makes stores to a range visible beyond this processor's caches: Mapping::persist. Empty: not needed.
using PersistCallback = std::function<void(std::span<const std::byte> range)>;

// The layout of a catalog, made before its memory exists. Tensors lie in the given order, 64-byte aligned.
class CatalogPlan {
 public:
  // Errors    invalid_argument  a name is empty, too long, no UTF-8, has a NUL, or comes twice; a shape that
  //                             does not fill whole bytes; unknown flags; names the tensor
  //           limit_exceeded    more than 2^20 tensors, or more than 2^63 bytes
  static Result<CatalogPlan> make(std::vector<TensorSpec> tensors, TensorMetadata metadata = {});

  uint64_t required_bytes() const { return total_bytes_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const TensorMetadata& metadata() const { return metadata_; }
  uint64_t tensor_offset(size_t index) const { return places_[index].offset; }
  uint64_t tensor_bytes(size_t index) const { return places_[index].bytes; }

 private:
  friend class CatalogWriter;
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t name_offset = 0;
  };
  std::vector<TensorSpec> tensors_;
  TensorMetadata metadata_;
  std::vector<Place> places_;
  uint64_t names_offset_ = 0, names_bytes_ = 0;
  uint64_t metadata_offset_ = 0, metadata_bytes_ = 0;
  uint64_t data_offset_ = 0, total_bytes_ = 0;
};

struct CatalogWriterOptions {
  PersistCallback persist = {};
  LeaseEpoch lease_epoch = {};  // of the lease that the memory belongs to
  uint32_t threads = 0;         // for checksums; 0: one a processor, at most 8
};

// Writes one catalog. Readers refuse the memory from begin() until publish(), also where it held a catalog
// before. It stays refused if the writer is destroyed or dies in between.
//
// Errors     Of every call: lease_expired when the memory is gone because its lease ended.
// Ownership  Borrows the memory.
// Threads    One thread, but data() spans of different tensors may be filled by different threads.
class CatalogWriter {
 public:
  // Errors    capacity_exhausted  the memory is shorter than plan.required_bytes()
  //           invalid_argument    the memory is not 64-byte aligned
  static Result<CatalogWriter> begin(std::span<std::byte> memory, CatalogPlan plan,
                                     CatalogWriterOptions options = {});

  const CatalogPlan& plan() const { return plan_; }
  // The place of tensor `index` of the plan. It still has the memory's old bytes: fill all of it.
  std::span<std::byte> data(size_t index);
  // Copies one tensor in, by name.
  // Errors: not_found, already_exists (added before), invalid_argument (not the planned number of bytes).
  Status add(std::string_view name, std::span<const std::byte> bytes);
  // Marks data(index) as filled; `crc32c` is its checksum, if the caller has computed it.
  void filled(size_t index, std::optional<uint32_t> crc32c = std::nullopt);
  // Computes the missing checksums, persists everything, then sets the state to published.
  // Errors    invalid_argument  a tensor was neither added nor filled; names it
  Status publish();
  uint64_t generation() const { return generation_; }

 private:
  CatalogWriter(std::span<std::byte> memory, CatalogPlan plan, CatalogWriterOptions options);

  void write_records();
  void write_description();
  void write_names_and_metadata();
  void persist(uint64_t offset, uint64_t bytes) const;

  std::span<std::byte> memory_;
  CatalogPlan plan_;
  CatalogWriterOptions options_;
  uint64_t generation_ = 1;
  bool published_ = false;
  struct Progress {
    bool filled = false;
    std::optional<uint32_t> crc32c;
  };
  std::vector<Progress> progress_;
};

// Reads a catalog of an untrusted writer. Every number is copied first, and checked against the span
// before use. So a writer that changes the memory later can change bytes of tensors, but never the
// addresses of views.
//
// Ownership  Borrows the memory: it must stay mapped while the reader or a view of it is used.
// Threads    Immutable after open(); all methods from any thread.
class CatalogReader {
 public:
  // Errors    not_found         no catalog here (no magic)
  //           busy              it is being written, or its writer died: state is not published
  //           version_mismatch  another format version, or features unknown here
  //           corrupt           it contradicts itself or leaves the span; says where
  //           lease_expired     the memory is gone; also of verify(). Views are plain memory: a load from one
  //                             then raises SIGBUS
  static Result<CatalogReader> open(std::span<const std::byte> memory);

  size_t size() const { return tensors_.size(); }
  const TensorView& operator[](size_t index) const { return tensors_[index]; }
  std::span<const TensorView> tensors() const { return tensors_; }
  // O(1). Errors: not_found.
  Result<TensorView> find(std::string_view name) const;
  const TensorMetadata& metadata() const;
  uint64_t generation() const;
  LeaseEpoch lease_epoch() const;
  uint64_t total_bytes() const;
  uint64_t data_bytes() const;  // the sum over all tensors

  // Compares the tensor's bytes with the recorded checksum. Errors: corrupt, naming the tensor.
  Status verify(size_t index) const;

 private:
  struct Contents;
  explicit CatalogReader(std::shared_ptr<const Contents> contents);

  std::shared_ptr<const Contents> contents_;
  std::span<const TensorView> tensors_;
};

}  // namespace terrace
