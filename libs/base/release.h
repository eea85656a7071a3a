// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_RELEASE_H_
#define TALWEG_LIBS_BASE_RELEASE_H_

namespace talweg {

// Of daemons, tool and libraries; the Python package says the same.
inline constexpr char kRelease[] = "0.1.0";

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_RELEASE_H_
