# SPDX-License-Identifier: Apache-2.0
"""For tests of the exchange: a framework whose tensors are numbers, and a job of two ranks."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from talweg._exchange.adapter import DENSE, Adapter, Parameter, Refusal, Tensor
from talweg._exchange.exchange import GradientExchange
from talweg._exchange.marks import Marks
from talweg._exchange.names import digest_of
from talweg.errors import Busy


@dataclass
class Gradient:
    """What autograd would have left, and what others do to it."""

    value: float
    version: int = 0
    noted_version: int = -1


@dataclass(eq=False)
class Ticket:
    name: str
    value: float = 0.0
    gradient: Gradient | None = None
    version: int = 0
    marks: bytearray | None = None
    numbers: np.ndarray | None = None
    is_open: bool = True


def _marks(data: bytearray) -> Marks:
    """Returns the marks that a copy of `data` holds."""
    marks = Marks((len(data) - len(Marks(0).data)) // 2)
    marks.data[:] = data
    return marks


def _raise_to(view: memoryview, place: int, byte: int) -> None:
    view[place] = max(view[place], byte)


def said(names: Iterable[str]) -> list[str]:
    """What a rank says that has parameters of these names."""
    return [str(Parameter(name, 4, "f32")) for name in names]


class Framework(Adapter):
    """A model of numbers at one of two ranks; tests say what the other rank does."""

    def __init__(
        self,
        names: Iterable[str] = "abc",
        passes: int = 1,
        name: str = "x",
        leaves_out: bool = False,
        may_have_sparse: Iterable[int] = (),
        frozen: Iterable[int] = (),
    ) -> None:
        self.log: list[str] = []
        self.gradients: dict[int, Gradient | None] = {}
        self.dtypes: dict[int, Hashable] = {}
        self.frozen: set[int] = set(frozen)
        self.watched: list[int] = []
        self.watched_passes = 0
        self.forgotten_passes = 0
        self.open: dict[str, Ticket] = {}
        self.dropped: list[str] = []
        self.having: set[int] = set()
        self.rounds: Counter[str] = Counter()
        self.others: dict[str, float] = {}  # The other rank's gradients, by their tensors.
        self.others_marks: dict[int, int] = {}  # -1: the rank's own.
        self.others_thaws: list[Sequence[float]] = []  # The other rank's numbers, round by round.
        self.is_left_out = False  # When the next such round ends.
        self.owed: np.ndarray | None = None
        self.others_forms: dict[int, int] = {}
        self.may_have_sparse = set(may_have_sparse)
        self.sparse: dict[int, int] = {}  # Sparse dimensions of gradients that are sparse here.
        self.late: set[str] = set()  # Tensors whose averages are not there yet.
        self.in_order = False
        self.comes_late = False  # The other rank has made steps before.
        self.others_steps = 0
        self.others_names: Sequence[str] | None = None  # The rank's own.
        self.others_say_names = True
        self.failures: dict[str, BaseException] = {}  # "push x" or "take x" fails, once.
        self.interrupted: set[str] = set()  # Ctrl-C comes just after "push x" or "take x", once.
        self.exchange = GradientExchange(self, name, passes, leaves_out)
        self.add(names)

    def add(self, names: Iterable[str], nbytes: int = 4) -> list[int | None]:
        indices = self.exchange.add(Parameter(name, nbytes, "f32") for name in names)
        for index in indices:
            if index is not None:
                self.gradients[index] = None
                self.dtypes[index] = "f32"
        self.exchange.activate()
        return indices

    def _fail(self, what: str) -> None:
        failure = self.failures.pop(what, None)
        if failure is not None:
            raise failure

    def _interrupt(self, what: str) -> None:
        if what in self.interrupted:
            self.interrupted.remove(what)
            signal.raise_signal(signal.SIGINT)

    def declare(self, tensors: Sequence[Tensor]) -> None:
        self.log.append("declare " + " ".join(tensor.name for tensor in tensors))

    def _start(self, ticket: Ticket, priority: int) -> Ticket:
        self._fail(f"push {ticket.name}")
        if ticket.name in self.open:
            raise Busy(f"{ticket.name} is open")
        self.open[ticket.name] = ticket
        self.rounds[ticket.name] += 1
        assert self.rounds[ticket.name] < 10_000, "it goes on for ever"
        self.log.append(f"push {ticket.name}={ticket.value:g} at {priority}")
        self._interrupt(f"push {ticket.name}")
        return ticket

    def start(self, tensor: Tensor, has_gradient: bool) -> Ticket:
        gradient = self.gradients[tensor.index] if has_gradient else None
        ticket = Ticket(tensor.name, gradient.value if gradient else 0.0, gradient)
        ticket.version = gradient.version if gradient else 0
        return self._start(ticket, tensor.priority)

    def start_kept(self, tensor: Tensor, form: int) -> Ticket:
        gradient = self.gradients[tensor.index]
        ticket = Ticket(tensor.name, gradient.value if gradient else 0.0)
        self._start(ticket, tensor.priority)
        if form != DENSE:
            self.log[-1] += f" sparse {form}"
        return ticket

    def drop(self, ticket: Ticket) -> None:
        self.dropped.append(ticket.name)

    def may_be_sparse(self, index: int) -> bool:
        return index in self.may_have_sparse

    def form_of(self, index: int) -> int:
        return self.sparse.get(index, DENSE)

    def start_sparse(self, tensor: Tensor, has_gradient: bool, dimensions: int) -> Ticket:
        ticket = self.start(tensor, has_gradient)
        self.log[-1] += f" sparse {dimensions}"
        return ticket

    def start_marks(self, name: str, marks: bytearray, priority: int) -> Ticket:
        ticket = self._start(Ticket(name, marks=marks), priority)
        told = _marks(marks)
        self.log[-1] = f"push {name}={[*told.used, *told.batch]}"
        if self.may_have_sparse:
            self.log[-1] += f" {list(told.forms)}"
        return ticket

    def start_sum(self, name: str, values: np.ndarray, priority: int) -> Ticket:
        ticket = self._start(Ticket(name, numbers=values), priority)
        self.log[-1] = f"push {name}={values.tolist()}"
        return ticket

    def finish(self, ticket: Ticket) -> float:
        assert ticket.is_open, ticket.name
        self._fail(f"take {ticket.name}")
        ticket.is_open = False
        del self.open[ticket.name]
        self.log.append(f"take {ticket.name}")
        self._interrupt(f"take {ticket.name}")
        if ticket.numbers is not None:
            own = ticket.numbers.copy()
            ticket.numbers[:] = self.others_thaws.pop(0) if self.others_thaws else 0.0
            if self.is_left_out:
                self.owed = own if self.owed is None else self.owed + own
            else:
                ticket.numbers += own + (0.0 if self.owed is None else self.owed)
                self.owed = None
            self.is_left_out = False
        if ticket.marks is not None:
            told = _marks(ticket.marks)
            for index, mark in self.others_marks.items():
                where = (told.batch, 0) if index < 0 else (told.used, index)
                _raise_to(*where, mark)
            for index, form in self.others_forms.items():
                _raise_to(told.forms, index, form)
            if self.others_names is not None:
                for place, byte in enumerate(digest_of(self.others_names)):
                    _raise_to(told.digest, place, byte)
            ticket.marks[:] = told.data
        return (ticket.value + self.others.get(ticket.name, 0.0)) / 2

    def is_there(self, ticket: Ticket) -> bool:
        return ticket.name not in self.late

    def comes_in_order(self) -> bool:
        return self.in_order

    def began_apart(self) -> bool:
        return self.comes_late

    def gather(self, number: int, name: str) -> list[int]:
        self.log.append(f"gather {name}={number}")
        return [number, self.others_steps]

    def gather_names(self, names: Sequence[str], name: str) -> dict[int, Sequence[str]]:
        self.log.append(f"gather {name}")
        return {0: names, 1: self.others_names or names} if self.others_say_names else {}

    def give_no_loss(self) -> None:
        self.log.append("give no loss")

    def priority_of(self, index: int) -> int:
        return -index

    def put(self, index: int, average: float) -> None:
        self.gradients[index] = Gradient(average)

    def dtype_of(self, index: int) -> Hashable:
        return self.dtypes[index]

    def is_trainable(self, index: int) -> bool:
        return index not in self.frozen

    def watch(self, index: int) -> None:
        self.watched.append(index)

    def watch_pass(self) -> None:
        self.watched_passes += 1

    def forget_pass(self) -> None:
        self.forgotten_passes += 1

    def text_of(self, refusal: Refusal) -> str:
        return refusal.value

    def is_new(self, index: int) -> bool:
        gradient = self.gradients[index]
        return gradient is not None and gradient.noted_version != gradient.version

    def is_assigned(self, index: int) -> bool:
        return self.gradients[index] is not None and index not in self.having

    def is_as_pushed(self, index: int, ticket: Ticket) -> bool:
        gradient = self.gradients[index]
        if gradient is not ticket.gradient:
            return False
        return gradient is None or gradient.version == ticket.version

    def note_gradients(self) -> None:
        self.having = {index for index, each in self.gradients.items() if each is not None}
        for gradient in self.gradients.values():
            if gradient is not None:
                gradient.noted_version = gradient.version

    # What a program does.

    def accumulate(self, index: int, value: float = 1.0) -> None:
        """As autograd does, which then tells of it."""
        gradient = self.gradients[index]
        if gradient is None:
            self.gradients[index] = Gradient(value)
        else:
            gradient.value += value
            gradient.version += 1
        self.exchange.on_gradient(index)

    def change(self, index: int) -> None:
        """As clipping does."""
        gradient = self.gradients[index]
        assert gradient is not None
        gradient.version += 1

    def backward(self, *indices: int) -> bool:
        for index in indices:
            self.accumulate(index)
        return self.exchange.on_pass_end()

    def zero_grad(self) -> None:
        self.gradients = dict.fromkeys(self.gradients)
        self.exchange.on_zero_grad()

    def values(self) -> list[float | None]:
        return [each.value if each else None for each in self.gradients.values()]

    def logged(self, word: str) -> list[str]:
        """What was logged of this kind since the last call of this."""
        found = [line.split(" ", 1)[1] for line in self.log if line.startswith(word + " ")]
        self.log.clear()
        return found
