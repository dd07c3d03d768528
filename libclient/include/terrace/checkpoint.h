// SPDX-License-Identifier: Apache-2.0
// Checkpoints: the bytes of a set of a pool's tensors at one moment, written to a directory while the program
// goes on using them.
//
//   auto directory = CheckpointDirectory::open("/data/checkpoints");
//   auto write = (*directory)->checkpoint("step-1000", *pool, tensors);   // between two steps
//   train_on();                                       // the snapshot stands; its bytes go to the disk meanwhile
//   Status done = (*write)->wait(600'000'000'000);
//   ...
//   auto back = (*directory)->restore("step-1000", *pool);
//
// Snapshot  By copy on write, a granule (2 MiB) at a time: checkpoint() write-protects the tensors' granules
//           and returns; the program's first store to a granule waits until it is copied to free memory of the
//           pool (some 0.3 ms). Where the kernel gives no userfaultfd, or the memory cannot be protected (a dax
//           device), the granules are copied before checkpoint() returns: progress().reason says why, and
//           pause_ns how long it took.
// Moment    Call checkpoint() between two steps: no thread may store to the tensors while it runs. A store
//           during the call may or may not be in the checkpoint.
// Devices   Write protection does not see stores past the program's page tables, even if they begin after
//           checkpoint(). Such stores are a device's to registered memory (cuMemHostRegister, RDMA), and the
//           kernel's to fixed buffers of io_uring. None may go to the tensors until the checkpoint is done.
// Files     A checkpoint is a directory of its name. It has a plain safetensors file, and a manifest with the
//           checksums (docs/formats/checkpoint.md). It appears under its name all at once, complete and
//           synced. Until then it is a hidden directory, which no call offers.
// Forks     A forked child inherits the writer's open file, and so its lock. If the child outlives the writer,
//           the name is `busy` and half written until the child ends or executes another program.
// Threads   Any. Several processes may use one directory of one machine at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "terrace/tensor_space.h"
#include "terrace/transfer.h"

namespace terrace {

struct CheckpointInfo {
  std::string name;
  uint64_t tensors = 0, tensor_bytes = 0;
  uint64_t file_bytes = 0;       // of the safetensors file
  uint64_t created_unix_ns = 0;  // when it was begun
  std::string file;              // the safetensors file
};

// Callbacks come on the thread that writes, which lets the program's stores go on: they must neither store to
// the tensors that are being written, nor take a lock that others hold while they store to them.
struct CheckpointOptions : TransferOptions {
  TensorMetadata metadata = {};
  // A bound on the pool's free memory for copies of granules that the program stores to before they are
  // written. It is taken until the checkpoint is done, in pieces of 4 MiB and more, and never exceeds the
  // tensors' granules. Once it is used up, stores wait for the disk. UINT64_MAX: half of the free memory, so
  // that other callers of create() find the rest. If the tensors must be copied at once and half is too
  // little, then all free memory.
  uint64_t room_bytes_max = UINT64_MAX;
};

// For tensors of a space. The newest version of each is read in place, under a pin, until it is on the disk.
// Meanwhile its writer may publish one more version (of a single-buffered tensor: none). A further write waits
// for the disk, or fails with `busy`.
struct SpaceCheckpointOptions : TransferOptions {
  TensorMetadata metadata = {};
  // Copies all tensors to local memory before checkpoint() returns: writers wait for this copy only.
  bool copy_at_once = false;
  // For all of the cut: as long as a tensor is being written, was never published, or does not stand still.
  uint64_t wait_ns = 1'000'000'000;
};

struct CheckpointProgress {
  uint64_t file_bytes = 0, written_bytes = 0;
  // Time to protect (or copy) the tensors; no store is allowed then. checkpoint() itself takes longer, since it
  // finds disk space and room before that. Stores in that earlier part are in the checkpoint.
  uint64_t pause_ns = 0;
  uint64_t snapshot_bytes = 0;        // of the tensors' granules
  uint64_t copied_bytes = 0;          // of them since the program stored to them
  uint64_t copied_at_once_bytes = 0;  // of them during the pause: `reason` says why
  uint64_t room_bytes = 0;
  uint64_t waits_for_room = 0;  // stores that found the room used up
  std::string reason;
};

// A checkpoint that is being written. Destroying the object earlier cancels it: the destructor waits for
// requests in flight, and no file is left. It must not outlive the pool's Tiering, if one was passed in.
class CheckpointWrite {
 public:
  virtual ~CheckpointWrite() = default;
  virtual bool done() const = 0;
  // Errors    busy  not done after `timeout_ns`; it goes on
  //           the writing's own, also those of export_safetensors: no file is left, and no tensor is changed.
  //           One exception: an io_error of the last sync, which says so. The checkpoint then is complete under
  //           its name, but may not survive a crash of the machine
  //           lease_expired  a lease behind the pool was fenced before all was written
  virtual Status wait(uint64_t timeout_ns) = 0;
  virtual CheckpointProgress progress() const = 0;
  // wait() says `cancelled` soon, unless it was complete already.
  virtual void cancel() = 0;
};

struct CheckpointList {
  struct Damaged {
    std::string name;
    Error error;
  };
  std::vector<CheckpointInfo> checkpoints;  // by name
  std::vector<Damaged> damaged;             // never offered: the manifest or the file has changed since
  uint64_t half_written = 0;                // left by writers that died; removed by this call
  uint64_t being_written = 0;               // now, by others
};

struct CheckpointVerification {
  uint64_t bytes = 0;
  struct Part {
    uint64_t begin = 0, end = 0;  // bytes of the file
  };
  std::vector<Part> damaged = {};  // empty: no byte has changed
};

struct SpaceImportOptions : TransferOptions {
  std::vector<std::string> tensors = {};  // names; empty: all
  // Publishes a new version of a tensor that the space already has with the same dtype and shape; creates the
  // others. false: an existing name is an error.
  bool into_existing = false;
  TensorHint hint = TensorHint::weights;  // of those that are created
  bool double_buffered = true;
  uint64_t wait_ns = 1'000'000'000;  // for each tensor's slot
};

struct SpaceImport {
  std::vector<SharedTensor> tensors;  // in the order of their bytes in the file
  TensorMetadata metadata;
};

struct CheckpointExportOptions : TransferOptions {
  std::vector<std::string> tensors = {};  // names; empty: all
};

class CheckpointDirectory {
 public:
  // Makes the directory if it does not exist (its parent must), unless `make` is false.
  // Errors    invalid_argument (no directory), not_found, permission_denied, io_error
  static Result<std::unique_ptr<CheckpointDirectory>> open(const std::string& path, bool make = true);
  virtual ~CheckpointDirectory() = default;

