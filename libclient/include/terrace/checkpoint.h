// Checkpoints: what a set of a pool's tensors held at one moment, written to a directory while the program goes
// on with them.
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
// Moment    While checkpoint() runs nobody stores to the tensors: it is called between two steps. What is
//           stored then may be in the checkpoint or not.
// Devices   Stores that do not go through the program's page tables are seen by no protection, also when they
//           begin after checkpoint(): of devices to registered memory (cuMemHostRegister, RDMA), of the kernel
//           to fixed buffers of io_uring. None may go to the tensors until the checkpoint is done.
// Files     A checkpoint is a directory of its name with a safetensors file that any reader takes, and a
//           manifest with its checksums (docs/formats/checkpoint.md). It appears under its name all at once,
//           complete and synced; until then it is a hidden directory that is never offered.
// Forks     A child of fork that outlives a writer's death keeps the writer's lock, since it inherits the open
//           file: that name is `busy`, and half written, until the child has ended or executed another program.
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
  // Free memory of the pool that may be used for what the program stores to before it is written; taken until
  // the checkpoint is done, in pieces of 4 MiB and more. Once it is used up, stores wait for the disk. Never
  // more than the tensors' granules. UINT64_MAX: half of what is free now, so that others' create() finds the
  // rest; where the tensors must be copied at once and that is too little, all that is free. Other numbers are
  // a bound alone.
  uint64_t room_bytes_max = UINT64_MAX;
};

// Of tensors of a space. Each one's newest version is read in place, under a pin, until it is on the disk:
// meanwhile its writer may publish once more (a single-buffered one not at all), and waits for the disk then,
// or is told `busy`.
struct SpaceCheckpointOptions : TransferOptions {
  TensorMetadata metadata = {};
  // Copies all of it to local memory before checkpoint() returns: writers wait for that alone.
  bool copy_at_once = false;
  // For all of the cut: as long as a tensor is being written, was never published, or does not stand still.
  uint64_t wait_ns = 1'000'000'000;
};

struct CheckpointProgress {
  uint64_t file_bytes = 0, written_bytes = 0;
  // How long protecting (or copying) the tensors took, during which nobody may store. checkpoint() itself takes
  // longer, since disk space and room are found before that: stores then are in the checkpoint.
  uint64_t pause_ns = 0;
  uint64_t snapshot_bytes = 0;        // of the tensors' granules
  uint64_t copied_bytes = 0;          // of them since the program stored to them
  uint64_t copied_at_once_bytes = 0;  // of them during the pause: `reason` says why
  uint64_t room_bytes = 0;
  uint64_t waits_for_room = 0;  // stores that found the room used up
  std::string reason;
};

// A checkpoint that is being written. Dropping it before it is done gives it up: what is in flight is waited
// for, and nothing is left. Not longer than the pool's Tiering, where one was passed in.
class CheckpointWrite {
 public:
  virtual ~CheckpointWrite() = default;
  virtual bool done() const = 0;
  // Errors    busy  not done after `timeout_ns`; it goes on
  //           the writing's own, also those of export_safetensors: nothing is left then, and nothing is lost;
  //           but an io_error that says that it is there under its name, from syncing that: it is complete, and
  //           may not outlast a crash of the machine
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
  std::vector<Damaged> damaged;             // never offered: a manifest or a file that is not as it was written
  uint64_t half_written = 0;                // left by writers that died; removed by this call
  uint64_t being_written = 0;               // now, by others
};

struct CheckpointVerification {
  uint64_t bytes = 0;
  struct Part {
    uint64_t begin = 0, end = 0;  // bytes of the file
  };
  std::vector<Part> damaged = {};  // empty: all is as it was written
};

struct SpaceImportOptions : TransferOptions {
  std::vector<std::string> tensors = {};  // names; empty: all
  // Publishes a new version of tensors that the space has, where dtype and shape are the same; the others are
  // created. false: an existing name is an error.
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
  // Made where it does not exist (its parent does), unless `make` is false.
  // Errors    invalid_argument (no directory), not_found, permission_denied, io_error
  static Result<std::unique_ptr<CheckpointDirectory>> open(const std::string& path, bool make = true);
  virtual ~CheckpointDirectory() = default;

