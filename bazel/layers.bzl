# SPDX-License-Identifier: Apache-2.0
"""The table of which package may depend on which, and the check that every talweg_* macro runs.

A layer is a directory. A package belongs to the longest layer that is the package itself or one of its
parents. Targets of one layer may always use each other. The check runs while a BUILD file loads, so an
edge that the table does not allow stops the build before anything is compiled.
"""

# Layer -> the layers that it may use. A value covers its subdirectories: "libs" is every library.
LAYERS = {
    # A benchmark runs Talweg beside its peers, as whole programs.
    "benchmarks": ["clients", "libs", "services", "tests/attackers", "tests/netns"],
    # Other systems' names for parts of the Python package, and their launchers and examples.
    "clients/byteps": ["clients/python"],
    "clients/c": ["libs/base", "libs/compress", "libs/reduce", "libs/shm"],
    "clients/cli": [
        "clients/c",
        "libs/base",
        "libs/config",
        "libs/gpu",
        "libs/reduce",
        "libs/rpc",
        "libs/runtime",
        "libs/status",
        "libs/telemetry",
        "libs/topology",
        "libs/transport",
        "libs/view",
        "proto",
    ],
    "clients/horovod": ["clients/python"],
    # XLA's handlers, for the Python package.
    "clients/jax": ["clients/c"],
    "clients/python": ["clients/c", "clients/jax"],
    # Wheel, images and units carry everything that is built.
    "deploy": ["clients", "libs", "proto", "services"],
    # The archive for a machine without any of this, to test and to measure.
    "deploy/gpu": ["benchmarks", "clients", "libs", "services", "tests"],
    # Pages that are generated from the code, and the tests that compare them.
    "docs": ["clients", "libs", "proto", "services"],
    "examples": ["clients/python"],
    "libs/aggregation": ["libs/base", "libs/view", "libs/wire"],
    "libs/base": [],
    "libs/compress": ["libs/base", "libs/reduce"],
    "libs/config": ["libs/base", "libs/status", "proto/config"],
    "libs/encoding": ["libs/base", "libs/reduce"],
    "libs/gpu": ["libs/base", "libs/runtime", "libs/status"],
    "libs/membership": ["libs/base", "libs/view", "libs/wire"],
    "libs/pipeline": ["libs/base", "libs/schedule", "libs/view", "libs/wire"],
    "libs/reduce": ["libs/base"],
    "libs/rpc": [
        "libs/base",
        "libs/membership",
        "libs/runtime",
        "libs/status",
        "libs/transport",
        "libs/view",
        "proto",
    ],
    "libs/runtime": ["libs/base"],
    "libs/schedule": ["libs/base", "libs/view", "libs/wire"],
    "libs/shm": ["libs/base", "libs/reduce"],
    "libs/status": ["libs/base"],
    "libs/store": ["libs/base", "libs/membership", "libs/status", "libs/view"],
    "libs/telemetry": ["libs/base"],
    "libs/topology": ["libs/base"],
    "libs/transport": [
        "libs/base",
        "libs/runtime",
        "libs/status",
        "libs/telemetry",
        "libs/wire",
    ],
    "libs/view": ["libs/base"],
    "libs/wire": ["libs/base", "libs/view"],
    "proto": [],
    "proto/config": [],
    # Each service is a layer, because a service never uses another.
    "services/agent": ["libs", "proto", "services/credentials"],
    "services/aggregator": ["libs", "proto", "services/credentials"],
    "services/credentials": ["libs"],
    "services/scheduler": ["libs", "proto", "services/credentials"],
    # Programs that attack jobs, for tests and benchmarks.
    "tests/attackers": ["libs"],
    # Hosts made of namespaces, for tests and benchmarks.
    "tests/netns": [],
    "tests": ["clients", "docs", "examples", "libs", "proto", "services", "tests"],
}

# Layers that use nothing but the standard library. Clients link them into processes that carry
# their own Abseil and gRPC. The protocol cores need neither.
_STANDARD_LIBRARY_ONLY = [
    "clients/c",
    "libs/aggregation",
    "libs/base",
    "libs/compress",
    "libs/membership",
    "libs/pipeline",
    "libs/reduce",
    "libs/schedule",
    "libs/shm",
    "libs/view",
    "libs/wire",
]

