// SPDX-License-Identifier: Apache-2.0
// The tensors of a model, in place: of a lease that a catalog was put into (`terrace tensor import`), or of a model's
// files. Any number of processes look at the same bytes.
//
//   auto lease = session->attach(LeaseId{}, "llama", LeaseAccess::read_only);
//   auto model = Model::open(*lease);
//   auto weight = (*model)->find("wte.weight");
//
// Stores    A process that stores to a tensor keeps the touched pages for itself, as copies; nobody else sees them.
//           Where memory has no such pages (DAX devices), takes_stores() is false and a store raises SIGSEGV.
// Loss      When the lease is lost, an access to a tensor raises SIGBUS; so does a file that is cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "terrace/catalog.h"
#include "terrace/session.h"
#include "terrace/tensor.h"

namespace terrace {

// Ownership  Tensors and texts that it hands out live as long as the model. It keeps the lease.
// Threads    Immutable: all methods from any thread.
class Model {
 public:
  // The catalog of a lease. The session must live as long as the lease.
  //
  // Errors    those of CatalogReader::open; lease_expired, lease_revoked  the memory is gone already;
  //           out_of_memory  no address space
  static Result<std::shared_ptr<const Model>> open(std::shared_ptr<Lease> lease);

  // A model's files, by a path of read_safetensors_model (terrace/safetensors.h). They are mapped, not read; tensors
  // lie at any address, as in the file.
  //
  // Errors    those of read_safetensors_model; out_of_memory
  static Result<std::shared_ptr<const Model>> open_files(const std::string& path);

  virtual ~Model() = default;

  // In the order of their bytes. version is 0 and crc32c is not known for files.
  virtual std::span<const TensorView> tensors() const = 0;
  // O(1). Errors: not_found, naming the model and the tensor.
  virtual Result<TensorView> find(std::string_view name) const = 0;
  virtual const TensorMetadata& metadata() const = 0;
  // Compares the tensors of a lease with their recorded checksums.
  // Errors    corrupt      names the tensor
  //           unsupported  a file's tensors have no checksums
  //           lease_expired
  virtual Status verify() const = 0;
  virtual bool takes_stores() const = 0;
  // nullptr for files.
  virtual const std::shared_ptr<Lease>& lease() const = 0;
  // The path, or "lease 7".
  virtual const std::string& source() const = 0;
};

}  // namespace terrace
