#include "daemon/hosts/credentials.h"

#include <sys/stat.h>

#include <ctime>
#include <utility>

#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr int64_t warn_again_s = 86'400;

CertificateEnd end_of(const char* what, std::string name, int64_t begins_s, int64_t ends_s, int64_t now_s) {
  return {.what = what,
          .name = std::move(name),
          .days_left = days_left(ends_s, now_s),
          .soon = ends_soon(begins_s, ends_s, now_s)};
}

}  // namespace

std::string end_warning(const CertificateEnd& end) {
  if (!end.soon) return "";
  const std::string days = std::to_string(end.days_left) + (end.days_left == 1 ? " day" : " days");
  if (end.what == "revocation list") {
    return "the list of revoked certificates " + end.name + " was to be signed anew within " + days +
           ": `terrace cert revoke --none` where the CA is, and copy it; it is used on";
  }
  if (end.what == "ca") {
    return "the CA '" + end.name + "' ends within " + days +
           ", and with it every certificate that it issued: make a new one and issue all anew";
  }
  return "the certificate of " + end.name + " ends within " + days +
         ": `terrace cert issue` a new one and replace the files; they are read again without a restart";
}

Credentials::Credentials(TlsFiles files, TlsRole role, kj::Timer& timer, SeenAll seen, TlsIdentity identity,
                         RevocationList revoked)
    : files_(std::move(files)),
      role_(role),
      timer_(&timer),
      used_(seen),
      last_(seen),
      identity_(std::move(identity)),
      revoked_(std::move(revoked)) {}

Result<Credentials> Credentials::read(TlsFiles files, TlsRole role, kj::Timer& timer) {
  const SeenAll seen = look_at(files);  // before: what changes meanwhile is read again
  TERRACE_ASSIGN_OR_RETURN(TlsIdentity identity, read_tls_identity(files, role, timer));
  RevocationList revoked;
  if (!files.revoked.empty()) {
    TERRACE_ASSIGN_OR_RETURN(revoked, read_revoked(files));
  }
  return Credentials(std::move(files), role, timer, seen, std::move(identity), std::move(revoked));
}

kj::Promise<Shaken> Credentials::accept(kj::AuthenticatedStream stream) {
  return watch_handshake([this](const std::string& serial) { return is_revoked(serial); },
                         [this, &stream] { return identity_.context->wrapServer(kj::mv(stream)); })
      .attach(kj::heap(identity_.context));
}

kj::Promise<Shaken> Credentials::connect(kj::AuthenticatedStream stream) {
  return watch_handshake(
             [this](const std::string& serial) { return is_revoked(serial); },
             [this, &stream] { return identity_.context->wrapClient(kj::mv(stream), tls_server_name); })
      .attach(kj::heap(identity_.context));
}

std::vector<CertificateEnd> Credentials::ends(int64_t now_s) const {
  const CertificateFacts &ca = identity_.ca, &own = identity_.own;
  std::vector<CertificateEnd> all{end_of("certificate", own.name, own.begins_s, own.ends_s, now_s),
                                  end_of("ca", ca.name, ca.begins_s, ca.ends_s, now_s)};
  if (revoked_.until_s != 0)
    all.push_back(end_of("revocation list", files_.revoked, revoked_.made_s, revoked_.until_s, now_s));
  return all;
}

Credentials::SeenAll Credentials::look_at(const TlsFiles& files) {
  const std::array<const std::string*, 4> paths{&files.ca, &files.certificate, &files.key, &files.revoked};
  SeenAll all;
  for (size_t i = 0; i < paths.size(); ++i) {
    struct stat status {};
    if (paths[i]->empty() || ::stat(paths[i]->c_str(), &status) != 0) continue;
    all[i] = {.device = status.st_dev,
              .inode = status.st_ino,
              .bytes = static_cast<uint64_t>(status.st_size),
              .changed_s = status.st_mtim.tv_sec,
              .changed_ns = status.st_mtim.tv_nsec};
  }
  return all;
}

bool Credentials::look_again() {
  const SeenAll now = look_at(files_);
  const bool steady = now == std::exchange(last_, now);
  if (!steady || now == used_) return false;
  used_ = now;  // said once, whatever comes of it
  const bool identity = take_identity(), list = take_list();
  if (identity || list) warned_s_ = 0;
  return identity || list;
}

bool Credentials::take_identity() {
  auto read = read_tls_identity(files_, role_, *timer_);
  if (!read.ok()) {
    log::error("a file of [tls] has changed and cannot be used, what was read before stays: {}",
               read.error().detail);
    return false;
  }
  identity_ = std::move(*read);
  log::info("the files of [tls] were read again: certificate {}", shown_certificate(identity_.own));
  return true;
}

// Whatever is wrong with our own certificate: nobody else's gets in for that.
bool Credentials::take_list() {
  if (files_.revoked.empty()) return false;
  auto read = read_revoked(files_);
  if (!read.ok()) {
    log::error("what was read before stays: {}", read.error().detail);
    return false;
  }
  if (read->issuer == revoked_.issuer && read->number < revoked_.number) {
    log::error(
        "the list of revoked certificates {} is older (number {}) than the one in use (number {}), which stays",
        files_.revoked, read->number, revoked_.number);
    return false;
  }
  revoked_ = std::move(*read);
  log::info("the list of revoked certificates {} was read again: {} entries", files_.revoked,
            revoked_.serials.size());
  return true;
}

void Credentials::warn_of_ends() {
  const int64_t now_s = std::time(nullptr);
  if (warned_s_ != 0 && now_s - warned_s_ < warn_again_s) return;
  warned_s_ = now_s;
  for (const CertificateEnd& end : ends(now_s))
    if (const std::string text = end_warning(end); !text.empty()) log::warn("{}", text);
}

kj::Promise<void> Credentials::watch(std::function<void()> changed) {
  if (look_again()) changed();
  warn_of_ends();
  return timer_->afterDelay(1 * kj::SECONDS).then([this, changed = std::move(changed)]() mutable {
    return watch(std::move(changed));
  });
}

}  // namespace terrace::daemon
