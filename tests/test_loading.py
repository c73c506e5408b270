"""Loading programs and methods: from what, who keeps the bytes, and every way it can fail."""

from __future__ import annotations

import array as arrays
import io
import mmap
import os
import pathlib
import weakref

import model_index
import numpy
import pytest
from support import address_of, case_of, check_outputs, collect, host_inputs, load, program, resident

from et_cffi import Program, Runtime, Verification, ffi
from et_cffi.errors import (
    BackendMissingError,
    ExecuTorchError,
    InputKindError,
    InvalidProgramError,
    OperatorMissingError,
    ProgramNotFoundError,
    UnknownMethodError,
)

load_program = Runtime.get().load_program
ADD = model_index.path("add")
BYTES = ADD.read_bytes()


def check_adds(loaded: Program) -> None:
    case = case_of("add")
    check_outputs(loaded.load_method("forward").execute(case.inputs), case)


# ---- from what --------------------------------------------------------------------------------------------


class PathLike:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def read_only(array):
    array.flags.writeable = False
    return array


SOURCES = {
    "str": lambda: str(ADD),
    "pathlib": lambda: ADD,
    "PathLike of str": lambda: PathLike(str(ADD)),
    "PathLike of bytes": lambda: PathLike(os.fsencode(ADD)),
    "relative": lambda: os.path.relpath(ADD),
    "bytes": lambda: BYTES,
    "bytearray": lambda: bytearray(BYTES),
    "memoryview": lambda: memoryview(BYTES),
    "writable memoryview": lambda: memoryview(bytearray(BYTES)),
    "read-only view of a bytearray": lambda: memoryview(bytearray(BYTES)).toreadonly(),
    "array.array": lambda: arrays.array("B", BYTES),
    "array of wider items": lambda: arrays.array("Q", BYTES),
    "numpy": lambda: numpy.frombuffer(bytearray(BYTES), numpy.uint8),
    "read-only numpy": lambda: numpy.frombuffer(BYTES, numpy.uint8),
    "two dimensions": lambda: numpy.frombuffer(BYTES, numpy.int8).reshape(-1, 8),
    "at an odd address": lambda: memoryview(b"." + BYTES)[1:],
    "BytesIO": lambda: io.BytesIO(BYTES),
    "BytesIO in the middle": lambda: skipped(io.BytesIO(b"...." + BYTES), 4),
}


def skipped(file, count):
    file.read(count)
    return file


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("source", SOURCES)
def test_sources(source, verification):
    check_adds(load_program(SOURCES[source](), verification=verification))


def test_an_open_file(tmp_path):
    with ADD.open("rb") as file:
        check_adds(load_program(file))
    with ADD.open("rb", buffering=0) as file:
        check_adds(load_program(file))


def test_a_mapped_file():
    with ADD.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        loaded = load_program(mapped)
        check_adds(loaded)
        del loaded
        collect()


@pytest.mark.parametrize("name", ["r\u00e9seau \u6a21\u578b.pte", "with space.pte", "no-suffix", "%s%n.pte"])
def test_names_of_files(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BYTES)
    check_adds(load_program(path))
    with pytest.raises(FileNotFoundError) as caught:
        load_program(tmp_path / "lacking" / name)
    assert name in str(caught.value)


