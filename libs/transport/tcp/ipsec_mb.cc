// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/ipsec_mb.h"

#include "libs/base/check.h"

#if __has_include(<intel-ipsec-mb.h>)

#include <dlfcn.h>
#include <openssl/crypto.h>

// Without it the header leaves out the alignment that the code needs.
#define LINUX 1
#include <intel-ipsec-mb.h>
#undef LINUX

#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

// Patches keep the layout of what the library hands out; the soname alone says too little.
constexpr unsigned kVersionOfLayout = IMB_VERSION_NUM & ~0xffU;
constexpr uint64_t kNeeded =
    IMB_CPUFLAGS_AVX512 | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ | IMB_FEATURE_SELF_TEST_PASS;

template <typename Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

// Its functions for this CPU; null: there are none to be used. They stay for the process's life.
const IMB_MGR* Open() {
  void* const library = ::dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* const version = Find<decltype(imb_get_version)>(library, "imb_get_version");
  auto* const make = Find<decltype(alloc_mb_mgr)>(library, "alloc_mb_mgr");
  auto* const choose = Find<decltype(init_mb_mgr_auto)>(library, "init_mb_mgr_auto");
  if (version == nullptr || make == nullptr || choose == nullptr) return nullptr;
  if ((version() & ~0xffU) != kVersionOfLayout) return nullptr;
  IMB_MGR* const functions = make(0);
  if (functions == nullptr) return nullptr;
  choose(functions, nullptr);
  return (functions->features & kNeeded) == kNeeded ? functions : nullptr;
}

const IMB_MGR* Functions() {
  static const IMB_MGR* const functions = Open();
  return functions;
}

static_assert(alignof(gcm_key_data) == 64);

class IpsecMbAesGcm final : public AesGcm {
 public:
  explicit IpsecMbAesGcm(const AesKey& key, Use use) : functions_(*Functions()), use_(use) {
    IMB_AES128_GCM_PRE(&functions_, key.data(), &key_);
  }
  ~IpsecMbAesGcm() override {
    OPENSSL_cleanse(&key_, sizeof(key_));
    OPENSSL_cleanse(&message_, sizeof(message_));
  }

  void Begin(const AesNonce& nonce, std::span<const std::byte> header) override {
    IMB_AES128_GCM_INIT(&functions_, &key_, &message_, Raw(nonce.data()), Raw(header.data()),
                        header.size());
  }

  void Crypt(std::span<const std::byte> from, std::byte* to) override {
    if (from.empty()) return;
    auto* const out = reinterpret_cast<uint8_t*>(to);
    if (use_ == Use::kSeals) {
      IMB_AES128_GCM_ENC_UPDATE(&functions_, &key_, &message_, out, Raw(from.data()), from.size());
    } else {
      IMB_AES128_GCM_DEC_UPDATE(&functions_, &key_, &message_, out, Raw(from.data()), from.size());
    }
  }

  Tag MakeTag() override {
    TALWEG_CHECK(use_ == Use::kSeals);
    Tag tag;
    IMB_AES128_GCM_ENC_FINALIZE(&functions_, &key_, &message_,
                                reinterpret_cast<uint8_t*>(tag.data()), tag.size());
    return tag;
  }

  bool IsTag(const Tag& tag) override {
    TALWEG_CHECK(use_ == Use::kOpens);
    Tag made;
    IMB_AES128_GCM_DEC_FINALIZE(&functions_, &key_, &message_,
                                reinterpret_cast<uint8_t*>(made.data()), made.size());
    return SameBytes(made, tag);
  }

 private:
  static const uint8_t* Raw(const std::byte* bytes) {
    return reinterpret_cast<const uint8_t*>(bytes);
  }

  const IMB_MGR& functions_;
  const Use use_;
  gcm_key_data key_{};
  gcm_context_data message_{};
};

}  // namespace

bool HasIpsecMb() { return Functions() != nullptr; }

std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(const AesKey& key, AesGcm::Use use) {
  TALWEG_CHECK(HasIpsecMb());
  return std::make_unique<IpsecMbAesGcm>(key, use);
}

}  // namespace talweg::transport

#else  // Built without the header.

namespace talweg::transport {

bool HasIpsecMb() { return false; }

std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(const AesKey&, AesGcm::Use) {
  TALWEG_CHECK(false);
  return nullptr;
}

}  // namespace talweg::transport

#endif
