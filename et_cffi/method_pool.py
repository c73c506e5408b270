"""Several methods of one program, for several threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from et_cffi._backend_options import BackendOptions
from et_cffi.errors import MethodStateError
from et_cffi.method import Method
from et_cffi.program import Program

if TYPE_CHECKING:
    from concurrent.futures import Future


class MethodPool:
    """`size` methods loaded from one program: any thread executes on one that is idle.

    The program's weights are there once; planned memory and state are each method's own, so a method that
    keeps state from call to call is not for a pool. XNNPACK's methods share one pool of threads and, unless
    told otherwise, one workspace, so that they run one at a time. What gives most runs in a second is one
    thread inside each and a workspace for each (docs/benchmarks.md): `et_cffi.set_num_threads(1)` and
    `backend_options={"XnnpackBackend": {"workspace_sharing_mode": 0}}`.

    ```python
    import numpy
    from et_cffi import MethodPool, Runtime

    program = Runtime.get().load_program("tests/models/digits.pte")
    images = [numpy.load("tests/models/digit.npy")] * 8
    with MethodPool(program, "forward", 4) as pool:
        for (scores,) in pool.map(images):
            print(numpy.asarray(scores).argmax())  # 7
    ```

    Args:
        program: where the methods are loaded from.
        method_name: which of its methods.
        size: how many, 1 or more.
        backend_options: as for `Program.load_method`.

    Raises:
        ValueError: `size` is less than 1.
        ExecuTorchError: as `Program.load_method`.
    """

    def __init__(
        self,
        program: Program,
        method_name: str,
        size: int,
        *,
        backend_options: BackendOptions | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool has 1 method or more, not {size}")
        self._methods = [
            program.load_method(method_name, backend_options=backend_options) for _ in range(size)
        ]
        self._idle = deque(self._methods)
        self._changed = threading.Condition()
        self._closed = False

    @property
    def size(self) -> int:
        """How many methods there are."""
        return len(self._methods)

    def execute(self, inputs: Any) -> list[Any]:
        """Executes on an idle method, after waiting for one if need be. Any thread may call it, but not one
        that is in the middle of such a call (a producer of an input): it might wait for itself.

        Raises:
            MethodStateError: the pool is closed.
            ExecuTorchError: as `Method.execute`; the method is then idle again.
        """
        method = self._take()
        try:
            return method.execute(inputs)
        finally:
            self._give_back(method)

    def map(self, inputs: Iterable[Any]) -> Iterator[list[Any]]:
        """The outputs for each item of `inputs`, in their order, executed on as many threads as methods.

        No more than twice `size` items are taken from `inputs` ahead of the results that were asked for, so
        an endless iterable is fine. An error is raised at its item's turn, and ends the iteration: what had
        begun is finished, nothing more is taken. Closing the iterator does the same.

        Raises:
            MethodStateError: the pool is closed.
            ExecuTorchError: as `Method.execute`.
        """
        with self._changed:
            if self._closed:
                raise MethodStateError("the pool is closed")
        return self._map(inputs)

    def _map(self, inputs: Iterable[Any]) -> Iterator[list[Any]]:
        from concurrent.futures import ThreadPoolExecutor  # costs more to import than all of et_cffi

        pending: deque[Future[list[Any]]] = deque()
        with ThreadPoolExecutor(self.size, thread_name_prefix="et_cffi") as executor:
            try:
                for item in inputs:
                    pending.append(executor.submit(self.execute, item))
                    if len(pending) == 2 * self.size:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def close(self) -> None:
        """Closes every method, after those that are executing have ended. Results stay valid."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._idle) == len(self._methods))
        for method in self._methods:
            method.close()

    def __enter__(self) -> MethodPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a MethodPool holds native memory and cannot be pickled; pickle its program, and make a pool "
            "of it in each process"
        )

    def _take(self) -> Method:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._idle))
            if self._closed:
                raise MethodStateError("the pool is closed")
            return self._idle.popleft()

    def _give_back(self, method: Method) -> None:
        with self._changed:
            self._idle.append(method)
            self._changed.notify()
