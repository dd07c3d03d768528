// SPDX-License-Identifier: Apache-2.0
// Tensors of a pool in and out of safetensors files, past the page cache and without a copy where file and
// memory are aligned alike (docs/formats/safetensors.md).
//
//   auto model = import_safetensors(*pool, "model.safetensors");
//   for (const auto& tensor : model->tensors) use(*tensor);
//   auto report = export_safetensors(*pool, model->tensors, "copy.safetensors");
//
// Holds     The disk reads and writes the tensors' pages past the page tables, so these are held in place. An
//           import holds all pages that it fills until its end; an export holds 256 MiB at a time.
// Threads   Any. A call works on the calling thread, callbacks included.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "terrace/safetensors.h"
#include "terrace/tensor_pool.h"

namespace terrace {

struct PoolImportOptions : TransferOptions {
  TensorHint hint = TensorHint::weights;
  uint8_t flags = TensorFlags::read_mostly;
  std::vector<std::string> tensors = {};  // names; empty: all
  // Fills tensors that the pool has already, if name, dtype and shape are the same; makes the others. If the
  // import fails, their bytes are undefined. false: an existing name is an error.
  bool into_existing = false;
};

struct PoolImport {
  std::vector<std::shared_ptr<Tensor>> tensors;  // in the order of their bytes in the file
  TensorMetadata metadata;
  TransferReport report;  // total_bytes: of the file's tensors that were read
};

// Makes the file's tensors in the pool and reads their bytes. After an error no tensor that it made is
// left.
//
// Errors    those of read_safetensors_index, read_blocks and TensorPool::create; already_exists; not_found (a
//           name of options.tensors); invalid_argument (an existing tensor is another); busy (the file was
//           changed meanwhile); cancelled; lease_expired (a lease behind the pool is lost)
Result<PoolImport> import_safetensors(TensorPool& pool, const std::string& path,
                                      const PoolImportOptions& options = {});

struct PoolExportOptions : TransferOptions {
  TensorMetadata metadata = {};
  bool replace = true;  // false: refuse when the file exists
};

// Writes tensors of the pool to `path`: to a temporary file beside it, synced, renamed, directory synced. The
// same tensors and metadata give the same bytes. A store during the call may or may not be in the file; a
// checkpoint (terrace/checkpoint.h) has the bytes of one moment.
//
// Errors    invalid_argument    a tensor without a name, of another pool, or null; a header beyond 100 MB
//           already_exists      two tensors of one name; or such a file, and options.replace is false
//           unsupported         a view that is not row-major
//           capacity_exhausted  the file system is full: nothing is left of the new file, the old one stands
//           lease_expired       a lease behind the pool is lost; the old file stands
//           permission_denied, not_found, io_error, cancelled; the old file stands
Result<TransferReport> export_safetensors(TensorPool& pool, std::span<const std::shared_ptr<Tensor>> tensors,
                                          const std::string& path, const PoolExportOptions& options = {});

}  // namespace terrace