_GRPC_USERS = ["clients/cli", "libs/rpc", "proto", "services", "tests"]

# Package of bazel/deps -> the layers that may use it (a value covers its subdirectories).
_DEPS_USERS = {
    "absl": [layer for layer in LAYERS if layer not in _STANDARD_LIBRARY_ONLY],
    "benchmark": ["tests"],
    "catch2": ["tests"],
    "cuda": ["libs/gpu", "tests"],
    "grpc": _GRPC_USERS,
    "hwloc": ["libs/topology", "tests"],
    "ipsec_mb": ["libs/transport", "tests"],
    "libfabric": ["libs/transport", "tests"],
    "openssl": ["libs/rpc", "libs/transport", "tests"],
    "protobuf": _GRPC_USERS + ["libs/config"],
    "spdlog": ["libs/telemetry", "tests"],
    "sqlite": ["libs/store", "tests"],
    "xxhash": ["clients/c"],
}

# What test and benchmark targets of any layer may use in addition.
_TEST_DEPS = ["benchmark", "catch2"]

_DEPS_ROOT = "bazel/deps/"

def _covers(directory, package):
    return package == directory or package.startswith(directory + "/")

def layer_of(package):
    """Returns the layer that a package belongs to, or None."""
    best = None
    for layer in LAYERS:
        if _covers(layer, package) and (best == None or len(layer) > len(best)):
            best = layer
    return best

def _package_of(label, package):
    """Returns the workspace package of a label string, or None when it lies in another repository."""
    if label.startswith("@"):
        if not label.startswith("@//") and not label.startswith("@talweg//"):
            return None
        label = label[label.index("//"):]
    if label.startswith("//"):
        return label[2:].split(":")[0]
    return package

def edge_error(package, target, dep, is_test = False):
    """Returns why `dep` is not allowed for //package:target, or None when it is allowed.

    Args:
      package: package of the target, e.g. "libs/shm/client".
      target: the target's name, for the message.
      dep: the dependency's label, as a string. Relative labels belong to `package`.
      is_test: whether the target is a test or a benchmark.
    """
    dep_package = _package_of(dep, package)
    if dep_package == None or dep_package == package or dep_package == "" or dep_package == "bazel":
        return None
    who = "//%s:%s must not depend on %s: " % (package, target, dep)

    # The build's own programs and options (sanitizer options, test runners) belong to no layer.
    if _covers("bazel", dep_package) and not dep_package.startswith(_DEPS_ROOT):
        return None

    layer = layer_of(package)
    if layer == None:
        if _covers("bazel", package):
            return None
        return who + ("package '%s' belongs to no layer; " % package) + \
               "add its directory to LAYERS in //bazel:layers.bzl"

    if dep_package.startswith(_DEPS_ROOT):
        dep_name = dep_package[len(_DEPS_ROOT):].split("/")[0]
        if dep_name not in _DEPS_USERS:
            return who + ("'%s' has no users; " % dep_package) + \
                   "add it to _DEPS_USERS in //bazel:layers.bzl"
        if is_test and dep_name in _TEST_DEPS:
            return None
        if any([_covers(user, layer) for user in _DEPS_USERS[dep_name]]):
            return None
        return who + ("layer '%s' may not use '%s'; " % (layer, dep_package)) + \
               "allowed from bazel/deps: %s" % [
                   name
                   for name in sorted(_DEPS_USERS)
                   if any([_covers(user, layer) for user in _DEPS_USERS[name]])
               ]

    dep_layer = layer_of(dep_package)
    if dep_layer == layer:
        return None
    if dep_layer != None and any([_covers(allowed, dep_layer) for allowed in LAYERS[layer]]):
        return None
    return who + ("layer '%s' may not use layer '%s'; " % (layer, dep_layer or dep_package)) + \
           "allowed: %s" % LAYERS[layer]

def check_edges(target, deps, is_test = False):
    """Stops loading of the BUILD file when one of the target's dependencies is not allowed."""
    for dep in deps:
        error = edge_error(native.package_name(), target, dep, is_test)
        if error:
            fail(error)
