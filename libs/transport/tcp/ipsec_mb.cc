// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/ipsec_mb.h"

#include "libs/base/check.h"

#if __has_include(<intel-ipsec-mb.h>)

#include <dlfcn.h>
#include <openssl/crypto.h>

// Without it the header lacks the alignment that the code needs.
#define LINUX 1
#include <intel-ipsec-mb.h>
#undef LINUX

#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

// Patch releases keep the layout of the library's structs; the soname does not name the minor
// version.
constexpr unsigned kVersionOfLayout = IMB_VERSION_NUM & ~0xffU;
constexpr uint64_t kNeeded =
    IMB_CPUFLAGS_AVX512 | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ | IMB_FEATURE_SELF_TEST_PASS;

template <typename Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

// What was found when the library was looked for.
struct Found {
  const IMB_MGR* functions = nullptr;  // For this CPU, valid for the process's life; or null.
  std::string problem = {};            // Why it is null.
};

Found Open() {
  void* const library = ::dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {.problem = "libIPSec_MB.so.1 is not installed"};
  auto* const version = Find<decltype(imb_get_version)>(library, "imb_get_version");
  auto* const make = Find<decltype(alloc_mb_mgr)>(library, "alloc_mb_mgr");
  auto* const choose = Find<decltype(init_mb_mgr_auto)>(library, "init_mb_mgr_auto");
  auto* const release = Find<decltype(free_mb_mgr)>(library, "free_mb_mgr");
  if (version == nullptr || make == nullptr || choose == nullptr || release == nullptr ||
      (version() & ~0xffU) != kVersionOfLayout) {
    return {.problem = std::string("libIPSec_MB.so.1 is not of version ") + IMB_VERSION_STR +
                       ", with which this program is built"};
  }
  IMB_MGR* const functions = make(0);
  if (functions == nullptr) return {.problem = "libIPSec_MB.so.1 has got no memory"};
  choose(functions, nullptr);
  if ((functions->features & kNeeded) != kNeeded) {
    release(functions);
    return {.problem = "libIPSec_MB.so.1 has no code for this CPU, or fails its own tests"};
  }
  return {.functions = functions};
}

const Found& Looked() {
  static const Found found = Open();
  return found;
}

const IMB_MGR* Functions() { return Looked().functions; }

static_assert(alignof(gcm_key_data) == 64);

// The library's functions for keys of one length.
struct Calls {
  aes_gcm_pre_t expand;
  aes_gcm_init_t begin;
  aes_gcm_enc_dec_update_t encrypt;
  aes_gcm_enc_dec_update_t decrypt;
  aes_gcm_enc_dec_finalize_t end_encrypting;
  aes_gcm_enc_dec_finalize_t end_decrypting;
};

Calls CallsFor(size_t key_bytes) {
  const IMB_MGR& all = *Functions();
  if (key_bytes == 16) {
    return {all.gcm128_pre,        all.gcm128_init,         all.gcm128_enc_update,
            all.gcm128_dec_update, all.gcm128_enc_finalize, all.gcm128_dec_finalize};
  }
  TALWEG_CHECK(key_bytes == 32);
  return {all.gcm256_pre,        all.gcm256_init,         all.gcm256_enc_update,
          all.gcm256_dec_update, all.gcm256_enc_finalize, all.gcm256_dec_finalize};
}

class IpsecMbAesGcm final : public AesGcm {
 public:
  IpsecMbAesGcm(std::span<const std::byte> key, Use use) : calls_(CallsFor(key.size())), use_(use) {
    calls_.expand(key.data(), &key_);
  }
  ~IpsecMbAesGcm() override {
    OPENSSL_cleanse(&key_, sizeof(key_));
    OPENSSL_cleanse(&message_, sizeof(message_));
  }

  void Begin(const AesNonce& nonce, std::span<const std::byte> header) override {
    calls_.begin(&key_, &message_, Raw(nonce.data()), Raw(header.data()), header.size());
  }

  void Crypt(std::span<const std::byte> from, std::byte* to) override {
    if (from.empty()) return;
    const auto crypt = use_ == Use::kSeals ? calls_.encrypt : calls_.decrypt;
    crypt(&key_, &message_, reinterpret_cast<uint8_t*>(to), Raw(from.data()), from.size());
  }

  Tag MakeTag() override {
    TALWEG_CHECK(use_ == Use::kSeals);
    return TagBy(calls_.end_encrypting);
  }

  bool IsTag(const Tag& tag) override {
    TALWEG_CHECK(use_ == Use::kOpens);
    return SameBytes(TagBy(calls_.end_decrypting), tag);
  }

 private:
  static const uint8_t* Raw(const std::byte* bytes) {
    return reinterpret_cast<const uint8_t*>(bytes);
  }

  Tag TagBy(aes_gcm_enc_dec_finalize_t end) {
    Tag tag;
    end(&key_, &message_, reinterpret_cast<uint8_t*>(tag.data()), tag.size());
    return tag;
  }

  const Calls calls_;
  const Use use_;
  gcm_key_data key_{};
  gcm_context_data message_{};
};

}  // namespace

bool HasIpsecMb() { return Functions() != nullptr; }
std::string IpsecMbProblem() { return Looked().problem; }

std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(std::span<const std::byte> key, AesGcm::Use use) {
  TALWEG_CHECK(HasIpsecMb());
  return std::make_unique<IpsecMbAesGcm>(key, use);
}

}  // namespace talweg::transport

#else  // Built without the header.

namespace talweg::transport {

bool HasIpsecMb() { return false; }
std::string IpsecMbProblem() { return "this program was built without libipsec-mb's header"; }

std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(std::span<const std::byte>, AesGcm::Use) {
  TALWEG_CHECK(false);
  return nullptr;
}

}  // namespace talweg::transport

#endif
