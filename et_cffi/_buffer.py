"""Inputs through the buffer protocol: numpy arrays, memoryview, bytes, array.array, ctypes arrays."""

from __future__ import annotations

import sys
from typing import Any

from et_cffi._lib import address_of, ffi, lib
from et_cffi._memory import Memory
from et_cffi.dtypes import BY_NAME, DTYPES, ScalarType, scalar_type_of_format
from et_cffi.errors import DtypeError, InputKindError, LayoutError, ShapeError
from et_cffi.metadata import TensorInfo


def describe_buffer(source: Any, info: TensorInfo) -> Memory | None:
    """The memory of an object that has the buffer protocol, or None for one that has not.

    Raises:
        DtypeError: its format code names no dtype that the runtime knows, or another byte order.
        LayoutError: it is indirect, or its strides are no whole number of elements.
        ShapeError: it has more dimensions than the runtime can describe.
    """
    exporter, scalar_type = _numpy_extension_dtype(source)
    try:
        view = memoryview(exporter)
    except TypeError:
        return None
    except (ValueError, BufferError) as error:
        dtype = getattr(source, "dtype", None)
        if dtype is None:
            raise DtypeError(f"it cannot be read as plain memory ({error})") from error
        raise DtypeError(
            f"its dtype {dtype} is none that the runtime reads ({error}); convert it to "
            f"{ScalarType(info.dtype())}"
        ) from error
    try:
        return _describe_view(view, info, scalar_type)
    except BaseException:
        view.release()
        raise


def _numpy_extension_dtype(source: Any) -> tuple[Any, ScalarType | None]:
    """An array of a dtype that numpy has no format code for (those of ml_dtypes), as unsigned integers."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(source, numpy.ndarray) or source.dtype.isbuiltin == 1:
        return source, None
    scalar_type = BY_NAME.get(source.dtype.name)
    if scalar_type is None or DTYPES[scalar_type].format or DTYPES[scalar_type].itemsize != source.itemsize:
        return source, None
    return source.view(f"u{source.itemsize}"), scalar_type


def _describe_view(view: memoryview, info: TensorInfo, scalar_type: ScalarType | None) -> Memory:
    if view.suboffsets:
        raise LayoutError("it is an indirect buffer; make it contiguous first")
    if view.ndim > lib.ETCFFI_MAX_DIM:
        raise ShapeError(
            f"it has {view.ndim} dimensions, and the runtime describes at most {lib.ETCFFI_MAX_DIM}"
        )
    itemsize, shape = view.itemsize, view.shape or ()
    strides = view.strides or ()
    if scalar_type is None and _is_raw_bytes_for(view, info):
        # No format code names this dtype, so the method says what the bytes are.
        scalar_type, shape, strides = ScalarType(info.dtype()), info.sizes(), info.strides()
    else:
        if scalar_type is None:
            scalar_type = scalar_type_of_format(view.format, itemsize)
        if scalar_type is None:
            raise DtypeError(
                f"its buffer format {view.format!r} with items of {itemsize} bytes is no dtype that the "
                f"runtime reads (in the host's byte order); convert it to {ScalarType(info.dtype())}"
            )
        if any(stride % itemsize for stride in strides):
            raise LayoutError(
                f"its strides {strides} are no whole numbers of its {itemsize}-byte elements; make it "
                "contiguous first"
            )
        strides = tuple(stride // itemsize for stride in strides)
    can_be_located = view.obj is not None and is_buffer(view.obj)
    return Memory(
        _address(view),
        view.nbytes,
        scalar_type,
        shape,
        strides,
        view,
        pinned=can_be_located,
        # A kernel may write to its input, and Python shares immutable objects: writing into one would reach
        # whoever else holds it.
        read_only=view.readonly,
        locate=(lambda: _locate(view)) if can_be_located else None,
        release_owner=view.release,
    )


def _is_raw_bytes_for(view: memoryview, info: TensorInfo) -> bool:
    """Whether these bytes may stand for an input of a dtype that no format code names.

    Each condition is needed: without the first a byte image of the right size would be read as floats,
    without the third the gaps of a strided view would be read as elements.
    """
    return (
        not DTYPES[ScalarType(info.dtype())].format
        and view.ndim == 1
        and view.itemsize == 1
        and view.strides == (1,)
        and view.nbytes == info.nbytes()
        and view.format.lstrip("@=<>!") in {"B", "b", "c"}
    )


def _address(view: memoryview) -> int:
    if view.c_contiguous:
        return address_of(ffi.from_buffer(view))
    # cffi takes C-contiguous buffers only; numpy tells the address of any.
    import numpy

    return int(numpy.asarray(view).__array_interface__["data"][0])


def _locate(held: memoryview) -> list[tuple[int, int]]:
    """Where the memory of a view's exporter is now, and how much there is.

    The protocol says that it stays while a view of it is held, but numpy's resize(refcheck=False) moves it
    all the same, so what was pointed at is asked again before each run. An array may be a view of another,
    which may be the one that is resized.
    """
    exporter = held.obj
    with memoryview(exporter) as view:
        places = [(_address(view), view.nbytes)]
    lender = _lender_of(exporter)
    while lender is not None:
        if not isinstance(lender, memoryview) and isinstance(lender, sys.modules["numpy"].ndarray):
            places.append((lender.__array_interface__["data"][0], lender.nbytes))
        lender = _lender_of(lender)
    return places


def _lender_of(exporter: Any) -> Any:
    """Whom an exporter has its memory from in its turn, or None, as far as can be told."""
    if isinstance(exporter, memoryview):
        return exporter.obj
    numpy = sys.modules.get("numpy")
    return exporter.base if numpy is not None and isinstance(exporter, numpy.ndarray) else None


def is_buffer(source: Any) -> bool:
    """Whether an object has the buffer protocol."""
    try:
        memoryview(source).release()
    except TypeError:
        return False
    except (ValueError, BufferError):
        return True
    return True


def may_change(view: memoryview) -> bool:
    """Whether somebody may write to a view's memory: through it, or as one of those that lent it."""
    if not view.readonly:
        return True
    lender = view.obj
    while lender is not None:
        try:
            with memoryview(lender) as lent:
                if not lent.readonly:
                    return True
        except (TypeError, ValueError, BufferError):
            return True  # no saying what it is
        lender = _lender_of(lender)
    return False


def bytes_of(source: Any) -> memoryview:
    """The bytes of a contiguous buffer.

    Raises:
        InputKindError: it is not contiguous.
    """
    view = memoryview(source)
    if not view.c_contiguous:
        raise InputKindError("the bytes of a program must be contiguous")
    return view.cast("B")


def kept_bytes(source: Any) -> memoryview:
    """The same, where they are unless somebody could write there: then a copy. A later write would change a
    program or its weights under the runtime."""
    view = bytes_of(source)
    return memoryview(bytes(view)) if may_change(view) else view
