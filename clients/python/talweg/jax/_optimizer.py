# SPDX-License-Identifier: Apache-2.0
"""optax optimizers that update with the average of all ranks' gradients."""

from __future__ import annotations

from typing import Any

from talweg._collectives.process_sets import ProcessSet
from talweg._declaration import Op
from talweg.errors import Unsupported, WrongType
from talweg.jax._calls import push_pull


def DistributedOptimizer(  # The name that other frameworks' modules have it under.
    optimizer: Any,
    name: str = "gradients",
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Makes an optax optimizer update with the average of the ranks' gradients.

    Returns an optax.GradientTransformationExtraArgs. Its update() averages the gradients with
    push_pull() and passes them to the optimizer's update(). Give each optimizer of a program its
    own `name`. optax.MultiSteps around it accumulates steps, and only their average is sent.
    """
    try:
        import optax
    except ImportError as error:
        raise Unsupported(
            f"DistributedOptimizer needs optax ({error}): pip install optax, or call push_pull() on "
            "the gradients yourself"
        ) from None
    if not all(callable(getattr(optimizer, each, None)) for each in ("init", "update")):
        raise WrongType(
            f"DistributedOptimizer: {optimizer!r} is no optimizer of optax: pass one, such as "
            "optax.sgd(0.1)"
        )
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        averages = push_pull(
            updates,
            name,
            op,
            average=average,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        result: tuple[Any, Any] = inner.update(averages, state, params, **extra)
        return result

    return optax.GradientTransformationExtraArgs(inner.init, update)
