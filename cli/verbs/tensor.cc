// SPDX-License-Identifier: Apache-2.0
// `terrace tensor import|list|verify|export`: model files in and out of leased memory.
#include <charconv>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/fence_guard.h"
#include "terrace/catalog.h"
#include "terrace/mapping.h"
#include "terrace/safetensors.h"
#include "terrace/session.h"

namespace terrace::cli {
namespace {

struct TensorArguments {
  std::string lease, file, pool, label;
  std::string hint = "weights";
  uint64_t ttl_ns = 0;  // 0: persistent
  bool verify = false;
  bool force = false;
  std::vector<std::string> tensors;
};

std::string crc_text(uint32_t crc32c) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc32c);
  return text;
}

// A name as a cell of a table: quoted_name without its quotes.
std::string shown_name(std::string_view name) {
  const std::string quoted = quoted_name(name);
  return quoted.substr(1, quoted.size() - 2);
}

Result<std::unique_ptr<Session>> connect(const Context& context) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, "terrace tensor"));
  SessionOptions options;
  options.socket_path = context.socket_path;
  options.client_name = "terrace tensor";
  options.call_timeout_ns = context.call_timeout_ns;
  return Session::connect(std::move(options));
}

// A lease attached and mapped read-only, with its catalog checked.
struct OpenCatalog {
  std::unique_ptr<Session> session;
  std::unique_ptr<Mapping> mapping;
  std::unique_ptr<FenceGuard> guard;
  CatalogReader reader;
};

Result<OpenCatalog> open_catalog(const Context& context, const std::string& name) {
  uint64_t id = 0;  // all digits: an id; anything else: a label
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), id);
  const bool is_id = failed == std::errc() && end == name.data() + name.size();
  if (name.empty() || (is_id && id == 0)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace tensor",
                 .detail = quoted_name(name) + " names no lease; ids begin at 1"};
  }
  TERRACE_ASSIGN_OR_RETURN(auto session, connect(context));
  TERRACE_ASSIGN_OR_RETURN(auto lease, session->attach(LeaseId{is_id ? id : 0}, is_id ? std::string() : name,
                                                       LeaseAccess::read_only));
  TERRACE_ASSIGN_OR_RETURN(auto mapping, Mapping::map(std::move(lease)));
  auto guard = std::make_unique<FenceGuard>(mapping->const_bytes());
  Result<CatalogReader> reader = CatalogReader::open(mapping->const_bytes());
  TERRACE_RETURN_IF_ERROR(fence_status(*mapping->lease(), reader.ok() ? nullptr : &reader.error()));
  if (!reader.ok()) {
    Error error = std::move(reader).error();
    error.detail = "lease " + quoted_name(name) + ": " + error.detail;
    return error;
  }
  return OpenCatalog{std::move(session), std::move(mapping), std::move(guard), std::move(reader).value()};
}

nlohmann::json report_json(const TransferReport& report, double seconds) {
  return {{"tensors", report.tensors},
          {"tensor_bytes", report.tensor_bytes},
          {"total_bytes", report.total_bytes},
          {"generation", report.generation},
          {"seconds", seconds},
          {"straight_bytes", report.straight_bytes},
          {"staged_bytes", report.staged_bytes},
          {"buffered_bytes", report.buffered_bytes},
          {"io_uring", report.io_uring},
          {"note", report.note}};
}

std::string speed_text(uint64_t bytes, double seconds) {
  char text[64];
  std::snprintf(
      text, sizeof text, " in %.2f s (%s/s)", seconds,
      format_size(static_cast<uint64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-6))).c_str());
  return text;
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Result<TransferReport> import_into(const Context& context, const std::shared_ptr<Lease>& lease,
                                   const TensorArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto mapping, Mapping::map(lease));
  Progress progress(context, "import");
  ImportOptions options;
  options.hint = *hint_from_name(arguments.hint);
  options.verify = arguments.verify;
  options.lease_epoch = lease->epoch();
  options.persist = [&](std::span<const std::byte> range) { mapping->persist(range); };
  options.progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  options.cancelled = [] { return InterruptGuard::interrupted() || FenceGuard::fenced(); };
  const FenceGuard guard(mapping->const_bytes());
  Result<TransferReport> report = import_safetensors(arguments.file, mapping->bytes(), options);
  TERRACE_RETURN_IF_ERROR(fence_status(*lease, report.ok() ? nullptr : &report.error()));
  return report;
}