  // Takes the snapshot, and begins to write it. One at a time for a pool.
  // Names: 1 to 128 of A-Z a-z 0-9 . _ -, the first one no dot.
  //
  // Errors    invalid_argument    the name; no tensors; those of export_safetensors for tensors
  //           already_exists      a checkpoint of that name
  //           busy                that name is being written, or a snapshot of the pool exists
  //           capacity_exhausted  the file does not fit the disk; or what must be copied at once does not fit
  //                               the pool: says how much is short. Nothing changed
  //           lease_expired, lease_revoked  a lease behind the pool is gone or about to go
  virtual Result<std::unique_ptr<CheckpointWrite>> checkpoint(const std::string& name, TensorPool& pool,
                                                              std::span<const std::shared_ptr<Tensor>> tensors,
                                                              const CheckpointOptions& options = {}) = 0;

  // The same of tensors of a space that several processes write: a cut of one moment, at which each of the
  // versions was the newest. All are pinned, or copied where this holder has no part or no pin left, and looked
  // at again after that; what has a newer version is taken again, while the older one stays pinned, so that its
  // writer comes to rest. The write must go before the space.
  //
  // Errors    as above, and those of TensorSpace::pin and read, naming the tensor
  //           busy  a tensor that did not stand still for wait_ns, named; only one that cannot be pinned does
  //                 that. Or it was being written all the time, or was never published
  // Lost      A lease that goes away while the bytes are written to the disk, or copied at once, is
  //           lease_expired; so it is while the cut is made, as for every other call of the space.
  virtual Result<std::unique_ptr<CheckpointWrite>> checkpoint(const std::string& name, TensorSpace& space,
                                                              std::span<const SharedTensor> tensors,
                                                              const SpaceCheckpointOptions& options = {}) = 0;

  // Errors    not_found, corrupt (its manifest or its file is not as it was written)
  virtual Result<CheckpointInfo> find(const std::string& name) const = 0;
  virtual Result<CheckpointList> list() = 0;

  // Reads the whole file and compares its checksums. A difference is in the answer, not an error.
  // Errors    those of find; io_error, cancelled
  virtual Result<CheckpointVerification> verify(const std::string& name,
                                                const TransferOptions& options = {}) const = 0;

  // Its tensors in the pool, as import_safetensors; every byte that is used is compared with the checksums. Of
  // some (options.tensors) only the chunks of 16 MiB in which they and the header lie are read, and progress is
  // of these. After an error none of the tensors that were made are left (those of into_existing have any
  // bytes).
  // Errors    those of find and import_safetensors; corrupt, saying which bytes; lease_expired: the pool's
  //           memory went away meanwhile
  //           not_found  no such checkpoint; or it lacks some of options.tensors: every one is named (16 at
  //           most)
  virtual Result<PoolImport> restore(const std::string& name, TensorPool& pool,
                                     const PoolImportOptions& options = {}) const = 0;

  // The same into a space. Slots of all tensors are filled and compared with the checksums first, and published
  // one after the other then: an error leaves every tensor of double buffering as it was, and none that was
  // created; but readers may see some tensors before and others after the restore, also for good, when the
  // process dies in between.
  // Errors    those of find, and of TensorSpace::create and write, naming the tensor; corrupt; already_exists,
  //           invalid_argument (an existing tensor is another), not_found, as above
  virtual Result<SpaceImport> restore(const std::string& name, TensorSpace& space,
                                      const SpaceImportOptions& options = {}) const = 0;

  // A safetensors file becomes a checkpoint, and the other way; checked on the way. Of some tensors it is a
  // file of its own with the same metadata, and what is returned counts these.
  // Errors    as checkpoint(), restore(), import_safetensors and export_safetensors
  virtual Result<CheckpointInfo> import_file(const std::string& file, const std::string& name,
                                             const TransferOptions& options = {}) = 0;
  virtual Result<CheckpointInfo> export_file(const std::string& name, const std::string& file, bool replace,
                                             const CheckpointExportOptions& options = {}) const = 0;

  // Gone at once for everybody; who reads it goes on. Damaged ones too. Errors: not_found, permission_denied.
  virtual Status remove(const std::string& name) = 0;
};

}  // namespace terrace
