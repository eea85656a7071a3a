# SPDX-License-Identifier: Apache-2.0
"""Reads horovodrun's options from a file, and sets the options' variables."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talweg.errors import InvalidArgument, Unsupported
from talweg.horovod._environment import TABLE
from talweg.horovod.runner._variables import variables_of

__all__ = ["read_config", "set_args_from_config", "set_env_from_args"]

# By section: the prefix of its options' names, and its keys.
_SECTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "params": (
        "",
        (
            *("fusion_threshold_mb", "cycle_time_ms", "cache_capacity"),
            *("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce"),
        ),
    ),
    "autotune": (
        "autotune_",
        (
            *("log_file", "warmup_samples", "steps_per_sample", "bayes_opt_max_samples"),
            "gaussian_process_noise",
        ),
    ),
    "timeline": ("timeline_", ("filename", "mark_cycles")),
    "stall_check": ("stall_check_", ("warning_time_seconds", "shutdown_time_seconds")),
    "library_options": (
        "",
        ("mpi_threads_disable", "num_nccl_streams", "thread_affinity", "gloo_timeout_seconds"),
    ),
    "logging": ("log_", ("level", "with_timestamp")),
}


def __getattr__(name: str) -> str:
    """Returns the name itself for config_parser.HOROVOD_CYCLE_TIME and other variables."""
    if name in TABLE.by_name:
        return name
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_env_from_args(env: dict[str, str], args: Any) -> dict[str, str]:
    """Sets the variables of the options that are given; returns `env`."""
    env.update(variables_of(args))
    return env


def set_args_from_config(args: Any, config: Mapping[str, Any], override_args: Any = ()) -> None:
    """Sets options that were not given, from the sections of a file.

    Options in `override_args` stay as they are. Raises InvalidArgument for a bad section.
    """

    def put(name: str, value: Any) -> None:
        if value is not None and name not in override_args and getattr(args, name) is None:
            setattr(args, name, value)

    controller = config.get("controller")
    if controller is not None and str(controller).lower() not in ("gloo", "mpi"):
        raise InvalidArgument(f"controller is {controller!r}; it must be gloo or mpi")
    if controller is not None and not args.use_gloo and not args.use_mpi:
        setattr(args, f"use_{str(controller).lower()}", True)
    unknown = [name for name in config if name not in (*_SECTIONS, "controller")]
    for section, (prefix, keys) in _SECTIONS.items():
        told = config.get(section) or {}
        if not isinstance(told, Mapping):
            raise InvalidArgument(f"{section} is {told!r}; it must be a section")
        for key in keys:
            put(prefix + key, told.get(key))
        switches = ("enabled",) if section in ("autotune", "stall_check") else ()
        unknown += [f"{section}.{key}" for key in told if key not in (*keys, *switches)]
    if (enabled := (config.get("autotune") or {}).get("enabled")) is not None:
        put("autotune", bool(enabled))
    if (enabled := (config.get("stall_check") or {}).get("enabled")) is not None:
        put("no_stall_check", not enabled)
    if unknown:
        text = f"horovodrun: {', '.join(unknown)} of the file of options has no effect"
        print(text, file=sys.stderr)


def read_config(path: str) -> Mapping[str, Any]:
    """Returns the sections of a YAML file.

    Raises InvalidArgument if it cannot be read as such, and Unsupported without PyYAML.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise Unsupported(
            "--config-file needs PyYAML, which is not installed: pip install pyyaml, or give the "
            "options on the command line"
        ) from None
    try:
        config = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"--config-file={path}: {error}; give a file of sections in YAML"
        ) from None
    except yaml.YAMLError as error:
        raise InvalidArgument(f"--config-file={path} is not YAML: {error}") from None
    if not isinstance(config, Mapping):
        raise InvalidArgument(f"--config-file={path} must have sections")
    return config
