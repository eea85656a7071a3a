// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_RELEASE_H_
#define TALWEG_LIBS_BASE_RELEASE_H_

namespace talweg {

// The release of daemons, tool and libraries. The Python package says the same.
inline constexpr char kRelease[] = "0.1.0";

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_RELEASE_H_
