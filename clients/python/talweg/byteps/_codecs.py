# SPDX-License-Identifier: Apache-2.0
"""BytePS's names for compressors of gradients, and what they mean here: docs/byteps.md."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from talweg._exchange.compressing import Compressing
from talweg.byteps._environment import TABLE
from talweg.compression import Compression, Dithering, OneBit, RandomK, TopK
from talweg.errors import InvalidArgument, WrongType

# Values with which a program asks for nothing.
_NOTHING = (None, "", "none", False)
_COMPRESSORS = ("onebit", "topk", "randomk", "dithering")
_KEYS = (
    "compressor",
    "k",
    "scaling",
    "ef",
    "momentum",
    "seed",
    "partition",
    "normalize",
    "fp16",
)
_PARTITION_BYTES = 4096000  # BytePS's own, if BYTEPS_PARTITION_BYTES is not set.


@dataclass(frozen=True)
class Codec:
    """How a trainer's gradients are compressed."""

    compression: Compression
    partition: int  # The elements that are compressed together.
    follows_rate: bool = False  # What is remembered is scaled as the learning rate changes.
    mu: float | None = None  # That of Nesterov's momentum, which the optimizer then has no more.
    wd: float = 0.0  # Weight decay that is added after the round.

    def compressing(self) -> Compressing:
        return Compressing(self.compression, self.partition, self.mu)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Returns the name that is given, in lower case; "" for none."""
    if value in _NOTHING:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{name} should be str, not {type(value).__name__}")
    if value.lower() not in known:
        raise InvalidArgument(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    return value.lower()


def check_params(params: Any) -> None:
    """Raises InvalidArgument if a trainer's compression_params are no dict, or have an unknown key."""
    if not isinstance(params, Mapping):
        raise WrongType(
            f"compression_params is {params!r}; it must be a dict, such as {{'compressor': 'onebit'}}"
        )
    for key in params:
        if key not in _KEYS:
            raise InvalidArgument(
                f"compression_params: {key!r} is no key: use {', '.join(_KEYS)}, or leave it out"
            )


def switch(params: Mapping[str, Any], key: str) -> bool:
    """Returns what a key says that is True or False. Raises WrongType for anything else."""
    value = params.get(key)
    if value is not None and not isinstance(value, bool):
        raise WrongType(f"compression_params: {key} is {value!r}; it must be True or False")
    return bool(value)


def _factor(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidArgument(f"{name} is {value!r}; it must be a number, 0 or more")
    return number


def _seed_of(params: Mapping[str, Any]) -> int:
    seed: Any = params.get("seed")
    if seed is None:
        return 1
    if seed == 0:
        raise InvalidArgument("seed is 0; it must be 1 or more, the same at all workers")
    found: int = seed
    return found


def _compression_of(
    compressor: str, params: Mapping[str, Any], has_feedback: bool, bytes_min: int
) -> Compression:
    common: dict[str, Any] = {"error_feedback": has_feedback, "bytes_min": bytes_min}
    if compressor == "onebit":
        return OneBit(switch(params, "scaling"), **common)
    if params.get("k") is None:
        raise KeyError(f"compression_params: '{compressor}' needs a k: add 'k'")
    k = params["k"]
    if compressor == "topk":
        return TopK(k, **common)
    if compressor == "randomk":
        return RandomK(k, _seed_of(params), **common)
    levels = _one_of("partition", params.get("partition") or "linear", ("linear", "natural"))
    norm = _one_of("normalize", params.get("normalize") or "max", ("max", "l2"))
    return Dithering(k, levels, norm, _seed_of(params), **common)


def codec_of(
    params: Mapping[str, Any], optimizer_params: dict[str, Any], environment: Mapping[str, str]
) -> Codec | None:
    """Returns what `params`, a trainer's compression_params, ask for; None if that is no codec.

    Takes momentum from `optimizer_params` if the codec has it, and for onebit weight decay, too.
    Raises TypeError for values that are not given by name, KeyError for one that is missing, and
    InvalidArgument, a ValueError, for unknown keys and values.
    """
    check_params(params)
    compressor = _one_of("compressor", params.get("compressor"), _COMPRESSORS)
    feedback = _one_of("ef", params.get("ef"), ("vanilla",))
    momentum = _one_of("momentum", params.get("momentum"), ("nesterov",))
    if not compressor:
        if feedback or momentum:
            raise InvalidArgument(
                f"compression_params: ef={feedback!r} and momentum={momentum!r} need a compressor: "
                f"add one of {', '.join(_COMPRESSORS)}, or leave them out"
            )
        return None
    bytes_min = TABLE.number(environment, "BYTEPS_MIN_COMPRESS_BYTES")
    compression = _compression_of(compressor, params, bool(feedback), bytes_min)
    partition_bytes = int(environment.get("BYTEPS_PARTITION_BYTES") or _PARTITION_BYTES)
    mu, wd = None, 0.0
    if momentum:
        if optimizer_params.get("momentum") is None:
            raise KeyError(
                "compression_params: momentum='nesterov' takes the optimizer's momentum over: add "
                "'momentum' to optimizer_params, or leave it out here"
            )
        mu = _factor("momentum", optimizer_params.pop("momentum"))
        if compressor == "onebit":
            wd = _factor("wd", optimizer_params.pop("wd", 0.0))
    return Codec(compression, max(partition_bytes // 4, 1), bool(feedback), mu, wd)


# BytePS's names for what a tensor is declared with, without "byteps_", and those of a trainer.
_DECLARED = {
    "compressor_type": "compressor",
    "compressor_k": "k",
    "compressor_onebit_scaling": "scaling",
    "ef_type": "ef",
    "error_feedback_type": "ef",
    "momentum_type": "momentum",
    "seed": "seed",
    "dithering_partition": "partition",
    "dithering_normalize": "normalize",
}
# The texts of a declaration's switch. Others stay texts, which codec_of() refuses.
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}
# BytePS numbers these values.
_NUMBERED = {"partition": ("linear", "natural"), "normalize": ("max", "l2")}


def _number_in(value: Any) -> Any:
    """Returns the number that a text holds, since BytePS takes all values as texts; others as they
    are.
    """
    for kind in (int, float):
        with contextlib.suppress(TypeError, ValueError):
            return kind(value) if isinstance(value, str) else value
    return value


def codec_of_declaration(
    keywords: Mapping[str, Any], environment: Mapping[str, str]
) -> Codec | None:
    """Returns what the keywords of byteps_declare_tensor() ask for. Raises what codec_of() raises."""
    params: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for keyword, value in keywords.items():
        name = keyword.lower().removeprefix("byteps_")
        if name == "momentum_mu":
            own["momentum"] = value
        elif name in _DECLARED:
            params[_DECLARED[name]] = _number_in(value)
        else:
            known = ", ".join(f"byteps_{each}" for each in (*_DECLARED, "momentum_mu"))
            raise InvalidArgument(f"{keyword} is no keyword of a declaration: use {known}")
    for name, values in _NUMBERED.items():
        value = params.get(name)
        if isinstance(value, int) and 0 <= value < len(values):
            params[name] = values[value]
    if params.get("scaling") is not None:
        scaling = params["scaling"]
        params["scaling"] = _SWITCHES.get(str(scaling).lower(), scaling)
    return codec_of(params, own, environment)
