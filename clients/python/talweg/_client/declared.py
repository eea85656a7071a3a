# SPDX-License-Identifier: Apache-2.0
"""The tensors that one rank has declared, by their names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from talweg._client.in_place import Buffer
from talweg._declaration import Declaration, Op
from talweg._library import native
from talweg.errors import InvalidArgument, Mismatch, Unsupported


def _no_round() -> None:
    """Stands for the last round of a tensor that has not been pushed yet."""


@dataclass
class Declared:
    """A tensor that the ranks have agreed on."""

    name: str
    tensor: int
    declaration: Declaration
    on_host: bool  # This rank may push the tensor from host memory.
    buffer: Buffer | None = None  # Where this node's ranks sum the tensor in place.
    # Whether another use of the name is refused. The same at all ranks, unlike `buffer`.
    is_for_good: bool = False
    signature: int = field(init=False)  # Each round is signed with it.
    # Returns the handle of the last round that has one, as long as somebody holds the handle.
    last: Callable[[], Any] = _no_round

    def __post_init__(self) -> None:
        self.signature = self.declaration.signature


class Tensors:
    """The tensors of one client. Any thread may call any method."""

    def __init__(self, connection: native.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._tensors: dict[str, Declared] = {}
        # Names that no longer mean one tensor: _collectives/rounds.py says when.
        self._free: set[str] = set()
        self._disagreed: dict[str, Mismatch] = {}
        # Names that were declared without a shape, and get the shape of their first call.
        self._shapeless: set[str] = set()
        # The patience of tensors that forget_numbers() has forgotten. Calls do not say it.
        self._patience: dict[str, int] = {}
        # Called when names no longer mean one tensor.
        self.freed: list[Callable[[], None]] = []
        # Is told of names that are new here, before they are pushed. None if there is no watcher.
        self.watcher: Callable[[Sequence[tuple[str, Declaration, int]]], None] | None = None
        self._has_in_place = False  # Whether this rank has a tensor whose results lie in place.

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def ranks_sum(self) -> bool:
        """Whether this node's ranks sum larger tensors themselves. They are then the whole job.

        A tensor in place does not say so: the result of a node's only rank comes there, too.
        """
        is_whole_job = self._connection.local_size == self._connection.size
        return self._has_in_place and is_whole_job

    def forget_numbers(self) -> None:
        """Forgets tensors whose declarations name ranks by number, because the numbers have
        changed.
        """
        with self._lock:
            for name, declared in list(self._tensors.items()):
                declaration = declared.declaration
                if declaration.op is Op.BROADCAST or declaration.ranks:
                    del self._tensors[name]
                    if declaration.patience_ms:
                        self._patience[name] = declaration.patience_ms

    def is_new(self, name: str) -> bool:
        """Whether this rank has not used the name yet."""
        return name not in self._tensors and name not in self._free

    def is_free(self, name: str) -> bool:
        """Whether the name no longer means one tensor."""
        return name in self._free

    def free(self, *names: str) -> None:
        """Makes the names free: they no longer mean one tensor."""
        with self._lock:
            self._free.update(names)
            self._shapeless.difference_update(names)
            for name in names:
                self._tensors.pop(name, None)
        for call in self.freed:
            call()

    def all(self) -> list[Declared]:
        """Returns the tensors that have a name now."""
        with self._lock:
            return list(self._tensors.values())

    def number_of(self, name: str, declaration: Declaration) -> int:
        """Returns the number of the tensor with this declaration, whatever the name means here.

        Raises Mismatch if ranks disagree on it.
        """
        [number] = self._ask([(name, declaration, 0)])
        return number

    @property
    def free_names(self) -> list[str]:
        """All free names, sorted."""
        with self._lock:
            return sorted(self._free)

    def settled_otherwise(self, name: str, declaration: Declaration) -> Declared | None:
        """Returns the tensor that the name means, if its declaration differs and the name can be
        freed.

        A name with patience cannot: ranks would learn of it in different rounds. A name that is
        settled for good cannot either: on some nodes its tensor may be in place.
        """
        with self._lock:
            known = self._tensors.get(name)
        if known is None or known.declaration.is_for(declaration):
            return None
        stays = known.is_for_good or known.declaration.patience_ms
        return known if known.on_host and not stays else None

    def _known(self, name: str, declaration: Declaration) -> Declared | None:
        with self._lock:
            known = self._tensors.get(name)
        if known is not None and not known.declaration.is_for(declaration):
            raise InvalidArgument(
                f"tensor '{name}' was declared as {known.declaration} and is now used "
                f"as {declaration}: give the second use a name of its own"
            )
        return known

    def require_patience(self, name: str, patience_ms: int) -> None:
        """Raises InvalidArgument if the name's tensor has another patience."""
        known = self._tensors.get(name)
        if known is None or known.declaration.patience_ms == patience_ms:
            return
        now = f"a patience of {patience_ms} ms" if patience_ms else "no patience"
        raise InvalidArgument(
            f"tensor '{name}' was declared as {known.declaration} and is now declared with {now}: "
            "give the second use a name of its own"
        )

    def adopt_shape(self, name: str, declaration: Declaration) -> None:
        """Gives a name that was declared without a shape the shape of its first call."""
        with self._lock:
            known = self._tensors.get(name)
            if known is not None and name in self._shapeless:
                if known.declaration.is_for(replace(declaration, shape=None)):
                    patience_ms = known.declaration.patience_ms
                    declaration = replace(declaration, patience_ms=patience_ms)
                    self._tensors[name] = replace(known, declaration=declaration)
                    self._shapeless.discard(name)

    def declare_shapeless(
        self, name: str, declaration: Declaration, priority: int, in_place: bool = False
    ) -> Declared:
        """Does the same as declare_early(), for a program that does not give the shape yet."""
        is_new = self.is_new(name)
        known = self.declared_on_host(name)
        if known is not None and replace(known.declaration, shape=None) == declaration:
            known.is_for_good |= in_place
            return known
        declared = self.declare_early(name, declaration, priority, in_place)
        if is_new:
            self._shapeless.add(name)
        return declared

    def known(self, name: str) -> Declared | None:
        """Returns the tensor that this rank has declared under the name, if the name means one."""
        return self._tensors.get(name)

    def declared_on_host(self, name: str | None) -> Declared | None:
        """Returns the tensor of that name, if declared here for pushes from host memory."""
        known = self._tensors.get(name) if name is not None else None
        return known if known is not None and known.on_host else None

    def _on_host(self, name: str, declaration: Declaration) -> Declared | None:
        self._known(name, declaration)  # Raises InvalidArgument if the declaration differs.
        return self.declared_on_host(name)

    def declare(
        self, name: str, declaration: Declaration, priority: int = 0, in_place: bool = False
    ) -> Declared:
        """Agrees with the other ranks on a tensor. A repeated call is cheap. `in_place`: as in
        declare_all(). The name is then settled for good.
        """
        declared = self._on_host(name, declaration)
        if declared is None:
            mismatch = self.disagreed(name)
            if mismatch is not None:
                raise mismatch
            try:
                [declared] = self._declare_on_host([(name, declaration, priority)], in_place)
            except Mismatch:  # Every rank gets the error.
                self.free(name)
                raise
        declared.is_for_good |= in_place
        return declared

    def declare_early(
        self, name: str, declaration: Declaration, priority: int, in_place: bool = False
    ) -> Declared:
        """Does the same as declare(), before the first call of the name.

        That call raises a Mismatch once more: other ranks may get it there for the first time, and
        the calls of all ranks must stay in step.
        """
        try:
            return self.declare(name, declaration, priority, in_place)
        except Mismatch as mismatch:
            self._disagreed[name] = mismatch
            raise

    def settle(
        self,
        declarations: Iterable[tuple[str, Declaration, int]],
        in_place: bool = False,
        for_good: bool = False,
    ) -> None:
        """Declares the names that this rank has not used yet. Keeps a Mismatch for disagreed().
        `in_place`: as in declare_all(). `for_good`: another use of the names is refused.
        """
        new = [each for each in declarations if self.is_new(each[0])]
        declared: list[Declared] = []
        try:
            declared += self._declare_on_host(new, in_place)
        except Mismatch:
            for each in new:
                try:  # The watcher has been told of the name.
                    declared += self._declare_new([each], tells=False)
                except Mismatch as mismatch:  # The later call of this name raises it.
                    self.free(each[0])
                    self._disagreed[each[0]] = mismatch
        for one in declared:
            one.is_for_good |= for_good

    def disagreed(self, name: str) -> Mismatch | None:
        """Returns the Mismatch that settle() or declare_early() got for the name, or None.
        Returns it only once. The next declare() raises it.
        """
        return self._disagreed.pop(name, None)

    def declare_all(
        self, declarations: Iterable[tuple[str, Declaration, int]], in_place: bool = False
    ) -> None:
        """Declares many names with their priorities, and settles them for good. This takes little
        longer than one declare().

        If `in_place`, the ranks sum the tensors in place, provided that the ranks sum and that no
        other rank has declared them without it.
        """
        known = [(each, self._on_host(*each[:2])) for each in declarations]
        declared = self._declare_on_host([each for each, found in known if found is None], in_place)
        for one in [*declared, *(found for _, found in known if found is not None)]:
            one.is_for_good = True

    def _declare_on_host(
        self, declarations: Sequence[tuple[str, Declaration, int]], in_place: bool
    ) -> list[Declared]:
        if in_place:
            with contextlib.suppress(Unsupported):
                return self._declare_new(declarations, in_place=True)
        return self._declare_new(declarations)

    def _declare_new(
        self,
        declarations: Sequence[tuple[str, Declaration, int]],
        on_gpu: bool = False,
        in_place: bool = False,
        tells: bool = True,
    ) -> list[Declared]:
        if self._patience:
            declarations = [
                (name, self._as_patient_as_before(name, declaration), priority)
                for name, declaration, priority in declarations
            ]
        new = [each for each in declarations if tells and each[0] not in self._tensors]
        try:
            tensors = self._ask(declarations, on_gpu, in_place)
        except Mismatch:  # Other ranks use the names as well.
            self._tell(new)
            raise
        self._tell(new)
        with self._lock:
            for (name, declaration, _), tensor in zip(declarations, tensors):
                known = self._tensors.get(name)
                on_host = not on_gpu or (known is not None and known.on_host)
                declared = Declared(name, tensor, declaration, on_host)
                declared.is_for_good = known is not None and known.is_for_good
                if known is not None and known.buffer is not None:
                    declared.buffer = known.buffer
                elif self._connection.sums_in_place(tensor):
                    self._has_in_place = True
                    declared.buffer = Buffer(self._connection, tensor, declaration.nbytes)
                self._tensors[name] = declared
            return [self._tensors[name] for name, *_ in declarations]

    def _as_patient_as_before(self, name: str, declaration: Declaration) -> Declaration:
        patience_ms = declaration.patience_ms or self._patience.get(name, 0)
        return replace(declaration, patience_ms=patience_ms)

    def _tell(self, new: Sequence[tuple[str, Declaration, int]]) -> None:
        if new and self.watcher is not None:
            self.watcher(new)

    def _ask(
        self,
        declarations: Sequence[tuple[str, Declaration, int]],
        on_gpu: bool = False,
        in_place: bool = False,
    ) -> Sequence[int]:
        """Returns the numbers of the tensors, once the ranks have agreed on them."""
        if all(each.is_plain for _, each, _ in declarations):
            return self._connection.declare_all(
                [(name, *each.wire(), priority) for name, each, priority in declarations],
                on_gpu,
                in_place,
            )
        return [
            self._connection.declare_collective(
                name,
                each.dtype,
                each.op,
                each.shares(),
                each.root_rank,
                each.ranks,
                each.count,
                priority,
                encoding=each.encoding,
                patience_ms=each.patience_ms,
            )
            for name, each, priority in declarations
        ]

    def declare_on_gpu(self, name: str, declaration: Declaration, priority: int = 0) -> int:
        """Declares a tensor that is pushed from a GPU whose memory the agent accepts."""
        known = self._known(name, declaration)
        if known is not None and known.declaration.patience_ms:
            raise Unsupported(
                f"tensor '{name}' was declared as {known.declaration} in host memory, and is now "
                "on a GPU: give the second use a name of its own"
            )
        if known is None or known.on_host:
            [declared] = self._declare_new([(name, declaration, priority)], on_gpu=True)
            return declared.tensor
        return known.tensor

    def declare_all_on_gpu(self, declarations: Iterable[tuple[str, Declaration, int]]) -> None:
        """Does the same as declare_on_gpu(), for many tensors at once."""
        self._declare_new([each for each in declarations if self._known(*each[:2]) is None], True)