@pytest.mark.linux
def test_a_name_that_is_no_unicode(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\xfe.pte")
    path.write_bytes(BYTES)
    check_adds(load_program(path))
    check_adds(load_program(str(path)))


def test_the_runtime_is_one():
    assert Runtime.get() is Runtime.get()
    assert isinstance(Runtime.get(), Runtime)


def test_the_program():
    loaded = program("multi")
    assert loaded.method_names == {"forward", "scale", "cast", "size"}
    assert repr(loaded) == "<et_cffi.Program with the methods ['cast', 'forward', 'scale', 'size']>"
    assert loaded.load_method("scale") is not loaded.load_method("scale")
    assert repr(loaded.load_method("scale")) == "<et_cffi.Method 'scale'>"


def test_methods_of_one_program_have_memory_of_their_own():
    one, other = load("state"), load("state")
    cases = model_index.cases("state", "forward")
    check_outputs(one.execute(cases[0].inputs), cases[0])
    check_outputs(one.execute(cases[1].inputs), cases[1])
    for case in cases:
        check_outputs(other.execute(case.inputs), case)
    check_outputs(one.execute(cases[2].inputs), cases[2])


# ---- who keeps the bytes ----------------------------------------------------------------------------------

PADDING = 64 << 20  # bytes behind the program, which the runtime never reads


def aligned(data: bytes) -> memoryview:
    """The data at an address that the runtime reads a program from."""
    view = memoryview(bytes(16) + data)
    offset = -address_of(ffi.from_buffer(view)) % 16
    return memoryview(bytes(offset) + data + bytes(16 - offset))[offset:]


@pytest.mark.linux
@pytest.mark.parametrize(
    ("make", "copied"),
    [
        pytest.param(bytes, False, id="bytes", marks=pytest.mark.cpython),  # PyPy's have no aligned address
        pytest.param(memoryview, False, id="memoryview", marks=pytest.mark.cpython),
        pytest.param(aligned, False, id="aligned"),
        pytest.param(lambda data: numpy.frombuffer(aligned(data), numpy.uint8), False, id="read-only numpy"),
        pytest.param(bytearray, True, id="bytearray"),
        pytest.param(lambda data: memoryview(bytearray(data)), True, id="writable memoryview"),
        pytest.param(lambda data: memoryview(bytearray(data)).toreadonly(), True, id="of a bytearray"),
    ],
)
def test_bytes_are_read_in_place_and_writable_ones_copied(make, copied):
    source = make(BYTES + bytes(PADDING))
    collect()
    before = resident()
    loaded = load_program(source)
    grown = resident() - before
    if copied:
        assert grown >= PADDING * 0.9
    else:
        assert grown < PADDING // 8
    check_adds(loaded)


@pytest.mark.parametrize("loaded_before", [True, False])
@pytest.mark.parametrize(
    "view",
    [
        lambda data: data,
        memoryview,
        lambda data: memoryview(data).toreadonly(),
        lambda data: numpy.frombuffer(data, numpy.uint8),
        lambda data: read_only(numpy.frombuffer(data, numpy.uint8)),
        lambda data: read_only(numpy.frombuffer(memoryview(data).toreadonly(), numpy.uint8))[:],
    ],
    ids=["bytearray", "memoryview", "read-only view", "numpy", "read-only numpy", "view of a view"],
)
def test_a_later_write_does_not_change_the_program(view, loaded_before):
    data = bytearray(BYTES)
    loaded = load_program(view(data))
    method = loaded.load_method("forward") if loaded_before else None
    data[:] = b"\xab" * len(data)
    case = case_of("add")
    if method is None:
        assert loaded.method_names == {"forward"}
        method = loaded.load_method("forward")
    check_outputs(method.execute(case.inputs), case)


def test_a_copied_bytearray_is_not_locked():
    source = bytearray(BYTES)
    loaded = load_program(source)
    source.clear()
    check_adds(loaded)


def churned() -> list[bytes]:
    """Takes up the memory that was just given back."""
    collect()
    return [bytes([number % 251]) * len(BYTES) for number in range(2000)]


@pytest.mark.parametrize("name", ["add", "conv", "constant_output", "conv_xnnpack"])
@pytest.mark.parametrize(
    "make",
    [
        lambda path: bytes(bytearray(path.read_bytes())),
        lambda path: memoryview(bytes(bytearray(path.read_bytes()))),
        lambda path: bytearray(path.read_bytes()),
        lambda path: io.BytesIO(path.read_bytes()),
        lambda path: numpy.frombuffer(path.read_bytes(), numpy.uint8),
        lambda path: path,
    ],
    ids=["bytes", "memoryview", "bytearray", "file object", "numpy", "path"],
)
def test_bytes_that_nobody_else_holds(make, name):
    method = load_program(make(model_index.path(name))).load_method("forward")
    assert churned()
    for case in model_index.cases(name, "forward"):
        check_outputs(method.execute(host_inputs(case)), case)


def test_the_bytes_are_held_by_program_and_methods_and_no_longer():
    source = numpy.frombuffer(BYTES, numpy.uint8)
    held = weakref.ref(source)
    loaded = load_program(source)
    del source
    collect()
    assert held() is not None
    methods = [loaded.load_method("forward") for _ in range(2)]
    del loaded
    collect()
    assert held() is not None
    case = case_of("add")
    for method in methods:
        check_outputs(method.execute(case.inputs), case)
    del method, methods[0]
    collect()
    assert held() is not None
    methods[0].close()
    del methods
    collect()
    assert held() is None


@pytest.mark.parametrize("broken", [b"nonsense", BYTES[:-1], BYTES[:40]])
def test_the_bytes_are_let_go_of_after_a_failure(broken):
    source = numpy.frombuffer(broken, numpy.uint8)
    held = weakref.ref(source)
    with pytest.raises(InvalidProgramError):
        load_program(source)
    del source
    collect()
    assert held() is None


def maps() -> str:
    return pathlib.Path("/proc/self/maps").read_text()


@pytest.mark.linux
@pytest.mark.parametrize("name", ["add", "conv", "digits"])
def test_a_path_is_mapped_and_unmapped(tmp_path, name):
    path = tmp_path / f"{name}.pte"
    path.write_bytes(model_index.path(name).read_bytes())
    loaded = load_program(path)
    assert str(path) in maps()
    method = loaded.load_method("forward")
    del loaded
    collect()
    assert str(path) in maps()
    for case in model_index.cases(name, "forward"):
        check_outputs(method.execute(case.inputs), case)
    del method
    collect()
    assert str(path) not in maps()


@pytest.mark.linux
def test_a_path_is_not_read_into_memory(tmp_path):
    path = tmp_path / "large.pte"
    path.write_bytes(BYTES)
    with path.open("r+b") as file:
        file.truncate(len(BYTES) + PADDING)
    before = resident()
    loaded = load_program(path)
    assert resident() - before < PADDING // 8
    check_adds(loaded)


@pytest.mark.linux
def test_no_file_stays_open(tmp_path):
    path = tmp_path / "add.pte"
    path.write_bytes(BYTES)
    broken = tmp_path / "broken.pte"
    broken.write_bytes(BYTES[:100])

    def opened():
        files = pathlib.Path("/proc/self/fd").iterdir()
        return {str(each.readlink()) for each in files if each.is_symlink() and os.path.lexists(each)}

    before = {name for name in opened() if "/proc/" not in name}
    for _ in range(20):
        load_program(path)
        with pytest.raises(InvalidProgramError):
            load_program(broken)
    collect()
    assert {name for name in opened() if "/proc/" not in name} <= before


# ---- failures ---------------------------------------------------------------------------------------------


def refusal(source, kind=InvalidProgramError, **keywords) -> str:
    with pytest.raises(kind) as caught:
        load_program(source, **keywords)
    assert not isinstance(caught.value, ExecuTorchError) or isinstance(caught.value, kind)
    return str(caught.value)


# The whole of one file that ends with its flatbuffer, and of files that end with weights, for a delegate too.
TRUNCATED = ["add", "conv", "digits", "attributes", "multi", "state_initial", "quantized_xnnpack"]


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("name", TRUNCATED)
def test_truncated_anywhere(name, verification):
    data = model_index.path(name).read_bytes()
    step = 1 if name == "add" else 13
    lengths = [*range(0, len(data), step), *range(len(data) - 70, len(data))]
    for length in lengths:
        words = refusal(data[:length], verification=verification)
        if length >= 64:
            assert "truncated" in words


@pytest.mark.parametrize("name", TRUNCATED)
def test_truncated_files(tmp_path, name):
    data = model_index.path(name).read_bytes()
    path = tmp_path / "short.pte"
    for length in [0, 1, 7, 8, 12, 63, 64, 65, len(data) // 2, len(data) - 8, len(data) - 1]:
        path.write_bytes(data[:length])
        assert str(path) in refusal(path)


def test_empty(tmp_path):
    path = tmp_path / "empty.pte"
    path.touch()
    assert "is empty" in refusal(path)
    for source in (b"", bytearray(), memoryview(b""), io.BytesIO(), numpy.zeros(0, numpy.uint8)):
        assert "is empty" in refusal(source)


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04" + bytes(100),
        b"\x89PNG\r\n\x1a\n" + bytes(200),
        b"hello, world\n" * 20,
        bytes(1000),
        b"\xff" * 1000,
        BYTES[::-1],
        BYTES[1:],
        b"\0" + BYTES,
        pathlib.Path(__file__).read_bytes(),
        numpy.arange(1000.0),
    ],
    ids=[
        "zip",
        "png",
        "text",
        "zeros",
        "ones",
        "backwards",
        "shifted left",
        "shifted right",
        "python",
        "numbers",
    ],
)
def test_not_a_program(data, tmp_path):
    words = refusal(data)
    assert "is no ExecuTorch program" in words
    assert '"ET12"' in words
    path = tmp_path / "other.pte"
    path.write_bytes(memoryview(data))
    words = refusal(path)
    assert f"'{path}' is no ExecuTorch program" in words