Status import_tensors(const Context& context, const TensorArguments& arguments) {
  const InterruptGuard guard;
  // The file first: a file that is refused costs no lease.
  TERRACE_RETURN_IF_ERROR(check_label(arguments.label));
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes, required_bytes(arguments.file));
  TERRACE_ASSIGN_OR_RETURN(const auto session, connect(context));
  LeaseRequest request;
  request.pool = arguments.pool;
  request.bytes = bytes;
  request.mode = LeaseMode::shared_read_only;
  request.ttl_ns = arguments.ttl_ns;
  request.persistent = arguments.ttl_ns == 0;
  request.label = arguments.label;
  request.detached = true;  // for those who attach it later
  TERRACE_ASSIGN_OR_RETURN(const auto lease, session->grant(request));
  const Stopwatch stopwatch;
  // The mapping ends inside, before the lease is given back.
  Result<TransferReport> report = import_into(context, lease, arguments);
  if (!report.ok()) {
    Error error = std::move(report).error();
    if (error.code == ErrorCode::lease_revoked || error.code == ErrorCode::lease_expired) return error;
    const Status released = lease->release();
    error.detail += released.ok() ? "; the lease was released"
                                  : "; releasing lease " + std::to_string(lease->id().value) +
                                        " failed too: " + released.error().to_string();
    return error;
  }
  const double seconds = stopwatch.seconds();
  if (context.json) {
    nlohmann::json document = report_json(*report, seconds);
    document["lease"] = lease->id().value;
    document["lease_epoch"] = lease->epoch().value;
    document["label"] = arguments.label;
    document["lease_bytes"] = lease->bytes();
    document["file"] = arguments.file;
    print_json(document);
    return {};
  }
  std::string text = "imported " + count_text(report->tensors, "tensor") + ", " +
                     format_size(report->tensor_bytes) + speed_text(report->tensor_bytes, seconds) + "\n";
  text += "lease " + std::to_string(lease->id().value);
  if (!arguments.label.empty()) text += " (" + arguments.label + ")";
  text += arguments.ttl_ns == 0 ? ", persistent: it stays until 'terrace lease release'\n"
                                : ", for " + format_duration(arguments.ttl_ns) + " unless it is renewed\n";
  if (!report->note.empty()) text += "note: " + report->note + "\n";
  print_text(text);
  return {};
}

Status list_tensors(const Context& context, const TensorArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const OpenCatalog catalog, open_catalog(context, arguments.lease));
  if (context.json) {
    nlohmann::json tensors = nlohmann::json::array();
    for (const TensorView& tensor : catalog.reader.tensors()) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", dtype_name(tensor.dtype)},
                         {"shape", tensor.shape.dimensions()},
                         {"strides", std::vector<int64_t>(tensor.strides.begin(),
                                                          tensor.strides.begin() + tensor.shape.rank())},
                         {"hint", hint_name(tensor.hint)},
                         {"read_mostly", (tensor.flags & TensorFlags::read_mostly) != 0},
                         {"streaming", (tensor.flags & TensorFlags::streaming) != 0},
                         {"pinned", (tensor.flags & TensorFlags::pinned) != 0},
                         {"bytes", tensor.bytes.size()},
                         {"offset", tensor.bytes.data() - catalog.mapping->const_bytes().data()},
                         {"version", tensor.version},
                         {"crc32c", crc_text(tensor.crc32c)}});
    }
    nlohmann::json metadata = nlohmann::json::object();
    for (const auto& [key, value] : catalog.reader.metadata()) metadata[key] = value;
    print_json({{"lease", catalog.mapping->lease()->id().value},
                {"generation", catalog.reader.generation()},
                {"bytes", catalog.reader.data_bytes()},
                {"metadata", metadata},
                {"tensors", tensors}});
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const TensorView& tensor : catalog.reader.tensors()) {
    rows.push_back({shown_name(tensor.name), std::string(dtype_name(tensor.dtype)), tensor.shape.to_string(),
                    format_size(tensor.bytes.size()), std::string(hint_name(tensor.hint)),
                    crc_text(tensor.crc32c)});
  }
  print_table({"NAME", "DTYPE", "SHAPE", "SIZE", "HINT", "CRC32C"}, rows);
  print_text(count_text(catalog.reader.size(), "tensor") + ", " + format_size(catalog.reader.data_bytes()) +
             "\n");
  return {};
}

Status verify_tensors(Context& context, const TensorArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const OpenCatalog catalog, open_catalog(context, arguments.lease));
  Progress progress(context, "verify");
  VerifyOptions options;
  options.progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  options.cancelled = [] { return FenceGuard::fenced(); };
  const Result<VerifyReport> done = arguments.file.empty() ? verify(catalog.reader, options)
                                                           : verify(catalog.reader, arguments.file, options);
  TERRACE_RETURN_IF_ERROR(fence_status(*catalog.mapping->lease(), done.ok() ? nullptr : &done.error()));
  if (!done.ok()) return done.error();
  const VerifyReport& report = *done;
  if (!report.equal()) context.exit_code = exit_mismatch;
  if (context.json) {
    nlohmann::json mismatches = nlohmann::json::array();
    for (const TensorMismatch& mismatch : report.mismatches) {
      mismatches.push_back({{"name", mismatch.name}, {"reason", mismatch.reason}});
    }
    print_json({{"lease", catalog.mapping->lease()->id().value},
                {"tensors", report.tensors},
                {"bytes", report.tensor_bytes},
                {"file", arguments.file},
                {"equal", report.equal()},
                {"mismatches", mismatches}});
    return {};
  }
  std::string text;
  for (const TensorMismatch& mismatch : report.mismatches) {
    text += "tensor " + quoted_name(mismatch.name) + " " + mismatch.reason + "\n";
  }
  const std::string against = arguments.file.empty() ? "their recorded checksums" : "the file";
  text += report.equal() ? count_text(report.tensors, "tensor") + ", " + format_size(report.tensor_bytes) +
                               ", equal to " + against + "\n"
                         : std::to_string(report.mismatches.size()) + " of " + std::to_string(report.tensors) +
                               " tensors differ from " + against + "\n";
  print_text(text);
  return {};
}

