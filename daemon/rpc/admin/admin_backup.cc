// SPDX-License-Identifier: Apache-2.0
// The operator's interface: a backup of the store, handed over as a descriptor.
#include "core/base/unique_fd.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

class BackupFileServer final : public rpc::BackupFile::Server {
 public:
  explicit BackupFileServer(UniqueFd file) : file_(std::move(file)) {}
  kj::Maybe<int> getFd() override { return file_.get(); }

 private:
  const UniqueFd file_;
};

void write_contents(rpc::StoreBackup::Builder out, const StoreContents& contents) {
  out.setStoreId(store_id_text(contents.id));
  out.setSequence(contents.sequence);
  out.setBytes(contents.bytes);
  out.setLeases(contents.leases);
  out.setDevices(contents.devices);
  out.setPools(contents.pools);
}

}  // namespace

kj::Promise<void> AdminServer::backup(BackupContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    if (connection_->peer.remote != nullptr) {
      const CallSlot held = kj::mv(*slot);
      refuse(context,
             Error{.code = ErrorCode::unsupported,
                   .where = "backup",
                   .detail = "a backup is handed over as a descriptor, which a connection over TLS does not "
                             "carry: run `terrace state backup` on the manager's machine"});
      return kj::READY_NOW;
    }
    return engine()
        .backup()
        .then([this, context](Result<StoreBackup> made) mutable {
          if (!made.ok()) return refuse(context, made.error());
          engine().events().tell(
              Event{.kind = EventKind::backup_taken,
                    .message = "a backup of the store: " + std::to_string(made->contents.leases) +
                               " leases, commit " + std::to_string(made->contents.sequence),
                    .cause = connection_->name(),
                    .bytes = made->contents.bytes});
          auto results = context.getResults();
          write_contents(results.initBackup(), made->contents);
          results.setFile(kj::heap<BackupFileServer>(std::move(made->file)));
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