  // Takes the snapshot, and begins to write it. One at a time for a pool.
  // Names: 1 to 128 of A-Z a-z 0-9 . _ -, the first one no dot.
  //
  // Errors    invalid_argument    the name; no tensors; those of export_safetensors for tensors
  //           already_exists      a checkpoint of that name
  //           busy                that name is being written, or a snapshot of the pool exists
  //           capacity_exhausted  the file does not fit the disk; or the bytes to copy at once do not fit the
  //                               pool: says how much is short. Nothing changed
  //           lease_expired, lease_revoked  a lease behind the pool is gone or about to go
  virtual Result<std::unique_ptr<CheckpointWrite>> checkpoint(const std::string& name, TensorPool& pool,
                                                              std::span<const std::shared_ptr<Tensor>> tensors,
                                                              const CheckpointOptions& options = {}) = 0;

  // The same for tensors of a space, which several processes write. It is a cut at one moment: each version was
  // the newest then. The call pins all tensors, or copies them where this holder has no part or no free pin.
  // Then it checks all again. A tensor with a newer version is pinned again, and its older version stays
  // pinned, which stops its writer. Destroy the CheckpointWrite before the space.
  //
  // Errors    as above, and those of TensorSpace::pin and read, naming the tensor
  //           busy  a named tensor got new versions during all of wait_ns (only possible without a pin), or was
  //                 being written all that time, or was never published
  // Lost      lease_expired if the lease ends while the cut is made, while the bytes are copied at once, or
  //           while they are written to the disk.
  virtual Result<std::unique_ptr<CheckpointWrite>> checkpoint(const std::string& name, TensorSpace& space,
                                                              std::span<const SharedTensor> tensors,
                                                              const SpaceCheckpointOptions& options = {}) = 0;

  // Errors    not_found, corrupt (its manifest or its file has changed since it was written)
  virtual Result<CheckpointInfo> find(const std::string& name) const = 0;
  virtual Result<CheckpointList> list() = 0;

  // Reads the whole file and compares its checksums. A difference is in the answer, not an error.
  // Errors    those of find; io_error, cancelled
  virtual Result<CheckpointVerification> verify(const std::string& name,
                                                const TransferOptions& options = {}) const = 0;

  // Makes the checkpoint's tensors in the pool, as import_safetensors; all bytes used are compared with the
  // checksums. With options.tensors it reads only the chunks of 16 MiB with these tensors and the header, and
  // progress counts these. After an error no new tensor is left; existing tensors (into_existing) have
  // undefined bytes.
  // Errors    those of find and import_safetensors; corrupt, saying which bytes; lease_expired: the pool's
  //           memory went away meanwhile
  //           not_found  no such checkpoint; or it lacks some of options.tensors: each of these is named (16
  //           at most)
  virtual Result<PoolImport> restore(const std::string& name, TensorPool& pool,
                                     const PoolImportOptions& options = {}) const = 0;

  // The same into a space. It fills the slots of all tensors and compares the checksums, then publishes one
  // tensor after the other. After an error double-buffered tensors are as before, and no new tensor is left.
  // Readers may see some tensors before the restore and others after it. If the process dies in between, it
  // stays so.
  // Errors    those of find, and of TensorSpace::create and write, naming the tensor; corrupt; already_exists,
  //           invalid_argument (an existing tensor is another), not_found, as above
  virtual Result<SpaceImport> restore(const std::string& name, TensorSpace& space,
                                      const SpaceImportOptions& options = {}) const = 0;

  // Make a checkpoint of a safetensors file, and the reverse; checksums are compared on the way. With
  // options.tensors the new file has only these, with the same metadata; the returned numbers count these.
  // Errors    as checkpoint(), restore(), import_safetensors and export_safetensors
  virtual Result<CheckpointInfo> import_file(const std::string& file, const std::string& name,
                                             const TransferOptions& options = {}) = 0;
  virtual Result<CheckpointInfo> export_file(const std::string& name, const std::string& file, bool replace,
                                             const CheckpointExportOptions& options = {}) const = 0;

  // Removes it at once for everybody; a running read goes on. Also a damaged one. Errors:
  // not_found, permission_denied.
  virtual Status remove(const std::string& name) = 0;
};

}  // namespace terrace
