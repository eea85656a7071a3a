# SPDX-License-Identifier: Apache-2.0
"""The backend "talweg" of torch.distributed. docs/torch.md says which calls it has.

A group's calls are matched by their order, which must be the same at all ranks, as c10d demands.
Sends and receives are matched by their order for each pair of ranks, direction and tag. Ranks
compare what they give, so tensors that do not fit together raise Mismatch at every rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from talweg._collectives.channels import Job
from talweg._collectives.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    Given,
)
from talweg._collectives.kinds import WANTS_IN_PLACE
from talweg._counted import counted
from talweg.errors import InvalidArgument
from talweg.torch import _c10d_sparse as sparse
from talweg.torch import _c10d_tensors as tensors_
from talweg.torch._c10d_tensors import (
    Outputs,
    Reduction,
    given,
    options_of,
    outputs_of,
    real,
    reduced,
    said,
)
from talweg.torch._callbacks import runs_here
from talweg.torch._group_calls import GroupCalls
from talweg.torch._in_place_buckets import InPlaceBuckets, is_reducer
from talweg.torch._lanes import Lane
from talweg.torch._places import Places
from talweg.torch._point_to_point import PointToPoint
from talweg.torch._profiling import range_of
from talweg.torch._small_calls import Over, SmallCalls
from talweg.torch._subclasses import GroupOfSubclasses, unwraps_itself
from talweg.torch._work import Start, Work

NAME = "talweg"

# How many sums of one element a group keeps. It is more than DDP makes in a step.
_KEPT_MAX = 64


class ProcessGroup(GroupOfSubclasses):
    """A torch.distributed group over Talweg. If another backend has a tensor's device, that backend
    makes the call. If a tensor's class unwraps it, that class makes the call.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: Sequence[int],
        timeout: timedelta,
        lane: Lane,
    ) -> None:
        super().__init__(rank, len(ranks))  # The one constructor that torch has for Python classes.
        self._store = store
        self._client = lane.client
        self._ranks = list(ranks)
        self._group = lane.group
        self._place, self._places = rank, Places(ranks)
        self._lane = lane
        self._all_calls = GroupCalls(self._ranks, lane, store)
        self._channel = self._all_calls.channel
        self._small = SmallCalls(self._channel)
        self._messages = PointToPoint(self._client, self._ranks, rank, self._all_calls)
        if not self._group.listed and self._client.size == self._client.local_size > 1:
            if self._channel.in_place is None:
                self._channel.in_place = InPlaceBuckets(self._client, lane.name)
            self._channel.in_place.begin_again()
        self._timeout = timeout
        # DDP's join() gives such a work to the reducer in C++ and keeps no Python object, without
        # which the work would lose its methods.
        self._kept: deque[Work] = deque(maxlen=_KEPT_MAX)

    def getBackendName(self) -> str:
        return NAME

    _get_backend_name = getBackendName

    def _submit(
        self,
        operation: str,
        calls: list[Given] | Start,
        inputs: Sequence[torch.Tensor],
        result: Any,
        outputs: Sequence[Outputs],
        opts: Any,
        begun: Job | None = None,
    ) -> Work:
        self._all_calls.begin(operation)
        for output in outputs:
            output.begin()

        def finish(results: list[Any]) -> None:
            for output, got in zip(outputs, results):
                output.finish(got)

        timeout = getattr(opts, "timeout", None) or self._timeout
        if timeout.total_seconds() <= 0:
            timeout = self._timeout
        is_async = getattr(opts, "asyncOp", True)  # Older torch does not say.
        range_ = range_of(operation, inputs) if begun is None else None
        if range_ is not None:
            range_.begin()
        work = Work(
            self._all_calls,
            calls,
            partial(self._all_calls.text_of, operation, inputs),
            result,
            finish,
            timeout.total_seconds(),
            is_async,
            begun,
        )
        if self._all_calls.kept.all_are_wanted:
            self._all_calls.kept.add(work)
        if range_ is not None and is_async:
            range_.end()  # The call goes on, and may end on any thread.
        elif range_ is not None:
            work.show(range_)
        return work

    def shutdown(self) -> None:
        """Ends the destroyed group: another group of its ranks may then use its channels."""
        self._all_calls.destroy()
        super().shutdown()

    def abort(self) -> None:
        """Ends this rank's calls of the group, also later ones, with Aborted."""
        self._all_calls.abort()
        super().abort()

    def _small_call(
        self, key: Any, tensor: torch.Tensor, output: torch.Tensor, result: Any, opts: Any
    ) -> Any:
        """Makes a call like an earlier small call, if the caller waits for it. Returns None if this
        is no such call. `key` begins with the operation, and holds all that the call depends on.
        """
        if getattr(opts, "asyncOp", True) or runs_here():
            return None
        if self._all_calls.are_over or self._channel.aborted:
            return None
        made = self._small.run(key, tensor, output)
        if made is None:
            return None
        if isinstance(made, bool):
            self._all_calls.count += 1
            return Over(result, self._all_calls.callbacks)
        job, target, range_ = made
        work = self._submit(key[0], [], [tensor], result, [target], opts, begun=job)
        if range_ is not None:
            work.show(range_)
        return work

    def _is_elsewhere(self, tensors: Sequence[torch.Tensor], operation: str) -> bool:
        """Whether another backend of the group has the tensors' device, or the tensors' class makes
        the call.
        """
        if tensors and self.is_beside(tensors[0].device):
            return True
        if any(map(unwraps_itself, tensors)):
            return True
        for tensor in tensors:
            tensors_.require_strided(tensor, operation)
        tensors_.require_one_dtype(tensors, operation)
        return False

    def _root(self, opts: Any, operation: str) -> int:
        """Returns the root's rank in the job."""
        if getattr(opts, "rootTensor", 0) != 0:
            raise InvalidArgument(f"{operation}: rootTensor is {opts.rootTensor}; it must be 0")
        if not 0 <= opts.rootRank < len(self._ranks):
            raise InvalidArgument(
                f"{operation}: root {opts.rootRank} is not in the group, which has "
                f"{counted(len(self._ranks), 'rank')}"
            )
        return self._ranks[opts.rootRank]

    # ----- Reductions -----

    def _all_reduce(
        self, tensors: list[torch.Tensor], opts: Any, operation: str, key: Any = None
    ) -> Work:
        reduction = Reduction.of(opts.reduceOp)
        outputs = [Outputs([tensor], operation) for tensor in real(tensors)]
        calls = [
            reduced(ALL_REDUCE, [tensor], [], reduction, 0, output, len(self._ranks))
            for tensor, output in zip(tensors_.apart(tensors), outputs)
        ]
        if key is not None:
            self._small.learn(key, calls[0], tensors[0], outputs[0], outputs_of("all_reduce"))
            if is_reducer() and calls[0].address == tensors[0].data_ptr():
                calls[0].in_place = WANTS_IN_PLACE
        return self._submit(operation, calls, tensors, tensors, outputs, opts)

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        opts, key = options_of(c10d.AllreduceOptions, opts), None
        if timeout is not None:
            opts.timeout = timeout
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(tensors) == 1:
            tensor = tensors[0]
            key = ("all_reduce", tensor.dtype, tensor.shape, tensors_.name_of(opts.reduceOp))
            work = self._small_call(key, tensor, tensor, tensors, opts)
            if work is not None:
                return work
        if tensors[:1] and tensors[0].layout is torch.sparse_coo:
            return self._all_reduce_sparse(tensors_.only(tensors, "all_reduce"), opts)
        if self._is_elsewhere(tensors, "all_reduce"):
            return super().allreduce(tensors, opts)
        tensors_.only(tensors, "all_reduce")
        work = self._all_reduce(tensors, opts, "all_reduce", key)
        if getattr(opts, "asyncOp", True) and all(tensor.numel() == 1 for tensor in tensors):
            self._kept.append(work)
        return work

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        output = sparse.Sum(tensor, Reduction.of(opts.reduceOp), len(self._ranks))
        return self._submit("all_reduce", output.start, [tensor], [tensor], [output], opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.AllreduceCoalescedOptions, opts)
        if self._is_elsewhere(tensors[:1], "all_reduce_coalesced"):
            return super().allreduce_coalesced(tensors, opts)
        return self._all_reduce(tensors, opts, "all_reduce_coalesced")

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceOptions, opts)
        if self._is_elsewhere(tensors, "reduce"):
            return super().reduce(tensors, opts)
        tensor, root = tensors_.only(tensors, "reduce"), self._root(opts, "reduce")
        output = Outputs(real([tensor]), "reduce")
        reduction, size = Reduction.of(opts.reduceOp), len(self._ranks)
        call = reduced(REDUCE, [tensor], [], reduction, root, output, size)
        return self._submit("reduce", [call], [tensor], tensors, [output], opts)

    def _reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        opts: Any,
        operation: str,
        key: Any = None,
    ) -> Work:
        reduction, size = Reduction.of(opts.reduceOp), len(self._ranks)
        targets, calls = [], []
        for output, parts in zip(outputs, inputs):
            counts = [part.numel() for part in parts]
            if len(parts) == 1 and counts[0] == output.numel() * size:
                counts = [output.numel()] * size
            if len(counts) != size or counts[self._place] != output.numel():
                raise InvalidArgument(
                    f"{operation}: the output has {output.numel()} elements, the input {counts}: "
                    f"give {size} parts, of which part {self._place} has the output's length"
                )
            target = Outputs(real([output]), operation)
            # A caller with one input tensor may have joined or stacked the parts in it.
            shapes = {part.shape for part in parts} if len(parts) == size > 1 else {output.shape}
            shape = shapes.pop() if len(shapes) == 1 else None
            parts, counts = self._places.parts(parts, counts)
            call = reduced(REDUCE_SCATTER, parts, counts, reduction, 0, target, size, shape)
            calls.append(call)
            targets.append(target)
        shown = [part for parts in inputs for part in parts]
        if key is not None:
            self._small.learn(key, calls[0], shown[0], targets[0], outputs_of(operation))
        return self._submit(operation, calls, shown, outputs, targets, opts)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, opts)
        if self._is_elsewhere([*output_tensors, *input_tensors[0]], "reduce_scatter"):
            return super().reduce_scatter(output_tensors, input_tensors, opts)
        return self._reduce_scatter(output_tensors, input_tensors, opts, "reduce_scatter")

    def reduce_scatter_single(self, output: Any, input_: Any, opts: Any = None) -> Any:
        opts, operation = options_of(c10d.ReduceScatterOptions, opts), "reduce_scatter_tensor"
        sizes = (input_.dtype, input_.numel(), output.dtype, output.shape)
        key = (operation, *sizes, tensors_.name_of(opts.reduceOp))
        work = self._small_call(key, input_, output, [output], opts)
        if work is not None:
            return work
        if self._is_elsewhere([output, input_], operation):
            return super().reduce_scatter_single(output, input_, opts)
        return self._reduce_scatter([output], [[input_]], opts, operation, key)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, opts)
        if self._is_elsewhere(outputs[:1], "reduce_scatter_tensor_coalesced"):
            return super().reduce_scatter_single_coalesced(outputs, inputs, opts)
        parts = [[each] for each in inputs]
        return self._reduce_scatter(outputs, parts, opts, "reduce_scatter_tensor_coalesced")

    # ----- Copies from one rank or to one rank -----

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.BroadcastOptions, opts)
        if self._is_elsewhere(tensors, "broadcast"):
            return super().broadcast(tensors, opts)
        tensor, root = tensors_.only(tensors, "broadcast"), self._root(opts, "broadcast")
        gives = root == self._client.rank
        output = Outputs([tensor], "broadcast")
        call = given(
            BROADCAST,
            [tensor] if gives else [],
            tensors_.whole(tensor, any_shape=True),
            [1] if gives else [],
            root,
            output,
        )
        return self._submit("broadcast", [call], [tensor], tensors, [output], opts)

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.GatherOptions, opts)
        if self._is_elsewhere(input_tensors, "gather"):
            return super().gather(output_tensors, input_tensors, opts)
        tensor, root = tensors_.only(input_tensors, "gather"), self._root(opts, "gather")
        outputs = []
        if root == self._client.rank:
            outputs = self._places.of_every_rank(output_tensors, tensor, "gather")
        target = Outputs(outputs, "gather") if outputs else None
        call = given(GATHER, [tensor], tensors_.whole(tensor), [1], root, target)
        targets = [target] if target is not None else []
        result = list(output_tensors[0]) if outputs else []
        return self._submit("gather", [call], [tensor], result, targets, opts)

    def gather_single(self, output: Any, input_: Any, opts: Any = None) -> Any:
        """The root's output has the tensors of all ranks. Torch has this from 2.14 on."""
        opts, operation = options_of(c10d.GatherOptions, opts), "gather_single"
        if self._is_elsewhere([input_], operation):
            return super().gather_single(output, input_, opts)
        root = self._root(opts, operation)
        outputs = [output] if root == self._client.rank else []
        self._require_all(outputs, [input_], operation)
        targets = [Outputs([each], operation, self._places) for each in outputs]
        target = targets[0] if targets else None
        call = given(GATHER, [input_], tensors_.whole(input_), [1], root, target)
        return self._submit(operation, [call], [input_], outputs, targets, opts)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.ScatterOptions, opts)
        if self._is_elsewhere(output_tensors, "scatter"):
            return super().scatter(output_tensors, input_tensors, opts)
        tensor, root = tensors_.only(output_tensors, "scatter"), self._root(opts, "scatter")
        inputs = []
        if root == self._client.rank:
            inputs = self._places.of_every_rank(input_tensors, tensor, "scatter")
            if any(each.numel() != inputs[0].numel() for each in inputs):
                raise InvalidArgument("scatter: the tensors have several lengths: give one length")
        output = Outputs([tensor], "scatter")
        # All outputs must have one shape, and the length of the parts that the root gives.
        of_root = inputs[0] if inputs and inputs[0].numel() != tensor.numel() else tensor
        rows = tensors_.whole(of_root)
        call = given(SCATTER, inputs, rows, [1] * len(inputs), root, output)
        return self._submit("scatter", [call], [tensor], output_tensors, [output], opts)

    # ----- Copies to all ranks -----

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.AllgatherOptions, opts)
        if self._is_elsewhere(input_tensors, "all_gather"):
            return super().allgather(output_tensors, input_tensors, opts)
        tensor = tensors_.only(input_tensors, "all_gather")
        outputs = self._places.of_every_rank(output_tensors, tensor, "all_gather")
        return self._all_gather([outputs], [tensor], list(output_tensors[0]), opts, "all_gather")

    def _all_gather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        result: Any,
        opts: Any,
        operation: str,
        key: Any = None,
    ) -> Work:
        targets, calls = [], []
        for each, tensor in zip(outputs, inputs):
            target = Outputs(each, operation, self._places if len(each) == 1 else None)
            alike = len({output.numel() for output in each}) == 1
            # Ranks may give tensors of different shapes, if their outputs have these shapes.
            any_shape = len(each) > 1 and any(output.shape != tensor.shape for output in each)
            rows = tensors_.whole(tensor, any_shape) if alike else tensors_.elements(tensor)
            count = 1 if alike else tensor.numel()
            calls.append(given(ALL_GATHER, [tensor], rows, [count], 0, target))
            targets.append(target)
        if key is not None:
            self._small.learn(key, calls[0], inputs[0], targets[0], outputs_of(operation))
        return self._submit(operation, calls, inputs, result, targets, opts)

    def all_gather_single(self, output: Any, input_: Any, opts: Any = None) -> Any:
        opts, operation = options_of(c10d.AllgatherOptions, opts), "all_gather_into_tensor"
        key = (operation, input_.dtype, input_.shape, output.dtype, output.numel())
        work = self._small_call(key, input_, output, [output], opts)
        if work is not None:
            return work
        if self._is_elsewhere([output, input_], operation):
            return super().all_gather_single(output, input_, opts)
        return self._all_gather_single([output], [input_], [output], opts, operation, key)

    def _all_gather_single(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        result: Any,
        opts: Any,
        operation: str,
        key: Any = None,
    ) -> Work:
        self._require_all(outputs, inputs, operation)
        lists = [[output] for output in outputs]
        return self._all_gather(lists, inputs, result, opts, operation, key)

    def _require_all(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], operation: str
    ) -> None:
        """Raises InvalidArgument if an output cannot hold what all ranks give."""
        for output, tensor in zip(outputs, inputs):
            if output.numel() != tensor.numel() * len(self._ranks):
                raise InvalidArgument(
                    f"{operation}: the output is {said(output)}, and {len(self._ranks)} ranks give "
                    f"{said(tensor)} each: it must have as many elements as all of these"
                )

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """`output_lists` has one list for each rank, with one tensor for each input."""
        opts = options_of(c10d.AllgatherOptions, opts)
        if self._is_elsewhere(input_list[:1], "all_gather_coalesced"):
            return super().allgather_coalesced(output_lists, input_list, opts)
        size, counts = len(self._ranks), [len(each) for each in output_lists]
        if counts != [len(input_list)] * size:
            raise InvalidArgument(
                f"all_gather_coalesced: lists of {counts} tensors; give {size}, one for each rank, "
                f"of {len(input_list)}, as many as there are inputs"
            )
        outputs = [
            self._places.of_every_rank([each], tensor, "all_gather_coalesced")
            for each, tensor in zip(zip(*output_lists), input_list)
        ]
        result = [output for each in output_lists for output in each]
        return self._all_gather(outputs, input_list, result, opts, "all_gather_coalesced")

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.AllgatherOptions, opts)
        if self._is_elsewhere(inputs[:1], "all_gather_into_tensor_coalesced"):
            return super().all_gather_single_coalesced(outputs, inputs, opts)
        return self._all_gather_single(
            outputs, inputs, outputs, opts, "all_gather_into_tensor_coalesced"
        )

    # ----- Copies from each rank to each -----

    def _all_to_all(
        self,
        outputs: Outputs,
        inputs: Sequence[torch.Tensor],
        like: torch.Tensor,
        counts: list[int],
        result: Any,
        opts: Any,
        operation: str,
        key: Any = None,
    ) -> Work:
        call = given(ALL_TO_ALL, inputs, tensors_.elements(like), counts, 0, outputs)
        if key is not None and outputs.expects([counts[self._place]] * len(counts)):
            self._small.learn(key, call, like, outputs, outputs_of(operation))
        return self._submit(operation, [call], inputs, result, [outputs], opts)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = options_of(c10d.AllToAllOptions, opts)
        if self._is_elsewhere([*output_tensors, *input_tensors], "all_to_all"):
            return super().alltoall(output_tensors, input_tensors, opts)
        outputs, inputs = (
            self._places.of_every_rank([lists], input_tensors[0], "all_to_all")
            for lists in (output_tensors, input_tensors)
        )
        return self._all_to_all(
            Outputs(outputs, "all_to_all"),
            inputs,
            input_tensors[0],
            [each.numel() for each in inputs],
            output_tensors,
            opts,
            "all_to_all",
        )

    def all_to_all_single(
        self, output: Any, input_: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        opts = options_of(c10d.AllToAllOptions, opts)
        operation = "all_to_all_single"
        key = None
        if not output_splits and not input_splits:
            key = (operation, input_.dtype, input_.shape, output.dtype, output.shape)
            work = self._small_call(key, input_, output, [output], opts)
            if work is not None:
                return work
        if self._is_elsewhere([output, input_], operation):
            return super().all_to_all_single(output, input_, output_splits, input_splits, opts)
        wanted = self._counts(output, output_splits, operation)
        target = tensors_.SplitOutput(output, wanted, operation, self._places)
        inputs, counts = self._places.parts([input_], self._counts(input_, input_splits, operation))
        return self._all_to_all(target, inputs, input_, counts, [output], opts, operation, key)

    def _counts(self, tensor: torch.Tensor, splits: Any, operation: str) -> list[int]:
        """Returns the number of elements in each rank's part."""
        size = len(self._ranks)
        rows = tensor.shape[0] if tensor.dim() > 0 else 1
        chosen = [int(each) for each in splits] if splits else [rows // size] * size
        if len(chosen) != size or min(chosen) < 0 or sum(chosen) != rows:
            raise InvalidArgument(
                f"{operation}: {said(tensor)} with splits {chosen}: give {size} numbers of 0 or "
                f"more that add up to its {rows} rows"
            )
        row = tensor.numel() // rows if rows > 0 else 0
        return [each * row for each in chosen]

    # ----- Messages between two ranks -----

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        if self._is_elsewhere(tensors, "send"):
            return super().send(tensors, dst, tag)
        tensor = tensors_.only(tensors, "send")
        return self._messages.send(tensor, dst, tag, self._timeout.total_seconds())

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        if self._is_elsewhere(tensors, "recv"):
            return super().recv(tensors, src, tag)
        tensor = tensors_.only(tensors, "recv")
        return self._messages.receive(tensor, src, tag, self._timeout.total_seconds())

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if self._is_elsewhere(tensors, "recv"):
            return super().recv_anysource(tensors, tag)
        tensor = tensors_.only(tensors, "recv")
        return self._messages.receive_from_any(tensor, tag, self._timeout.total_seconds())

    # ----- The group -----

    def barrier(self, opts: Any = None) -> Any:
        opts = options_of(c10d.BarrierOptions, opts)
        if self.is_beside(getattr(opts, "device", None)):
            return super().barrier(opts)
        one = torch.zeros(0, dtype=torch.uint8, device="cpu")
        call = given(BARRIER, [one], tensors_.elements(one), [0], 0, None)
        return self._submit("barrier", [call], [], [], [], opts)

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of calls that have no time limit of their own."""
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        self._all_calls.count = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._all_calls.count

    # The names in torch before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    # torch 2.13 has these names for what calls the new ones. It would also take them for what its
    # own calls are overridden by, when super() makes one here.
    if not hasattr(c10d.ProcessGroup, "all_to_all_single"):
        alltoall_base = all_to_all_single
        allgather_into_tensor_coalesced = all_gather_single_coalesced
        reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
