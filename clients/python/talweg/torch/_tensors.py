# SPDX-License-Identifier: Apache-2.0
"""push_pull() and broadcast() of torch tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from talweg import _client
from talweg._arguments import chosen_op, takes_old_order
from talweg._client import Client, Handle
from talweg._client.left_rounds import finish_call
from talweg._collectives import queued, rounds
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._declaration import Declaration, DType, Op, milliseconds_of, op_of
from talweg._library.native_arguments import check_name_and_priority
from talweg.errors import Busy, InvalidArgument, Unsupported
from talweg.torch import _cuda
from talweg.torch._checks import (
    is_in_ram,
    require_elements,
    require_in_place,
    require_tensor,
)

DTYPES: Mapping[torch.dtype, DType] = {
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    # The oldest torch lacks these.
    **{
        getattr(torch, name): dtype
        for name, dtype in (("uint16", DType.U16), ("uint32", DType.U32), ("uint64", DType.U64))
        if hasattr(torch, name)
    },
}
# All of DTYPES except bool.
NUMBERS = {torch_dtype: dtype for torch_dtype, dtype in DTYPES.items() if torch_dtype != torch.bool}


_old_order = takes_old_order("average", "name", "priority", "op", "timeout_s")


def wire_dtype(tensor: torch.Tensor) -> DType:
    """Returns Talweg's dtype of a tensor; raises InvalidArgument if Talweg cannot sum it."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        names = ", ".join(str(known).replace("torch.", "") for known in DTYPES)
        raise InvalidArgument(
            f"tensors of dtype {tensor.dtype} cannot be pushed; these can: {names}"
        )
    return dtype


def start(
    client: Client,
    tensor: torch.Tensor,
    out: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int = 0,
    root_rank: int = 0,
    process_set: ProcessSet | None = None,
    factors: Factors = NO_FACTORS,
    says_shape: bool = True,
    queues: bool = False,
) -> Handle:
    """Starts a round of `tensor` whose result goes to `out`, of the same shape and dtype.

    Ranks get Mismatch if their tensors have different shapes. `says_shape` is False, at all ranks,
    if the ranks have compared the shapes before. With `queues` the round waits for its turn if one
    of its name is open, in host memory; otherwise Busy is raised.
    """
    shape = tensor.shape if says_shape else None
    if process_set is not None or factors != NO_FACTORS or tensor.numel() == 0:
        return _start_rare(
            client, tensor, out, op, name, priority, root_rank, process_set, factors, shape, queues
        )
    # After a layer's backward pass Python's code is not in the CPU's caches, so each call takes
    # microseconds. Therefore a round like the last one of its name takes a short way.
    declared = client.tensors.declared_on_host(name)
    if declared is not None and out is tensor:
        dtype = NUMBERS.get(tensor.dtype)
        if declared.declaration.is_of(dtype, tensor.numel(), op, root_rank, shape):
            is_near = is_in_ram(tensor) and _cuda.is_plain(tensor)
            if is_near and not (client.queues and queued.must_wait(client, name)):
                try:
                    return rounds.repeat(client, declared, tensor.data_ptr(), priority, tensor)
                except Busy:
                    if not queues:
                        raise
    shown = as_pushed(tensor, op)
    shown_out = shown if out is tensor else as_pushed(out, op)
    gpus = _cuda.gpus_of(client, tensor)
    declaration = _declaration_of(shown, op, root_rank, shape)
    if gpus is None or (name is not None and client.tensors.is_free(name)):
        group = Group(client, None, _operation(op))
        of = (declaration, name, group, priority, NO_FACTORS, queues)
        return _start_on_host(client, shown, shown_out, out, *of)
    handle = client.start(
        name,
        declaration,
        lambda given: rounds.on_gpu(
            client, _cuda.start(gpus, shown, shown_out, given, declaration, priority)
        ),
        of="gpu.",
        compare=lambda: rounds.compare_nameless(
            client, rounds.Brought(declaration, 0, 0, None, None, priority)
        ),
    )
    handle.result = out
    return handle


def _start_rare(
    client: Client,
    tensor: torch.Tensor,
    out: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int,
    root_rank: int,
    process_set: ProcessSet | None,
    factors: Factors,
    shape: tuple[int, ...] | None,
    queues: bool,
) -> Handle:
    """Does the same as start(), in host memory, for sets, factors and tensors without elements."""
    operation = _operation(op)
    group = Group(client, process_set, operation)
    if op is Op.BROADCAST:
        group.require_root(root_rank, operation)
    shown = as_pushed(tensor, op)
    shown_out = shown if out is tensor else as_pushed(out, op)
    declaration = replace(_declaration_of(shown, op, root_rank, shape), ranks=group.listed)
    factors.require(declaration.dtype, operation)
    return _start_on_host(
        client, shown, shown_out, out, declaration, name, group, priority, factors, queues
    )


