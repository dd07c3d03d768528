// SPDX-License-Identifier: Apache-2.0
// Files in the safetensors format: read as hostile input, written so that a crash leaves the old file or the
// new one. docs/formats/safetensors.md lists the rules for accepted and refused files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "terrace/catalog.h"
#include "terrace/tensor.h"

namespace terrace {

inline constexpr uint64_t safetensors_header_bytes_max = 100'000'000;  // the format's own bound

struct SafetensorsEntry {
  std::string name = {};
  DType dtype = DType::f32;
  Shape shape = {};
  uint64_t file_offset = 0;  // from the file's first byte
  uint64_t bytes = 0;
};

struct SafetensorsIndex {
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes in the file
  TensorMetadata metadata;                // in the order of the header
  uint64_t buffer_offset = 0;             // where tensor bytes begin
  uint64_t file_bytes = 0;
};

// Checks a header against the length of its file. `file` names it in error texts.
//
// Errors    corrupt         the header contradicts itself, the file, or the format; the detail names the
//                           file, the tensor, and what to fix
//           unsupported     a dtype or rank that Terrace does not know
//           limit_exceeded  more than 100 MB of header, 2^20 tensors, or 1024 bytes of name
// Threads   Pure function.
Result<SafetensorsIndex> parse_safetensors_header(std::span<const std::byte> header_json, uint64_t file_bytes,
                                                  std::string_view file);

// Opens the file, reads and checks its header. Errors as above, and not_found, permission_denied, io_error.
Result<SafetensorsIndex> read_safetensors_index(const std::string& path);

// One file of a model.
struct SafetensorsShard {
  std::string path = {};
  SafetensorsIndex index;
};

// The files of a model, opened and checked. `path` is one of
//   a safetensors file, or a GGUF file (docs/formats/gguf.md), whose first part stands for all of them
//   an index of shards (model.safetensors.index.json): the files that its "weight_map" names, beside it
//   a folder with one index of shards or, without one, one safetensors file or, without one, one GGUF file
//
// Errors    those of read_safetensors_index, and corrupt: the index is no JSON of that form, names a file outside
//           its folder, or a tensor that the file does not have; a tensor is in two files
// Threads   Any.
Result<std::vector<SafetensorsShard>> read_safetensors_model(const std::string& path);

struct TransferOptions {
  uint32_t queue_depth = 16;       // requests in flight, 1 to 1024
  uint64_t block_bytes = 1 * mib;  // bytes a request at most: a multiple of 4 KiB, up to 64 MiB
  bool direct = true;              // try O_DIRECT
  bool io_uring = true;            // false: pread and pwrite
  uint32_t threads = 0;            // for checksums; 0: one a processor, at most 8
  // Called on the calling thread: the first `done` of `total` bytes are complete.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  // Asked between requests on the calling thread; true gives the transfer up.
  std::function<bool()> cancelled = {};
};

struct ImportOptions : TransferOptions {
  TensorHint hint = TensorHint::weights;
  uint8_t flags = TensorFlags::read_mostly;
  bool verify = false;  // read the file a second time and compare, before publishing
  PersistCallback persist = {};
  LeaseEpoch lease_epoch = {};
};

struct ExportOptions : TransferOptions {
  std::vector<std::string> tensors = {};  // names; empty: all
  bool replace = true;                    // false: refuse when the file exists
};

struct TransferReport {
  size_t tensors = 0;
  uint64_t tensor_bytes = 0;
  uint64_t total_bytes = 0;     // of the catalog, or of the file
  uint64_t generation = 0;      // of the catalog
  uint64_t straight_bytes = 0;  // between device and tensor memory, without a copy
  uint64_t staged_bytes = 0;    // O_DIRECT through an aligned buffer
  uint64_t buffered_bytes = 0;  // through the page cache
  bool io_uring = false;
  std::string note = {};  // the reason if io_uring or O_DIRECT was not used; else empty
};

// The length of the span that import_safetensors needs for this file or model, as it is now.
Result<uint64_t> required_bytes(const std::string& path);

// Reads all tensors of the file, or of the files of read_safetensors_model, into a catalog at the start of
// `destination` and publishes it. On error the catalog stays unpublished and readers refuse it. Of several files'
// metadata the first one's value of a key is kept.
//
// Errors    those of read_safetensors_model, read_blocks and CatalogWriter; corrupt when options.verify found
//           a difference; cancelled
// Threads   Two more threads touch memory ahead of the read and compute checksums behind it; callbacks come on
//           the calling thread.
// Crash     Before the publication: a lease that readers refuse. After it: a complete catalog.
Result<TransferReport> import_safetensors(const std::string& path, std::span<std::byte> destination,
                                          const ImportOptions& options = {});

// Writes tensors of a catalog to `path`: to a temporary file beside it, synced, renamed, directory synced. The
// same tensors and metadata always give the same bytes.
//
// Errors    not_found         a name of options.tensors is not in the catalog
//           unsupported       a tensor is not row-major
//           corrupt           a tensor's bytes no longer have the recorded checksum
//           invalid_argument  the header would pass 100 MB
//           already_exists    there is such a file, and options.replace is false
//           capacity_exhausted, permission_denied, io_error, cancelled; the old file stands
// Crash     Before the rename: the old file, and a temporary `.NAME.*.tmp` beside it to delete. After it: the
// new file.
Result<TransferReport> export_safetensors(const CatalogReader& catalog, const std::string& path,
                                          const ExportOptions& options = {});

// Writes tensors in anybody's memory to `path`, as export_safetensors does: in the same order, with the same
// bytes for the same tensors and metadata. `options.tensors` is not used.
//
// Errors    invalid_argument  a name is empty, too long, no UTF-8, has a NUL, or comes twice; bytes that are not
//                             those of dtype and shape; the header would pass 100 MB
//           and those of export_safetensors but not_found and corrupt; the old file stands
Result<TransferReport> write_safetensors(std::span<const TensorView> tensors, const TensorMetadata& metadata,
                                         const std::string& path, const ExportOptions& options = {});

// The header that export_safetensors writes (length prefix included), for tensors in the order of their
// bytes. Padded with spaces so that the tensors begin at a multiple of 4096: readers that use O_DIRECT then
// need no copy.
Result<std::string> safetensors_header(std::span<const TensorView> tensors, const TensorMetadata& metadata);

struct VerifyOptions {
  uint32_t threads = 0;
  std::function<void(uint64_t done, uint64_t total)> progress = {};  // on the calling thread
  std::function<bool()> cancelled = {};
};

struct TensorMismatch {
  std::string name = {};
  std::string reason;
};

struct VerifyReport {
  size_t tensors = 0;
  uint64_t tensor_bytes = 0;
  std::vector<TensorMismatch> mismatches = {};  // empty: all equal

  bool equal() const { return mismatches.empty(); }
};

// Compares each tensor's crc32c in memory with the recorded one. With a file, or a path of
// read_safetensors_model, also with the file's, and checks that both have the same tensors. A difference is in the report, not an Error.
// Errors: those of read_safetensors_index, io_error, cancelled.
Result<VerifyReport> verify(const CatalogReader& catalog, const VerifyOptions& options = {});
Result<VerifyReport> verify(const CatalogReader& catalog, const std::string& path,
                            const VerifyOptions& options = {});

}  // namespace terrace
