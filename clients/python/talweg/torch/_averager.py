# SPDX-License-Identifier: Apache-2.0
"""Averages a model's gradients. Their rounds start while backward still runs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.rounds import failed
from talweg._declaration import Declaration, Op
from talweg._elastic.membership import membership_of
from talweg._exchange.adapter import (
    DENSE,
    UNKNOWN,
    ClientAdapter,
    Parameter,
    Pushed,
    Refusal,
    Tensor,
)
from talweg._exchange.compressing import Compressing
from talweg._exchange.exchange import GradientExchange
from talweg.errors import Busy, Mismatch, Unsupported
from talweg.torch import _cuda, _sparse
from talweg.torch._backward import current_node, when_it_ends
from talweg.torch._compressed import note_of, start_compressed, takes
from talweg.torch._in_place import is_worth_it, start_average
from talweg.torch._patient import start_patient, start_patient_sum
from talweg.torch._tensors import declaration_of, finish
from talweg.torch._uncompiled import keep_out_of_graphs

# The attribute that marks a gradient as no longer new. It holds the gradient's count of changes.
_SEEN = "_talweg_seen"
# What late ranks give is added to their next contribution, without rounding to 16 bits.
_PATIENT_DTYPES = (torch.float32, torch.float64)
_TEXTS = {
    Refusal.CAME_AGAIN: (
        "the gradient of '{name}' has left and has come again: an earlier backward() has ended "
        "with an error (then every rank calls the optimizer's synchronize()), or the parameter is "
        "used inside and outside of a checkpoint (use_reentrant=False)"
    ),
    Refusal.UNDER_WAY: (
        "backward() has come to '{name}' while the averages of the last backward() are under way: "
        "call synchronize() between two backward passes, or set backward_passes_per_step to their "
        "number"
    ),
    Refusal.CHANGED: (
        "the gradient of '{name}' was changed between backward() and step(), while its average was "
        "under way (overlap_forward): call the optimizer's synchronize() before clipping, unscaling "
        "or changing gradients"
    ),
    Refusal.ASSIGNED_LATE: (
        "the gradient of '{name}' was assigned after backward(), and would be this rank's alone: "
        "assign it before backward(), whose end averages all"
    ),
    Refusal.FROZEN_HERE: (
        "another rank has a gradient of '{name}', which is frozen here (requires_grad=False): "
        "freeze and unfreeze parameters at all ranks alike"
    ),
}


def _started(client: Client, name: str, start: Callable[[], Handle]) -> Handle:
    """Returns the handle of the round that `start` begins.

    A Mismatch is raised when the handle is taken: this rank still starts the step's other rounds,
    because the ranks that have pushed this one wait for those.
    """
    try:
        return start()
    except Busy as error:
        raise Busy(
            f"{error}. If this process has several DistributedOptimizers, give each a `name`"
        ) from None
    except Mismatch as mismatch:
        return failed(client, name, mismatch)


def _await_left(client: Client, name: str) -> None:
    """Waits for a round that an earlier optimizer of this name has left."""
    if client.left:
        client.left.wait_for(name, None)


def _name_for(client: Client, group: Group, name: str, count: int) -> str:
    """Returns the name of a tensor with so many numbers: `name`, unless an earlier optimizer has used
    that for another number of them.
    """
    known = client.tensors.known(name + group.suffix)
    if known is None or known.declaration.count == count:
        return name
    return f"{name}.{count}"


def _plainly(call: Callable[[], Any]) -> Any:
    return call()


class GradientAverager(ClientAdapter):
    """Tells a GradientExchange of autograd's events, and puts the averages into `.grad`.

    A parameter that no rank used keeps the gradient (or the None) it had, as with
    DistributedDataParallel.

    `guard` makes the exchange's calls that may fail, so it may raise other errors in place of
    Talweg's.

    With `waits` False the end of backward does not wait for the averages. Code that needs some of
    them calls the exchange's take(); code that needs all calls synchronize().
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        passes: int,
        name: str,
        waits: bool = True,
        process_set: ProcessSet | None = None,
        patience_ms: int = 0,
        compressing: Compressing | None = None,
        note: str = "",
    ) -> None:
        """`note`: what ranks compare of each parameter beside its name, shape and compression."""
        super().__init__(_client.current(), process_set)
        self.exchange = GradientExchange(self, name, passes, leaves_out=patience_ms > 0)
        self._patience_ms = patience_ms
        self._compressing = compressing
        self._note = note
        self.parameters: list[torch.nn.Parameter] = []
        self._waits = waits
        self.guard: Callable[[Callable[[], Any]], Any] = _plainly
        self._having: set[int] = set()  # What had a gradient when they were noted last.
        self._index: dict[torch.nn.Parameter, int] = {}
        # The hooks of active parameters. They do not keep the averager alive: torch holds them where
        # Python's garbage collector does not look.
        self._hooks: dict[int, RemovableHandle] = {}
        self._outer: list[RemovableHandle] = []  # Hooks that notice the end of a nested backward.
        self.add(named_parameters)
        _client.call_when_replaced(self.use)

    def use(self, client: Client) -> None:
        if self.client.is_abandoned:  # The gradients belong to a step that never ends.
            for parameter in self.parameters:
                parameter.grad = None
        super().use(client)
        if self._compressing is not None:
            self._compressing.begin_anew()
        self.exchange.begin_anew()

    def add(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Adds parameters. Every rank calls it, between two steps."""
        new: dict[torch.nn.Parameter, str] = {}
        for name, parameter in named_parameters:
            if parameter not in self._index:
                new.setdefault(parameter, name)
        indices = self.exchange.add(
            Parameter(
                name,
                parameter.numel() * parameter.element_size(),
                parameter.dtype,
                tuple(parameter.shape),
                note_of(self._compressing, parameter) + self._note,
            )
            for parameter, name in new.items()
        )
        for parameter, index in zip(new, indices):
            if index is not None:
                self._index[parameter] = index
                self.parameters.append(parameter)
        self.exchange.activate()

    def index_of(self, parameter: torch.nn.Parameter) -> int | None:
        return self._index.get(parameter)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the parameters that take part."""
        return [
            (self.exchange.name_of(index), self.parameters[index].detach())
            for index in self.exchange.active
        ]

    # ----- Autograd -----

    def is_trainable(self, index: int) -> bool:
        return self.parameters[index].requires_grad

    def watch(self, index: int) -> None:
        parameter = self.parameters[index]
        earlier = _averagers.get(id(parameter))
        if earlier is not None:
            earlier.let_go(parameter)
        _averagers[id(parameter)] = self
        self._hooks[index] = parameter.register_post_accumulate_grad_hook(
            partial(_on_gradient, weakref.ref(self), index)
        )

    def let_go(self, parameter: torch.nn.Parameter) -> None:
        """Stops averaging this parameter's gradient, because another averager does it now."""
        index = self._index.get(parameter)
        if index is not None and index in self._hooks:
            self._hooks[index].remove()

    def end(self) -> None:
        """Averages no gradient any more. The rounds that are open are left."""
        for hook in self._hooks.values():
            hook.remove()
        self.exchange.begin_anew()

    def watch_pass(self) -> None:
        when_it_ends(self._on_backward_end)

    def forget_pass(self) -> None:
        while self._outer:
            self._outer.pop().remove()

    def _on_backward_end(self) -> None:
        node = current_node()
        if node is not None:
            # This pass ran within a node of an outer pass (a reentrant checkpoint), which goes on.
            self._outer = [
                behind.register_prehook(self._on_outer_node)
                for behind, _ in node.next_functions
                if behind is not None
            ]
        elif self.guard(self.exchange.on_pass_end) and self._waits:
            # All other averagers of this pass begin() first, because another rank may wait for
            # their rounds.
            when_it_ends(partial(self.guard, self.exchange.synchronize))

    def _on_outer_node(self, _: Any) -> None:
        if self._outer:
            self.forget_pass()
            when_it_ends(self._on_backward_end)

    # ----- Rounds -----

    def declare(self, tensors: Sequence[Tensor]) -> None:
        # Where ranks disagree, each tensor's push says so.
        with contextlib.suppress(Mismatch):
            together: dict[tuple[torch.device, bool], list[Tensor]] = {}
            for tensor in tensors:
                parameter = self.parameters[tensor.index]
                self.client.tensors.require_patience(tensor.name, self._patience_ms)
                if self._patience_ms or takes(self._compressing, parameter):
                    declaration = self._declaration(tensor.index)
                    self.client.tensors.settle([(tensor.name, declaration, tensor.priority)])
                    continue
                kind = (parameter.device, is_worth_it(parameter))
                together.setdefault(kind, []).append(tensor)
            for (_, in_place), alike in together.items():
                parameters = [self.parameters[tensor.index] for tensor in alike]
                declarations = [
                    (tensor.name, declaration_of(parameter, Op.AVERAGE), tensor.priority)
                    for tensor, parameter in zip(alike, parameters)
                ]
                _cuda.declare_all(self.client, parameters, declarations, in_place)

    def _declaration(self, index: int) -> Declaration:
        """Returns what ranks must agree on for a gradient with patience, or one that is compressed."""
        parameter = self.parameters[index]
        declaration = declaration_of(parameter, Op.AVERAGE)
        if self._compressing is not None and takes(self._compressing, parameter):
            declaration = replace(declaration, encoding=self._compressing.encoding)
        if not self._patience_ms:
            return declaration
        if parameter.device.type != "cpu" or parameter.dtype not in _PATIENT_DTYPES:
            raise Unsupported(
                f"patience: the gradient of '{self.exchange.name_of(index)}' is {parameter.dtype} on "
                f"{parameter.device}; it is for float32 and float64 in host memory: leave out "
                "patience=, or keep the parameters there"
            )
        return replace(declaration, patience_ms=self._patience_ms)

    def left_out_count(self) -> int:
        """Returns how often rounds went on without that gradient of this rank that was left out
        most often.
        """
        known = [self.client.tensors.known(tensor.name) for tensor in self.exchange.tensors]
        connection = self.client.connection
        return max((connection.left_out_count(each.tensor) for each in known if each), default=0)

    def began_apart(self) -> bool:
        return membership_of(self.client).began_apart

    def suffix_of(self, index: int) -> str:
        compressing = self._compressing
        if compressing is None or not takes(compressing, self.parameters[index]):
            return ""
        return compressing.suffix

    def dtype_of(self, index: int) -> torch.dtype:
        return self.parameters[index].dtype

    def start(self, tensor: Tensor, has_gradient: bool) -> Pushed:
        parameter = self.parameters[tensor.index]
        gradient = parameter.grad if has_gradient else None
        version = None
        if gradient is None:
            pushed = torch.zeros_like(parameter, requires_grad=False)
        else:
            if gradient.layout != torch.strided:
                gradient = self.dense(tensor.index, gradient)
            pushed, version = gradient, gradient._version
        return Pushed(self._start_dense(tensor, pushed, gradient is not None), gradient, version)

    def _start_dense(self, tensor: Tensor, pushed: torch.Tensor, has_gradient: bool) -> Handle:
        def start() -> Handle:
            compressing = self._compressing
            if compressing is None or not takes(compressing, self.parameters[tensor.index]):
                return self.start_round(tensor, pushed)
            _await_left(self.client, tensor.name)
            of = (tensor, pushed, self._declaration(tensor.index), has_gradient)
            return start_compressed(self.client, compressing, *of)

        return _started(self.client, tensor.name, start)

    def start_kept(self, tensor: Tensor, form: int) -> Pushed:
        parameter = self.parameters[tensor.index]
        kept = parameter.grad
        if kept is None:
            return super().start_kept(tensor, form)
        if form != DENSE:
            return self.start_sparse(tensor, True, form)  # Which only reads it.
        pushed = kept.detach()
        if pushed.layout == torch.strided:
            pushed = pushed.clone()  # The result takes the place of what is pushed.
        else:
            pushed = self.dense(tensor.index, pushed)
        if self._compressing is None or not takes(self._compressing, parameter):
            return Pushed(self._start_dense(tensor, pushed, True))
        # Zeros, as after zero_grad(set_to_none=False), leave what is remembered alone.
        if not pushed.any():
            return Pushed(self._start_dense(tensor, pushed, False))
        undo = self._compressing.restorer(tensor.name)
        return Pushed(self._start_dense(tensor, pushed, True), undo=undo)

    def start_marks(self, name: str, marks: bytearray, priority: int) -> Pushed:
        own = _name_for(self.client, self.group, name, len(marks))
        plain = super().start_marks

        def start() -> Handle:
            _await_left(self.client, own + self.group.suffix)
            return plain(own, marks, priority).handle

        return Pushed(_started(self.client, own + self.group.suffix, start))

    def start_sum(self, name: str, values: np.ndarray, priority: int) -> Pushed:
        group = self.group
        name = _name_for(self.client, group, name, values.size)
        name += group.suffix

        def start() -> Handle:
            _await_left(self.client, name)
            of = (values, name, group.listed, priority, self._patience_ms)
            return start_patient_sum(self.client, *of)

        return Pushed(_started(self.client, name, start))

    def dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the gradient to push in place of a sparse gradient."""
        if self._patience_ms:
            raise Unsupported(
                f"patience: the gradient of '{self.exchange.name_of(index)}' is sparse: leave out "
                "patience=, or build its layer with sparse=False"
            )
        return gradient.to_dense()

    def may_be_sparse(self, index: int) -> bool:
        return not self._patience_ms

    def form_of(self, index: int) -> int:
        gradient = self.parameters[index].grad
        if gradient is None:
            return UNKNOWN
        return gradient.sparse_dim() if gradient.layout is torch.sparse_coo else DENSE

    def start_sparse(self, tensor: Tensor, has_gradient: bool, dimensions: int) -> Pushed:
        parameter = self.parameters[tensor.index]
        gradient = parameter.grad if has_gradient else None
        if gradient is None:
            pushed = _sparse.without_rows(parameter, dimensions)
        else:
            pushed = _sparse.as_sparse(gradient.detach(), dimensions)
        handle = _started(self.client, tensor.name, lambda: self.start_rows(tensor, pushed))
        return Pushed(handle, gradient, None if gradient is None else gradient._version)

    def start_rows(self, tensor: Tensor, gradient: torch.Tensor) -> Handle:
        """Starts the average of a parameter's sparse gradients."""
        of = (Op.AVERAGE, tensor.name, tensor.priority, self.process_set)
        return _sparse.start_sum(self.client, gradient, *of)

    def start_round(self, tensor: Tensor, gradient: torch.Tensor) -> Handle:
        """Starts a parameter's round; its result takes the gradient's place."""
        _await_left(self.client, tensor.name)
        if self._patience_ms:
            return start_patient(self.client, gradient, tensor, self._declaration(tensor.index))
        return start_average(self.client, gradient, tensor.name, tensor.priority)

    def finish(self, ticket: Pushed) -> Any:
        return finish(self.client, ticket.handle)

    def combine_loss(self, loss: Any) -> Any:
        """Returns the ranks' losses combined like their gradients, in the type of `loss`."""
        is_tensor = isinstance(loss, torch.Tensor)
        own = loss.detach() if is_tensor else loss
        value = np.array([float(own)], dtype=np.float64)
        self.run_loss(value)
        return torch.full_like(own, value[0]) if is_tensor else float(value[0])

    def give_no_loss(self) -> None:
        self.run_loss(np.zeros(1))

    def run_loss(self, value: np.ndarray, op: Op = Op.AVERAGE) -> None:
        """Runs a whole round of one f64, in place."""
        group = self.group
        name = f"{self.exchange.name}.loss"
        self.client.run(name, value, op, 0, group.listed, group.suffix)

    # ----- Gradients -----

    def put(self, index: int, average: torch.Tensor) -> None:
        self.parameters[index].grad = average

    def is_new(self, index: int) -> bool:
        gradient = self.parameters[index].grad
        if gradient is None or getattr(gradient, _SEEN, None) == gradient._version:
            return False
        if gradient.layout is torch.strided and 0 in gradient.stride():
            # The gradient has one value for many elements, but their averages may differ.
            self.parameters[index].grad = gradient.contiguous()
        return True

    def is_assigned(self, index: int) -> bool:
        return self.parameters[index].grad is not None and index not in self._having

    def is_as_pushed(self, index: int, ticket: Pushed) -> bool:
        gradient = self.parameters[index].grad
        return gradient is ticket.gradient and (
            gradient is None or gradient._version == ticket.version
        )

    def note_gradients(self) -> None:
        self._having.clear()
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is not None:
                setattr(gradient, _SEEN, gradient._version)
                self._having.add(index)

    def text_of(self, refusal: Refusal) -> str:
        return _TEXTS[refusal]


def _comes_last(hook: RemovableHandle) -> bool:
    """Whether this is the parameter's last hook. If it is not, those that the program has registered
    since run after it, and it is the last one from the next pass on.
    """
    hooks = hook.hooks_dict_ref()
    if not hooks or hook.id not in hooks or next(reversed(hooks)) == hook.id:
        return True
    hooks[hook.id] = hooks.pop(hook.id)
    return False


def _on_gradient(averager: weakref.ref[GradientAverager], index: int, _: torch.Tensor) -> None:
    found = averager()
    if found is not None:
        is_last = _comes_last(found._hooks[index])
        found.guard(partial(found.exchange.on_gradient, index, is_last))


# Where torch compiles the backward pass (compiled autograd), it traces hooks of gradients, too.
keep_out_of_graphs(_on_gradient)

# The averager of each active parameter, by the parameter's id. It keeps the parameter alive.
_averagers: weakref.WeakValueDictionary[int, GradientAverager] = weakref.WeakValueDictionary()
