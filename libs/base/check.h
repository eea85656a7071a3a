// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_CHECK_H_
#define TALWEG_LIBS_BASE_CHECK_H_

namespace talweg::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);

}  // namespace talweg::internal

// Ends the process when our own code has broken an invariant. It is on in release builds too.
// Nothing that a peer, a client or a user can send may reach one of these.
#define TALWEG_CHECK(expression)                                        \
  do {                                                                  \
    if (!(expression)) [[unlikely]] {                                   \
      ::talweg::internal::CheckFailed(__FILE__, __LINE__, #expression); \
    }                                                                   \
  } while (false)

#endif  // TALWEG_LIBS_BASE_CHECK_H_