def _operation(op: Op) -> str:
    return "broadcast" if op is Op.BROADCAST else "push_pull"


def _start_on_host(
    client: Client,
    shown: torch.Tensor,
    shown_out: torch.Tensor,
    out: torch.Tensor,
    declaration: Declaration,
    name: str | None,
    group: Group,
    priority: int,
    factors: Factors,
    queues: bool,
) -> Handle:
    """Starts a round in host memory. Its result goes to `shown_out`, the memory of `out`."""
    source = shown.detach().to("cpu").resolve_neg().contiguous()
    in_place = shown_out.device.type == "cpu" and _cuda.is_plain(shown_out)
    target = shown_out.detach() if in_place else torch.empty_like(source)
    begin = queued.start if queues else rounds.start
    return begin(
        client,
        name,
        group,
        rounds.Brought(
            declaration,
            source.data_ptr(),
            target.data_ptr(),
            out,
            (source, target),
            priority,
            factors,
            None if in_place else lambda: _cuda.copy(shown_out, target),
            stays=source.data_ptr() != shown.data_ptr() or out.data_ptr() == shown.data_ptr(),
            shape=tuple(shown.shape),
        ),
    )


def as_pushed(tensor: torch.Tensor, op: Op) -> torch.Tensor:
    """Returns the tensor's memory in a dtype that Talweg has.

    Complex numbers become pairs of real numbers. For a broadcast other dtypes become bytes.
    """
    if tensor.is_complex():
        if op not in (Op.SUM, Op.AVERAGE, Op.BROADCAST):
            raise Unsupported(
                f"{op.name.lower()} is not defined for {str(tensor.dtype).removeprefix('torch.')}: "
                "use sum or average, or push the real and the imaginary parts"
            )
        if tensor.is_conj():
            raise InvalidArgument("a conjugate view cannot be pushed: use tensor.resolve_conj()")
        return torch.view_as_real(tensor.detach())
    if tensor.dtype in DTYPES or op is not Op.BROADCAST or tensor.layout != torch.strided:
        return tensor
    if not tensor.is_contiguous():
        raise InvalidArgument(
            f"a tensor of dtype {tensor.dtype} must be contiguous for a broadcast: use "
            "tensor.contiguous()"
        )
    return tensor.detach().view(-1).view(torch.uint8)


def declaration_of(
    tensor: torch.Tensor, op: Op, root_rank: int = 0, says_shape: bool = False
) -> Declaration:
    """Returns what the ranks must agree on for a round of `tensor`.

    Raises InvalidArgument for a tensor that cannot be pushed.
    """
    shape = tuple(tensor.shape) if says_shape else None
    return _declaration_of(as_pushed(tensor, op), op, root_rank, shape)


def _declaration_of(
    tensor: torch.Tensor, op: Op, root_rank: int, shape: tuple[int, ...] | None = None
) -> Declaration:
    require_elements(tensor)
    # A bool is a byte of 0 or 1. Its min and max are all() and any(). A sum is not a bool.
    if tensor.dtype == torch.bool and op in (Op.SUM, Op.AVERAGE, Op.PRODUCT):
        raise Unsupported(
            f"{op.name.lower()} is not defined for bool tensors: use min (all), max (any), or "
            "convert to int32"
        )
    if shape is not None:
        shape = tuple(tensor.shape)  # The shape as it is pushed.
    return Declaration(wire_dtype(tensor), tensor.numel(), op, root_rank, shape=shape)


def finish(client: Client, handle: Handle, timeout_s: float | None = None) -> torch.Tensor:
    """Waits for a round that start() began; returns its `out`."""
    result: torch.Tensor = client.synchronize(handle, timeout_s)
    return result


def for_autograd(handle: Handle, tensor: torch.Tensor) -> Handle:
    """Has autograd refuse what it has saved of the tensor before the round changes it in place."""
    return and_then(handle, lambda: mark_changed(tensor))


def and_then(handle: Handle, act: Callable[[], None]) -> Handle:
    """Has synchronize() call `act` when the result is there."""
    finish_first = handle.finish

    def finish_and_act() -> None:
        if finish_first is not None:
            finish_first()
        act()

    handle.finish = finish_and_act
    return handle


