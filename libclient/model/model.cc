// SPDX-License-Identifier: Apache-2.0
// Model: maps a lease or files so that stores stay in this process, and names the tensors in there.
#include "terrace/model.h"

#include <sys/stat.h>

#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/os/file_view.h"
#include "libclient/io/model_files.h"

namespace terrace {
namespace {

constexpr const char* where = "Model";

class CatalogModel final : public Model {
 public:
  CatalogModel(std::shared_ptr<Lease> lease, os::FileView view, CatalogReader reader)
      : lease_(std::move(lease)), view_(std::move(view)), reader_(std::move(reader)) {
    source_ = "lease " + std::to_string(lease_->id().value);
  }

  std::span<const TensorView> tensors() const override { return reader_.tensors(); }
  Result<TensorView> find(std::string_view name) const override {
    Result<TensorView> found = reader_.find(name);
    if (found.ok()) return found;
    Error error = std::move(found).error();
    error.detail = source_ + ": " + error.detail;
    return error;
  }
  const TensorMetadata& metadata() const override { return reader_.metadata(); }
  Status verify() const override {
    TERRACE_ASSIGN_OR_RETURN(const VerifyReport report, terrace::verify(reader_));
    if (report.equal()) return {};
    const TensorMismatch& first = report.mismatches.front();
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = source_ + ": tensor " + quoted_name(first.name) + " " + first.reason + ", and " +
                           std::to_string(report.mismatches.size() - 1) + " others; import the model again"};
  }
  bool takes_stores() const override { return view_.takes_stores(); }
  const std::shared_ptr<Lease>& lease() const override { return lease_; }
  const std::string& source() const override { return source_; }

 private:
  std::shared_ptr<Lease> lease_;
  os::FileView view_;
  CatalogReader reader_;  // borrows the view
  std::string source_;
};

class FilesModel final : public Model {
 public:
  static Result<std::shared_ptr<const Model>> open(const std::string& path) {
    TERRACE_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::open(path));
    auto model = std::make_shared<FilesModel>();
    model->source_ = path;
    for (const ModelFile& one : files.files) {
      TERRACE_ASSIGN_OR_RETURN(os::FileView view,
                               os::FileView::map(one.file.fd.get(), one.file.index.file_bytes, one.path));
      model->views_.push_back(std::move(view));
    }
    model->files_ = std::move(files);
    model->name_tensors();
    for (ModelFile& one : model->files_.files) one.file.fd.reset();
    return std::shared_ptr<const Model>(std::move(model));
  }

  std::span<const TensorView> tensors() const override { return tensors_; }
  Result<TensorView> find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return tensors_[found->second];
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = source_ + ": no tensor " + quoted_name(name) + " in it"};
  }
  const TensorMetadata& metadata() const override { return files_.metadata; }
  Status verify() const override {
    return Error{
        .code = ErrorCode::unsupported,
        .where = where,
        .detail = source_ + ": the file's format has no checksums; import it into a lease to have some"};
  }
  bool takes_stores() const override { return takes_stores_; }
  const std::shared_ptr<Lease>& lease() const override { return no_lease_; }
  const std::string& source() const override { return source_; }

 private:
  void name_tensors() {
    for (size_t at = 0; at < views_.size(); ++at) {
      takes_stores_ = takes_stores_ && views_[at].takes_stores();
      for (const SafetensorsEntry& entry : files_.files[at].file.index.tensors) {
        by_name_.emplace(entry.name, tensors_.size());
        tensors_.push_back({.name = entry.name,
                            .dtype = entry.dtype,
                            .shape = entry.shape,
                            .strides = row_major_strides(entry.shape),
                            .bytes = views_[at].bytes().subspan(entry.file_offset, entry.bytes)});
      }
    }
  }

  ModelFiles files_;
  std::vector<os::FileView> views_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::string source_;
  bool takes_stores_ = true;
  std::shared_ptr<Lease> no_lease_;
};

// What the manager says of a lease whose memory is not there any more.
Error lost(Lease& lease) {
  const auto info = lease.info();
  const ErrorCode code = !info.ok() && info.error().code == ErrorCode::lease_revoked ? ErrorCode::lease_revoked
                                                                                     : ErrorCode::lease_expired;
  return Error{code, 0, where, "lease " + std::to_string(lease.id().value) + " is lost: its memory is gone"};
}

}  // namespace

Result<std::shared_ptr<const Model>> Model::open(std::shared_ptr<Lease> lease) try {
  const std::string name = "lease " + std::to_string(lease->id().value);
  if (lease->state() == LeaseState::lost) return lost(*lease);
  struct stat status {};
  if (::fstat(lease->fd(), &status) != 0) return os_error(errno, where, name + ": cannot be examined");
  // A fenced object has no bytes any more.
  if (S_ISREG(status.st_mode) && static_cast<uint64_t>(status.st_size) < lease->bytes()) return lost(*lease);
  TERRACE_ASSIGN_OR_RETURN(os::FileView view, os::FileView::map(lease->fd(), lease->bytes(), name));
  Result<CatalogReader> reader = CatalogReader::open(view.bytes());
  if (!reader.ok()) {
    Error error = std::move(reader).error();
    error.detail = name + ": " + error.detail;
    return error;
  }
  return std::shared_ptr<const Model>(
      std::make_shared<CatalogModel>(std::move(lease), std::move(view), std::move(reader).value()));
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = "no local memory"};
}

Result<std::shared_ptr<const Model>> Model::open_files(const std::string& path) try {
  return FilesModel::open(path);
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
}

}  // namespace terrace