def test_another_version():
    assert BYTES[4:8] == b"ET12"
    words = refusal(BYTES[:4] + b"ET99" + BYTES[8:])
    assert '"ET99"' in words
    assert '"ET12"' in words
    assert "version" in words
    assert "export it again" in words


def test_a_bundled_program():
    path = model_index.path("add_bundled")
    for source in (path, path.read_bytes()):
        words = refusal(source)
        assert "is a bundled program" in words
        assert "a program is expected" in words


def test_a_data_file():
    path = model_index.DIRECTORY / "linear_external.ptd"
    for source in (path, path.read_bytes()):
        words = refusal(source)
        assert "is a data file" in words
        assert "a program is expected" in words


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("name", ["add", "conv"])
def test_a_damaged_flatbuffer(name, verification):
    """The offsets inside it are checked, whatever the caller asks the runtime to check."""
    data = bytearray(model_index.path(name).read_bytes())
    data[0:4] = b"\xff\xff\xff\x7f"
    assert "damaged" in refusal(bytes(data), verification=verification)


@pytest.mark.parametrize("field", [(12, 4), (16, 8), (24, 8), (32, 8)])
@pytest.mark.parametrize("value", [0, 1, 1 << 31, (1 << 32) - 1, (1 << 64) - 1, 1 << 63])
def test_a_damaged_header(field, value):
    at, size = field
    data = bytearray(model_index.path("conv").read_bytes())
    assert data[8:12] == b"eh00"
    data[at : at + size] = (value % (1 << (8 * size))).to_bytes(size, "little")
    try:
        loaded = load_program(bytes(data))
    except InvalidProgramError as error:
        assert "truncated" in str(error) or "damaged" in str(error)
        return
    # A header that says less than it could is one that the runtime can do without.
    try:
        method = loaded.load_method("forward")
    except ExecuTorchError as error:
        assert error.code != 0
        return
    case = case_of("conv")
    check_outputs(method.execute(case.inputs), case)