def mark_changed(tensor: torch.Tensor) -> None:
    """Tells autograd that the tensor has changed without it."""
    # The oldest torch lacks it.
    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None and not tensor.is_inference():
        increment(tensor)


def declare(
    name: str,
    tensor: torch.Tensor,
    op: Op = Op.AVERAGE,
    root_rank: int = 0,
    priority: int = 0,
    process_set: ProcessSet | None = None,
    patience: float | None = None,
) -> None:
    """Agrees on a tensor like `tensor` before its first round, which then starts sooner.

    A call is optional. Each `process_set` has its own tensor of a name, which its ranks declare.
    Raises Mismatch, which names both ranks, if another rank has declared the name differently. Then
    the first call of the name raises Mismatch at every rank, and after it the name is usable again.

    `patience`, in seconds, lets rounds of a sum or an average of float32 or float64 in host memory
    go on without late ranks (docs/collectives.md, "Late ranks"). All ranks then call declare() with
    the same patience before the first round of the name.
    """
    client, op = _client.current(), op_of(op)
    require_tensor(tensor)
    group = Group(client, process_set, "declare")
    if group.listed and op is Op.BROADCAST:
        group.require_root(root_rank, "declare")
    declaration = declaration_of(tensor, op, root_rank, says_shape=True)
    declaration = replace(declaration, patience_ms=milliseconds_of(patience))
    gpus = None if group.listed else _cuda.gpus_of(client, tensor)
    if gpus is not None:
        gpus.declare(name, declaration, _cuda.place_of(tensor), priority)
        return
    check_name_and_priority(name, priority)
    wire_name = group.name_of(name)
    if not client.tensors.is_free(wire_name):
        declaration = replace(declaration, ranks=group.listed)
        client.tensors.require_patience(wire_name, declaration.patience_ms)
        client.tensors.declare_early(wire_name, declaration, priority)


def _start_new(
    tensor: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int,
    process_set: ProcessSet | None = None,
    factors: Factors = NO_FACTORS,
) -> Handle:
    require_tensor(tensor)
    require_elements(tensor)
    out = torch.empty_like(tensor, requires_grad=False)
    of = (op, name, priority, 0, process_set, factors)
    return start(_client.current(), tensor, out, *of, queues=True)


@_old_order
def push_pull_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Starts a round of `tensor` and returns its handle; the tensor may be changed at once.

    The tensor has any shape, a strided layout, and one of these dtypes: f32, f64, f16, bf16,
    integers of 8 to 64 bits with or without a sign, bool (min, max and bitwise), complex (sum and
    average). Bitwise operations take integers and bools. `op` overrules `average`. The average is
    not defined for integers. Rounds with a larger `priority` overtake others.

    Rounds without a name are matched by the order of such calls, which must be the same at every
    rank. Two of them are under way at once, so give names to many. A name is fastest if all its
    calls are alike.

    A call whose name has an open round begins when that round is over; for a tensor on a GPU it
    raises Busy. Every rank gets Mismatch if their tensors do not fit together. Autograd does not
    see the call; it sees push_pull().
    """
    factors = Factors(prescale_factor, postscale_factor)
    return _start_new(tensor, chosen_op(op, average), name, priority, process_set, factors)


@_old_order
def push_pull_async_inplace(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Handle:
    """Does the same as push_pull_async(), but synchronize() writes the result into `tensor`.

    Autograd then refuses what it has saved of the tensor before, and sees nothing else of the call.
    """
    factors = Factors(prescale_factor, postscale_factor)
    op = chosen_op(op, average)
    client = _client.current()
    require_in_place(tensor)
    of = (op, name, priority, 0, process_set, factors)
    handle = start(client, tensor, tensor, *of, queues=True)
    return for_autograd(handle, tensor)


@_old_order
def push_pull(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Does push_pull_async() and synchronize() in one. Returns a new tensor of the same shape.

    Autograd sees it. If `tensor` requires a gradient, the result does too, and backward push_pulls
    the result's gradient in turn. The name of that round is f"{name}.gradient". It has the same op,
    priority and time limit. So a tensor must require a gradient at all ranks or at none, and each
    rank's backward must come through here, because the others wait for it. Backward comes in the
    same order at every rank if the ranks compute alike. Sum and average have gradients. For other
    ops backward raises InvalidArgument: pass tensor.detach(). torch.func.grad and vjp work, too.
    torch.func.vmap raises InvalidArgument. In forward mode (torch.func.jvp, forward_ad.dual_level)
    the result's tangent is the tensor's, combined in a round of the name f"{name}.tangent". So a
    tensor has a tangent at all ranks or at none. torch.func.linearize raises Unsupported.
    """
    factors = Factors(prescale_factor, postscale_factor)
    op = chosen_op(op, average)
    return _push_pull(tensor, op, name, priority, timeout_s, process_set, factors)


