from __future__ import annotations

import pytest
from native_backend import Backend, compile_native


@pytest.fixture(scope="session")
def backend(tmp_path_factory):
    library = tmp_path_factory.mktemp("native") / "libtest_backend.so"
    return Backend(compile_native("backend.cpp", library, "-shared", "-fPIC"))