def test_missing_files(tmp_path):
    for path in (tmp_path / "none.pte", tmp_path / "no" / "such" / "place.pte"):
        with pytest.raises(FileNotFoundError) as caught:
            load_program(path)
        assert isinstance(caught.value, ProgramNotFoundError)
        assert str(path) in str(caught.value)
        assert caught.value.filename == str(path)
        assert caught.value.errno == 2
    with pytest.raises(FileNotFoundError):
        load_program("")


def test_a_dangling_link(tmp_path):
    link = tmp_path / "link.pte"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"link\.pte"):
        load_program(link)


def test_a_directory(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        load_program(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.fixture
def unprivileged():
    """As somebody whom file permissions bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_may_not_be_read(tmp_path, unprivileged):
    with pytest.raises(PermissionError):
        # pytest's directory is root's own, or the file is made unreadable by its owner.
        path = tmp_path / "secret.pte"
        if os.geteuid() != 65534:
            path.write_bytes(BYTES)
            path.chmod(0)
        load_program(path)


@pytest.mark.parametrize("path", ["add\0.pte", "\0", str(ADD) + "\0"])
def test_a_null_byte_in_a_path(path):
    with pytest.raises(ValueError, match="null"):
        load_program(path)


def test_a_file_opened_as_text():
    with ADD.open(encoding="latin-1") as file, pytest.raises(TypeError, match="'rb'"):
        load_program(file)
    with pytest.raises(TypeError, match="str, not bytes"):
        load_program(io.StringIO("text"))


@pytest.mark.parametrize("thing", [None, 7, 2.5, object(), {}, [1, 2], Runtime], ids=repr)
def test_what_is_no_source(thing):
    with pytest.raises(TypeError, match="path, a buffer or a file object"):
        load_program(thing)


def test_bytes_with_gaps():
    with pytest.raises(InputKindError, match="the bytes of a program must be contiguous"):
        load_program(memoryview(BYTES + BYTES)[::2])


def test_an_error_of_the_file_is_the_callers():
    class Broken(io.RawIOBase):
        def read(self, size=-1):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        load_program(Broken())


@pytest.mark.parametrize("name", ["", "Forward", "forward ", "no such", "forward\0x", "\u00e9", "scale\0"])
@pytest.mark.parametrize("call", ["load_method", "metadata"])
def test_unknown_methods(name, call):
    with pytest.raises(UnknownMethodError) as caught:
        getattr(program("multi"), call)(name)
    words = str(caught.value)
    assert f"no method '{name}'" in words
    for each in ("forward", "scale", "cast", "size"):
        assert f"'{each}'" in words
    assert isinstance(caught.value, KeyError)


def test_missing_operators_are_each_named():
    loaded = program("missing_operators")
    assert loaded.metadata("forward").num_inputs() == 1
    with pytest.raises(OperatorMissingError) as caught:
        loaded.load_method("forward")
    words = str(caught.value)
    assert "et_cffi_test::twice.out" in words
    assert "et_cffi_test::thrice.out" in words
    assert "load_library" in words
    assert "et_cffi_test::twice.out" in caught.value.log
    assert not words.startswith("'")


def test_a_missing_backend_is_named_beside_those_there_are():
    with pytest.raises(BackendMissingError) as caught:
        load("missing_backend")
    words = str(caught.value)
    assert "BackendWithCompilerDemo" in words
    assert "XnnpackBackend" in words.partition("registered:")[2]
    assert "load_library" in words


@pytest.mark.parametrize("name", ["missing_operators", "missing_backend"])
def test_what_fails_to_load_fails_again_and_spoils_nothing(name):
    for _ in range(20):
        with pytest.raises(NotImplementedError):
            load(name)
    case = case_of("add")
    check_outputs(load("add").execute(case.inputs), case)


# ---- what the runtime can run -----------------------------------------------------------------------------


def test_kernels_and_backends_are_there_from_the_first_load():
    runtime = Runtime.get()
    assert runtime.backend_registry.registered_backend_names.count("XnnpackBackend") == 1
    assert runtime.backend_registry.is_available("XnnpackBackend") is True
    assert runtime.backend_registry.is_available("BackendWithCompilerDemo") is False
    names = runtime.operator_registry.operator_names
    assert {
        "aten::add.out",
        "aten::convolution.out",
        "quantized_decomposed::quantize_per_tensor.out",
    } <= names
    assert "et_cffi_test::twice.out" not in names
    assert len(names) > 150


def test_a_library_that_cannot_be_loaded(tmp_path):
    for path in (tmp_path / "libnone.so", ADD):
        with pytest.raises(ExecuTorchError) as caught:
            Runtime.get().load_library(path)
        assert str(path) in str(caught.value)
        assert caught.value.code != 0