Status export_tensors(const Context& context, const TensorArguments& arguments) {
  const InterruptGuard guard;
  TERRACE_ASSIGN_OR_RETURN(const OpenCatalog catalog, open_catalog(context, arguments.lease));
  const Stopwatch stopwatch;
  Progress progress(context, "export");
  ExportOptions options;
  options.tensors = arguments.tensors;
  options.replace = arguments.force;
  options.progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  options.cancelled = [] { return InterruptGuard::interrupted() || FenceGuard::fenced(); };
  const Result<TransferReport> done = export_safetensors(catalog.reader, arguments.file, options);
  if (!done.ok()) {
    TERRACE_RETURN_IF_ERROR(fence_status(*catalog.mapping->lease(), &done.error()));
    return done.error();
  }
  const TransferReport& report = *done;
  const double seconds = stopwatch.seconds();
  if (context.json) {
    nlohmann::json document = report_json(report, seconds);
    document["lease"] = catalog.mapping->lease()->id().value;
    document["file"] = arguments.file;
    print_json(document);
    return {};
  }
  std::string text = "exported " + count_text(report.tensors, "tensor") + ", " +
                     format_size(report.total_bytes) + speed_text(report.total_bytes, seconds) + " to " +
                     arguments.file + "\n";
  if (!report.note.empty()) text += "note: " + report.note + "\n";
  print_text(text);
  return {};
}

void add_import(Command tensor, Context& context) {
  Command verb = tensor.add_subcommand("import", "Read a model's safetensors files into a lease of its own");
  const auto arguments = std::make_shared<TensorArguments>();
  const std::vector<std::string> hints = {"none",      "weights",         "activations",
                                          "gradients", "optimizer_state", "kv_cache"};
  verb.add_option("file", arguments->file,
                  "The safetensors file; or a model's index of shards (model.safetensors.index.json), a GGUF "
                  "file, or a folder with one of them")
      .required()
      .type_name("FILE");
  verb.add_option("--pool", arguments->pool, "The pool; may be left out where there is only one")
      .type_name("POOL");
  verb.add_option("--label", arguments->label, "A name for the lease, unique within the tenant")
      .type_name("LABEL");
  add_duration_option(verb, "--ttl", arguments->ttl_ns, "Let the lease lapse after that (default: persistent)");
  verb.add_option("--hint", arguments->hint, "What the tensors are for (default: weights)")
      .one_of(hints)
      .type_name("HINT:{" + join(hints, ",") + "}");
  verb.add_flag("--verify", arguments->verify, "Read the file a second time and compare, before publishing");
  on_verb(verb, context, [&context, arguments] { return import_tensors(context, *arguments); });
}

}  // namespace

void add_tensor_verbs(Command app, Context& context) {
  Command tensor = app.add_subcommand("tensor", "Tensors: model files in and out of leased memory");
  tensor.require_subcommand();
  add_import(tensor, context);
  const auto arguments = std::make_shared<TensorArguments>();
  const auto add_lease = [&](Command verb) {
    verb.add_option("lease", arguments->lease, "Id or label (all digits: an id)")
        .required()
        .type_name("ID|LABEL");
  };

  Command list = tensor.add_subcommand("list", "The tensors of a lease");
  add_lease(list);
  on_verb(list, context, [&context, arguments] { return list_tensors(context, *arguments); });

  Command verify = tensor.add_subcommand("verify", "Compare tensors with their checksums, and with a file");
  add_lease(verify);
  verify.add_option("file", arguments->file, "A safetensors file, or a model's index or folder")
      .type_name("FILE");
  on_verb(verify, context, [&context, arguments] { return verify_tensors(context, *arguments); });

  Command write = tensor.add_subcommand("export", "Write tensors of a lease to a safetensors file");
  add_lease(write);
  write.add_option("file", arguments->file, "The file to make").required().type_name("FILE");
  write.add_option("--tensor", arguments->tensors, "Only this one; may be given several times")
      .type_name("NAME");
  write.add_flag("--force", arguments->force, "Replace the file where it exists");
  on_verb(write, context, [&context, arguments] { return export_tensors(context, *arguments); });
}

}  // namespace terrace::cli