# Whether a transform of torch.func, such as grad, is under way. Its tensors have no memory.
_is_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def _is_in_forward_mode() -> bool:
    """Whether tensors may have tangents."""
    return forward_ad._current_level >= 0


class _Called:
    """Tells backward which name forward has used. torch.func copies lists and dicts."""

    name: str | None = None


class _PushPull(torch.autograd.Function):
    """The gradient of a push_pull(). Each rank's result depends in the same way on each rank's
    tensor. So the gradient for a tensor is the ranks' gradients, combined by the same operation.
    """

    @staticmethod
    def forward(
        tensor: torch.Tensor,
        op: Op,
        name: str | None,
        priority: int,
        timeout_s: float | None,
        process_set: ProcessSet | None,
        factors: Factors,
        called: _Called,
    ) -> torch.Tensor:
        client = _client.current()
        left_s = rounds.before_call(client, name, process_set, timeout_s)
        handle = _start_new(tensor, op, name, priority, process_set, factors)
        called.name = handle.name
        result: torch.Tensor = finish_call(client, handle, left_s)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, op, _, priority, timeout_s, process_set, factors, called = inputs
        # If the call has no name, backward uses the tensor that forward has used. Tensors of its
        # own turn would get mixed up with other rounds without a name.
        ctx.round = (op, called.name, priority, timeout_s, process_set, factors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        raise InvalidArgument(
            "push_pull is called under torch.func.vmap, where it has no meaning: a round is of a "
            "whole tensor. Call it outside of vmap, on the batch"
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        [gradient] = gradients
        if gradient.layout != torch.strided:
            gradient = gradient.to_dense()
        return _combined(ctx, gradient, "gradient"), None, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        if _is_recorded():
            raise Unsupported(
                f"tensor '{ctx.round[1]}': a round cannot be recorded, as torch.func.linearize does: "
                "use torch.func.jvp, which runs a round for each tangent"
            )
        if tangent._is_zerotensor():  # It has no memory.
            tangent = torch.zeros(tangent.shape, dtype=tangent.dtype, device=tangent.device)
        return _combined(ctx, tangent, "tangent")


def _combined(ctx: Any, derivative: torch.Tensor, kind: str) -> torch.Tensor:
    """Returns the ranks' gradients, or tangents, combined as forward has combined the tensors."""
    op, name, priority, timeout_s, process_set, factors = ctx.round
    if op not in (Op.SUM, Op.AVERAGE):
        raise InvalidArgument(
            f"tensor '{name}': the {op.name.lower()} has no gradient: push tensor.detach(), or use "
            "sum or average"
        )
    pushed = derivative.resolve_conj()
    return _push_pull(pushed, op, f"{name}.{kind}", priority, timeout_s, process_set, factors)


def _is_recorded() -> bool:
    """Whether torch records operations, to run them again without this code."""
    # Where nobody has imported the module, nobody records. Importing it takes long.
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = getattr(recorder, "get_proxy_mode", None)
    return mode is not None and mode() is not None


def _push_pull(
    tensor: torch.Tensor,
    op: Op,
    name: str | None,
    priority: int,
    timeout_s: float | None,
    process_set: ProcessSet | None,
    factors: Factors,
) -> torch.Tensor:
    require_tensor(tensor)
    has_gradient = tensor.requires_grad and torch.is_grad_enabled()
    if has_gradient or _is_transformed() or _is_in_forward_mode():
        return _PushPull.apply(
            tensor, op, name, priority, timeout_s, process_set, factors, _Called()
        )
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = _start_new(tensor, op, name, priority, process_set, factors)
    result: torch.Tensor = finish_call(client, handle, left_s)
    return result


@_old_order
def push_pull_inplace(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Does the same as push_pull(), in place, and without a gradient. Returns `tensor`."""
    client = _client.current()
    left_s = rounds.before_call(client, name, process_set, timeout_s)
    handle = push_pull_async_inplace(
        tensor,
        name=name,
        op=op,
        average=average,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        priority=priority,
    )
    result: torch.Tensor = finish_call(client, handle, left_s)
    return result


def poll(handle: Handle) -> bool:
    """Whether synchronize(handle) would return at once."""
    return _client.current().poll(handle)


def synchronize(handle: Handle, timeout_s: float | None = None) -> Any:
    """Waits for a round and returns its tensor. See talweg.synchronize() for the errors."""
    return finish(_client.current(), handle, timeout_s)
